"""What a recording knows of the programs of its engine: who was attached from when to when, and their maps' rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from ..store.errors import MegascopeError
from ..store.tables import HOOKS, RECORDER, Table
from .feedback import Feedback
from .map_tables import MapTables
from .programs.execution import UNLIMITED
from .programs.program import Program
from .programs.standard import RECORDER_NAME
from .segment import map_ring, slots
from .segment.drain import Loss
from .segment.exports import Record
from .segment.program_words import SlotState
from .segment.reader import SegmentReader


def recorder() -> dict[str, Any]:
    """The built-in recorder's row of `programs`."""
    return {"program": RECORDER, "name": RECORDER_NAME, "selection": "all", "source": "", "hash": "", "slot": 0}


def selection_of(program: Program) -> str:
    """What the rows are that a program exports: of a sample of tasks, or whatever it chose."""
    return f"sampled(1/{program.sample})" if program.sample > 1 else f"escalated({program.name})"


def _unknown(program: int) -> dict[str, Any]:
    """A row of `programs` for one of which no more is known than its id."""
    name = f"program_{program}"
    about = {"program": program, "name": name, "selection": f"escalated({name})", "source": "", "hash": ""}
    return about | {"slot": None}


class Attachments:
    """Follows the slots of a segment. `programs`: by id, every program met whose image could be read.

    Who had left before the recording began is told of only when something of it comes: it is in the rings till then.
    """

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        self.programs: dict[int, Program] = {}
        self.live: set[int] = set()
        """ids that run now"""
        self._rows: dict[int, dict[str, Any]] = {}
        self._standing: set[int] = set()
        """ids of which it is not known that they have left"""
        self._before: dict[int, dict[str, Any]] = {}
        """rows of those that had left before anybody looked"""
        self._tables = MapTables()
        self._told: dict[tuple[int, int, int | None], map_ring.Span] = {}
        """the last export of which it was told that the map was full; a large one comes in several records"""
        self.feedback = Feedback(segment)
        self._number = -1
        self._leaving = False

    def follow(self, told: Collection[int] = ()) -> list[dict[str, Any]] | None:
        """Rows of `programs`, when they have changed since the last call; the next change may come.

        told: ids of which coverage has come.
        """
        if not slots.can_attach(self.segment):
            return None
        said = slots.answer(self.segment)
        late = [program for program in told if program not in self._rows]
        if said.number == self._number and not late:
            return None
        if said.number != self._number:
            for line in slots.lines(self.segment):
                self._meet(line, first=self._number < 0)
            self._number = said.number
            self.feedback.keep(self.live)
            slots.saw(self.segment, said.number)
        for program in late:
            self._rows.setdefault(program, self._before.get(program) or _unknown(program))
        return [self._rows[i] for i in sorted(self._rows)]

    @property
    def settled(self) -> bool:
        """No program has maps that are still being told."""
        return not any(line.state == SlotState.LEAVING for line in slots.lines(self.segment))

    def _meet(self, line: slots.Line, *, first: bool) -> None:
        for program in [p for p in self._standing if p != line.program and self._rows[p]["slot"] == line.slot]:
            self._rows[program]["detached"] = line.since
            self._standing.discard(program)
            self.live.discard(program)
        if first and line.state == SlotState.FREE:
            # Now its image may still be there to say what it was called.
            self._before[line.program] = self._row(line) | {"detached": line.until}
        if line.program in self._before:
            return
        if line.program not in self._rows:
            self._rows[line.program] = self._row(line)
            self._standing.add(line.program)
        if line.state == SlotState.ATTACHED:
            self.live.add(line.program)
        else:
            self._rows[line.program]["detached"] = line.until
            self._standing.discard(line.program)
            self.live.discard(line.program)

    def _row(self, line: slots.Line) -> dict[str, Any]:
        row = _unknown(line.program)
        try:
            program = slots.program_of(self.segment, line)
            row |= {"name": program.name, "selection": selection_of(program)}
            row |= {"source": program.source, "hash": program.hash}
            self.programs[line.program] = program
            if line.state != SlotState.FREE:
                self.feedback.follow(line.program, program)
        except MegascopeError:
            # Its rows and coverage are recorded all the same; its maps cannot be read without it.
            pass
        return row | {
            "slot": line.slot,
            "hooks": [h.name for h in HOOKS if line.hooks >> h.id & 1],
            "instructions": None if line.instructions >= UNLIMITED else line.instructions,
            "rows": None if line.rows >= UNLIMITED else line.rows,
            "attached": line.since,
        }

    def rows(self, records: list[Record]) -> Iterator[tuple[Table, pa.RecordBatch] | Loss]:
        """Rows of map streams for records of map rings, and what is missing of them."""
        for span, n, body in records:
            program = self.programs.get(span.program)
            detail = f"program {span.program}, map {span.map}"
            if program is None or span.map >= len(program.maps):
                yield Loss("map_export", 1, worker=span.worker, t_begin=span.t_begin, t_end=span.t_end, detail=detail)
                continue
            try:
                table = self._tables.of(span.program, program, span.map)
                entries = map_ring.entries(table.declared, n, body)
                self.feedback.add(span, table.declared, entries)
                yield table.table, table.rows(span, n, entries)
            except ValueError as e:
                yield Loss("map_export", 1, worker=span.worker, detail=f"{detail}: {e}")
                continue
            key = span.program, span.map, span.worker
            if span.refused and self._told.get(key) != span:
                self._told[key] = span
                detail = table.table.name
                yield Loss(
                    "map_full", span.refused, worker=span.worker, t_begin=span.t_begin, t_end=span.t_end, detail=detail
                )
