"""Feedback: the engine-wide values that a query reads, each declared for the host that fills it."""

from __future__ import annotations

from dataclasses import dataclass

from ..maps import FEEDBACK_BYTES, MAX_ENTRIES, Map, MapKind, Member, TypeLayout
from ..program import Cell
from . import syntax
from .errors import Position, Problem
from .map_uses import MapUses

WINDOW_NS = 10 * 10**9
MAX_CELLS = 1 << 16
_KEY = TypeLayout("index", 4, (Member("index", 0, 4),))
_VALUE = TypeLayout("feedback", FEEDBACK_BYTES, (Member("value", 0, 8), Member("epoch", 8, 8)))


@dataclass
class Cells:
    """The cells of a query, as they are found while it is resolved."""

    maps: MapUses
    found: dict[tuple[str, float | None, int, bool], tuple[str, Position]]

    def cell(self, source: syntax.MapRef, quantile: float | None, window: int | None, keyed: bool, at: Position) -> str:
        """Name of the feedback map of a value. Raises Problem."""
        window = WINDOW_NS if window is None else window
        if not 0 < window <= 3600 * 10**9:
            raise Problem(at, f"a window of {window} ns is none", "it is up to an hour")
        key = (source.name, quantile, window, keyed)
        return self.found.setdefault(key, (f"feedback_{len(self.found) + 1}", at))[0]

    def declared(self) -> list[tuple[Cell, Map]]:
        """Every cell with its map, when all maps are known. Raises Problem."""
        return [
            (Cell(name, source, quantile, window, keyed), self._map(name, source, quantile, keyed, at))
            for (source, quantile, window, keyed), (name, at) in self.found.items()
        ]

    def _map(self, name: str, source: str, quantile: float | None, keyed: bool, at: Position) -> Map:
        use = self.maps.uses.get(source)
        if use is None:
            raise Problem(at, f"there is no map @{source}", "fill it in another clause: @m = hist(exec_ns)")
        if quantile is not None and use.what != "hist":
            raise Problem(at, f"@{source} is no histogram, so it has no quantiles", "fill it with hist()")
        if use.what not in ("hist", "count", "sum", "avg", "stats"):
            raise Problem(
                at, f"@{source} has no total", "count() and sum() have one, hist(), avg() and stats() how many"
            )
        size = self._cells(use.name, at) if keyed else 1
        return Map(name, MapKind.FEEDBACK, 4, FEEDBACK_BYTES, size, shared=True, read_only=True, key=_KEY, value=_VALUE)

    def _cells(self, source: str, at: Position) -> int:
        """How many values the one key of a map can have."""
        use = self.maps.uses[source]
        if len(use.columns) != 1:
            raise Problem(
                at, f"@{source} has {len(use.columns)} keys, and a cell one", "leave the key out, for all together"
            )
        column = use.columns[0]
        highest = self.maps.names.highest(column.field)
        if highest is None:
            highest = (1 << 8 * column.bytes) - 1 if column.kind == "u" else MAX_ENTRIES
        size = highest + 1
        if size > MAX_CELLS:
            raise Problem(
                at, f"key {column.name} of @{source} can have too many values for cells", "key by a small field"
            )
        return size
