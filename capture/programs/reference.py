"""The oracle: an attached program executed by the reference interpreter. See `execution.Execution`.

*Instrumented*, it holds the verifier to its word: any fault, any access to memory that the verdict does not name for
that instruction, any instruction that no path should reach, and a run that costs more than the worst case is raised
and not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...store.tables import EVENT_ROW
from .event_environment import Environment
from .execution import COUNTS, HOOK_SLOTS, I64, U32, U64, Count, Export, Limits
from .interpreter import Interpreter
from .map_state import MapState
from .maps import MapKind
from .memory import Allocation, Fault, Memory
from .program import Entry, Program
from .verdict import Region, Verdict

_HOOK, _WORKER = EVENT_ROW.offsets["hook"], EVENT_ROW.offsets["worker"]


def _one_for_all(program: Program, index: int) -> bool:
    return program.maps[index].shared or program.maps[index].kind == MapKind.FEEDBACK


class Reference:
    """An Execution for `workers` workers. shared: `.shared` of another execution of the same program on this rank.

    run raises ValueError for a row of a worker or hook that is not there.
    """

    def __init__(
        self,
        verdict: Verdict,
        workers: int,
        limits: Limits | None = None,
        shared: Mapping[int, MapState] | None = None,
        *,
        instrumented: bool = False,
    ) -> None:
        self.verdict, self.workers, self.limits = verdict, workers, limits or Limits()
        self.counters: I64 = np.zeros((workers, HOOK_SLOTS, COUNTS), np.int64)
        self.instrumented = instrumented
        program = verdict.program
        self._code = Interpreter(program.insns, verdict.frames, instrumented=instrumented)
        self._watch = _Promises(verdict) if instrumented else None
        every = range(len(program.maps))
        fresh = {i: MapState(program.maps[i]) for i in every if _one_for_all(program, i)}
        self.shared: Mapping[int, MapState] = fresh if shared is None else shared
        own = [i for i in every if i not in self.shared]
        self._maps = [{**self.shared, **{i: MapState(program.maps[i]) for i in own}} for _ in range(workers)]
        self._spent = [0] * workers
        self._emitted = [0] * workers

    def run(self, rows: U64, by: U32, bit: int) -> None:
        for i, row in enumerate(rows):
            context = row.tobytes()
            hook, worker = context[_HOOK], int.from_bytes(context[_WORKER : _WORKER + 2], "little")
            if worker >= self.workers or hook >= HOOK_SLOTS:
                raise ValueError(f"row {i} is of worker {worker} at hook {hook}")
            entry = self.verdict.program.entry(hook)
            if entry and self._see(entry, hook, worker, context):
                by[i] |= np.uint32(1 << bit)

    def _see(self, entry: Entry, hook: int, worker: int, context: bytes) -> bool:
        """Whether the row is to be exported."""
        counts, cost = self.counters[worker, hook], self.verdict.cost[hook]
        if self._spent[worker] + cost > self.limits.instructions:
            counts[Count.THROTTLED] += 1
            return False
        self._spent[worker] += cost
        memory = Memory()
        event = Environment(self.verdict, memory, self._maps[worker], context, instrumented=self.instrumented)
        try:
            self._code.run(entry.pc, (event.context,), memory, event, cost, self._watch)
            counts[Count.OBSERVED] += 1
        except Fault:
            if self.instrumented:
                raise
            counts[Count.FAULTED] += 1
        if not event.emitted:
            return False
        counts[Count.EMITTED] += 1
        if self._emitted[worker] >= self.limits.rows:
            counts[Count.EMIT_THROTTLED] += 1
            return False
        self._emitted[worker] += 1
        return True

    def close(self, workers: I64) -> list[Export]:
        out: list[Export] = []
        for worker in map(int, workers):
            self._spent[worker] = self._emitted[worker] = 0
            own = ((i, m) for i, m in sorted(self._maps[worker].items()) if i not in self.shared)
            out += [m.close(i, worker) for i, m in own if m.aggregates]
        if set(map(int, workers)) == set(range(self.workers)):
            out += [m.close(i, -1) for i, m in sorted(self.shared.items()) if m.aggregates]
        return out

    def entries(self, map_index: int, worker: int) -> Export:
        return self._maps[worker][map_index].entries(map_index, -1 if map_index in self.shared else worker)

    def feed(self, map_index: int, index: int, value: int, epoch: int) -> None:
        """Raises ValueError where there is no such cell."""
        state = self.shared.get(map_index)
        if state is None:
            raise ValueError(f"map {map_index} has no feedback cells")
        state.feed(index, value, epoch)


class _Promises:
    """The interpreter's Watch: what the verdict says of each instruction must be what happens."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def step(self, pc: int) -> None:
        if pc not in self._verdict.reachable:
            raise Fault("the verdict says that no path comes here")

    def access(self, pc: int, allocation: Allocation, offset: int, size: int) -> None:
        said = self._verdict.access.get(pc)
        if said is None or said.region != allocation.region:
            raise Fault(f"the verdict says {said}, not {allocation.region}")
        if said.region == Region.VALUE and said.map != allocation.map:
            raise Fault(f"the verdict says map {said.map}, not {allocation.map}")
        if said.region == Region.CONTEXT and (said.offset, said.size) != (offset, size):
            raise Fault(f"the verdict says bytes {said.offset} to {said.offset + said.size} of the row, not {offset}")
