"""Statements and clauses to eBPF: one function of code for each hook."""

from __future__ import annotations

from collections.abc import Sequence

from .codegen_values import Values
from .emitter import R0, R1, R2, R3, R4, R6, R10, Label
from .query import BELOW
from .tree import Add, Aggregate, Body, Const, Delete, Emit, Expr, If, SetLocal, Statement, Store, never_negative

_HELPER = {
    "count": "map_add", "sum": "map_add", "min": "map_min", "max": "map_max", "avg": "stats_add", "stats": "stats_add",
    "hist": "hist_add", "lhist": "map_add", "row": "map_add",
}  # fmt: skip
UNSIGNED = ("min", "max", "avg", "stats", "hist")
"""They know no numbers below 0: such a value counts as 0."""


class Statements(Values):
    """Writes what a hook's clauses do."""

    def entry(self, bodies: Sequence[Body]) -> None:
        """All clauses of a hook, in order."""
        self.out.copy(R6, R1)
        for body in bodies:
            self._body(body)
        self.out.exit()

    def _body(self, body: Body) -> None:
        out, over = self.out, Label()
        if body.predicate is not None:
            out.mark(body.predicate_at)
            self.guarded(body.predicate, over)
        out.mark(body.at)
        with out.area(8 * len(body.locals)) as values, out.area(8 * sum(body.locals)) as flags:
            self.locals = []
            for i, unsure in enumerate(body.locals):
                there = None
                if unsure:
                    there, flags = flags, flags + 8
                    out.store_constant(R10, values + 8 * i, 8, 0)
                    out.store_constant(R10, there, 8, 0)
                self.locals.append((values + 8 * i, there))
            self._block(body.statements)
        out.here(over)

    def _block(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            self.out.mark(s.at)
            end = Label()
            outer, self.missing = self.missing, end
            self._statement(s)
            self.missing = outer
            self.out.here(end)

    def _statement(self, s: Statement) -> None:
        out = self.out
        match s:
            case Aggregate():
                self._aggregate(s)
            case Store(_, name, keys, value):
                with out.area(self.uses[name].key_bytes) as place, out.area(8) as held:
                    self.key(name, keys, place)
                    self.value(value)
                    out.store(R10, held, 8, R0)
                    out.map(R1, self.index[name])
                    self.point(R2, place)
                    self.point(R3, held)
                    out.move(R4, 0)
                    out.call("map_update_elem")
            case Add(_, name, keys, value):
                self._upsert("map_add", name, keys, value)
            case Delete(_, name, keys):
                with out.area(self.uses[name].key_bytes) as place:
                    self.key(name, keys, place)
                    out.map(R1, self.index[name])
                    self.point(R2, place)
                    out.call("map_delete_elem")
            case SetLocal(_, local, value):
                self.value(value)
                place, there = self.locals[local.index]
                out.store(R10, place, 8, R0)
                if there is not None:
                    out.store_constant(R10, there, 8, 1)
            case If(_, condition, then, otherwise):
                other = (lambda: self._block(otherwise)) if otherwise else None
                self.choose(condition, lambda: self._block(then), other)
            case Emit():
                out.copy(R1, R6)
                out.call("emit")

    def _aggregate(self, s: Aggregate) -> None:
        if s.what == "lhist" and s.value is not None:
            self._linear(s, s.value)
        else:
            self._upsert(_HELPER[s.what], s.map, s.keys, s.value or Const(1), unsigned=s.what in UNSIGNED)

    def _upsert(self, helper: str, name: str, keys: Sequence[Expr], value: Expr, *, unsigned: bool = False) -> None:
        out = self.out
        with out.area(self.uses[name].key_bytes) as place:
            self.key(name, keys, place)
            if isinstance(value, Const):
                out.move(R3, max(value.value, 0) if unsigned else value.value)
            else:
                self.value(value)
                if unsigned and not never_negative(value):
                    fine = Label()
                    out.jump(fine, "jsge", R0, 0, constant=True)
                    out.move(R0, 0)
                    out.here(fine)
                out.copy(R3, R0)
            out.map(R1, self.index[name])
            self.point(R2, place)
            out.call(helper)

    def _linear(self, s: Aggregate, value: Expr) -> None:
        """The bucket's lower end is the last key; what is at or above max has max."""
        out, use = self.out, self.uses[s.map]
        low, high, step = s.linear
        with out.area(use.key_bytes) as place:
            self.key(s.map, s.keys, place)
            self.value(value)
            below, above, end = Label(), Label(), Label()
            out.jump(below, "jslt", R0, low, constant=True)
            out.jump(above, "jsge", R0, high, constant=True)
            if low:
                out.alu("sub", R0, low, constant=True)
            out.copy(R1, R0)
            out.alu("mod", R1, step, constant=True)
            out.alu("sub", R0, R1)
            if low:
                out.alu("add", R0, low, constant=True)
            out.jump(end)
            out.here(below)
            out.move(R0, BELOW)
            out.jump(end)
            out.here(above)
            out.move(R0, high)
            out.here(end)
            out.store(R10, place + use.offsets[-1], 8, R0)
            out.move(R3, 1)
            out.map(R1, self.index[s.map])
            self.point(R2, place)
            out.call("map_add")
