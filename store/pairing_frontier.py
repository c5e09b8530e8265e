"""Up to which device time all events have arrived.

A worker's events arrive in the order of its time, so nothing earlier can come from a worker than what came last from
it. A worker that says nothing for `LAG_NS` of device time does not hold the others up: by then whatever it fired
before has been published (a block is at the end of an epoch at the latest) and drained.
"""

from __future__ import annotations

import numpy as np

from .pairing_rows import I64, NONE, Array

LAG_NS = 200_000_000
"""Twice the default epoch."""
_WORKERS = 1 << 16


class Frontier:
    """`t`: every event before it has arrived. It never goes back."""

    def __init__(self, workers: Array, lag_ns: int = LAG_NS) -> None:
        """`workers`: ids declared by the engine, whose first event is waited for."""
        self._lag = lag_ns
        self._counts = np.zeros(_WORKERS, np.bool_)
        self._counts[_possible(np.asarray(workers, np.int64))] = True
        self.last: I64 = np.full(_WORKERS, NONE)
        """By worker: t of its latest event, NONE before the first."""
        self.t = NONE

    def see(self, worker: Array, t: Array) -> None:
        """Take note of a part's events, which stand in order of worker for the most part."""
        if not len(t):
            return
        first = np.concatenate([[0], np.flatnonzero(worker[1:] != worker[:-1]) + 1])
        who, latest = worker[first].astype(np.int64), np.maximum.reduceat(t, first)
        sound = (who >= 0) & (who < _WORKERS)
        who, latest = who[sound], latest[sound]
        if not len(who):
            return
        np.maximum.at(self.last, who, latest)
        self._counts[who] = True
        self.raise_to(int(self.last[self._counts].min()))
        self.raise_to(max(int(latest.max()), NONE + self._lag) - self._lag)

    def raise_to(self, t: int) -> None:
        self.t = max(self.t, t)


def _possible(workers: I64) -> I64:
    return workers[(workers >= 0) & (workers < _WORKERS)]
