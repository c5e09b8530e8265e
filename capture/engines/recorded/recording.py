"""What a trace has for programs to run over, and what of it is missing.

Programs see a *population*: the rows of the recorder, which took every event of its hooks, or of a program that took a
sample of the tasks. Rows that a program chose to emit are none: nothing that is counted over them holds for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ....store.errors import Refused
from ....store.manifest import slot_of
from ....store.reader import Trace
from ....store.tables import HOOK_BY_NAME, MAX_WORKERS, WORKERS
from ...programs.execution import HOOK_SLOTS

I64 = NDArray[np.int64]
MOST_RANKS = 256
_MISSING = ("throttled", "lost", "faulted", "ring_lost", "emit_throttled")


@dataclass(frozen=True)
class Population:
    """Whose rows programs see. bit: in `by`. selection: all, or sampled(1/n). alone: every row is one of them."""

    program: int
    name: str
    bit: int
    selection: str
    alone: bool


class Recording:
    """A trace as the input of a replay. monitor, rank: by worker. begin, end: device time, ns. hooks: mask.

    cuts: where epochs ended, ascending, after `begin`; closed_to: no interval that ends later is known to be whole.
    Raises Refused for a trace that programs cannot run over.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.path = trace, trace.path
        self.what = f"cannot replay {trace.path}"
        engine = trace.manifest["engine"]
        self.epoch_ns = int(engine.get("epoch_ns", 0))
        if self.epoch_ns <= 0:
            raise Refused(self.what, "it does not say how long its epochs are", "record it with megascope capture")
        self.monitor, self.rank = self._workers()
        coverage, intervals = rows_of(trace, "coverage"), rows_of(trace, "intervals")
        self.population = self._population(coverage)
        self.hooks = self._hooks()
        self._count(coverage)
        self._time(intervals)

    @property
    def workers(self) -> int:
        return len(self.rank)

    def _workers(self) -> tuple[I64, I64]:
        table = self.trace.table(WORKERS.name)
        ids = table["worker"].to_numpy().astype(np.int64)
        n = len(ids)
        if not 0 < n <= MAX_WORKERS or not np.array_equal(np.sort(ids), np.arange(n)):
            raise Refused(self.what, "its table `workers` does not name every worker once", "run megascope check on it")
        monitor, rank = (np.zeros(n, np.int64) for _ in range(2))
        monitor[ids], rank[ids] = table["monitor"].to_numpy(), table["rank"].to_numpy()
        if rank.min() < 0 or rank.max() >= MOST_RANKS:
            raise Refused(self.what, "its table `workers` has impossible ranks", "run megascope check on it")
        # A monitor serves one rank. Its number is only told apart from others, so that any will do.
        return np.unique(rank << 40 ^ monitor, return_inverse=True)[1].astype(np.int64), rank

    def _population(self, coverage: pa.Table) -> Population:
        programs: list[dict[str, Any]] = self.trace.manifest["programs"]
        seen = coverage["program"].to_numpy()
        observed = set(seen[coverage["observed"].to_numpy() > 0].tolist())
        partial = [p for p in programs if p["selection"] != "all" and p["program"] in observed]
        for kind in ("all", "sampled"):
            for p in programs:
                slot = slot_of(p)
                if slot is None or p["selection"].partition("(")[0] != kind:
                    continue
                if p["program"] in observed or not partial:
                    alone = all(q["program"] == p["program"] for q in programs)
                    return Population(p["program"], p["name"], slot, p["selection"], alone)
        names = ", ".join(p["name"] for p in partial) or "nobody"
        why = f"its rows were chosen by {names}: what is counted over them holds for no other events"
        raise Refused(self.what, why, "record every event (capture without --no-raw)")

    def _hooks(self) -> int:
        """Hooks of which the population has rows."""
        said = self.trace.manifest["engine"].get("exported_hooks", [])
        for row in self.trace.manifest["programs"]:
            if row["program"] == self.population.program and row.get("hooks"):
                said = row["hooks"]
        return sum(1 << HOOK_BY_NAME[h].id for h in set(said))

    def _count(self, coverage: pa.Table) -> None:
        c = {name: coverage[name].to_numpy(zero_copy_only=False) for name in ("program", "hook", "closed", "t_end")}
        worker = _filled(coverage["worker"])
        rank = coverage["rank"].to_numpy().astype(np.int64)
        mine = (c["program"] == self.population.program) & c["closed"]
        mine &= (c["hook"] >= 0) & (c["hook"] < HOOK_SLOTS) & (worker < self.workers)
        mine &= (rank >= 0) & (rank <= self.rank.max())
        order = np.nonzero(mine)[0][np.argsort(c["t_end"][mine], kind="stable")]
        self._ends, self._hook = c["t_end"][order], c["hook"][order].astype(np.int64)
        self._worker, self._rank_of_row = worker[order], rank[order]
        eligible = coverage["eligible"].to_numpy()
        if self.population.selection != "all":
            # What a sample left out on purpose is not missing; of what its program never saw, all might be of it.
            eligible = eligible - coverage["observed"].to_numpy() + coverage["emitted"].to_numpy()
        self._eligible = eligible[order]
        missing: I64 = np.sum([coverage[n].to_numpy() for n in _MISSING], axis=0, dtype=np.int64)
        self._missing = missing[order]
        self._at = 0
        self.eligible = np.zeros((int(self.rank.max()) + 1, HOOK_SLOTS), np.int64)
        """by rank and hook: events of intervals that have been passed"""
        self.lost = np.zeros((self.workers, HOOK_SLOTS), np.int64)
        """by worker and hook: those of them that are known to be missing, and of whom"""

    def told_missing(self, hooks: Sequence[int]) -> int:
        """Events of closed intervals at these hooks that coverage says are missing."""
        return int(self._missing[np.isin(self._hook, hooks)].sum())

    def pass_time(self, t: int) -> None:
        """Count the intervals that ended by t, or before."""
        to = int(np.searchsorted(self._ends, t, side="right"))
        some = slice(self._at, to)
        if to > self._at:
            np.add.at(self.eligible, (self._rank_of_row[some], self._hook[some]), self._eligible[some])
            known = self._worker[some] >= 0
            at = self._worker[some][known], self._hook[some][known]
            np.add.at(self.lost, at, self._missing[some][known])
            self._at = to

    def _time(self, intervals: pa.Table) -> None:
        begins, ends = intervals["t_begin"].to_numpy(), intervals["t_end"].to_numpy()
        closed = intervals["closed"].to_numpy(zero_copy_only=False)
        self.begin = int(begins.min()) if len(begins) else None
        self.end = int(ends.max()) if len(ends) else 0
        self.closed_to = int(ends[closed].max()) if closed.any() else 0
        # An interval that no cut closed may have begun anywhere after the last of its worker.
        if not closed.all():
            self.closed_to = min(self.closed_to, int(begins[~closed].min()))
        self.cuts: I64 = np.unique(ends[closed & (ends % self.epoch_ns == 0)]).astype(np.int64)


def _filled(column: pa.ChunkedArray[Any]) -> I64:
    """-1 where it is null."""
    filled: Any = pc.fill_null(column, pa.scalar(-1, column.type))
    out: I64 = filled.to_numpy().astype(np.int64)
    return out


def rows_of(trace: Trace, stream: str) -> pa.Table:
    """All rows of a stream of summaries, sealed and not. Raises Refused for a part that cannot be read."""
    tail = trace.tail(stream)
    try:
        parts = [pq.read_table(p.path, schema=tail.schema) for p in trace.verified(stream)]
    except (OSError, pa.ArrowException) as error:
        raise Refused(f"cannot read {stream} of {trace.path}", str(error), "run megascope check on it") from None
    return pa.concat_tables([*parts, tail]).combine_chunks()


def same_place(one: Path, other: Path) -> bool:
    """Whether two paths are one directory."""
    return one.resolve() == other.resolve()
