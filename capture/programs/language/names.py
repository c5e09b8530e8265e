"""Names of the target: strings in comparisons, coordinates, layers and producers, from its side tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from ....store.tables import DEP_CLASSES, HOOKS, PEER_ALL, PEER_NONE, REQUEST_SET_BIT, REQUEST_STATES
from .errors import Position, Problem, did_you_mean, listed
from .tree import Coordinate, Expr, Load, Looked

FIXED: dict[str, dict[str, int]] = {
    "hook": {h.name: h.id for h in HOOKS},
    "dep_class": {name: i for i, name in enumerate(DEP_CLASSES)},
    "state": {name: i for i, name in enumerate(REQUEST_STATES, 1)},
    "peer": {"all": PEER_ALL, "none": PEER_NONE},
}
"""Names that the ABI itself gives, by field."""
NAMED = {
    "class": ("task_classes", "name", "id"),
    "task_class": ("task_classes", "name", "id"),
    "operator": ("task_classes", "operator", "id"),
    "producer": ("task_classes", "name", "id"),
    "dep": ("dependencies", "name", "id"),
    "request": ("requests", "external_id", "request"),
}
"""Names that the target's tables give: field → table, column of names, column of numbers."""
MAX_TABLE = 1 << 16
"""entries of a constant table in a program"""
_NO_TABLES = "names need the target's tables: say which trace or segment, or use numbers"
MISSING_U16 = 0xFFFF


class Names:
    """The side tables of a target; without any, names must be numbers."""

    def __init__(self, tables: Mapping[str, pa.Table] | None) -> None:
        self.tables = dict(tables or {})

    def _columns(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.tables.get(table)
        return [] if rows is None else list(zip(*(rows.column(c).to_pylist() for c in columns), strict=True))

    def ids(self, field: str, name: str, at: Position) -> tuple[int, ...]:
        """The numbers that a field has where it is called `name`, in which * stands for anything; ascending.

        Raises Problem for a name that nothing has.
        """
        if field in FIXED:
            pairs: Iterable[tuple[Any, ...]] = FIXED[field].items()
        else:
            table, names, numbers = NAMED[field]
            if self.tables.get(table) is None:
                raise Problem(at, f'there is no telling what {field} "{name}" is', _NO_TABLES)
            pairs = self._columns(table, names, numbers)
        found = sorted({number for known, number in pairs if _like(known, name)})
        if not found:
            known = dict.fromkeys(n for n, _ in pairs)
            raise Problem(at, f'no {field} is called "{name}"', did_you_mean(name, known, f"there are {listed(known)}"))
        return tuple(found)

    def sets_of(self, requests: Iterable[int], at: Position) -> tuple[int, ...]:
        """Ids of the request sets that hold one of `requests`, without the top bit, ascending. Raises Problem."""
        if self.tables.get("request_sets") is None:
            raise Problem(at, "there is no telling which batches a request is in", _NO_TABLES)
        of = set(requests)
        pairs = self._columns("request_sets", "request_set", "request")
        return tuple(sorted({s & ~REQUEST_SET_BIT for s, request in pairs if request in of}))

    @cached_property
    def coordinates(self) -> dict[str, Coordinate]:
        """By name, from `tile_fields`."""
        by: dict[str, dict[int, tuple[int, int]]] = {}
        for task_class, name, shift, bits in self._columns("tile_fields", "task_class", "name", "shift", "bits"):
            if 0 <= task_class < MAX_TABLE and 0 <= shift < 32 and 1 <= bits <= 32:
                by.setdefault(name, {})[task_class] = (shift, bits)
        out = {}
        for name, fields in by.items():
            layouts = tuple(sorted(set(fields.values())))
            which = [0] * (max(fields) + 1)
            for task_class, layout in fields.items():
                which[task_class] = layouts.index(layout) + 1
            if len(layouts) < 255:
                out[name] = Coordinate(tuple(which), layouts)
        return out

    def layer(self, task_class: Load) -> Expr | None:
        """Layer of the task's class; None where no table says."""
        return _looked(task_class, self._columns("task_classes", "id", "layer"))

    def producer(self, dep: Load) -> Expr | None:
        """Class that releases the dependency, 0 where several do; None where no table says."""
        pairs = self._columns("dependencies", "id", "producer_class")
        return _looked(dep, [(i, max(c, 0)) for i, c in pairs])

    def decoded(self, field: str) -> dict[int, str]:
        """Names by number, for printing."""
        if field in FIXED:
            return {i: n for n, i in FIXED[field].items()}
        if field not in NAMED or field == "operator":
            return {}
        table, names, numbers = NAMED[field]
        return dict(self._columns(table, numbers, names))

    def highest(self, field: str) -> int | None:
        """The largest value that a field can have, where that is known."""
        if field in FIXED and field != "peer":
            return max(FIXED[field].values())
        if field not in ("class", "task_class", "worker"):
            return None
        ids = self._columns("workers", "worker") if field == "worker" else self._columns("task_classes", "id")
        return max((i for (i,) in ids), default=None)


def _like(known: str, pattern: str) -> bool:
    """Is it the name? `*` stands for anything; looked at part by part, so that no pattern is slow."""
    first, *rest = pattern.split("*")
    if not rest:
        return known == pattern
    if not known.startswith(first) or len(known) < len(first) + len(rest[-1]) or not known.endswith(rest[-1]):
        return False
    at, end = len(first), len(known) - len(rest[-1])
    for part in rest[:-1]:
        found = known.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _looked(of: Load, pairs: list[tuple[Any, ...]]) -> Looked | None:
    known = {i: value for i, value in pairs if 0 <= i < MAX_TABLE and 0 <= value < MISSING_U16}
    if not pairs:
        return None
    return Looked(of, tuple(known.get(i, MISSING_U16) for i in range(max(known, default=0) + 1)), 2)
