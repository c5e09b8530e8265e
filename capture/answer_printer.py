"""What queries print as their epochs close: exports put in order of time, given to their host's sides, and printed.

Clauses run at the ends of epochs that the engine's intervals tell, as in a replay. What is exported later still, as the
telemetry budget allows, counts in the next answer, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..store.errors import MegascopeError
from .answer_reach import Reach
from .live_line import lasting
from .programs.language import Query
from .programs.language.running import HostSide
from .segment.exports import Record, exports_of

I64 = NDArray[np.int64]


@dataclass
class Pass:
    """What one pass of the drainer brought. over: all up to this time, ns, is told. last: the recording ended then."""

    over: int
    joined: list[tuple[int, Query, int]] = field(default_factory=list)
    """program id, query, since when, ns"""
    records: list[Record] = field(default_factory=list)
    coverage: dict[tuple[int, int], I64] = field(default_factory=dict)
    """counts of events by program and until when, ns"""
    cuts: list[int] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    """program id, until when, ns"""
    staying: set[int] = field(default_factory=set)
    """of those that are gone, programs that the engine goes on to run"""
    left_out: int = 0
    last: int | None = None
    whole: bool = True

    @property
    def bytes(self) -> int:
        return sum(len(body) for _, _, body in self.records)


class _Side:
    """One query, and what is told of it that no closed epoch has taken."""

    def __init__(self, query: Query, since: int, began: int) -> None:
        self.host, self.name = HostSide(query), query.name
        self._reach = Reach(began) if since < began else None
        self._maps, self._since = query.program.maps, since
        self._records: list[Record] = []
        self._counts: list[tuple[int, Sequence[int]]] = []
        self._cuts: set[int] = set()
        self._closed = since
        self._late: list[int] = []
        """since when what came after its epoch was over has been counted"""
        self.damaged = 0

    def add(self, record: Record) -> None:
        self._records.append(record)

    def cover(self, t_end: int, counts: Sequence[int]) -> None:
        self._counts.append((t_end, counts))

    def cut(self, t: int) -> None:
        if t > self._closed:
            self._cuts.add(t)

    def over(self, t: int) -> list[int]:
        """The ends of epochs up to t at which nothing has been done."""
        return sorted(c for c in self._cuts if c <= t)

    def close(self, t: int, *, last: bool = False, goes_on: bool = False) -> str:
        """An epoch has ended at t: what is printed. last: with it all there is; goes_on: more is counted."""
        mine = [r for r in self._records if last or r[0].t_end <= t]
        self._records = [r for r in self._records if not last and r[0].t_end > t]
        counted = [(at, c) for at, c in self._counts if last or at <= t]
        waiting = [(at, c) for at, c in self._counts if not last and at > t]
        if self._reach is not None:
            self._reach.saw(span for span, _, _ in mine)
            counted, later = self._reach.split(counted, all_told=last and not goes_on)
            waiting = later + waiting
        self._counts = waiting
        if any(c.when == "interval" for c in self.host.query.host):
            self._late += [r[0].t_begin for r in mine if not r[0].state and r[0].t_end <= self._closed]
        self._cuts = {c for c in self._cuts if c > t}
        self._closed = t
        for _, counts in counted:
            self.host.counted(counts)
        try:
            exports = exports_of(self._maps, mine)
        except (ValueError, IndexError):
            # The recording says what was damaged; here it is left out.
            readable = [r for r in mine if self._reads(r)]
            self.damaged += len(mine) - len(readable)
            exports = exports_of(self._maps, readable)
        return self.host.closed(exports, t)

    def where(self) -> list[str]:
        """Of what stretch of time that is which was printed, if it is not of the recording."""
        said = self._reach.said() if self._reach is not None else ""
        return [f"{self.name}: {said}"] if said else []

    def untold(self) -> list[str]:
        """What the recording has ended without."""
        said = self._reach.untold(self._counts) if self._reach is not None else ""
        return [f"{self.name}: {said}"] if said else []

    def notes(self) -> list[str]:
        """What is to be said of what was printed."""
        late, self._late = self._late, []
        if not late:
            return self.host.take_notes()
        what = f"{self.name}: {len(late):,} exports of what was since {lasting(min(late))} came late"
        return [*self.host.take_notes(), f"{what}: answers of that time lack them, and later ones have them"]

    def _reads(self, record: Record) -> bool:
        try:
            return bool(exports_of(self._maps, [record]))
        except (ValueError, IndexError):
            return False


class Printer:
    """All queries, on the thread."""

    def __init__(
        self, out: Callable[[str], object], note: Callable[[str], object], epoch_ns: int, began: int = 0
    ) -> None:
        """began: device time when the recording began, ns."""
        self._out, self._note, self._epoch_ns, self._began = out, note, epoch_ns, began
        self._sides: dict[int, _Side] = {}
        self._last = ""
        self._met = 0
        self._left_out = 0

    def take(self, p: Pass) -> None:
        for number, query, since in p.joined:
            side = self._sides[number] = _Side(query, since, self._began)
            self._met += 1
            self._say(side, side.host.begin(since))
        for record in p.records:
            if record[0].program in self._sides:
                self._sides[record[0].program].add(record)
        for (number, t_end), counts in p.coverage.items():
            if number in self._sides:
                self._sides[number].cover(t_end, counts.tolist())
        self._left_out += p.left_out
        for side in self._sides.values():
            for t in p.cuts:
                side.cut(t)
            self._pass_time(side, p.over)
        for number, until in p.gone:
            if number in self._sides:
                self._end(self._sides.pop(number), until, whole=p.whole, goes_on=number in p.staying)
        if p.last is not None and self._left_out:
            why = "came faster than they could be added up and printed"
            self._note(f"{self._left_out:,} exports {why}: the answers lack them, the tables of maps have them")

    def _pass_time(self, side: _Side, t: int) -> None:
        for at in side.over(t):
            self._say(side, side.close(at))

    def _end(self, side: _Side, until: int, *, whole: bool, goes_on: bool) -> None:
        self._pass_time(side, until)
        # The last epoch is seldom whole; it ends all the same.
        self._say(side, side.close(-(-until // self._epoch_ns) * self._epoch_ns, last=True, goes_on=goes_on))
        self._say(side, side.host.end())
        for line in side.untold():
            self._note(line)
        if side.damaged:
            self._note(f"{side.name}: {side.damaged:,} exports could not be read; see the loss table")
        if not whole:
            self._note(f"{side.name}: what its maps held and had not exported died with the engine")

    def _say(self, side: _Side, text: str) -> None:
        if text:
            if self._met > 1 and side.name != self._last:
                self._note(f"program {side.name}")
            self._last = side.name
            try:
                self._out(text)
            except (OSError, MegascopeError):
                # Nobody reads any more; the recording goes on.
                self._out = lambda _: None
            for line in side.where():
                self._note(line)
        for line in side.notes():
            self._note(line)
