"""In what unit a query's aggregations count: what can be read off the text, and nothing where it cannot."""

from __future__ import annotations

from collections.abc import Iterator

from . import syntax
from .errors import Problem
from .parsing import parse

_TIMES = ("t", "aux")
_KEEPS = ("sum", "min", "max", "avg", "stats", "hist", "lhist")
_NUMBER = "number"


def units(text: str) -> dict[str, str]:
    """By map: `ns` or `bytes`, of maps whose every value has that unit. A text that is no query has none."""
    try:
        items = parse(text).items
    except Problem:
        return {}
    found: dict[str, set[str]] = {}
    for item in items:
        if isinstance(item, syntax.Clause):
            for s in _assignments(item.block):
                if isinstance(s.target, syntax.MapRef) and isinstance(s.value, syntax.Call) and s.value.name in _KEEPS:
                    found.setdefault(s.target.name, set()).add(_unit(s.value.args[0]) if s.value.args else "")
    return {name: next(iter(u)) for name, u in found.items() if len(u) == 1 and u & {"ns", "bytes"}}


def _assignments(block: syntax.Block) -> Iterator[syntax.Assignment]:
    for s in block.statements:
        if isinstance(s, syntax.Assignment):
            yield s
        elif isinstance(s, syntax.If):
            yield from _assignments(s.then)
            if s.otherwise is not None:
                yield from _assignments(s.otherwise)


def _unit(e: syntax.Expr) -> str:
    """`number` for a literal, which has the unit of what it is added to."""
    match e:
        case syntax.Number():
            return _NUMBER
        case syntax.Name(name=name):
            return "ns" if name in _TIMES or name.endswith("_ns") else "bytes" if name == "bytes" else ""
        case syntax.Binary(op="+" | "-", left=one, right=other) | syntax.Choice(yes=one, no=other):
            both = {_unit(one), _unit(other)}
            if len(both) > 1:
                both.discard(_NUMBER)
            return both.pop() if len(both) == 1 else ""
    return ""
