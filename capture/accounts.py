"""From summary records to the trace's tables: intervals, coverage, and the losses they tell of.

Records are merged over workers, one row per epoch span × hook × program, except where something was lost: there the
worker keeps its own row, so that a loss has a place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..store.tables import COVERAGE, INTERVALS, RECORDER, Table
from .segment.drain import Loss
from .segment.program_words import SLOTS
from .segment.reader import SegmentReader
from .segment.words import Record, Summary

I64 = npt.NDArray[np.int64]
_WORD = {
    "intervals": {"dequeued": Summary.DEQUEUED, "lost": Summary.INTERVAL_LOST, "unclaimed": Summary.UNCLAIMED},
    "coverage": {
        name: Summary[name.upper()]
        for name in (
            "eligible",
            "observed",
            "throttled",
            "lost",
            "faulted",
            "emitted",
            "written",
            "ring_lost",
            "emit_throttled",
        )
    },
}
_MISSING = ("throttled", "lost", "faulted", "ring_lost", "emit_throttled")


class Accounts:
    """Turns the words of summary records into rows, and remembers where each worker's last closed interval ended."""

    def __init__(self, segment: SegmentReader) -> None:
        workers = segment.layout.workers
        self._rank = segment.rank_of.astype(np.int64)
        self._monitor = segment.monitor_of.astype(np.int64)
        self._watched = np.bincount(self._monitor)
        """[monitors] how many workers each watches"""
        self.closed_to = np.ones(workers, np.int64)
        """[workers] first sequence number that no closed interval covers"""
        self.closed_rows = np.zeros(workers, np.int64)
        """[workers] rows that the recorder wrote to the ring, by closed coverage"""
        self.seen_rows = np.zeros(workers, np.int64)
        self.closed_of: dict[int, int] = defaultdict(int)
        """rows that each other program wrote, by closed coverage"""
        self.seen_of = np.zeros(SLOTS, np.int64)
        """rows seen of each slot"""
        self.seen_to = np.ones(workers, np.int64)
        self.open_since = np.zeros(workers, np.int64)
        self.missing = 0
        self.eligible = 0

    def saw(self, rows: pa.RecordBatch) -> None:
        """Count event rows, so that after a death the open interval can say what was seen of it."""
        if not rows.num_rows:
            return
        worker, seq, by = (rows[c].to_numpy() for c in ("worker", "seq", "by"))
        recorded = by & 1 != 0
        self.seen_rows += np.bincount(worker if recorded.all() else worker[recorded], minlength=len(self.seen_rows))
        if by.max() > 1:
            for slot in range(1, SLOTS):
                self.seen_of[slot] += np.count_nonzero(by >> slot & 1)
        # A worker's rows come in order, and of repeated indices the last assignment stands.
        last = self.seen_to.copy()
        last[worker] = seq.astype(np.int64) + 1
        np.maximum(self.seen_to, last, out=self.seen_to)

    def book(self, words: I64) -> tuple[pa.RecordBatch, pa.RecordBatch, list[Loss]]:
        """(intervals, coverage, losses) of records of 16 words each."""
        kind = words[:, Summary.WHAT] & 0xFF
        intervals, coverage = words[kind == Record.INTERVAL], words[kind != Record.INTERVAL]
        worker = intervals[:, Summary.WHAT] >> 32
        np.maximum.at(self.closed_to, worker, intervals[:, Summary.SEQ_TO])
        np.maximum.at(self.open_since, worker, intervals[:, Summary.T_END])
        program = coverage[:, Summary.WHAT] >> 16 & 0xFFFF
        own = coverage[program == RECORDER]
        np.add.at(self.closed_rows, own[:, Summary.WHAT] >> 32, own[:, Summary.WRITTEN])
        for other in np.unique(program[program != RECORDER]).tolist():
            self.closed_of[other] += int(coverage[program == other, Summary.WRITTEN].sum())
        # Whoever records all rows speaks for the loss of events; without that, the programs together do.
        self.eligible += int((own if len(own) else coverage)[:, Summary.ELIGIBLE].sum())
        return self._rows(INTERVALS, intervals), self._rows(COVERAGE, coverage), self._losses(coverage)

    def _losses(self, coverage: I64) -> list[Loss]:
        losses = []
        # The same event may be missing to several programs: it is one loss, told of whoever missed most.
        coverage = self._most(coverage)
        worker = coverage[:, Summary.WHAT] >> 32
        for kind, word in (("queue_full", Summary.LOST), ("ring_full", Summary.RING_LOST)):
            for w in np.unique(worker[coverage[:, word] > 0]).tolist():
                of = coverage[(worker == w) & (coverage[:, word] > 0)]
                count = int(of[:, word].sum())
                self.missing += count
                t_begin, t_end = int(of[:, Summary.T_BEGIN].min()), int(of[:, Summary.T_END].max())
                losses.append(Loss(kind, count, worker=w, t_begin=t_begin, t_end=t_end))
        return losses

    def _rows(self, table: Table, words: I64) -> pa.RecordBatch:
        if not len(words):
            return pa.RecordBatch.from_pylist([], schema=table.schema)
        what = words[:, Summary.WHAT]
        worker = what >> 32
        columns: dict[str, I64] = {
            "rank": self._rank[worker],
            "program": what >> 16 & 0xFFFF,
            "hook": what >> 8 & 0xFF,
            "epoch": words[:, Summary.EPOCH] & (1 << 48) - 1,
            "epochs": words[:, Summary.EPOCH] >> 48,
            "t_begin": words[:, Summary.T_BEGIN],
            "t_end": words[:, Summary.T_END],
            "seq_from": words[:, Summary.SEQ_FROM],
            "seq_to": words[:, Summary.SEQ_TO],
            "seqs": words[:, Summary.SEQ_TO] - words[:, Summary.SEQ_FROM],
        }
        merged = what & 0xFF == Record.MERGED
        columns |= {name: words[:, word] for name, word in _WORD[table.name].items()}
        missing = sum((columns[n] for n in _MISSING if n in columns), np.zeros(len(words), np.int64))
        # Worker -1 stands for "merged": whole records of all workers share a group, lossy ones keep their own.
        columns["worker"] = np.where((missing > 0) & ~merged, worker, -1)
        columns["workers"] = np.where(merged, words[:, Summary.SEQ_FROM], 1)
        # What one worker lost keeps its interval: several of one epoch are not one.
        columns["interval"] = np.where(columns["worker"] < 0, -1, words[:, Summary.SEQ_FROM])
        keys, who = {k: columns[k] for k in _keys(table)}, np.where(merged, -1, worker)
        monitor = self._monitor[worker]
        columns["workers"] = _stand_for(keys, monitor, who, columns["workers"], self._watched)
        return _merge(table, columns)

    @staticmethod
    def _most(coverage: I64) -> I64:
        """Of records of the same worker, hook and interval those of the program that misses most."""
        where: I64 = coverage[(coverage[:, Summary.WHAT] & 0xFF == Record.COVERAGE)]
        where = where[(where[:, Summary.LOST] > 0) | (where[:, Summary.RING_LOST] > 0)]
        if not (where[:, Summary.WHAT] >> 16 & 0xFFFF != RECORDER).any():
            return where
        place = where[:, Summary.WHAT] & ~(0xFFFF << 16)
        order = np.lexsort((-where[:, Summary.LOST] - where[:, Summary.RING_LOST], where[:, Summary.T_END], place))
        where, place = where[order], place[order]
        first = np.ones(len(where), np.bool_)
        first[1:] = (place[1:] != place[:-1]) | (where[1:, Summary.T_END] != where[:-1, Summary.T_END])
        most: I64 = where[first]
        return most

    def unclosed(
        self, t_end: int, live: Iterable[int] = (), slot_of: Mapping[int, int] | None = None
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """After a death: one open row per worker that had fired since its last cut, one per program that was `live`.

        slot_of: of every program met, by id.

        What it was eligible for is unknown; hook 0 stands for all hooks. `seqs` and `dequeued` say what
        was seen; rows that died in a queue are not among them.
        """
        rows = np.maximum(self.seen_rows - self.closed_rows, 0)
        some = np.nonzero(rows)[0]
        n = len(some)
        base: dict[str, Any] = {
            "rank": self._rank[some],
            "worker": some,
            "workers": np.ones(n),
            "epoch": np.zeros(n),
            "epochs": np.ones(n),
            "t_begin": self.open_since[some],
            "t_end": np.full(n, t_end),
            "seq_from": self.closed_to[some],
            "seq_to": np.maximum(self.seen_to[some], self.closed_to[some]),
            "seqs": rows[some],
            "dequeued": rows[some],
            "program": np.full(n, RECORDER),
            "closed": np.zeros(n, np.bool_),
        }
        base |= dict.fromkeys(("eligible", "observed", "emitted", "written"), rows[some])
        intervals, coverage = _batch(INTERVALS, base, n), [_batch(COVERAGE, base, n)]
        slots = slot_of or {}
        for program in live:
            closed = sum(self.closed_of[p] for p, slot in slots.items() if slot == slots[program])
            seen = max(0, int(self.seen_of[slots[program]]) - closed)
            one: dict[str, Any] = {"program": program, "workers": len(self.seen_rows), "epochs": 1, "t_end": t_end}
            one |= {"t_begin": int(self.open_since.max(initial=0)), "rank": 0, "closed": False, "worker": None}
            one |= dict.fromkeys(("eligible", "observed", "emitted", "written"), seen)
            whole = {c.name: one.get(c.name, 0) for c in COVERAGE}
            coverage.append(pa.RecordBatch.from_pylist([whole], schema=COVERAGE.schema))
        (joined,) = pa.Table.from_batches(coverage).combine_chunks().to_batches() or [coverage[0]]
        return intervals, joined


def _batch(table: Table, columns: dict[str, Any], n: int) -> pa.RecordBatch:
    arrays: list[Any] = []
    for c in table:
        values = np.asarray(columns.get(c.name, np.zeros(n)))
        arrays.append(pa.array(values.astype(c.arrow.to_pandas_dtype()), c.arrow))
    return pa.record_batch(arrays, schema=table.schema)


_KEYS = ("rank", "worker", "program", "hook", "epoch", "epochs")
_HIDDEN = ("interval",)
"""Keys that are no columns."""
_SPAN = {"t_begin": "min", "t_end": "max", "seq_from": "min", "seq_to": "max"}
_HOW: dict[str, Literal["min", "max", "sum"]] = {"min": "min", "max": "max", "sum": "sum"}


def _keys(table: Table) -> list[str]:
    return [k for k in _KEYS if k in table.names] + list(_HIDDEN)


def _stand_for(keys: dict[str, I64], monitor: I64, who: I64, workers: I64, watched: I64) -> I64:
    """[rows] workers, so that the sum over rows of equal keys is how many workers they stand for.

    A worker (who) may have closed several intervals of one epoch, and is one all the same. Of records that an engine
    has merged (who -1) it is known how many workers each stands for, and not which: with the others at most all that
    their monitor watches.
    """
    rows = pa.table(keys | {"monitor": monitor, "who": who, "n": workers, "at": np.arange(len(who))})
    one = rows.group_by([*keys, "monitor", "who"]).aggregate([("n", "sum"), ("at", "min")])
    n = np.where(one["who"].to_numpy() < 0, one["n_sum"].to_numpy(), 1)
    one = one.append_column("n", pa.array(n))
    of_monitor = one.group_by([*keys, "monitor"]).aggregate([("n", "sum"), ("at_min", "min")])
    out = np.zeros(len(who), np.int64)
    most = watched[of_monitor["monitor"].to_numpy()]
    out[of_monitor["at_min_min"].to_numpy()] = np.minimum(of_monitor["n_sum"].to_numpy(), most)
    return out


def _merge(table: Table, columns: dict[str, I64]) -> pa.RecordBatch:
    """Rows with equal keys added up; times and sequence numbers span them, and are null where workers were merged."""
    keys = _keys(table)
    added = {n: _SPAN.get(n, "sum") for n in table.names if n in columns and n not in keys}
    plain = pa.table({n: columns[n] for n in (*keys, *added)})
    grouped = plain.group_by(keys, use_threads=False).aggregate([(n, _HOW[how]) for n, how in added.items()])
    merged = grouped["worker"].to_numpy() < 0
    arrays: list[Any] = []
    for c in table:
        if c.name == "closed":
            arrays.append(pa.array(np.ones(len(grouped), np.bool_)))
            continue
        values = grouped[c.name if c.name in keys else f"{c.name}_{added[c.name]}"].to_numpy()
        nulls = merged if c.name in ("worker", "seq_from", "seq_to") else None
        arrays.append(pa.array(values.astype(c.arrow.to_pandas_dtype()), c.arrow, mask=nulls))
    return pa.record_batch(arrays, schema=table.schema)
