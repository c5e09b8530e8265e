"""What became of every sequence number: intervals per worker, coverage per program, worker and hook.

A flow's parts are counted where they happen: `taken`, `written` and `ring_lost` from rows, `lost` by the workers, what
a program did with a row by its execution. Nothing here is derived from another, so that seq_to - seq_from = dequeued +
lost and eligible = observed + throttled + lost + faulted are checks. Counts only grow; a cut tells what was added
since the last one that was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ....store.tables import RECORDER
from ...programs.execution import HOOK_SLOTS, Count
from ...segment.words import Record, Summary
from .state import I64

HOOKS = HOOK_SLOTS
PARTS = Summary.WORDS - Summary.ELIGIBLE
"""A flow's counts, in the order of a coverage record's words."""
MOST_EPOCHS = 0x7FFF
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]

_LOSSY = [p - Summary.ELIGIBLE for p in (Summary.THROTTLED, Summary.LOST, Summary.FAULTED)]
_LOSSY += [p - Summary.ELIGIBLE for p in (Summary.RING_LOST, Summary.EMIT_THROTTLED)]
_OF_EXECUTION = {
    Summary.OBSERVED: Count.OBSERVED,
    Summary.THROTTLED: Count.THROTTLED,
    Summary.FAULTED: Count.FAULTED,
    Summary.EMITTED: Count.EMITTED,
    Summary.EMIT_THROTTLED: Count.EMIT_THROTTLED,
}


def keys_of(rows: U64) -> I64:
    """[n] worker * HOOKS + hook of rows of the ABI."""
    hook = rows[:, 7] >> np.uint64(32) & np.uint64(HOOKS - 1)
    return (rows[:, 6] >> np.uint64(48) << np.uint64(4) | hook).view(np.int64)


class Flow:
    """One program's events from when it was attached. counts: [workers, HOOKS, PARTS] so far, as of `sync`.

    executed: the counters of its executions, [workers, HOOKS, Count]; None: the recorder, which observes and emits
    whatever it is given.
    """

    def __init__(self, program: int, bit: int, mask: int, executed: Callable[[], I64] | None, at: Moment) -> None:
        self.program, self.bit, self._executed = program, bit, executed
        workers = len(at.seq)
        self.taken, self.written, self.ring_lost, self.unwritable = (
            np.zeros((workers, HOOKS), np.int64) for _ in range(4)
        )
        self.counts = np.zeros((workers, HOOKS, PARTS), np.int64)
        self._lost, self._lost_seen = np.zeros((workers, HOOKS), np.int64), at.lost.copy()
        self.unplaced: dict[int, int] = {}
        """by rank: lost, and not known of which of its workers; may have been any's"""
        self.mask = mask
        self.until: Moment | None = None
        self.cut_counts = self.counts.copy()
        self.cut_seq = at.seq + 1
        self.cut_t = np.full(at.monitors, at.t)
        self.told = np.zeros(at.monitors, np.bool_)
        """monitors in which a cut after its end was kept"""

    @property
    def mask(self) -> int:
        """Bit h set: it is attached to hook h."""
        return self._mask

    @mask.setter
    def mask(self, mask: int) -> None:
        self._mask = mask
        self._of_hook = np.array([mask >> h & 1 for h in range(HOOKS)], np.int64)

    def took(self, counts: I64) -> None:
        """Rows taken from queues, [workers, HOOKS], of which those at its hooks count."""
        self.taken += counts * self._of_hook

    def sync(self, lost: I64) -> I64:
        """Bring `counts` up to date; lost: what every worker has lost so far, [workers, HOOKS]."""
        if self.until is None:
            self._lost += (lost - self._lost_seen) * self._of_hook
            self._lost_seen = lost.copy()
        parts = {Summary.OBSERVED: self.taken, Summary.EMITTED: self.taken}
        if self._executed is not None:
            executed = self._executed()
            parts = {word: executed[:, :, count] for word, count in _OF_EXECUTION.items()}
            parts[Summary.EMIT_THROTTLED] = parts[Summary.EMIT_THROTTLED] + self.unwritable
        parts |= {Summary.ELIGIBLE: self.taken + self._lost, Summary.LOST: self._lost}
        parts |= {Summary.WRITTEN: self.written, Summary.RING_LOST: self.ring_lost}
        for word, values in parts.items():
            self.counts[:, :, word - Summary.ELIGIBLE] = values
        return self.counts

    def end(self, at: Moment) -> None:
        """It is detached: what is fired from now on is not its."""
        self.sync(at.lost)
        self.until = at

    @property
    def is_told(self) -> bool:
        """It has ended, and every cut of it was kept."""
        return bool(self.told.all())


class Moment:
    """Between two batches: time in ns, the last number that each worker gave out, what each lost by hook so far."""

    def __init__(self, t: int, seq: I64, lost: I64, monitors: int) -> None:
        self.t, self.seq, self.lost, self.monitors = t, seq.copy(), lost.copy(), monitors


