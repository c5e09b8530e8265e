"""What has not been derived yet, put together for a reader: the same rows that the next steps would write.

Of a trace that is being recorded, or whose recorder died, the last parts and the spool have not been derived. A reader
goes on from what the last step carried over; where that is not kept it begins with the first event and leaves out what
the derived parts hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from . import derived
from .errors import Refused
from .pairing import Derived, Pairer
from .pairing_rows import NONE, Rows
from .tables import DERIVED, EVENTS, INTERVALS, TASKS, WAITS
from .tiles import TileBuilder

if TYPE_CHECKING:
    from .reader import Part, Trace

T = TypeVar("T")

EVENTS_MOST = 16_000_000
"""Events from which a reader derives: about 4 s and 2 GB."""

_REPAIR = "megascope check --repair"


def rest(trace: Trace, state: bytes | None, note: Callable[[str], None]) -> dict[str, pa.Table]:
    """Rows of `TASKS`, `WAITS` and `TILES` that are in no part of theirs, by name, of a trace not derived whole.

    state: what the last step carried over, where it is known. `note` is told what is left out.
    """
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
        left = self._not_taken(EVENTS.name)
        # Without a state the parts that were derived from are gone through again, for what they left open.
        taken = [] if self._until is not None else [p for p in self._trace.parts(EVENTS.name) if p not in left]
        tail = self._trace.tail(EVENTS.name)
        rows = sum(p.rows for p in (*taken, *left)) + tail.num_rows
        names = ", ".join(derived.NAMES)
        self._losses()
        if rows > EVENTS_MOST:
            todo = "end the recording" if self._trace.state == "recording" else f"{_REPAIR} derives them"
            self._note(f"{names}: what comes last was left out: {rows:,} events are too many; {todo}")
        else:
            self._pair(taken, left, tail)
            if self._trace.state != "recording":
                self._note(f"{names}: some were put together while reading; {_REPAIR} seals them")
        return {name: pa.concat_tables(tables) for name, tables in self._out.items()}

    def _not_taken(self, stream: str) -> list[Part]:
        """The parts from which nothing has been derived."""
        numbers = set(derived.not_taken(self._content, stream))
        return [p for p in self._trace.parts(stream) if derived.number_of(p.path.name) in numbers]

    def _pair(self, taken: list[Part], left: list[Part], tail: pa.Table) -> None:
        if self._until is not None:
            self._builder.resume(self._until, self._sealed("tasks"), self._sealed("waits"))
        for columns in self._events(taken):
            self._tiles(self._pairer.feed(columns))
        for columns in self._events(left):
            self._keep(self._pairer.feed(columns))
        self._keep(self._pairer.feed(tail))
        self._keep(self._pairer.finish())
        self._out["tiles"].append(self._builder.finish())

    def _tiles(self, d: Derived) -> pa.Table:
        return self._builder.feed(d.tasks, d.waits, d.frontier)

    def _keep(self, d: Derived) -> None:
        for name, rows in (("tasks", d.tasks), ("waits", d.waits), ("tiles", self._tiles(d))):
            self._out[name].append(rows)

    def _losses(self) -> None:
        """Tiles of lost events."""
        none = (TASKS.schema.empty_table(), WAITS.schema.empty_table())
        parts = self._read(INTERVALS.name, self._not_taken(INTERVALS.name))
        for rows in chain(parts, [self._trace.tail(INTERVALS.name)]):
            self._out["tiles"].append(TileBuilder().feed(*none, NONE, rows))

    def _sealed(self, name: str) -> pa.Table:
        """The rows of a derived table from which tiles are not written whole."""
        schema = TASKS.schema if name == TASKS.name else WAITS.schema
        assert self._until is not None
        late = [p for p in self._trace.parts(name) if p.t_max is not None and p.t_max >= self._until]
        return pa.concat_tables([schema.empty_table(), *self._read(name, late)])

    def _events(self, parts: list[Part]) -> Iterator[Rows]:
        """The columns of one part after the other, each until the next is asked for."""
        scratch: Rows = {}
        return self._sound(EVENTS.name, parts, lambda part: derived.read_events(part.path, _entry(part), scratch))

    def _read(self, name: str, parts: list[Part]) -> Iterator[pa.Table]:
        """One part after the other."""
        return self._sound(name, parts, lambda part: derived.read_part(part.path, name, _entry(part)))

    def _sound(self, name: str, parts: list[Part], read: Callable[[Part], T | None]) -> Iterator[T]:
        """What is not as it was sealed is left out."""
        for part in parts:
            if (rows := read(part)) is None:
                self._note(f"{name}/{part.path.name} was left out: it cannot be read ({part.rows} rows)")
            else:
                yield rows


def _entry(part: Part) -> dict[str, Any]:
    return {"rows": part.rows, "bytes": part.bytes, "crc32": part.crc32}
