"""A compiled query: the program for the engine, and what the host does with what it exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..program import Cell, Program

BELOW = -(1 << 63)
"""Lower end of the bucket of an lhist that holds what is below its min."""


@dataclass(frozen=True)
class Column:
    """A key column. names: what its numbers are called, for printing."""

    name: str
    names: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a map of the program holds.

    what: count, sum, min, max, avg, stats, hist, lhist, state, or row (typed rows of a printf: the keys are t, seq and
    the values printed). linear: min, max and step of an lhist, whose last key column is the bucket's lower end.
    """

    map: str
    what: str
    columns: tuple[Column, ...]
    linear: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Piece:
    """Part of a format: text, or a value's conversion (d, u, x, s), its width (negative: to the left) and fill."""

    text: str = ""
    conversion: str = ""
    width: int = 0
    fill: str = " "


@dataclass(frozen=True)
class Rows:
    """A printf in a clause of hooks: its rows are entries of `map`, formatted when they are exported."""

    map: str
    format: tuple[Piece, ...]


@dataclass(frozen=True)
class Print:
    """Print what was exported of a map since it was last cleared. top: only the largest n, None: all."""

    map: str
    top: int | None = None


@dataclass(frozen=True)
class Clear:
    """Forget what was exported of a map."""

    map: str


@dataclass(frozen=True)
class Printf:
    """args: numbers, or names of maps without keys, whose value now is meant."""

    format: tuple[Piece, ...]
    args: tuple[int | str, ...]


HostStatement = Print | Clear | Printf


@dataclass(frozen=True)
class HostClause:
    """when: begin, end, or interval (every period_ns of the engine's time)."""

    when: str
    period_ns: int
    statements: tuple[HostStatement, ...]


@dataclass(frozen=True)
class Query:
    """name: of the program. text: what was compiled. answers: every map but the query's own constants and cells.

    host: in the order of the text; where nothing prints or reads a map, an `end` clause that prints it is added.
    """

    name: str
    text: str
    program: Program
    answers: tuple[Answer, ...]
    host: tuple[HostClause, ...]
    rows: tuple[Rows, ...]
    feedback: tuple[Cell, ...]

    def answer(self, map_name: str) -> Answer:
        """What a map holds. Raises KeyError for a map that is none of the query's answers."""
        return {a.map: a for a in self.answers}[map_name]
