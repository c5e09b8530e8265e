"""Of which device times a trace has every row of the recorder that came: what marks may claim.

An engine that runs already has no rows of the recorder before the cut at which its monitors began to record, though a
trigger may have emitted some. And where the budget of the disk is spent, rows are refused, and come again later.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .accounts import I64

Stretch = tuple[int, int]
STRETCHES_MOST = 4096
"""Stretches that are told apart; the oldest are taken for one."""
_EVER = 1 << 62


class Whole:
    """Device times in ns; stretches include both ends.

    raw: there is a recorder of all rows; else those that programs emit are all there are. since: from where on its rows
    are there, None before the first. last: the time of the last one.
    """

    def __init__(self, *, raw: bool = True) -> None:
        self.since: int | None = None
        self.last: int | None = None
        self.begun = False
        """Every monitor records: a worker whose first row comes now has had none before that is missing."""
        self._raw = raw
        self._met: set[int] = set()
        """workers that have had rows"""
        self._first, self._latest = _EVER, 0
        """when the first row was, and when the latest worker that had fired before had its first"""
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._refusing = False

    def saw(self, rows: pa.RecordBatch) -> bool:
        """Ring rows have come. Whether `since` is another now."""
        t = rows["t"].to_numpy().astype(np.int64)
        recorded = rows["by"].to_numpy() & 1 == 1 if self._raw else np.ones(len(t), np.bool_)
        if not recorded.all():
            t = t[recorded]
        if not len(t):
            return False
        self.last = max(int(t.max()), self.last or 0)
        before = self.since
        if not self.begun:
            worker, seq = (rows[c].to_numpy()[recorded] for c in ("worker", "seq"))
            for w in set(np.unique(worker).tolist()) - self._met:
                self._met.add(w)
                self._first_of(t[worker == w], seq[worker == w])
        if before is None or not self.begun:
            self._first = min(self._first, int(t.min()))
            self.since = max(self._first, self._latest)
        return self.since != before

    def refused(self, some: Stretch | None, going_on: bool) -> bool:
        """Rows of these times were refused since it was asked last; going_on: so are those to come.

        Whether what is whole is other than it was.
        """
        if some is None:
            changed, self._refusing = self._refusing and not going_on, going_on
            return changed
        begin, end = some
        if self._refusing and self._ends:
            # What came between was refused too, or there was nothing.
            begin = min(begin, self._ends[-1])
        at = bisect_left(self._ends, begin - 1)
        if at < len(self._begins):
            begin, end = min(begin, self._begins[at]), max(end, self._ends[-1])
        self._begins[at:], self._ends[at:] = [begin], [end]
        if len(self._begins) > STRETCHES_MOST:
            del self._begins[1], self._ends[0]
        self._refusing = going_on
        return True

    def part(self, begin: int, end: int, t: int) -> Stretch | None:
        """What is whole of a stretch: where `t` is in it, or what is nearest to that; None for nothing."""
        if self.since is None:
            return None
        begin = max(begin, self.since)
        if self._refusing and self._begins:
            end = min(end, self._begins[-1] - 1)
        at = bisect_left(self._ends, begin)
        found: list[Stretch] = []
        while begin <= end:
            if at == len(self._begins):
                found.append((begin, end))
                break
            if begin < self._begins[at]:
                found.append((begin, min(self._begins[at] - 1, end)))
            begin = self._ends[at] + 1
            at += 1
        return min(found, key=lambda s: max(s[0] - t, t - s[1], 0), default=None)

    def asked(self, begin: int, end: int) -> Stretch | None:
        """What would be whole of a stretch if nothing had been refused."""
        begin = max(begin, self.since) if self.since is not None else end + 1
        return (begin, end) if begin <= end else None

    def _first_of(self, t: I64, seq: NDArray[np.uint64]) -> None:
        """A worker's first rows. Where it has fired before, rows of that are missing up to here, for all that is known.

        So it is whole from where the last of them begins: monitors do not begin at once.
        """
        at = int(seq.argmin())
        if seq[at] > 1:
            self._latest = max(self._latest, int(t[at]))
