"""What is said of a program before and while it runs: is it accepted, what does it cost, what do its maps hold.

For whoever types a query and wants to know at once, and for whoever shows the maps of a program that others attached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ..store.errors import MegascopeError
from ..store.tables import HOOKS
from . import attaching
from .programs import standard
from .programs.maps import Map, MapKind
from .programs.merging import Rule, rule_of
from .programs.program import Program
from .programs.verdict import Verdict

if TYPE_CHECKING:
    from .programs.language.query import Answer

Tables = Mapping[str, pa.Table]
_RULES = {Rule.ADD: "sum", Rule.MIN: "min", Rule.MAX: "max"}


@dataclass(frozen=True)
class Shape:
    """What a map holds.

    what: hist, stats, lhist, rows (of a printf), or how its numbers add up over epochs and workers: count, sum, min,
    max, last (state, as it stood); empty where the code does not tell. A count grows by one at an event. unit: of its
    values, ns, bytes or empty. entries: at most.
    """

    map: str
    what: str
    unit: str
    entries: int
    shared: bool
    names: tuple[Mapping[int, str], ...] = ()
    """by key column, what its numbers are called; empty where nothing is known of them"""


@dataclass(frozen=True)
class Judged:
    """An accepted program. cost: worst-case instructions of an event, by hook's id. query: its source is a query.

    serial_because: why its events are taken one by one; empty: 32 at once. emits: it exports raw events.
    """

    name: str
    source: str
    hooks: tuple[str, ...]
    cost: Mapping[int, int]
    serial_because: str
    emits: bool
    sample: int
    shapes: tuple[Shape, ...]
    query: bool

    def shape(self, map_name: str) -> Shape | None:
        """What is known of the map of that name."""
        return next((s for s in self.shapes if s.map == map_name), None)


@dataclass(frozen=True)
class Rejection:
    """A query that is refused: why, in one line, and the place as two lines, the text and a caret; or empty.

    column: of the caret, from 1; 0 where the whole text is meant.
    """

    problem: str
    excerpt: str = ""
    column: int = 0


def judge(text: str, tables: Tables | None, name: str = "query") -> Judged | Rejection:
    """Compile a query and verify it. tables: side tables of the target, of which it takes names. Raises nothing."""
    from .programs.language.errors import Position, QueryRefused, excerpt
    from .programs.verdict import Rejected

    try:
        program = attaching.load(text, {}, tables, name=name, query=True)
        return _judged(program, attaching.verify(program), tables)
    except QueryRefused as e:
        return Rejection(str(e), e.excerpt, e.column)
    except Rejected as e:
        line = program.line(e.pc)
        if line is None or not line.line:
            return Rejection(str(e))
        return Rejection(str(e), excerpt(text, Position(line.line, line.column)), line.column)
    except MegascopeError as e:
        return Rejection(str(e))


def of_program(program: Program, tables: Tables | None = None) -> Judged | None:
    """A program that runs somewhere. None where the verifier refuses it: its image may be anybody's."""
    try:
        return _judged(program, attaching.verify(program), tables)
    except MegascopeError:
        return None


def of_record(name: str, source: str, digest: str, tables: Tables | None = None) -> Judged | None:
    """A program that a trace tells of, by name, source and hash.

    None where its code is not to be had: it is neither a standard monitor of this version nor a query that compiles to
    the code that was attached.
    """
    try:
        found = standard.load(name) if name in standard.BY_NAME else None
        if found is None or found.hash != digest:
            found = attaching.load(source, {}, tables, name=name, query=True)
    except MegascopeError:
        return None
    return of_program(found, tables) if found.hash == digest else None


def _judged(program: Program, verdict: Verdict, tables: Tables | None) -> Judged:
    answers = _answers(program, tables)
    shapes = tuple(
        _shape(m, rule_of(verdict, i), (answers or {}).get(m.name))
        for i, m in enumerate(program.maps)
        if not m.read_only and m.kind != MapKind.FEEDBACK
    )
    return Judged(
        program.name,
        program.source,
        tuple(h.name for h in HOOKS if program.mask >> h.id & 1),
        dict(verdict.cost),
        verdict.serial_because,
        verdict.emits,
        program.sample,
        _with_units(program, shapes, query=answers is not None),
        answers is not None,
    )


def _answers(program: Program, tables: Tables | None) -> dict[str, Answer] | None:
    """What a query's maps are, by name; None where the program's source is no query for this code."""
    from .programs.language import compile as compile_query

    if "{" not in program.source:
        return None
    try:
        query = compile_query(program.source, tables, {}, program.name)
    except MegascopeError:
        return None
    return {a.map: a for a in query.answers} if query.program.hash == program.hash else None


def _shape(m: Map, rule: Rule | None, told: Answer | None) -> Shape:
    if told is not None:
        what = {"avg": "stats", "row": "rows", "state": "last"}.get(told.what, told.what)
    elif m.kind in (MapKind.HIST, MapKind.STATS):
        what = m.kind.name.lower()
    else:
        what = (_RULES.get(rule, "") if rule is not None else "") if m.aggregate else "last"
    names = tuple(c.names for c in told.columns) if told is not None else ()
    return Shape(m.name, what, "", m.max_entries, m.shared, names)


def _with_units(program: Program, shapes: tuple[Shape, ...], *, query: bool) -> tuple[Shape, ...]:
    if query:
        from .programs.language.units import units

        known = units(program.source)
    else:
        known = dict(standard.BY_NAME[program.name].units) if standard.is_one(program) else {}
    return tuple(replace(s, unit=known.get(s.map, "")) for s in shapes)
