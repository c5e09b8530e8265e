"""One program that is attached to the host engine: executed between dequeue and ring, and told of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....store.tables import HOOK_BY_NAME, PEER_NONE
from ...programs.execution import Execution, Limits
from ...programs.verdict import Verdict
from ..arena import aggregates, is_shared
from .account import Flow, Moment, executed_by
from .exports import Exports
from .state import I64

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
EPOCH = HOOK_BY_NAME["epoch"].id


class Attached:
    """One program in one slot. executions: by rank where maps are shared within one, else a single one for all."""

    def __init__(
        self, slot: int, program: int, verdict: Verdict, limits: Limits, monitor: I64, rank: I64, epoch_ns: int
    ) -> None:
        self.slot, self.id, self.verdict, self.limits = slot, program, verdict, limits
        # What lowers is loaded by those to whom a program comes.
        from ...programs.native import Native

        self._monitor, self._rank, self._epoch_ns = monitor, rank, epoch_ns
        apart = any(map(is_shared, verdict.program.maps)) and bool(rank.any())
        self.ranks = list(range(int(rank.max()) + 1)) if apart else [0]
        self.executions: list[Execution] = [Native(verdict, len(rank), limits) for _ in self.ranks]
        self.hooks = verdict.program.mask
        self.begun = 0

    def install(self, at: Moment) -> None:
        """It sees what is fired from now on."""
        executed = executed_by([e.counters for e in self.executions])
        self.flow = Flow(self.id, self.slot, self.hooks, executed, at)
        self.exports = Exports(self.verdict, self.flow, self._monitor, self._rank, self._epoch_ns, at)
        self.begun = at.t

    def of(self, rank: int) -> Execution:
        return self.executions[rank if len(self.ranks) > 1 else 0]

    def close(self, now: Moment) -> None:
        """Its epoch ends: the epoch hook, then the exports of its aggregations."""
        if self.hooks >> EPOCH & 1:
            self._fire_epoch(now.t)
        self.flow.sync(now.lost)
        workers = np.arange(len(self._rank))
        for rank, execution in zip(self.ranks, self.executions, strict=True):
            self.exports.add(execution.close(workers), rank)
        self.exports.pass_epoch(now)
        self.begun = now.t

    def end(self, now: Moment, limit: int) -> None:
        """It is detached, or the engine ends: what it holds is told; what is fired from now on is not its."""
        self.close(now)
        self.flow.end(now)
        for index, declared in enumerate(self.verdict.program.maps):
            if aggregates(declared) or not self.exports.tells(index):
                continue
            for rank, execution in zip(self.ranks, self.executions, strict=True):
                whose = [0] if is_shared(declared) else np.nonzero((self._rank == rank) | (len(self.ranks) == 1))[0]
                held = [execution.entries(index, int(w)) for w in whose]
                self.exports.add_state(held, rank, limit, now)

    def _fire_epoch(self, t: int) -> None:
        """One row for each worker. What it would export is refused: there is no such event in the trace."""
        n = len(self._rank)
        rows: U64 = np.zeros((n, 8), np.uint64)
        rows[:, 0], rows[:, 3] = t, self.begun
        rows[:, 6] = np.arange(n, dtype=np.uint64) << np.uint64(48)
        rows[:, 7] = self._rank.astype(np.uint64) << np.uint64(56) | np.uint64(PEER_NONE << 16 | EPOCH << 32)
        for rank, execution in zip(self.ranks, self.executions, strict=True):
            mine = rows[self._rank == rank] if len(self.ranks) > 1 else rows
            who = np.nonzero(self._rank == rank)[0] if len(self.ranks) > 1 else np.arange(n)
            by: U32 = np.zeros(len(mine), np.uint32)
            execution.run(np.ascontiguousarray(mine), by, self.slot)
            self.flow.taken[who, EPOCH] += 1
            self.flow.unwritable[who, EPOCH] += by != 0
