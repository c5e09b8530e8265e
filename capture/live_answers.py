"""The host's side of attached queries while they are recorded: what they print, as epochs close.

The drainer hands over what it took in a pass, and goes on. A thread adds it up and prints, so that whoever reads the
answers slowly may miss some of them, but never makes the recording lose rows.

Two epochs behind is over: a monitor may show that it is in the next epoch before it has exported the last, but it has
done so before it comes to the one after.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..store.errors import MegascopeError
from .answer_printer import Pass, Printer
from .programs.language import Query
from .programs.program import Program
from .programs.sources import query_of, tables_of_segment
from .segment import slots
from .segment.exports import Record
from .segment.program_words import SlotState
from .segment.reader import SegmentReader
from .segment.words import Cursor, Summary
from .segment.words import Record as Told

MOST_BYTES = 64 << 20
"""of exports that wait to be added up"""
I64 = NDArray[np.int64]
_COUNTS = ("eligible", "observed", "throttled", "lost", "faulted")


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
        self._next = Pass(0)
        self._waiting = _Waiting()
        self._printer = Printer(out, note, self._epoch_ns, segment.status().t_now)
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
            self._next = Pass(now.over)
            self._waiting.put(now)

    def end(self, t: int, *, whole: bool) -> None:
        """The recording is over, at t. whole: the engine has told all that it had to tell."""
        now = self._next
        now.gone += [(p, self._leaving.get(p, t)) for p in self._live]
        if self._segment.status().text == "running":
            now.staying = self._live.keys() - self._leaving.keys()
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
        # Standard monitors come with their source, which is C.
        if program is None or not program.source or "#include" in program.source:
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
        self._queue: queue.SimpleQueue[Pass | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def room(self) -> bool:
        return self._bytes < MOST_BYTES and self._queue.qsize() < MOST_BYTES >> 10

    def put(self, taken: Pass | None) -> None:
        with self._lock:
            self._bytes += taken.bytes if taken else 0
        self._queue.put(taken)

    def get(self) -> Pass | None:
        taken = self._queue.get()
        with self._lock:
            self._bytes -= taken.bytes if taken else 0
        return taken
