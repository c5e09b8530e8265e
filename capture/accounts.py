"""From summary records to the trace's tables: intervals, coverage, and the losses they tell of.

Records are merged over workers, one row per epoch span × hook × program, except where something was lost: there the
worker keeps its own row, so that a loss has a place.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..store.tables import COVERAGE, INTERVALS, RECORDER, Table
from .segment.drain import Loss
from .segment.layout import Record, Summary
from .segment.reader import SegmentReader

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
        self.closed_to = np.ones(workers, np.int64)
        """[workers] first sequence number that no closed interval covers"""
        self.closed_rows = np.zeros(workers, np.int64)
        """[workers] rows written to the ring, by closed coverage"""
        self.seen_rows = np.zeros(workers, np.int64)
        self.seen_to = np.ones(workers, np.int64)
        self.open_since = np.zeros(workers, np.int64)
        self.missing = 0
        self.eligible = 0

    def saw(self, rows: pa.RecordBatch) -> None:
        """Count event rows, so that after a death the open interval can say what was seen of it."""
        if not rows.num_rows:
            return
        worker, seq = rows["worker"].to_numpy(), rows["seq"].to_numpy()
        self.seen_rows += np.bincount(worker, minlength=len(self.seen_rows))
        # A worker's rows come in order, and of repeated indices the last assignment stands.
        last = self.seen_to.copy()
        last[worker] = seq.astype(np.int64) + 1
        np.maximum(self.seen_to, last, out=self.seen_to)

    def book(self, words: I64) -> tuple[pa.RecordBatch, pa.RecordBatch, list[Loss]]:
        """(intervals, coverage, losses) of records of 16 words each."""
        kind = words[:, Summary.WHAT] & 0xFF
        intervals, coverage = words[kind == Record.INTERVAL], words[kind == Record.COVERAGE]
        worker = intervals[:, Summary.WHAT] >> 32
        np.maximum.at(self.closed_to, worker, intervals[:, Summary.SEQ_TO])
        np.maximum.at(self.open_since, worker, intervals[:, Summary.T_END])
        np.add.at(self.closed_rows, coverage[:, Summary.WHAT] >> 32, coverage[:, Summary.WRITTEN])
        self.eligible += int(coverage[:, Summary.ELIGIBLE].sum())
        return self._rows(INTERVALS, intervals), self._rows(COVERAGE, coverage), self._losses(coverage)

    def _losses(self, coverage: I64) -> list[Loss]:
        losses = []
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
        columns |= {name: words[:, word] for name, word in _WORD[table.name].items()}
        missing = sum((columns[n] for n in _MISSING if n in columns), np.zeros(len(words), np.int64))
        # Worker -1 stands for "merged": whole records of all workers share a group, lossy ones keep their own.
        columns["worker"] = np.where(missing > 0, worker, -1)
        columns["workers"] = np.ones(len(words), np.int64)
        return _merge(table, columns)

    def unclosed(self, t_end: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """After a death: one open row per worker that had fired since its last cut.

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
        return _batch(INTERVALS, base, n), _batch(COVERAGE, base, n)


def _batch(table: Table, columns: dict[str, Any], n: int) -> pa.RecordBatch:
    arrays: list[Any] = []
    for c in table:
        values = np.asarray(columns.get(c.name, np.zeros(n)))
        arrays.append(pa.array(values.astype(c.arrow.to_pandas_dtype()), c.arrow))
    return pa.record_batch(arrays, schema=table.schema)


_KEYS = ("rank", "worker", "program", "hook", "epoch", "epochs")
_SPAN = {"t_begin": "min", "t_end": "max", "seq_from": "min", "seq_to": "max"}
_HOW: dict[str, Literal["min", "max", "sum"]] = {"min": "min", "max": "max", "sum": "sum"}


def _merge(table: Table, columns: dict[str, I64]) -> pa.RecordBatch:
    """Rows with equal keys added up; times and sequence numbers span them, and are null where workers were merged."""
    keys = [k for k in _KEYS if k in table.names]
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
