"""The host's side of attached queries while they are recorded: what they print, as epochs close.

The drainer hands over what it took in a pass, and goes on. A thread adds it up and prints, so that whoever reads the
answers slowly may miss some of them, but never makes the recording lose rows.

Two epochs behind is over: a monitor may show that it is in the next epoch before it has exported the last, but it has
done so before it comes to the one after. Clauses run at the ends of epochs that the engine's intervals tell, as in a
replay. What is exported later still, as the telemetry budget allows, counts in the next answer, and a note says so.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..store.errors import MegascopeError
from .live_line import lasting
from .programs.language import Query
from .programs.language.running import HostSide
from .programs.program import Program
from .programs.sources import query_of, tables_of_segment
from .segment import slots
from .segment.exports import Record, exports_of
from .segment.program_words import SlotState
from .segment.reader import SegmentReader
from .segment.words import Cursor, Summary
from .segment.words import Record as Told

MOST_BYTES = 64 << 20
"""of exports that wait to be added up"""
I64 = NDArray[np.int64]
_COUNTS = ("eligible", "observed", "throttled", "lost", "faulted")


@dataclass
class _Pass:
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
    left_out: int = 0
    last: int | None = None
    whole: bool = True

    @property
    def bytes(self) -> int:
        return sum(len(body) for _, _, body in self.records)


class LiveAnswers:
    """Runs the host's sides of all queries that an engine runs while it is recorded.

    queries: those that this capture attaches, by name. Others are compiled from the text that their images carry. out
    gets what they print, note what there is to say of it; both are called on a thread. The recording calls `begin`,
    `follow` and `saw` in every pass, and `end`; whoever made this calls `close` and `join`.
    """

    def __init__(
        self,
        segment: SegmentReader,
        queries: Mapping[str, Query],
        out: Callable[[str], object],
        note: Callable[[str], object],
    ) -> None:
        self._segment, self._queries, self._note = segment, queries, note
        self._epoch_ns = segment.layout.epoch_ns
        self._epoch, self._over = self._reached(), 0
        self._known: set[int] = set()
        self._live: dict[int, int] = {}
        """program id → slot, of queries"""
        self._leaving: dict[int, int] = {}
        """program id → until when, ns"""
        self._next = _Pass(0)
        self._waiting = _Waiting()
        self._printer = _Printer(out, note, self._epoch_ns)
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A pass begins: what is published by now will be in it."""
        reached = self._reached()
        if reached > self._epoch:
            self._over, self._epoch = self._epoch, reached
        self._next.over = self._over * self._epoch_ns
        if self._leaving:
            for line in slots.lines(self._segment):
                for program in [p for p in self._leaving if self._live[p] == line.slot]:
                    until = self._leaving[program]
                    replaced = line.program != program and self._next.over > until
                    if replaced or (line.program == program and line.state == SlotState.FREE):
                        self._next.gone.append((program, until))
                        del self._live[program], self._leaving[program]

    def follow(self, rows: Iterable[Mapping[str, Any]], programs: Mapping[int, Program]) -> None:
        """Somebody was attached or detached. rows: of the table `programs`; programs: by id, those that are known."""
        for row in rows:
            number = int(row["program"])
            if number not in self._known:
                self._known.add(number)
                query = self._query(programs.get(number))
                if query is not None:
                    self._live[number] = int(row["slot"])
                    self._next.joined.append((number, query, int(row["attached"])))
            if number in self._live and "detached" in row:
                self._leaving.setdefault(number, int(row["detached"]))

    def saw(self, records: Iterable[Record], summaries: I64, coverage: pa.RecordBatch | None) -> None:
        """A pass ends. summaries: records of 16 words each, for the ends of epochs."""
        now = self._next
        known = self._live.keys() | {p for p, _ in now.gone}
        now.records += [r for r in records if r[0].program in known]
        if coverage is not None and known:
            self._cover(coverage, known)
        if len(summaries) and known:
            ends = summaries[summaries[:, Summary.WHAT] & 0xFF == Told.INTERVAL, Summary.T_END]
            now.cuts += np.unique(ends[ends % self._epoch_ns == 0]).tolist()
        if not self._waiting.room:
            now.left_out, now.records = now.left_out + len(now.records), []
            if not (now.joined or now.gone):
                return
        if known:
            self._next = _Pass(now.over)
            self._waiting.put(now)

    def end(self, t: int, *, whole: bool) -> None:
        """The recording is over, at t. whole: the engine has told all that it had to tell."""
        now = self._next
        now.gone += [(p, self._leaving.get(p, t)) for p in self._live]
        now.last, now.whole = t, whole
        self._live, self._leaving = {}, {}
        self._waiting.put(now)

    def close(self) -> None:
        """Nothing more comes."""
        self._waiting.put(None)

    def join(self) -> None:
        """Until all is printed."""
        self._thread.join()

    def _cover(self, coverage: pa.RecordBatch, known: Iterable[int]) -> None:
        programs, ends = (coverage[n].to_numpy() for n in ("program", "t_end"))
        counts = np.stack([coverage[n].fill_null(0).to_numpy() for n in _COUNTS], axis=1)
        for i in np.nonzero(np.isin(programs, list(known)))[0].tolist():
            at = int(programs[i]), int(ends[i])
            self._next.coverage[at] = self._next.coverage.get(at, 0) + counts[i]

    def _reached(self) -> int:
        """The epoch that every monitor has reached."""
        return int(self._segment.cursors()[:, Cursor.EPOCH].min()) if slots.can_attach(self._segment) else 0

    def _query(self, program: Program | None) -> Query | None:
        if program is None or not program.source:
            return None
        query = self._queries.get(program.name)
        if query is None or query.program.hash != program.hash:
            try:
                query = query_of(program, tables_of_segment(self._segment))
            except MegascopeError:
                query = None
        if query is None:
            why = "it was compiled with other constants or names than are known here"
            self._note(f"{program.name}: {why}; its maps are recorded, but nothing is printed")
        return query

    def _work(self) -> None:
        while (taken := self._waiting.get()) is not None:
            self._printer.take(taken)


