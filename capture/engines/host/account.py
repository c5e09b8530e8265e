"""What became of every sequence number: intervals per worker, coverage per worker and hook.

`dequeued`, `written` and `ring_lost` are counted from the rows that were taken, `lost` by the workers; nothing here
is derived from another, so that seq_to - seq_from = dequeued + lost is a check.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....store.tables import RECORDER
from ...segment.layout import Record, Summary
from .state import I64

HOOKS = 16
U64 = NDArray[np.uint64]


class Account:
    """Counts since each monitor's last cut. Arrays are [workers, HOOKS]; times in ns."""

    def __init__(self, monitor: I64, epoch_ns: int, t: int) -> None:
        self.monitor, self.epoch_ns = monitor, epoch_ns
        monitors, shape = int(monitor.max()) + 1, (len(monitor), HOOKS)
        self.dequeued, self.written, self.ring_lost = (np.zeros(shape, np.int64) for _ in range(3))
        self.all_dequeued = np.zeros(len(monitor), np.int64)
        self.all_written = self.all_ring_lost = 0
        self._lost = np.zeros(shape, np.int64)
        self._seq = np.ones(len(monitor), np.int64)
        self._t_begin = np.full(monitors, t, np.int64)

    def took(self, rows: U64, written: int) -> None:
        """rows: [n, 8] taken from workers' queues, of which the first `written` reached the ring."""
        hook = rows[:, 7] >> np.uint64(32) & np.uint64(HOOKS - 1)
        key = (rows[:, 6] >> np.uint64(48) << np.uint64(4) | hook).view(np.int64)
        shape, size = self.dequeued.shape, self.dequeued.size
        counts = np.bincount(key, minlength=size).reshape(shape)
        reached = counts if written == len(rows) else np.bincount(key[:written], minlength=size).reshape(shape)
        self.dequeued += counts
        self.written += reached
        self.ring_lost += counts - reached
        self.all_dequeued += counts.sum(axis=1)
        self.all_written += written
        self.all_ring_lost += len(rows) - written

    def records(self, monitor: int, t: int, seq: I64, lost: I64) -> I64:
        """[records, 16] of a cut at t, stamps still 0. seq: last number given out, lost: in all, by worker and hook."""
        workers = np.nonzero(self.monitor == monitor)[0]
        begin = int(self._t_begin[monitor])
        first = begin // self.epoch_ns
        epochs = max(1, -(-t // self.epoch_ns) - first)
        gone = lost[workers] - self._lost[workers]
        intervals = self._rows(len(workers), begin, t, first, epochs)
        intervals[:, Summary.WHAT] = Record.INTERVAL | workers << 32
        intervals[:, Summary.SEQ_FROM], intervals[:, Summary.SEQ_TO] = self._seq[workers], seq[workers] + 1
        intervals[:, Summary.DEQUEUED] = self.dequeued[workers].sum(axis=1)
        intervals[:, Summary.INTERVAL_LOST] = gone.sum(axis=1)
        taken = self.dequeued[workers]
        at, hook = np.nonzero(taken + gone)
        coverage = self._rows(len(at), begin, t, first, epochs)
        coverage[:, Summary.WHAT] = Record.COVERAGE | hook << 8 | RECORDER << 16 | workers[at] << 32
        coverage[:, Summary.SEQ_FROM : Summary.SEQ_TO + 1] = intervals[at, Summary.SEQ_FROM : Summary.SEQ_TO + 1]
        coverage[:, Summary.ELIGIBLE] = (taken + gone)[at, hook]
        coverage[:, Summary.OBSERVED] = coverage[:, Summary.EMITTED] = taken[at, hook]
        coverage[:, Summary.LOST] = gone[at, hook]
        coverage[:, Summary.WRITTEN] = self.written[workers][at, hook]
        coverage[:, Summary.RING_LOST] = self.ring_lost[workers][at, hook]
        return np.concatenate([intervals, coverage])

    def cut(self, monitor: int, t: int, seq: I64, lost: I64) -> None:
        """The records of a cut at t have been kept: begin the next interval there."""
        workers = self.monitor == monitor
        self._seq[workers] = seq[workers] + 1
        self._lost[workers] = lost[workers]
        self._t_begin[monitor] = t
        for counts in (self.dequeued, self.written, self.ring_lost):
            counts[workers] = 0

    def _rows(self, n: int, begin: int, end: int, first: int, epochs: int) -> I64:
        rows = np.zeros((n, Summary.WORDS), np.int64)
        rows[:, Summary.EPOCH] = first | epochs << 48
        rows[:, Summary.T_BEGIN], rows[:, Summary.T_END] = begin, end
        return rows
