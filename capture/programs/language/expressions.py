"""Expressions resolved: names to places in the row, to numbers, to cells. Constants are folded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ....store.tables import HOOKS, REQUEST_SET_BIT, REQUEST_UNKNOWN
from ..arithmetic import alu, signed
from . import syntax, tree
from .cells import Cells
from .errors import Position, Problem, did_you_mean, listed
from .fields import ALIASES, DERIVED, ROW, TILE
from .map_uses import MapUses
from .names import FIXED, NAMED, Names
from .tree import Binary, Choice, Compare, Const, Expr, Logic, Member, Sample, Unary

HOOK_NAMES = {h.id: h.name for h in HOOKS}
AGGREGATES = ("count", "sum", "min", "max", "avg", "stats", "hist", "lhist")
ACTIONS = ("emit", "delete", "clear", "print", "printf")
QUANTILE = re.compile(r"p([0-9]{2,4})")
FUNCTIONS = ("sample", "belongs_to", "p50", "p90", "p99", "p999", "total")
MAX_SAMPLE = 1 << 20
_ALU = {
    "+": "add", "-": "sub", "*": "mul", "/": "sdiv", "%": "smod", "&": "and", "|": "or", "^": "xor",
    "<<": "lsh", ">>": "arsh",
}  # fmt: skip
_LEFT_OUT = {
    **dict.fromkeys(("kstack", "ustack", "stack", "ksym", "usym"), "there are no stacks"),
    **dict.fromkeys(("str", "buf", "strncmp", "join", "strftime"), "there are no strings on the device"),
    **dict.fromkeys(("barrier", "syncthreads", "__syncthreads", "lock"), "there are no barriers"),
    **dict.fromkeys(("float", "double"), "there is no floating point"),
    **dict.fromkeys(("kptr", "uptr", "reg"), "there are no pointers"),
}
_TODAY = {
    "nsecs": "t",
    "cpu": "worker",
    "tid": "task",
    "pid": "request",
    "elapsed": "t",
    "probe": "hook",
    "retval": "aux",
}
"""What bpftrace calls things, and what comes nearest here."""


def places(hooks: set[int]) -> str:
    """'start and complete'"""
    return listed(HOOK_NAMES[h] for h in sorted(hooks))


@dataclass
class Locals:
    """$names of one clause: their numbers, which are certainly assigned where we are, which are ever read unsure."""

    index: dict[str, int] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)


@dataclass
class Scope:
    """What names mean at one hook. hook None: no event at all, as in constants and on the host."""

    hook: int | None
    names: Names
    constants: Mapping[str, int]
    maps: MapUses
    cells: Cells
    locals: Locals = field(default_factory=Locals)

    def constant(self, e: syntax.Expr, what: str) -> int:
        """A number known now. Raises Problem."""
        try:
            value = Scope(None, self.names, self.constants, self.maps, self.cells).value(e)
        except Problem as p:
            raise Problem(p.at, f"{what} must be a constant: {p.why}", p.todo) from None
        if not isinstance(value, Const):
            raise Problem(e.at, f"{what} must be a constant")
        return value.value

    def value(self, e: syntax.Expr) -> Expr:
        """An expression. Raises Problem."""
        match e:
            case syntax.Number(value=value):
                return Const(value)
            case syntax.String():
                why = "strings are names of the host: they stand in comparisons with a field, and in printf"
                raise Problem(e.at, why, 'as in: class == "attn"')
            case syntax.Name(name=name):
                return self._name(name, e.at)
            case syntax.Local(name=name):
                return self._local(name, e.at)
            case syntax.MapRef(name=name, keys=keys):
                resolved = tuple(self.value(k) for k in keys)
                self.maps.use(name, "state", e, resolved, reads=True)
                return tree.Read(name, resolved)
            case syntax.Call():
                return self._call(e)
            case syntax.Unary(op=op, value=inner):
                return self._unary(op, self.value(inner))
            case syntax.Choice(condition=condition, yes=yes, no=no):
                return self._choice(self.value(condition), self.value(yes), self.value(no))
            case syntax.Binary():
                return self._binary(e)
        raise AssertionError(e)

    def _name(self, name: str, at: Position) -> Expr:
        if name in self.constants:
            return Const(self.constants[name])
        plain = ALIASES.get(name, name)
        if self.hook is None:
            if plain in ROW or plain in DERIVED:
                raise Problem(at, f"{name} is a field of an event, and there is none here")
            raise Problem(at, f"there is no constant {name}", did_you_mean(name, self.constants))
        if plain in ROW:
            return ROW[plain]
        if (derived := DERIVED.get(plain)) is not None:
            if derived.everywhere is not None:
                return derived.everywhere
            if self.hook in derived.hooks:
                return derived.hooks[self.hook]
            if plain not in self.names.coordinates:
                why = f"{name} is of {places(set(derived.hooks))}, and this clause is at {HOOK_NAMES[self.hook]}"
                raise Problem(at, why, "write a clause for each")
        if (found := self._of_tables(plain)) is not None:
            return found
        raise self._unknown(name, plain, at)

    def _of_tables(self, name: str) -> Expr | None:
        if name == "layer":
            return self.names.layer(ROW["task_class"])
        if name == "producer":
            return self.names.producer(ROW["dep"])
        return self.names.coordinates.get(name.removeprefix(TILE))

    def _unknown(self, name: str, plain: str, at: Position) -> Problem:
        if name == "operator":
            return Problem(at, "operator is a name, not a number", 'compare it (operator == "attn"), or key by class')
        if not self.names.tables and (plain in ("layer", "producer") or plain.startswith(TILE)):
            return Problem(at, f"{name} comes from the target's tables", "say which trace or segment")
        known = [*ROW, *ALIASES, *DERIVED, *self.names.coordinates, *self.constants, "layer", "producer", "operator"]
        if name in _LEFT_OUT:
            return Problem(at, _LEFT_OUT[name])
        if name in _TODAY:
            return Problem(at, f"there is no field {name}", f"did you mean {_TODAY[name]}?")
        here = [*self.names.coordinates, *(d.name for d in DERIVED.values() if d.everywhere or self.hook in d.hooks)]
        todo = did_you_mean(name, known, f"of the event there are class, worker, step, task, {listed(here)} and others")
        if not self.names.tables:
            todo = f"{todo} if it is a coordinate: say which trace or segment gives the names".strip()
        return Problem(at, f"there is no field {name}", todo)

    def _local(self, name: str, at: Position) -> Expr:
        index = self.locals.index.get(name)
        if index is None:
            known = [f"${n}" for n in self.locals.index]
            raise Problem(at, f"${name} is read before it is assigned", did_you_mean(f"${name}", known))
        unsure = name not in self.locals.sure
        if unsure:
            self.locals.unsure.add(index)
        return tree.Local(index, unsure)

    @staticmethod
    def _unary(op: str, value: Expr) -> Expr:
        match op, value:
            case "-", Const(v):
                return Const(signed(-v))
            case "~", Const(v):
                return Const(~v)
            case "!", Const(v):
                return Const(int(v == 0))
        return Unary(op, value)

    @staticmethod
    def _choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
        if isinstance(condition, Const):
            return yes if condition.value else no
        return Choice(condition, yes, no)

    def _binary(self, e: syntax.Binary) -> Expr:
        if isinstance(e.left, syntax.String) or isinstance(e.right, syntax.String):
            return self._named(e)
        left, right = self.value(e.left), self.value(e.right)
        if e.op in ("&&", "||"):
            return Logic(e.op, left, right)
        if e.op not in _ALU:
            if isinstance(left, Const) and isinstance(right, Const):
                return Const(int(_COMPARED[e.op](left.value, right.value)))
            return Compare(e.op, left, right)
        if isinstance(left, Const) and isinstance(right, Const):
            return Const(signed(alu(_ALU[e.op], 64, left.value, right.value)))
        return Binary(e.op, left, right)

    def _named(self, e: syntax.Binary) -> Expr:
        """field == "name"."""
        text, other = (e.left, e.right) if isinstance(e.left, syntax.String) else (e.right, e.left)
        if not isinstance(text, syntax.String) or e.op not in ("==", "!="):
            raise Problem(e.at, f"`{e.op}` does not compare names", "use == or !=")
        if not isinstance(other, syntax.Name) or other.name not in FIXED | NAMED:
            raise Problem(other.at, "this has no names", f"names are those of {listed(NAMED | FIXED)}")
        of = ROW["task_class"] if other.name == "operator" else self._name(other.name, other.at)
        found = Member(of, self.names.ids(other.name, text.value, text.at))
        return found if e.op == "==" else Unary("!", found)

    def _call(self, e: syntax.Call) -> Expr:
        if e.name == "sample":
            return Sample(self._part(e))
        if e.name == "belongs_to":
            return self._belongs_to(e)
        if e.name == "total" or QUANTILE.fullmatch(e.name):
            return self._feedback(e)
        if e.name in AGGREGATES:
            raise Problem(e.at, f"{e.name}() is an aggregation, not a number", f"assign it: @m = {e.name}(…)")
        if e.name in (*ACTIONS, "top", "limit"):
            where = "stands inside print()" if e.name == "top" else "is no number"
            raise Problem(e.at, f"{e.name}() {where}", "write it as a statement of its own" if e.name != "top" else "")
        why = _LEFT_OUT.get(e.name)
        known = [*FUNCTIONS, *AGGREGATES, *ACTIONS]
        raise Problem(e.at, why or f"there is no function {e.name}", "" if why else did_you_mean(e.name, known))

    def _part(self, e: syntax.Call) -> int:
        """n of sample(1/n)."""
        match e.args:
            case (syntax.Binary(op="/", left=syntax.Number(value=1), right=n),):
                value = self.constant(n, "n of sample(1/n)")
                if 1 <= value <= MAX_SAMPLE:
                    return value
                raise Problem(n.at, f"n of sample(1/n) is {value}", f"it is 1 to {MAX_SAMPLE:,}")
        raise Problem(e.at, "sample takes 1/n", "as in: sample(1/64)")

    def _belongs_to(self, e: syntax.Call) -> Expr:
        """request is it, or a set that holds it."""
        if len(e.args) != 1:
            raise Problem(e.at, "belongs_to takes one request", 'as in: belongs_to(17) or belongs_to("external-id")')
        request = self._name("request", e.at)
        of = e.args[0]
        if isinstance(of, syntax.String):
            ids = self.names.ids("request", of.value, of.at)
        else:
            ids = (self.constant(of, "a request"),)
        if not 0 < ids[0] < REQUEST_SET_BIT:
            raise Problem(of.at, f"{ids[0]} is no request generation", "they count from 1")
        sets = self.names.sets_of(ids, e.at)
        alone = Member(request, ids)
        if not sets:
            return alone
        in_sets = Member(Binary("&", request, Const(REQUEST_SET_BIT - 1)), sets)
        known = Compare("!=", request, Const(REQUEST_UNKNOWN))
        in_sets_only = Logic("&&", Compare(">=", request, Const(REQUEST_SET_BIT)), Logic("&&", known, in_sets))
        return Logic("||", alone, in_sets_only)

    def _feedback(self, e: syntax.Call) -> Expr:
        if not 1 <= len(e.args) <= 2 or not isinstance(e.args[0], syntax.MapRef):
            raise Problem(e.at, f"{e.name} takes a map, and a window if not 10 s", f"as in: {e.name}(@lat, 5s)")
        if self.hook is None:
            raise Problem(e.at, f"{e.name}() is read by clauses of hooks, and there is no event here")
        source = e.args[0]
        if len(source.keys) > 1:
            raise Problem(
                source.keys[1].at, "an engine-wide value has at most one key", "leave the keys out, for all together"
            )
        key = self.value(source.keys[0]) if source.keys else None
        window = self.constant(e.args[1], "a window") if len(e.args) == 2 else None
        digits = QUANTILE.fullmatch(e.name)
        quantile = int(digits[1]) / 10 ** len(digits[1]) if digits else None
        return tree.Feedback(self.cells.cell(source, quantile, window, key is not None, e.at), key)


_COMPARED = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip
