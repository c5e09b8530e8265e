"""What maps of programs held, as rows: counts and quantiles with bounds, and a bar or a sparkline each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..store.tables import DEP_CLASSES, HOOKS, REQUEST_STATES
from .charts import bar, octave, scaled, sparkline
from .map_questions import CLASS_KEYS, ROWS, MapInfo
from .page import Page, text
from .times import count

_NAMES: dict[str, dict[int, str]] = {
    "dep_class": dict(enumerate(DEP_CLASSES)),
    "hook": {h.id: h.name for h in HOOKS},
    "state": dict(enumerate(REQUEST_STATES, 1)),
}


@dataclass(frozen=True)
class Held:
    """What a map held: a page of keys, and the buckets of each where they are histograms."""

    page: Page
    buckets: tuple[tuple[list[int], list[int]], ...] = ()
    eligible: int = 0
    missing: int = 0
    """of the eligible events, those that may be missing in any key; with updates that found the map full"""
    refused: int = 0
    """updates that found the map full"""


def page_of(
    info: MapInfo,
    what: str,
    unit: str,
    width: int,
    names: Sequence[Mapping[int, str]] = (),
    still_open: bool = False,
) -> Callable[[pa.Table], Held]:
    """What makes of an answer what is shown, in `width` cells.

    names: of each key's numbers, see control.Shape. still_open: of its last interval it is not known what was missed.
    """

    def make(table: pa.Table) -> Held:
        rows = [row | {"open": still_open} for row in table.to_pylist()[:ROWS]]
        for key, known in zip(info.keys, names, strict=False):
            if known and key not in CLASS_KEYS:
                for row in rows:
                    row[key] = known.get(row[key], row[key])
        if info.kind == "hist":
            return _hist_page(info, rows, unit, width)
        if info.kind == "stats":
            return _stats_page(info, rows, unit, width)
        return _numbers_page(info, rows, what, unit, width)

    return make


def _key_cells(info: MapInfo, row: dict[str, Any]) -> list[str]:
    return [_NAMES.get(k.removeprefix("key_"), {}).get(row[k]) or text(row[k]) for k in _shown_keys(info)]


def _shown_keys(info: MapInfo) -> tuple[str, ...]:
    """Without the number that a map without keys has in their place."""
    return () if info.keys == ("key",) and info.map and info.kind != "array" else info.keys


def _titles(info: MapInfo) -> tuple[str, ...]:
    return tuple(k.removeprefix("key_") for k in _shown_keys(info))


def _bound(row: dict[str, Any], name: str, unit: str) -> str:
    """A quantile; between which values it lies where something is missing."""
    found = row[f"{name}_bounds"]
    if row["open"] and row[name] is not None:
        return f"~{scaled(min(max(row[name], row['min']), row['max']), unit)}"
    if found is None:
        # The middle of a bucket may lie beyond the greatest value.
        return "too few" if row[name] is None else scaled(min(max(row[name], row["min"]), row["max"]), unit)
    if found["refused"]:
        return "too few"
    low, high = scaled(found["low"], unit), scaled(found["high"], unit)
    if found["high_open"]:
        return f"≥ {low}"
    return f"≤ {high}" if found["low_open"] else f"{low} – {high}"


def _least(row: dict[str, Any], n: int) -> str:
    """A count, and how many it may be at most: what is missing may belong to any key."""
    if row["open"]:
        return f"{count(n)}+"
    return count(n) if not row["missing"] else f"{count(n)} – {count(n + row['missing'])}"


def _partly(row: dict[str, Any], value: float | None, unit: str, sign: str) -> str:
    """A value of what was observed, and on which side of it that of all events may lie."""
    told = scaled(value, unit)
    return f"{sign} {told}" if (row["missing"] or row["open"]) and value is not None else told


def _hist_page(info: MapInfo, rows: list[dict[str, Any]], unit: str, width: int) -> Held:
    buckets = tuple((row["lower"], row["counts"]) for row in rows)
    octaves = [octave(v) for lower, _ in buckets for v in lower] or [0]
    first, last = min(octaves), max(octaves)
    room = min(max(width // 5, 8), 40)
    ends = f"{scaled(0 if first == 0 else 1 << first - 1, unit)} … {scaled((1 << last), unit)}"
    titles = (*_titles(info), "count", "p50", "p99", "max", "mean", ends)
    cells = tuple(
        (
            *_key_cells(info, row),
            _least(row, row["count"]),
            _bound(row, "p50", unit),
            _bound(row, "p99", unit),
            _partly(row, row["max"], unit, "≥"),
            _partly(row, row["mean"], unit, "~"),
            sparkline(lower, counts, first, last, room),
        )
        for row, (lower, counts) in zip(rows, buckets, strict=True)
    )
    keys = len(titles) - 6
    page = Page(titles, (*[False] * keys, *[True] * 5, False), cells, tuple(rows))
    return Held(page, buckets, *_missing(rows))


def _stats_page(info: MapInfo, rows: list[dict[str, Any]], unit: str, width: int) -> Held:
    most = max((row["mean"] or 0 for row in rows), default=0)
    titles = (*_titles(info), "count", "mean", "min", "max", "sum", "by mean")
    cells = tuple(
        (
            *_key_cells(info, row),
            _least(row, row["count"]),
            *(
                _partly(row, row[n], unit, sign)
                for n, sign in (("mean", "~"), ("min", "≤"), ("max", "≥"), ("sum", "≥"))
            ),
            bar(row["mean"] or 0, most, min(max(width // 5, 8), 60)),
        )
        for row in rows
    )
    keys = len(titles) - 6
    return Held(Page(titles, (*[False] * keys, *[True] * 5, False), cells, tuple(rows)), (), *_missing(rows))


def _numbers_page(info: MapInfo, rows: list[dict[str, Any]], what: str, unit: str, width: int) -> Held:
    first = info.values[0] if info.values else ""
    drawn = (
        bool(first) and what in ("count", "sum", "min", "max", "lhist", "") and all(_number(row[first]) for row in rows)
    )
    most = max((row[first] for row in rows), default=0) if drawn else 0
    of = ("rank", "of_worker") if what == "last" else ()
    values = info.values if what != "rows" else ()
    name = {"count": "count", "sum": "total", "min": "least", "max": "greatest", "lhist": "count"}.get(what, "value")
    heads = [name if v == "value" else v for v in values]
    titles = ("rank", "worker") * bool(of) + (*_titles(info), *heads, *(("",) if drawn else ()))
    cells = tuple(
        (
            *(text(row[name]) for name in of),
            *(_bucket_cells(info, row, unit) if what == "lhist" else _key_cells(info, row)),
            *(_value(row, v, what, unit) for v in values),
            *((bar(row[first], most, min(max(width // 2, 8), 100)),) if drawn else ()),
        )
        for row in rows
    )
    right = (*[True] * len(of), *[False] * len(_shown_keys(info)), *[True] * len(values), *[False] * drawn)
    return Held(Page(titles, right, cells, tuple(rows)), (), *_missing(rows))


def _bucket_cells(info: MapInfo, row: dict[str, Any], unit: str) -> list[str]:
    """Of an lhist the last key is a bucket's lower end; below its min it is the least number that there is."""
    *keys, lowest = _key_cells(info, row)
    value = row[info.keys[-1]]
    return [*keys, lowest if value is None else "below" if value < -(1 << 62) else f"from {scaled(value, unit)}"]


def _value(row: dict[str, Any], name: str, what: str, unit: str) -> str:
    value = row[name]
    if not _number(value):
        return text(value)
    if what in ("count", "lhist"):
        return _least(row, value)
    # What is missing may have been negative in a sum.
    sign = {"min": "≤", "max": "≥", "sum": "~"}.get(what, "")
    return _partly(row, value, unit, sign) if sign else scaled(value, unit)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _missing(rows: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    return (rows[0]["eligible"], rows[0]["missing"], rows[0]["refused"]) if rows else (0, 0, 0)
