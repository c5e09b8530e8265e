"""The stretch of time outside which a query cannot see events, read from its WHERE.

Parquet's own statistics would keep the rows out too, but only after the footers of all parts have been read. The
manifest knows the times of every part. What is read here must be certain: a conjunction in the WHERE of the very
SELECT that reads `events`, and nothing else, where every other row is dropped before anything can have seen it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .window import WHOLE, Window

_FLIPPED = {
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_EQUAL": "COMPARE_EQUAL",
}
_MOST = 1 << 62


def events_between(select: dict[str, Any]) -> Window | None:
    """The window to which a SELECT node of the parser's tree confines `events`.

    WHOLE when it reads events and does not confine them; None when it reads something else.
    """
    source = select.get("from_table")
    if not isinstance(source, dict) or source.get("type") != "BASE_TABLE":
        return None
    if str(source.get("table_name", "")).lower() != "events":
        return None
    if source.get("sample") or select.get("sample") or source.get("column_name_alias") or source.get("at_clause"):
        return WHOLE
    names = {"events", str(source.get("alias") or "events").lower()}
    window = WHOLE
    for test in _conjuncts(select.get("where_clause")):
        window = _confined(test, names).within(window)
    return window


def _conjuncts(node: Any) -> Iterator[dict[str, Any]]:
    stack = [node]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        if node.get("type") == "CONJUNCTION_AND":
            stack.extend(node.get("children", ()))
        else:
            yield node


def _confined(test: dict[str, Any], names: set[str]) -> Window:
    kind = test.get("type")
    if kind == "COMPARE_BETWEEN":
        if not _is_t(test.get("input"), names):
            return WHOLE
        lower, upper = _integer(test.get("lower")), _integer(test.get("upper"))
        return Window(lower, None if upper is None else upper + 1)
    if kind not in _FLIPPED:
        return WHOLE
    left, right = test.get("left"), test.get("right")
    if _is_t(right, names):
        kind, left, right = _FLIPPED[kind], right, left
    value = _integer(right)
    if value is None or not _is_t(left, names):
        return WHOLE
    match kind:
        case "COMPARE_LESSTHAN":
            return Window(None, value)
        case "COMPARE_LESSTHANOREQUALTO":
            return Window(None, value + 1)
        case "COMPARE_GREATERTHAN":
            return Window(value + 1, None)
        case "COMPARE_GREATERTHANOREQUALTO":
            return Window(value, None)
    return Window(value, value + 1)


def _is_t(node: Any, names: set[str]) -> bool:
    if not isinstance(node, dict) or node.get("type") != "COLUMN_REF":
        return False
    path = [str(part).lower() for part in node.get("column_names", ())]
    return path == ["t"] or (len(path) == 2 and path[1] == "t" and path[0] in names)


def _integer(node: Any) -> int | None:
    """The value of an integer constant, as the parser kept its text."""
    literal = node.get("literal") if isinstance(node, dict) and node.get("type") == "VALUE_CONSTANT" else None
    if not isinstance(literal, dict) or literal.get("kind") != "INTEGER":
        return None
    try:
        value = int(str(literal.get("text", "")))
    except ValueError:
        return None
    return value if abs(value) < _MOST else None
