"""Text to query: parsed, resolved hook by hook, written as one program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from ....store.errors import Usage
from ....store.tables import HOOK_BY_NAME
from ..isa import Insn
from ..maps import Map
from ..program import MAX_SLOTS, Entry, Function, Program, SourceLine
from . import literals, syntax
from .cells import Cells
from .codegen_statements import Statements
from .constant_tables import ConstantTables
from .emitter import Emitter
from .errors import Position, Problem, QueryRefused, did_you_mean, listed, snippet
from .expressions import Scope
from .fields import ALIASES, DERIVED, ROW
from .host_clauses import HOST_HEADS, host_clauses
from .map_uses import MapUses
from .names import Names
from .parsing import parse
from .query import Answer, Column, Query
from .statements import Blocks, Emissions
from .tree import Body

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def compile(
    text: str,
    tables: Mapping[str, pa.Table] | None = None,
    constants: Mapping[str, int | str] | None = None,
    name: str = "query",
) -> Query:
    """The query that `text` says.

    tables: side tables of the target by name, of which names and coordinates are taken; without them, names must be
    numbers. constants: other values for the text's `const` names, numbers or text such as "50us". Raises QueryRefused
    for a text that is no query, Usage for a constant or name that makes no sense.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise Usage("cannot compile a query", f"{name!r} is no name for it", "take letters, digits and _")
    try:
        return _Compilation(text, Names(tables), name).query(constants or {})
    except Problem as p:
        raise QueryRefused(name, text, p) from None


def constants_of(text: str) -> list[str]:
    """Names of the constants that a query declares; none for a text that is no query."""
    try:
        return [item.name for item in parse(text).items if isinstance(item, syntax.Constant)]
    except Problem:
        return []


