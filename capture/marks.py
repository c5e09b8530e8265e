"""The marks of a recording: triggers that fired and notes that came, and which rows are kept for them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..store.tables import MARKS
from .whole import Whole

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
class _Kept:
    """What a mark asked for, and what is pinned of it; short: that it got less has been counted."""

    mark: Mark
    begin: int
    end: int
    held: Held
    short: bool = False


@dataclass
class _Open:
    """The last mark of a trigger."""

    kept: _Kept
    begun: float
    told: float
    grown: bool = True

    def takes(self, begin: int, end: int, part: Held) -> bool:
        """Whether a firing that asks for [begin, end] and gets `part` runs into it, with nothing missing between."""
        if begin > self.kept.end + 1 or end < self.kept.begin - 1:
            return False
        if part is None:
            return True
        to = self.kept.mark.t_to
        return to is not None and part[0] <= to + 1

    def take(self, first: int, firings: int, begin: int, end: int, held: Held) -> None:
        kept, m = self.kept, self.kept.mark
        m.t, m.firings = min(m.t, first), m.firings + firings
        kept.begin, kept.end, self.grown = min(kept.begin, begin), max(kept.end, end), True
        if held is not None and kept.held is not None and held[0] <= kept.held[1] + 1:
            kept.held = min(kept.held[0], held[0]), max(kept.held[1], held[1])


class Marks:
    """Gives marks their numbers, pins what they ask for, and writes them down."""

    def __init__(self, writer: TraceWriter, *, raw: bool = True) -> None:
        """raw: as of `Whole`."""
        self._writer = writer
        self.whole = Whole(raw=raw)
        self._open: dict[int, _Open] = {}
        """by program"""
        self._kept: list[_Kept] = []
        """all others for which rows are kept"""
        self.count = self.firings = 0
        """marks, and firings of triggers, so far"""
        self._unnamed = 0
        self._cut = False

    def saw(self, rows: pa.RecordBatch) -> None:
        """Ring rows have come."""
        if self.whole.saw(rows):
            self._claim_again(0)

    def fired(self, program: int, name: str, first: int, last: int, firings: int, around: Around) -> None:
        """A trigger has emitted so many rows from `first` to `last` (device ns).

        Firings whose stretches run into one another are one mark: a trigger that never rests makes one row.
        """
        self.firings += firings
        begin, end = max(first - around.before, 0), last + around.after
        held = self._writer.pin(begin, end)
        part = self.whole.part(*held, first) if held is not None else None
        of = self._open.get(program)
        if of is None or not of.takes(begin, end, part):
            if of is not None:
                self._tell_of(of)
                self._keep(of.kept)
            now = time.monotonic()
            of = _Open(_Kept(self._new(first, "trigger", name, program, firings), begin, end, held), now, now)
            self._open[program] = of
        else:
            of.take(first, firings, begin, end, held)
        self._claim(of.kept)
        if held is None:
            self._spent(of.kept)

    def note(self, t: int, text: str, around: Around | None) -> Mark:
        """Somebody has said something at a time; with `around`, rows are kept."""
        mark = self._new(t, "mark", text, None, 1)
        if around is not None:
            self._look()
            begin, end = max(t - around.before, 0), t + around.after
            kept = _Kept(mark, begin, end, self._writer.pin(begin, end))
            self._claim(kept)
            self._keep(kept)
            if kept.held is None:
                self._spent(kept)
        self._tell(mark)
        return mark

    def step(self) -> None:
        """Write down what has grown, now and then, and what is less than was thought.

        Of rows that have come it is known whether the writer refused them once it was flushed.
        """
        to = self._writer.pinned_to
        if to is not None and not self._cut:
            self._cut = True
            for kept in [of.kept for of in self._open.values()] + self._kept:
                self._shorten(kept, to)
        self._look()
        now = time.monotonic()
        for of in self._open.values():
            # The longer it has lasted the more seldom, so that it costs the spool the logarithm of that.
            if of.grown and now - of.told >= _TELL_S + (now - of.begun) / 8:
                self._tell_of(of)

    def close(self) -> None:
        """Write down all that is known; no rows come any more, so that none are kept after the last."""
        self._writer.flush()
        self.step()
        for of in self._open.values():
            of.grown |= self._end(of.kept.mark)
            self._tell_of(of)
        for kept in self._kept:
            if self._end(kept.mark):
                self._tell(kept.mark)
        self._open, self._kept = {}, []
        if self._unnamed:
            self._writer.lose("marks_left_out", self._unnamed)
            self._unnamed = 0

    def _look(self) -> None:
        """What has the writer refused?"""
        some = self._writer.take_dropped()
        if self.whole.refused(some, self._writer.raw_stopped is not None):
            self._claim_again(some[0] if some is not None else 0)

    def _claim_again(self, begin: int) -> None:
        """What is whole after `begin` is other than it was."""
        for of in self._open.values():
            of.grown |= self._claim(of.kept)
        for kept in self._kept:
            if kept.held is not None and kept.held[1] >= begin and self._claim(kept):
                self._tell(kept.mark)

    def _claim(self, kept: _Kept) -> bool:
        """Let the mark say what is whole of what is pinned for it; whether that is another than it said."""
        m, held = kept.mark, kept.held
        part = self.whole.part(*held, m.t) if held is not None else None
        if held is not None and part != self.whole.asked(*held):
            self._spent(kept)
        before = m.t_from, m.t_to
        m.t_from, m.t_to = part or (None, None)
        return before != (m.t_from, m.t_to)

    def _end(self, mark: Mark) -> bool:
        """No row after the last is kept for a mark; whether it had asked for some."""
        last = max(self.whole.last or 0, mark.t)
        if mark.t_to is None or mark.t_to <= last:
            return False
        mark.t_to = last
        return True

    def _new(self, t: int, kind: str, text: str, program: int | None, firings: int) -> Mark:
        self.count += 1
        self._unnamed += self.count > MARKS_MOST
        return Mark(self.count, t, kind, text, program, firings, None, None)

    def _keep(self, kept: _Kept) -> None:
        if kept.held is not None and kept.mark.mark <= MARKS_MOST:
            self._kept.append(kept)

    def _shorten(self, kept: _Kept, to: int) -> None:
        """The budget of pinned rows was spent at `to`."""
        if kept.held is None or kept.held[1] <= to:
            return
        kept.held = (kept.held[0], to) if kept.held[0] <= to else None
        self._spent(kept)
        if self._claim(kept):
            self._tell(kept.mark)

    def _spent(self, kept: _Kept) -> None:
        """It got less than it asked for, or nothing: count that once."""
        mark = kept.mark
        if not kept.short and mark.mark <= MARKS_MOST:
            detail = f"mark {mark.mark}, {mark.text[:80]}"
            self._writer.lose("pins_spent", 1, t_begin=mark.t, t_end=mark.t, detail=detail)
        kept.short = True

    def _tell_of(self, of: _Open) -> None:
        if of.grown:
            of.grown, of.told = False, time.monotonic()
            self._tell(of.kept.mark)

    def _tell(self, mark: Mark) -> None:
        if mark.mark <= MARKS_MOST:
            self._writer.upsert(MARKS.name, pa.RecordBatch.from_pylist([asdict(mark)], schema=MARKS.schema))