class Account:
    """All flows of a run; the recorder's is always there."""

    def __init__(self, monitor: I64, rank: I64, epoch_ns: int, start: Moment) -> None:
        self.monitor, self.rank, self.epoch_ns = monitor, rank, epoch_ns
        self.recorder = Flow(RECORDER, 0, 0, None, start)
        self.flows = [self.recorder]
        self.dequeued, self.unclaimed = np.zeros((2, len(monitor)), np.int64)
        self.written = self.ring_lost = 0
        """rows, whoever emitted them"""
        self._cut_seq, self._cut_lost = start.seq + 1, start.lost.copy()
        self._cut_dequeued, self._cut_unclaimed = np.zeros((2, len(monitor)), np.int64)
        self._cut_t = np.full(start.monitors, start.t)
        self._shape = (len(monitor), HOOKS)

    def is_idle(self, now: Moment) -> bool:
        """Nothing has happened since the last cut that a record would have to tell of."""
        return not self.recorder.mask and len(self.flows) == 1 and bool((now.seq + 1 == self._cut_seq).all())

    def _added(self) -> I64:
        return self.dequeued - self._cut_dequeued

    def took(self, keys: I64) -> None:
        """Rows were taken from workers' queues; keys: see `keys_of`."""
        counts = self._count(keys)
        claimed = 0
        for flow in self.flows:
            if flow.until is None:
                claimed |= flow.mask
                flow.took(counts)
        self.dequeued += counts.sum(axis=1)
        free = [h for h in range(HOOKS) if not claimed >> h & 1]
        self.unclaimed += counts[:, free].sum(axis=1)

    def told(self, keys: I64, by: U32, *, written: bool) -> None:
        """Rows that programs emitted reached the ring, or did not."""
        for flow in self.flows:
            if flow.until is None:
                mine = by >> np.uint32(flow.bit) & np.uint32(1)
                if mine.any():
                    into = flow.written if written else flow.ring_lost
                    into += self._count(keys if mine.all() else keys[mine.view(np.int32).astype(np.bool_)])
        if written:
            self.written += len(keys)
        else:
            self.ring_lost += len(keys)

    def _count(self, keys: I64) -> I64:
        return np.bincount(keys, minlength=self._shape[0] * HOOKS).reshape(self._shape)

    def records(self, monitor: int, now: Moment) -> I64:
        """[records, 16] of a cut now, stamps still 0."""
        workers = np.nonzero(self.monitor == monitor)[0]
        intervals = self._rows(len(workers), int(self._cut_t[monitor]), now.t)
        intervals[:, Summary.WHAT] = Record.INTERVAL | workers << 32
        intervals[:, Summary.SEQ_FROM], intervals[:, Summary.SEQ_TO] = self._cut_seq[workers], now.seq[workers] + 1
        intervals[:, Summary.DEQUEUED] = self._added()[workers]
        intervals[:, Summary.INTERVAL_LOST] = (now.lost - self._cut_lost)[workers].sum(axis=1)
        intervals[:, Summary.UNCLAIMED] = (self.unclaimed - self._cut_unclaimed)[workers]
        return np.concatenate([intervals, *(self._coverage(f, monitor, workers, now) for f in self.flows)])

    def _coverage(self, flow: Flow, monitor: int, workers: I64, now: Moment) -> I64:
        end = flow.until or now
        added = flow.sync(now.lost)[workers] - flow.cut_counts[workers]
        some = added.any(axis=2)
        # The recorder's are told worker by worker: after a death they say how far each one came.
        own = some & ((added[:, :, _LOSSY] > 0).any(axis=2) | (flow.bit == 0))
        at, hook = np.nonzero(own)
        rows = self._rows(len(at), int(flow.cut_t[monitor]), end.t)
        rows[:, Summary.WHAT] = Record.COVERAGE | hook << 8 | flow.program << 16 | workers[at] << 32
        rows[:, Summary.SEQ_FROM], rows[:, Summary.SEQ_TO] = flow.cut_seq[workers[at]], end.seq[workers[at]] + 1
        rows[:, Summary.ELIGIBLE :] = added[at, hook]
        whole: NDArray[np.bool_] = np.asarray(some & ~own)
        hooks = np.nonzero(whole.any(axis=0))[0]
        merged = self._rows(len(hooks), int(flow.cut_t[monitor]), end.t)
        merged[:, Summary.WHAT] = Record.MERGED | hooks << 8 | flow.program << 16 | int(workers[0]) << 32
        merged[:, Summary.SEQ_FROM], merged[:, Summary.SEQ_TO] = whole.sum(axis=0)[hooks], self.rank[workers[0]]
        merged[:, Summary.ELIGIBLE :] = (added * whole[:, :, None]).sum(axis=0)[hooks]
        return np.concatenate([rows, merged])

    def cut(self, monitor: int, now: Moment) -> None:
        """The records of a cut now have been kept: begin the next intervals there."""
        workers = self.monitor == monitor
        self._cut_seq[workers], self._cut_lost[workers] = now.seq[workers] + 1, now.lost[workers]
        self._cut_dequeued[workers], self._cut_unclaimed[workers] = self.dequeued[workers], self.unclaimed[workers]
        self._cut_t[monitor] = now.t
        for flow in self.flows:
            end = flow.until or now
            flow.sync(now.lost)
            flow.cut_counts[workers] = flow.counts[workers]
            flow.cut_seq[workers] = end.seq[workers] + 1
            flow.cut_t[monitor] = end.t
            flow.told[monitor] = flow.until is not None
        self.flows = [f for f in self.flows if not f.is_told]

    def _rows(self, n: int, begin: int, end: int) -> I64:
        first = begin // self.epoch_ns
        epochs = min(max(1, -(-end // self.epoch_ns) - first), MOST_EPOCHS)
        rows = np.zeros((n, Summary.WORDS), np.int64)
        rows[:, Summary.EPOCH] = first | epochs << 48
        rows[:, Summary.T_BEGIN], rows[:, Summary.T_END] = begin, end
        return rows


def executed_by(counters: Iterable[I64]) -> Callable[[], I64]:
    """The counters of several executions of one program, which share no worker, as one."""
    parts = list(counters)
    return lambda: parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
