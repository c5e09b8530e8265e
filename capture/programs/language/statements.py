"""Blocks resolved: what a clause does to maps, and what it exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import formats, syntax, tree
from .errors import Position, Problem, did_you_mean
from .expressions import ACTIONS, AGGREGATES, Scope
from .fields import ROW
from .map_uses import KeyColumn
from .query import Rows
from .tree import Aggregate, Body, Expr, Statement

MAX_BUCKETS = 1000
MAX_LOCALS = 8


@dataclass
class Emissions:
    """What is known of all `emit()` of a query. rates: rows a second, None: no limit, by where it stands."""

    rates: list[tuple[int | None, Position]] = field(default_factory=list)
    samples: set[int] = field(default_factory=set)
    """n of sample(1/n), where that is all that stands before an emit; 0: something else does"""
    rows: dict[Position, Rows] = field(default_factory=dict)


class Blocks:
    """Resolves one clause at one hook."""

    def __init__(self, scope: Scope, emissions: Emissions) -> None:
        self.scope, self.emissions = scope, emissions
        self._only_sampled = 0

    def body(self, clause: syntax.Clause) -> Body:
        """The clause. Raises Problem."""
        at = syntax.first(clause.predicate) if clause.predicate else clause.at
        predicate = self.scope.value(clause.predicate) if clause.predicate else None
        self._only_sampled = predicate.n if isinstance(predicate, tree.Sample) else 0
        statements = self._block(clause.block)
        known = self.scope.locals
        unsure = tuple(i in known.unsure for i in range(len(known.index)))
        return Body(clause.at, predicate, at, statements, unsure)

    def _block(self, block: syntax.Block) -> tuple[Statement, ...]:
        return tuple(s for statement in block.statements for s in self._statement(statement))

    def _statement(self, s: syntax.Statement) -> tuple[Statement, ...]:
        match s:
            case syntax.Assignment(target=syntax.Local() as local):
                return (self._local(s, local),)
            case syntax.Assignment(target=syntax.MapRef() as ref):
                return (self._assign(s, ref),)
            case syntax.If():
                return self._if(s)
            case syntax.Action():
                return self._action(s)
        raise AssertionError(s)

    def _if(self, s: syntax.If) -> tuple[Statement, ...]:
        condition = self.scope.value(s.condition)
        only, self._only_sampled = self._only_sampled, 0
        known = self.scope.locals
        before = set(known.sure)
        then = self._block(s.then)
        after, known.sure = known.sure, before
        otherwise = self._block(s.otherwise) if s.otherwise else ()
        known.sure = known.sure & after
        self._only_sampled = only
        if isinstance(condition, tree.Const):
            return then if condition.value else otherwise
        return (tree.If(s.at, condition, then, otherwise),)

    def _local(self, s: syntax.Assignment, target: syntax.Local) -> Statement:
        value = self._value(s)
        known = self.scope.locals
        index = known.index.setdefault(target.name, len(known.index))
        if index >= MAX_LOCALS:
            raise Problem(s.at, f"this is the {index + 1}th local of the clause", f"at most {MAX_LOCALS}")
        if not tree.may_be_missing(value):
            known.sure.add(target.name)
        return tree.SetLocal(s.at, tree.Local(index, False), value)

    def _value(self, s: syntax.Assignment) -> Expr:
        return self.scope.value(syntax.Binary(s.at, s.op, s.target, s.value) if s.op else s.value)

    def _assign(self, s: syntax.Assignment, target: syntax.MapRef) -> Statement:
        if isinstance(s.value, syntax.Call) and s.value.name in AGGREGATES and not s.op:
            return self._aggregate(s, target, s.value)
        keys = tuple(self.scope.value(k) for k in target.keys)
        self.scope.maps.use(target.name, "state", target, keys)
        if s.op in ("+", "-"):
            value = self.scope.value(s.value if s.op == "+" else syntax.Unary(s.at, "-", s.value))
            return tree.Add(s.at, target.name, keys, value)
        return tree.Store(s.at, target.name, keys, self._value(s))

    def _aggregate(self, s: syntax.Assignment, target: syntax.MapRef, call: syntax.Call) -> Statement:
        wanted = {"count": 0, "lhist": 4}.get(call.name, 1)
        if len(call.args) != wanted:
            shape = {"count": "count()", "lhist": "lhist(x, min, max, step)"}.get(call.name, f"{call.name}(x)")
            raise Problem(
                call.at,
                f"{call.name} takes {wanted or 'no'} value{'s' * (wanted != 1)}, not {len(call.args)}",
                f"write {shape}",
            )
        keys = tuple(self.scope.value(k) for k in target.keys)
        value = self.scope.value(call.args[0]) if call.args else None
        linear = self._linear(call) if call.name == "lhist" else (0, 0, 0)
        negative = call.name == "sum" and value is not None and not tree.never_negative(value)
        self.scope.maps.use(target.name, call.name, target, keys, linear=linear, negative=negative)
        return Aggregate(s.at, target.name, keys, call.name, value, linear)

    def _linear(self, call: syntax.Call) -> tuple[int, int, int]:
        low, high, step = (
            self.scope.constant(a, f"{n} of lhist") for a, n in zip(call.args[1:], ("min", "max", "step"), strict=True)
        )
        if step <= 0 or high <= low or (high - low) % step:
            raise Problem(call.args[1].at, f"{low} to {high} is not divided by {step}", "max - min must be some steps")
        if (high - low) // step > MAX_BUCKETS:
            raise Problem(call.args[3].at, f"that is {(high - low) // step:,} buckets", f"at most {MAX_BUCKETS:,}")
        return low, high, step

    def _action(self, s: syntax.Action) -> tuple[Statement, ...]:
        call = s.call
        if s.limit is not None and call.name != "emit":
            raise Problem(s.limit.at, "limit() stands after emit()", "as in: emit() limit(100/s)")
        match call.name:
            case "emit":
                return (self._emit(s),)
            case "delete":
                return (self._delete(call),)
            case "printf":
                return (self._row(call),)
            case "print" | "clear":
                todo = f"write interval 1s {{ {call.name}(…); }} or end {{ {call.name}(…); }}"
                if call.name == "clear":
                    todo += "; of state, delete(@m[key]) removes one key"
                raise Problem(call.at, f"{call.name}() is done by the host, not at an event", todo)
            case "count" | "sum" | "min" | "max" | "avg" | "stats" | "hist" | "lhist":
                raise Problem(call.at, f"{call.name}() goes into a map", f"write @m = {call.name}(…)")
        value = self.scope.value(call)
        raise Problem(
            call.at,
            f"{call.name}() does nothing here ({type(value).__name__.lower()})",
            did_you_mean(call.name, ACTIONS, "use its value"),
        )

    def _emit(self, s: syntax.Action) -> Statement:
        if s.call.args:
            raise Problem(
                s.call.args[0].at, "emit() takes nothing: the whole row is exported", "a printf exports chosen values"
            )
        self.emissions.rates.append((rate(self.scope, s.limit) if s.limit is not None else None, s.at))
        self.emissions.samples.add(self._only_sampled if s.limit is None else 0)
        return tree.Emit(s.at)

    def _delete(self, call: syntax.Call) -> Statement:
        if len(call.args) != 1 or not isinstance(call.args[0], syntax.MapRef):
            raise Problem(call.at, "delete takes one entry of a map", "as in: delete(@start[task])")
        ref = call.args[0]
        use = self.scope.maps.uses.get(ref.name)
        if use is not None and use.what != "state":
            raise Problem(
                ref.at,
                f"@{ref.name} is filled by {use.what}(), and is emptied at each epoch's end",
                "it needs no delete",
            )
        keys = tuple(self.scope.value(k) for k in ref.keys)
        self.scope.maps.use(ref.name, "state", ref, keys, reads=True)
        return tree.Delete(call.at, ref.name, keys)

    def _row(self, call: syntax.Call) -> Statement:
        """A printf at an event: its values are a key, with t and seq before them, so that no two are one."""
        text, args = format_of(call)
        values = tuple(self.scope.value(a) for a in args)
        keys = (ROW["t"], ROW["seq"], *values)
        columns = [KeyColumn("t", "i", 8), KeyColumn("seq", "i", 8)]
        for i, (a, v) in enumerate(zip(args, values, strict=True), 1):
            label = a.name.rpartition(".")[2] if isinstance(a, syntax.Name) else ""
            columns.append(KeyColumn(label or f"value{i}", *tree.width(v), field=label))
        rows = self.emissions.rows.get(call.at) or Rows(
            f"printf_{len(self.emissions.rows) + 1}", formats.pieces(text.value, len(args), text.at)
        )
        self.emissions.rows[call.at] = rows
        self.scope.maps.rows(rows.map, call.at, columns)
        return Aggregate(call.at, rows.map, keys, "row")


def format_of(call: syntax.Call) -> tuple[syntax.String, tuple[syntax.Expr, ...]]:
    """The format and the values of a printf. Raises Problem."""
    if not call.args or not isinstance(call.args[0], syntax.String):
        raise Problem(call.at, "printf takes a format first", 'as in: printf("%d ns\\n", exec_ns)')
    return call.args[0], call.args[1:]


def rate(scope: Scope, e: syntax.Expr) -> int:
    """n of limit(n/s), rows a second. Raises Problem."""
    match e:
        case syntax.Binary(op="/", left=left, right=syntax.Name(name="s")):
            n = scope.constant(left, "n of limit(n/s)")
            if 1 <= n <= 1 << 40:
                return n
            raise Problem(left.at, f"a limit of {n} a second is none", "it is at least 1")
    raise Problem(e.at, "limit takes n/s", "as in: emit() limit(100/s)")
