"""What the monitor of a synthetic recording counts: intervals, coverage and losses, as a drain writes them.

Rows are merged over workers, one per epoch and hook, except where a worker lost something: there it keeps its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from megascope.store import tables as tb
from megascope.store.trace import TraceWriter

HOOKS = 16

Array = np.ndarray[Any, Any]


class Accounts:
    """Counts what was fired and what was lost, by epoch, worker and hook."""

    def __init__(self, workers: int, epoch_ns: int, begin: int) -> None:
        """begin: device time at which the recording begins, ns."""
        self._workers, self._epoch_ns, self._begin = workers, epoch_ns, begin
        self._counts: dict[int, Array] = {}
        self.fired = np.zeros(workers, np.int64)
        """[workers] events so far, lost ones among them"""
        self._closed_to = np.ones(workers, np.int64)

    def count(self, t: Array, worker: Array, hook: Array, *, lost: bool) -> None:
        """Count rows of equal length; t in ns."""
        if not len(t):
            return
        epoch = t // self._epoch_ns
        first = int(epoch.min())
        shape = (int(epoch.max()) - first + 1, self._workers, HOOKS)
        key = ((epoch - first) * self._workers + worker.astype(np.int64)) * HOOKS + hook
        counts = np.bincount(key, minlength=shape[0] * shape[1] * shape[2]).reshape(shape)
        for i, n in enumerate(counts, first):
            self._counts.setdefault(i, np.zeros((2, self._workers, HOOKS), np.int64))[int(lost)] += n
        self.fired += counts.sum(axis=(0, 2))

    def close(self, writer: TraceWriter, until: int) -> None:
        """Write the epochs that have ended at `until`, in ns; the recording's own end closes its last one early."""
        for epoch in sorted(self._counts):
            begin, end = epoch * self._epoch_ns, (epoch + 1) * self._epoch_ns
            if end <= until:
                self._write(writer, epoch, self._counts.pop(epoch), max(begin, self._begin), end)

    def finish(self, writer: TraceWriter, end: int) -> None:
        """Write the last epoch, which ends at `end`, and each worker's last word."""
        self.close(writer, end)
        for epoch in sorted(self._counts):
            begin = max(epoch * self._epoch_ns, self._begin)
            self._write(writer, epoch, self._counts.pop(epoch), begin, end)
        given = {"worker": np.arange(self._workers), "fired": self.fired, "heartbeat": end, "waiting": False}
        writer.append("now", _batch(tb.NOW, self._workers, given))

    def _write(self, writer: TraceWriter, epoch: int, counts: Array, begin: int, end: int) -> None:
        written, lost = counts
        when = {"epoch": epoch, "epochs": 1, "t_begin": begin, "t_end": end, "closed": True}
        seqs, gone = (written + lost).sum(axis=1), lost.sum(axis=1)
        whole = (gone == 0) & (seqs > 0)
        own = np.flatnonzero(gone)
        seq_to = self._closed_to + seqs
        flow = {"seqs": seqs, "dequeued": seqs - gone, "lost": gone}
        given = when | {n: c[own] for n, c in flow.items()} | {"worker": own, "workers": 1}
        given |= {"seq_from": self._closed_to[own], "seq_to": seq_to[own]}
        writer.append("intervals", _batch(tb.INTERVALS, len(own), given))
        if whole.any():
            merged = {n: c[whole].sum() for n, c in flow.items()} | {"workers": whole.sum()}
            writer.append("intervals", _batch(tb.INTERVALS, 1, when | merged))
        self._closed_to = seq_to
        worker, hook = np.nonzero(lost)
        writer.append("coverage", _coverage(when, worker, 1, hook, written[worker, hook], lost[worker, hook]))
        complete = np.where(lost == 0, written, 0)
        hooks = np.flatnonzero(complete.sum(axis=0))
        of = (complete > 0).sum(axis=0)[hooks]
        writer.append("coverage", _coverage(when, None, of, hooks, complete.sum(axis=0)[hooks], np.zeros(len(hooks))))
        for w in own.tolist():
            writer.lose("queue_full", int(gone[w]), worker=w, t_begin=begin, t_end=end)


def _coverage(
    when: dict[str, Any], worker: Array | None, workers: Any, hook: Array, written: Array, lost: Array
) -> pa.RecordBatch:
    given = when | {"workers": workers, "program": tb.RECORDER, "hook": hook, "eligible": written + lost, "lost": lost}
    if worker is not None:
        given["worker"] = worker
    given |= dict.fromkeys(("observed", "emitted", "written"), written)
    return _batch(tb.COVERAGE, len(hook), given)


def _batch(table: tb.Table, n: int, given: dict[str, Any]) -> pa.RecordBatch:
    """n rows; what is not given is null where it may be, else 0."""
    arrays: list[Any] = []
    for c in table:
        if c.nullable and c.name not in given:
            arrays.append(pa.nulls(n, c.arrow))
        else:
            values = np.broadcast_to(np.asarray(given.get(c.name, 0)), n)
            arrays.append(pa.array(values.astype(c.arrow.to_pandas_dtype()), c.arrow))
    return pa.record_batch(arrays, schema=table.schema)
