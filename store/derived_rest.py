"""What has not been derived yet, put together for a reader: the same rows that the next steps would write.

Of a trace that is being recorded, or whose recorder died, the last parts and the spool have not been derived. A reader
goes on from what the last step carried over; where that is not kept it begins with the first event and leaves out what
the derived parts hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from . import derived
from .errors import Refused
from .pairing import Derived, Pairer
from .pairing_rows import NONE
from .tables import DERIVED, EVENTS, INTERVALS, TASKS, WAITS
from .tiles import TileBuilder

if TYPE_CHECKING:
    from .reader import Part, Trace

EVENTS_MOST = 16_000_000
"""Events from which a reader derives: about 4 s and 2 GB."""

_REPAIR = "megascope check --repair"


def rest(trace: Trace, state: bytes | None, note: Callable[[str], None]) -> dict[str, pa.Table]:
    """Rows of `TASKS`, `WAITS` and `TILES` that are in no part of theirs, by name; `note` is told what is left out.

    state: what the last step carried over, where it is known.
    """
    if trace.is_derived:
        return {t.name: t.schema.empty_table() for t in DERIVED}
    return _Rest(trace, state, note).run()


class _Rest:
    """One derivation of the rest."""

    def __init__(self, trace: Trace, state: bytes | None, note: Callable[[str], None]) -> None:
        self._trace, self._note = trace, note
        self._content = trace.manifest
        self._pairer = self._new_pairer()
        self._builder = TileBuilder()
        self._until: int | None = None
        if state is not None:
            try:
                self._pairer.restore(state)
                self._until = self._content[derived.KEY]["state"]["tiles_until"]
            except Refused as error:
                self._pairer = self._new_pairer()
                note(f"{', '.join(derived.NAMES)}: {error.what}: {error.why}")
        self._out: dict[str, list[pa.Table]] = {t.name: [t.schema.empty_table()] for t in DERIVED}

    def _new_pairer(self) -> Pairer:
        return Pairer(derived.context(self._trace.path, self._content))

    def run(self) -> dict[str, pa.Table]:
        self._losses()
        taken, left = self._events()
        tail = self._trace.tail(EVENTS.name)
        rows = sum(p.rows for p in (*taken, *left)) + tail.num_rows
        if rows > EVENTS_MOST:
            todo = "end the recording" if self._trace.state == "recording" else f"{_REPAIR} derives them"
            self._note(
                f"{', '.join(derived.NAMES)}: what comes last was left out: {rows:,} events are too many; {todo}"
            )
        else:
            self._pair(taken, left, tail)
            if self._trace.state != "recording":
                self._note(f"{', '.join(derived.NAMES)}: some were put together while reading; {_REPAIR} seals them")
        return {name: pa.concat_tables(tables) for name, tables in self._out.items()}

    def _events(self) -> tuple[list[Part], list[Part]]:
        """The parts of events to go through again, and those from which nothing has been derived."""
        new = set(derived.not_taken(self._content, EVENTS.name))
        parts = self._trace.verified(EVENTS.name)
        left = [p for p in parts if derived.number_of(p.path.name) in new]
        return ([] if self._until is not None else [p for p in parts if p not in left]), left

    def _pair(self, taken: list[Part], left: list[Part], tail: pa.Table) -> None:
        if self._until is not None:
            self._builder.resume(self._until, self._sealed("tasks"), self._sealed("waits"))
        for part in taken:
            if (events := self._read(EVENTS.name, part)) is not None:
                self._tiles(self._pairer.feed(events))
        for events in (*(self._read(EVENTS.name, part) for part in left), tail):
            if events is not None and events.num_rows:
                self._keep(self._pairer.feed(events))
        self._keep(self._pairer.finish())
        self._out["tiles"].append(self._builder.finish())

    def _tiles(self, d: Derived) -> pa.Table:
        return self._builder.feed(d.tasks, d.waits, d.frontier)

    def _keep(self, d: Derived) -> None:
        for name, rows in (("tasks", d.tasks), ("waits", d.waits), ("tiles", self._tiles(d))):
            self._out[name].append(rows)

    def _losses(self) -> None:
        """Tiles of lost events."""
        new = set(derived.not_taken(self._content, INTERVALS.name))
        parts = [p for p in self._trace.verified(INTERVALS.name) if derived.number_of(p.path.name) in new]
        none = (TASKS.schema.empty_table(), WAITS.schema.empty_table())
        for rows in (*(self._read(INTERVALS.name, p) for p in parts), self._trace.tail(INTERVALS.name)):
            if rows is not None and rows.num_rows:
                self._out["tiles"].append(TileBuilder().feed(*none, NONE, rows))

    def _sealed(self, name: str) -> pa.Table:
        """The rows of a derived table from which tiles are not written whole."""
        rows = (self._read(name, part) for part in self._trace.verified(name, self._until))
        schema = TASKS.schema if name == TASKS.name else WAITS.schema
        return pa.concat_tables([schema.empty_table(), *(r for r in rows if r is not None)])

    def _read(self, name: str, part: Part) -> pa.Table | None:
        entry = {"rows": part.rows, "bytes": part.bytes, "crc32": part.crc32}
        if (rows := derived.read_part(part.path, name, entry)) is None:
            self._note(f"{name}/{part.path.name} was left out: it cannot be read")
        return rows
