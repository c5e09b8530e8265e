"""A slow second opinion on queries: the syntax tree walked over events held as dicts, by plain Python numbers.

Nothing of the compiler's is used but the parser: what fields, names and functions mean is written down again here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megascope.capture.programs.histogram import bucket
from megascope.capture.programs.language import syntax
from megascope.capture.programs.language.parsing import parse

HOOKS = {
    "ready": 1, "assign": 2, "start": 3, "complete": 4, "wait": 5, "resume": 6, "release": 7, "send": 8, "receive": 9,
    "request": 10, "step": 11, "pressure": 12, "epoch": 13,
}  # fmt: skip
DEP_CLASSES = {"none": 0, "data": 1, "communication": 2, "resource": 3, "control": 4}
STATES = {
    "admitted": 1, "prefill_chunk": 2, "first_token": 3, "token": 4, "preempted": 5, "resumed": 6, "finished": 7,
    "cancelled": 8,
}  # fmt: skip
COLUMNS = (
    "t", "seq", "task", "aux", "request", "step", "dep", "comm", "tile", "task_class", "worker", "sm", "peer", "hook",
    "dep_class", "flags", "rank",
)  # fmt: skip
TIMED = {3, 4, 6, 9, 11, 13}
SINCE = {"exec_ns": {4}, "queue_ns": {3}, "wait_ns": {6, 9}, "since_ns": TIMED, "epoch_ns": {13}}


class Missing(Exception):
    """The event does not carry it."""


def i64(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def u64(value: int) -> int:
    return value & (1 << 64) - 1


@dataclass
class Worker:
    """maps: by name and key; of hist and the like, every value."""

    maps: dict[str, dict[tuple[int, ...], Any]] = field(default_factory=dict)


class Oracle:
    """Sees events one by one. tables: by name, rows as dicts. feedback: values fed, by (function, map, key)."""

    def __init__(
        self,
        text: str,
        tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> None:
        self.tree = parse(text)
        self.tables = tables or {}
        self.constants: dict[str, int] = {}
        self.feedback: dict[tuple[str, str, int | None], int] = {}
        self.workers: dict[int, Worker] = {}
        self.what: dict[str, str] = {}
        self.rows = {c.at: i for i, c in enumerate(_printfs(self.tree), 1)}
        for item in self.tree.items:
            if isinstance(item, syntax.Constant):
                self.event: Mapping[str, int] = {}
                self.constants[item.name] = (constants or {}).get(item.name, self.value(item.value))

    def see(self, event: Mapping[str, int]) -> bool:
        """Whether the row is exported."""
        self.event, self.emitted = event, False
        self.mine = self.workers.setdefault(event["worker"], Worker())
        for item in self.tree.items:
            if isinstance(item, syntax.Clause) and any(HOOKS.get(h.name) == event["hook"] for h in item.heads):
                self.locals: dict[str, int] = {}
                if item.predicate is None or self.truth(item.predicate):
                    self.block(item.block)
        return self.emitted

    # Statements

    def block(self, block: syntax.Block) -> None:
        for s in block.statements:
            try:
                self.statement(s)
            except Missing:
                continue

    def statement(self, s: syntax.Statement) -> None:
        if isinstance(s, syntax.If):
            if self.truth(s.condition):
                self.block(s.then)
            elif s.otherwise:
                self.block(s.otherwise)
        elif isinstance(s, syntax.Action):
            self.action(s.call)
        elif isinstance(s.target, syntax.Local):
            value = syntax.Binary(s.at, s.op, s.target, s.value) if s.op else s.value
            self.locals[s.target.name] = self.value(value)
        elif isinstance(s.value, syntax.Call) and s.value.name in (
            "count", "sum", "min", "max", "avg", "stats", "hist", "lhist",
        ):  # fmt: skip
            self.aggregate(s.target, s.value)
        else:
            key = self.key(s.target)
            value = self.value(s.value)
            held = self.map(s.target.name, "state")
            held[key] = i64(self.binary(s.op, held.get(key, 0), value)) if s.op else value

    def action(self, call: syntax.Call) -> None:
        if call.name == "emit":
            self.emitted = True
        elif call.name == "delete":
            ref = call.args[0]
            assert isinstance(ref, syntax.MapRef)
            self.map(ref.name, "state").pop(self.key(ref), None)
        elif call.name == "printf":
            values = [self.value(a) for a in call.args[1:]]
            key = (self.event["t"], self.event["seq"], *values)
            held = self.map(f"printf_{self.rows[call.at]}", "row")
            held[key] = held.get(key, 0) + 1
        else:
            raise AssertionError(call)

    def aggregate(self, target: syntax.MapRef, call: syntax.Call) -> None:
        key = self.key(target)
        value = self.value(call.args[0]) if call.args else 1
        held = self.map(target.name, call.name)
        if call.name in ("count", "sum"):
            held[key] = u64(held.get(key, 0) + value)
        elif call.name == "lhist":
            low, high, step = (self.value(a) for a in call.args[1:])
            at = -(1 << 63) if value < low else high if value >= high else low + (value - low) // step * step
            held[*key, at] = held.get((*key, at), 0) + 1
        else:
            held.setdefault(key, []).append(max(value, 0))

    def map(self, name: str, what: str) -> dict[tuple[int, ...], Any]:
        self.what[name] = what
        return self.mine.maps.setdefault(name, {})

    def key(self, ref: syntax.MapRef) -> tuple[int, ...]:
        return tuple(self.value(k) for k in ref.keys)

    # Expressions

    def truth(self, e: syntax.Expr) -> bool:
        try:
            return self.value(e) != 0
        except Missing:
            return False

    def value(self, e: syntax.Expr) -> int:
        match e:
            case syntax.Number(value=value):
                return value
            case syntax.Name(name=name):
                return self.name(name)
            case syntax.Local(name=name):
                if name not in self.locals:
                    raise Missing
                return self.locals[name]
            case syntax.MapRef(name=name):
                return int(self.map(name, "state").get(self.key(e), 0))
            case syntax.Choice(condition=condition, yes=yes, no=no):
                return self.value(yes if self.truth(condition) else no)
            case syntax.Unary(op="!", value=inner):
                return int(self.value(inner) == 0)
            case syntax.Unary(op=op, value=inner):
                return i64(-self.value(inner) if op == "-" else ~self.value(inner))
            case syntax.Binary(op="&&", left=left, right=right):
                return int(self.value(left) != 0 and self.value(right) != 0)
            case syntax.Binary(op="||", left=left, right=right):
                return int(self.value(left) != 0 or self.value(right) != 0)
            case syntax.Binary(op=op, left=left, right=right):
                if isinstance(left, syntax.String):
                    left, right = right, left
                if isinstance(right, syntax.String) and isinstance(left, syntax.Name):
                    same = self.name("task_class" if left.name == "operator" else left.name) in self.ids(
                        left.name, right.value
                    )
                    return int(same == (op == "=="))
                return i64(self.binary(op, self.value(left), self.value(right)))
            case syntax.Call():
                return self.call(e)
        raise AssertionError(e)

    @staticmethod
    def binary(op: str, a: int, b: int) -> int:
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            case "%":
                return a if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)
            case "&":
                return a & b
            case "|":
                return a | b
            case "^":
                return a ^ b
            case "<<":
                return a << (b & 63)
            case ">>":
                return a >> (b & 63)
        return int({"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[op])

    def name(self, name: str) -> int:
        e = self.event
        if name in self.constants:
            return self.constants[name]
        if name in COLUMNS or name == "class":
            return i64(e["task_class" if name == "class" else name])
        if name in SINCE or name == "step_ns":
            if e["aux"] == 0 or (name == "step_ns" and not e["flags"] & 2):
                raise Missing
            return i64(e["t"] - e["aux"])
        high, low = e["aux"] >> 32, e["aux"] & 0xFFFF_FFFF
        if name == "depth":
            return e["aux"] >> 24 & 0xFFFFFF if e["hook"] == 2 else high
        plain = {
            "iteration": e["task"] >> 32, "index": e["task"] & 0xFFFF_FFFF, "range": e["flags"] >> 7,
            "released_by": i64(e["aux"]), "bytes": i64(e["aux"]), "target": e["aux"] >> 48,
            "capacity": e["aux"] & 0xFFFFFF, "threshold": low, "seen": high, "counter": high, "wanted": low,
            "slot": high, "state": low, "rises": e["flags"] & 1, "falls": e["flags"] >> 1 & 1,
            "begins": e["flags"] & 1, "ends": e["flags"] >> 1 & 1,
        }  # fmt: skip
        hooks = {"slot": 10, "state": 10}
        if name in plain and hooks.get(name, e["hook"]) == e["hook"]:
            return plain[name]
        if name == "layer":
            found = [c["layer"] for c in self.tables["task_classes"] if c["id"] == e["task_class"]]
        elif name == "producer":
            found = [max(d["producer_class"], 0) for d in self.tables["dependencies"] if d["id"] == e["dep"]]
        else:
            of = [f for f in self.tables["tile_fields"] if f["name"] == name.removeprefix("tile.")]
            found = [
                e["tile"] >> f["shift"] & (1 << f["bits"]) - 1
                for f in of
                if f["task_class"] == e["task_class"] and not e["flags"] & 0x80
            ]
        if not found or found[0] < 0:
            raise Missing
        return int(found[0])

    def ids(self, of: str, name: str) -> set[int]:
        fixed = {"hook": HOOKS, "dep_class": DEP_CLASSES, "state": STATES, "peer": {"all": 0xFFFE, "none": 0xFFFF}}
        if of in fixed:
            return {fixed[of][name]}
        table, column, number = {
            "class": ("task_classes", "name", "id"), "operator": ("task_classes", "operator", "id"),
            "producer": ("task_classes", "name", "id"), "dep": ("dependencies", "name", "id"),
            "request": ("requests", "external_id", "request"),
        }[of]  # fmt: skip
        return {int(r[number]) for r in self.tables[table] if _like(r[column], name)}

    def call(self, e: syntax.Call) -> int:
        if e.name == "sample":
            n = e.args[0]
            assert isinstance(n, syntax.Binary)
            h = u64(self.event["task"] * 0x9E3779B97F4A7C15)
            h = u64((h ^ h >> 32) * 0xBF58476D1CE4E5B9) >> 32
            return int(bool(self.event["flags"] & 0x80) or h % self.value(n.right) == 0)
        if e.name == "belongs_to":
            of = e.args[0]
            ids = self.ids("request", of.value) if isinstance(of, syntax.String) else {self.value(of)}
            request = self.event["request"]
            sets = {s["request_set"] for s in self.tables["request_sets"] if s["request"] in ids}
            shared = request >> 31 and request != 0xFFFF_FFFF and request & 0x7FFF_FFFF in sets
            return int(request in ids or bool(shared))
        ref = e.args[0]
        assert isinstance(ref, syntax.MapRef)
        key = self.value(ref.keys[0]) if ref.keys else None
        if (e.name, ref.name, key) not in self.feedback:
            raise Missing
        return i64(self.feedback[e.name, ref.name, key])


def _printfs(node: object) -> Iterator[syntax.Call]:
    """All printf of hooks' clauses, in the order of the text."""
    if isinstance(node, syntax.Query):
        for item in node.items:
            if isinstance(item, syntax.Clause) and item.heads[0].name in HOOKS:
                yield from _printfs(item.block)
    elif isinstance(node, syntax.Block):
        for s in node.statements:
            yield from _printfs(s)
    elif isinstance(node, syntax.If):
        yield from _printfs(node.then)
        yield from _printfs(node.otherwise)
    elif isinstance(node, syntax.Action) and node.call.name == "printf":
        yield node.call


def _like(known: str, pattern: str) -> bool:
    """By trying everything that * may stand for."""
    if not pattern:
        return not known
    if pattern[0] == "*":
        return any(_like(known[i:], pattern[1:]) for i in range(len(known) + 1))
    return bool(known) and known[0] == pattern[0] and _like(known[1:], pattern[1:])


def words(what: str, value: Any) -> tuple[int, ...]:
    """What a map of the program holds for it: u64 words."""
    if what in ("count", "sum", "lhist", "row"):
        return (value,)
    if what == "state":
        return (u64(value),)
    if what in ("min", "max"):
        return ((min if what == "min" else max)(value),)
    head = (len(value), u64(sum(value)), min(value), max(value))
    if what != "hist":
        return head
    buckets = [0] * 976
    for v in value:
        buckets[bucket(v)] += 1
    return (*head, *buckets)