class _Compilation:
    def __init__(self, text: str, names: Names, name: str) -> None:
        self.text, self.names, self.name = text, names, name
        self.tree = parse(text)
        self.maps = MapUses(names)
        self.cells = Cells(self.maps, {})
        self.constants: dict[str, int] = {}
        self.emissions = Emissions()

    def query(self, given: Mapping[str, int | str]) -> Query:
        self._constants(given)
        nowhere = Scope(None, self.names, self.constants, self.maps, self.cells)
        for item in self.tree.items:
            if isinstance(item, syntax.Declaration):
                size = nowhere.constant(item.size, "a size") if item.size else None
                self.maps.declare(item, size)
        bodies: dict[int, list[Body]] = {}
        for clause in self._clauses():
            for hook in self._hooks(clause):
                scope = Scope(hook, self.names, self.constants, self.maps, self.cells)
                bodies.setdefault(hook, []).append(Blocks(scope, self.emissions).body(clause))
        self.maps.finish()
        cells = self.cells.declared()
        host = host_clauses(self.tree, nowhere)
        if not bodies:
            raise Problem(Position(1, 1), "it looks at no event", "add a clause of a hook, as in: complete { … }")
        answers = tuple(
            Answer(u.name, u.what, tuple(Column(c.name, self.names.decoded(c.field)) for c in u.columns), u.linear)
            for u in self.maps.uses.values()
        )
        program = self._program(bodies, [self.maps.map(u) for u in self.maps.uses.values()], [m for _, m in cells])
        rows = tuple(self.emissions.rows.values())
        return Query(self.name, self.text, program, answers, host, rows, tuple(c for c, _ in cells))

    def _constants(self, given: Mapping[str, int | str]) -> None:
        """The text's constants, in order, each with its given value where there is one."""
        nowhere = Scope(None, self.names, self.constants, self.maps, self.cells)
        for item in self.tree.items:
            if not isinstance(item, syntax.Constant):
                continue
            if item.name in ROW | DERIVED | ALIASES | self.names.coordinates:
                raise Problem(item.at, f"{item.name} is a field already", "take another name for the constant")
            if item.name in self.constants:
                raise Problem(item.at, f"{item.name} is a constant already")
            value = nowhere.constant(item.value, item.name)
            self.constants[item.name] = _given(item.name, given[item.name]) if item.name in given else value
        for key in given:
            if key not in self.constants:
                todo = did_you_mean(key, self.constants, f"it has {listed(self.constants) or 'none'}")
                raise Usage("cannot set a constant", f"the query has no constant {key!r}", todo)

    def _clauses(self) -> list[syntax.Clause]:
        clauses = [c for c in self.tree.items if isinstance(c, syntax.Clause)]
        return [c for c in clauses if not any(h.name in HOST_HEADS for h in c.heads)]

    @staticmethod
    def _hooks(clause: syntax.Clause) -> list[int]:
        hooks = []
        for head in clause.heads:
            hook = HOOK_BY_NAME.get(head.name)
            if hook is None:
                todo = did_you_mean(
                    head.name.lower(), [*HOOK_BY_NAME, *HOST_HEADS], f"there are {listed(HOOK_BY_NAME, 20)}"
                )
                raise Problem(head.at, f"there is no hook {head.name}", todo)
            if head.period is not None:
                raise Problem(head.at, f"{head.name} has no period", "interval has one, as in: interval 1s { … }")
            hooks.append(hook.id)
        return list(dict.fromkeys(hooks))

    def _program(self, bodies: Mapping[int, Sequence[Body]], answers: list[Map], cells: list[Map]) -> Program:
        """Hooks whose code is the same share an entry."""
        index = {m.name: i for i, m in enumerate([*answers, *cells])}
        tables = ConstantTables(len(index))
        written: dict[tuple[object, ...], tuple[Emitter, list[int]]] = {}
        for hook in sorted(bodies):
            out = Emitter()
            Statements(out, tables, index, self.maps.uses, {m.name: m.max_entries for m in cells}).entry(bodies[hook])
            written.setdefault(tuple(out.insns), (out, []))[1].append(hook)
        insns: list[Insn] = []
        entries, functions, lines = [], [], []
        for out, hooks in written.values():
            label = "_".join(n for n, h in HOOK_BY_NAME.items() if h.id in hooks)
            entries.append(Entry(label, tuple(hooks), len(insns)))
            functions.append(Function(len(insns), label))
            for pc, at in out.marks:
                lines.append(SourceLine(len(insns) + pc, self.name, at.line, at.column, snippet(self.text, at)))
            insns += out.insns
        if len(insns) > MAX_SLOTS:
            why = f"its code has {len(insns):,} instructions, more than {MAX_SLOTS:,}"
            raise Problem(Position(1, 1), why, "make several queries of it")
        return Program(
            self.name,
            tuple(insns),
            tuple(entries),
            (*answers, *cells, *tables.maps()),
            tuple(functions),
            lines=tuple(lines),
            source=self.text,
            emit_limit=self._emit_limit(),
            sample=self._sample(),
        )

    def _emit_limit(self) -> int | None:
        """One limit for all: it is the program's."""
        rates = self.emissions.rates
        for rate, at in rates:
            if rate != rates[0][0]:
                raise Problem(
                    at, "this emit() has another limit than the one before", "a query has one limit: write it at each"
                )
        return rates[0][0] if rates else None

    def _sample(self) -> int:
        """n where every row that is exported is exported because of sample(1/n) alone."""
        (n,) = self.emissions.samples if len(self.emissions.samples) == 1 else (0,)
        return n or 1


def _given(name: str, value: int | str) -> int:
    """A constant from outside. Raises Usage."""
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise Usage("cannot set a constant", f"{name}={value} does not fit in 64 bits")
        return value
    try:
        digits = value.strip()
        sign = -1 if digits.startswith("-") else 1
        return sign * literals.number(digits.removeprefix("-"), Position(1, 1))
    except Problem as p:
        raise Usage("cannot set a constant", f"{name}={value}: {p.why}", p.todo) from None
