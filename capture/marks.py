"""The marks of a recording: triggers that fired and notes that came, and which rows are kept for them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..store.tables import MARKS

if TYPE_CHECKING:
    from ..store.writer import TraceWriter

MARKS_MOST = 10_000
"""Rows of one recording; what comes then pins all the same, and is counted."""
_TELL_S = 1.0
Held = tuple[int, int] | None


@dataclass(frozen=True)
class Around:
    """How much is kept of the time before and after, in ns."""

    before: int
    after: int


@dataclass
class Mark:
    """A row of `marks`."""

    mark: int
    t: int
    kind: str
    text: str
    program: int | None
    firings: int
    t_from: int | None
    t_to: int | None


@dataclass
class _Open:
    """The last mark of a trigger. begin, end: what its firings asked for; short: that it got less has been counted."""

    mark: Mark
    begin: int
    end: int
    begun: float
    told: float
    grown: bool = False
    short: bool = False

    def takes(self, begin: int, end: int, held: Held) -> bool:
        """Whether a firing that asks for [begin, end] and gets `held` runs into it, with nothing missing between."""
        if begin > self.end + 1 or end < self.begin - 1:
            return False
        if held is None:
            return True
        return self.mark.t_to is not None and held[0] <= self.mark.t_to + 1

    def take(self, first: int, firings: int, begin: int, end: int, held: Held) -> None:
        m = self.mark
        m.t, m.firings = min(m.t, first), m.firings + firings
        self.begin, self.end, self.grown = min(self.begin, begin), max(self.end, end), True
        if held is not None and m.t_from is not None and m.t_to is not None:
            m.t_from, m.t_to = min(m.t_from, held[0]), max(m.t_to, held[1])


class Marks:
    """Gives marks their numbers, pins what they ask for, and writes them down."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._open: dict[int, _Open] = {}
        """by program"""
        self._ahead: list[Mark] = []
        """others that keep rows which have not all come yet"""
        self.count = self.firings = 0
        """marks, and firings of triggers, so far"""
        self._unnamed = 0
        self._cut = False
        self._seen: Held = None
        """device times of the first and the last row so far"""

    def saw(self, first: int, last: int) -> None:
        """Rows have come with these device times, ns."""
        before = self._seen or (first, last)
        self._seen = min(first, before[0]), max(last, before[1])

    def fired(self, program: int, name: str, first: int, last: int, firings: int, around: Around) -> None:
        """A trigger has emitted so many rows from `first` to `last` (device ns).

        Firings whose stretches run into one another are one mark: a trigger that never rests makes one row.
        """
        self.firings += firings
        begin, end = max(first - around.before, 0), last + around.after
        held = self._held(begin, end)
        of = self._open.get(program)
        if of is None or not of.takes(begin, end, held):
            if of is not None:
                self._tell_of(of)
                self._ahead.append(of.mark)
            now = time.monotonic()
            of = _Open(self._new(first, "trigger", name, program, firings, held), begin, end, now, now, grown=True)
            self._open[program] = of
        else:
            of.take(first, firings, begin, end, held)
        if held is None and not of.short:
            of.short = True
            self._spent(of.mark)

    def note(self, t: int, text: str, around: Around | None) -> Mark:
        """Somebody has said something at a time; with `around`, rows are kept."""
        held = self._held(max(t - around.before, 0), t + around.after) if around else None
        mark = self._new(t, "mark", text, None, 1, held)
        if held is not None:
            self._ahead.append(mark)
        elif around is not None:
            self._spent(mark)
        self._tell(mark)
        return mark

    def step(self, newest: int) -> None:
        """Write down what has grown, now and then; `newest`: device time up to which rows have come, ns."""
        to = self._writer.pinned_to
        if to is not None and not self._cut:
            self._cut = True
            for of in self._open.values():
                of.short = self._shorten(of.mark, to) or of.short
            for mark in self._ahead:
                self._shorten(mark, to)
        self._ahead = [m for m in self._ahead if m.t_to is not None and m.t_to > newest]
        now = time.monotonic()
        for of in self._open.values():
            # The longer it has lasted the more seldom, so that it costs the spool the logarithm of that.
            if of.grown and now - of.told >= _TELL_S + (now - of.begun) / 8:
                self._tell_of(of)

    def close(self) -> None:
        """Write down all that is known; no rows come any more, so that none are kept after the last."""
        for of in self._open.values():
            of.grown |= self._end(of.mark)
            self._tell_of(of)
        for mark in self._ahead:
            if self._end(mark):
                self._tell(mark)
        self._open, self._ahead = {}, []
        if self._unnamed:
            self._writer.lose("marks_left_out", self._unnamed)
            self._unnamed = 0

    def _held(self, begin: int, end: int) -> Held:
        """What is kept of a stretch; of before the first row there is nothing."""
        held = self._writer.pin(begin, end)
        if held is None or self._seen is None:
            return held
        return max(held[0], min(self._seen[0], held[1])), held[1]

    def _end(self, mark: Mark) -> bool:
        """No row after the last is kept for a mark; whether it had asked for some."""
        if mark.t_to is None or self._seen is None or mark.t_to <= max(self._seen[1], mark.t):
            return False
        mark.t_to = max(self._seen[1], mark.t)
        return True

    def _new(self, t: int, kind: str, text: str, program: int | None, firings: int, held: Held) -> Mark:
        self.count += 1
        self._unnamed += self.count > MARKS_MOST
        return Mark(self.count, t, kind, text, program, firings, *(held or (None, None)))

    def _shorten(self, mark: Mark, to: int) -> bool:
        """The budget of pinned rows was spent at `to`; whether that is before the mark's end."""
        if mark.t_from is None or mark.t_to is None or mark.t_to <= to:
            return False
        mark.t_from, mark.t_to = (mark.t_from, to) if mark.t_from <= to else (None, None)
        self._spent(mark)
        self._tell(mark)
        return True

    def _spent(self, mark: Mark) -> None:
        if mark.mark <= MARKS_MOST:
            detail = f"mark {mark.mark}, {mark.text[:80]}"
            self._writer.lose("pins_spent", 1, t_begin=mark.t, t_end=mark.t, detail=detail)

    def _tell_of(self, of: _Open) -> None:
        if of.grown:
            of.grown, of.told = False, time.monotonic()
            self._tell(of.mark)

    def _tell(self, mark: Mark) -> None:
        if mark.mark <= MARKS_MOST:
            self._writer.upsert(MARKS.name, pa.RecordBatch.from_pylist([asdict(mark)], schema=MARKS.schema))