class _Waiting:
    """Passes on their way to the thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Pass | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def room(self) -> bool:
        return self._bytes < MOST_BYTES and self._queue.qsize() < MOST_BYTES >> 10

    def put(self, taken: _Pass | None) -> None:
        with self._lock:
            self._bytes += taken.bytes if taken else 0
        self._queue.put(taken)

    def get(self) -> _Pass | None:
        taken = self._queue.get()
        with self._lock:
            self._bytes -= taken.bytes if taken else 0
        return taken


class _Side:
    """One query, and what is told of it that no closed epoch has taken."""

    def __init__(self, query: Query, since: int) -> None:
        self.host, self.name = HostSide(query), query.name
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

    def close(self, t: int, *, last: bool = False) -> str:
        """An epoch has ended at t: what is printed. last: with it all there is."""
        mine = [r for r in self._records if last or r[0].t_end <= t]
        self._records = [r for r in self._records if not last and r[0].t_end > t]
        counted = [c for at, c in self._counts if last or at <= t]
        self._counts = [(at, c) for at, c in self._counts if not last and at > t]
        if any(c.when == "interval" for c in self.host.query.host):
            self._late += [r[0].t_begin for r in mine if not r[0].state and r[0].t_end <= self._closed]
        self._cuts = {c for c in self._cuts if c > t}
        self._closed = t
        for counts in counted:
            self.host.counted(counts)
        try:
            exports = exports_of(self._maps, mine)
        except (ValueError, IndexError):
            # The recording says what was damaged; here it is left out.
            readable = [r for r in mine if self._reads(r)]
            self.damaged += len(mine) - len(readable)
            exports = exports_of(self._maps, readable)
        return self.host.closed(exports, t)

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


class _Printer:
    """All queries, on the thread."""

    def __init__(self, out: Callable[[str], object], note: Callable[[str], object], epoch_ns: int) -> None:
        self._out, self._note, self._epoch_ns = out, note, epoch_ns
        self._sides: dict[int, _Side] = {}
        self._last = ""
        self._met = 0
        self._left_out = 0

    def take(self, p: _Pass) -> None:
        for number, query, since in p.joined:
            side = self._sides[number] = _Side(query, since)
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
                self._end(self._sides.pop(number), until, whole=p.whole)
        if p.last is not None and self._left_out:
            why = "came faster than they could be added up and printed"
            self._note(f"{self._left_out:,} exports {why}: the answers lack them, the tables of maps have them")

    def _pass_time(self, side: _Side, t: int) -> None:
        for at in side.over(t):
            self._say(side, side.close(at))

    def _end(self, side: _Side, until: int, *, whole: bool) -> None:
        self._pass_time(side, until)
        # The last epoch is seldom whole; it ends all the same.
        self._say(side, side.close(-(-until // self._epoch_ns) * self._epoch_ns, last=True))
        self._say(side, side.host.end())
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
            except OSError:
                # Nobody reads any more; the recording goes on.
                self._out = lambda _: None
        for line in side.notes():
            self._note(line)
