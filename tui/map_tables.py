"""Maps of programs as tables: the questions over `maps.*`, and their answers as rows with a bar or a sparkline each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..analyze.session import Session
from ..store import map_streams
from ..store.tables import DEP_CLASSES, HOOKS, REQUEST_STATES
from .charts import bar, octave, scaled, sparkline
from .literals import Clause, fill
from .page import Page, text
from .times import count, duration

ROWS = 200
"""Keys of a map that are shown."""
SPANS = ("all epochs", "last 10 s", "last epoch")
"""What an answer may be over; see `_over`."""
_RECENT_NS = 10_000_000_000
_HEAD = ("count", "sum", "min", "max")
_MEANING = re.compile(
    r"map (?P<map>.+) of program (?P<program>.+): (?P<kind>\w+), (?P<kept>each epoch anew|as it stood)"
)
"""What a trace says of a map's stream, see capture.map_tables."""
_NAMES: dict[str, dict[int, str]] = {
    "dep_class": dict(enumerate(DEP_CLASSES)),
    "hook": {h.id: h.name for h in HOOKS},
    "state": dict(enumerate(REQUEST_STATES, 1)),
}
_CLASS = ("class", "task_class")


@dataclass(frozen=True)
class MapInfo:
    """A map's stream. kind: hash, array, hist or stats. state: kept until deleted. programs: ids with rows in it."""

    stream: str
    map: str
    kind: str
    state: bool
    keys: tuple[str, ...]
    values: tuple[str, ...]
    programs: frozenset[int]


@dataclass(frozen=True)
class Held:
    """What a map held: a page of keys, and the buckets of each where they are histograms."""

    page: Page
    buckets: tuple[tuple[list[int], list[int]], ...] = ()
    missing: float = 0.0
    """share of the events that no key tells of"""
    refused: int = 0
    """updates that found the map full"""


def maps_of(session: Session) -> tuple[MapInfo, ...]:
    """The maps of a trace, and which programs have rows in them."""
    declared = session.trace.maps
    parts = [f"SELECT '{name}' AS stream, program FROM {name} GROUP BY program" for name in declared]
    holders: dict[str, set[int]] = {}
    if parts:
        with session.run("\nUNION ALL\n".join(parts)) as result:
            for row in result.read_all().to_pylist():
                holders.setdefault(row["stream"], set()).add(row["program"])
    out = []
    for name, table in declared.items():
        said = _MEANING.match(table.meaning)
        kind, state = (said["kind"], said["kept"] != "each epoch anew") if said else ("", False)
        fixed = map_streams.FIXED | (set(_HEAD) | {"lower", "counts"} if kind in ("hist", "stats") else set())
        own = [c for c in table if c.name not in fixed]
        keys = tuple(c.name for c in own if c.meaning.startswith("key"))
        values = tuple(c.name for c in own if not c.meaning.startswith("key"))
        called = said["map"] if said else name.removeprefix("maps.")
        out.append(MapInfo(name, called, kind, state, keys, values, frozenset(holders.get(name, ()))))
    return tuple(out)


def question(info: MapInfo, program: int, what: str, span: str) -> str:
    """What a map held of a program. what: see capture.control.Shape; empty: not known."""
    if not what:
        span = SPANS[-1]
    held = fill("program = {program}", program=program) + _over(info.stream, program, span)
    keys = ", ".join(f'"{k}"' for k in info.keys)
    given: dict[str, Any] = {
        "map": Clause(info.stream), "held": Clause(held), "keys": Clause(keys), "limit": ROWS + 1,
        "names": Clause(_named(info.keys)), "join": Clause(_join(info.keys)), "same": Clause(f"USING ({keys})"),
    }  # fmt: skip
    if info.kind == "hist":
        return fill(_HIST, **given)
    if info.kind == "stats":
        return fill(_STATS, **given)
    if what == "last":
        return fill(_STATE, **given, values=Clause(", ".join(f'"{v}"' for v in info.values)))
    how = what if what in ("min", "max") else "sum"
    values = ", ".join(f'{how}("{v}")::BIGINT AS "{v}"' for v in info.values)
    order = f'"{info.values[0]}" DESC' if info.values and what not in ("rows", "lhist") else keys
    if what == "rows":
        order = f'"{info.keys[0]}" DESC'
    return fill(_NUMBERS, **given, values=Clause(values), order=Clause(order))


def page_of(
    info: MapInfo, what: str, unit: str, width: int, names: Sequence[Mapping[int, str]] = ()
) -> Callable[[pa.Table], Held]:
    """What makes of an answer what is shown, in `width` cells. names: of each key's numbers, see control.Shape."""

    def make(table: pa.Table) -> Held:
        rows = table.to_pylist()[:ROWS]
        for key, known in zip(info.keys, names, strict=False):
            if known and key not in _CLASS:
                for row in rows:
                    row[key] = known.get(row[key], row[key])
        if info.kind == "hist":
            return _hist_page(info, rows, unit, width)
        if info.kind == "stats":
            return _stats_page(info, rows, unit, width)
        return _numbers_page(info, rows, what, unit, width)

    return make


_COVERED = """
    missed AS (
        -- What a row says of its epoch, every key's row of that epoch says.
        SELECT coalesce(1 - sum(observed) / nullif(sum(eligible), 0), 0) AS missing, sum(refused)::BIGINT AS refused
        FROM (SELECT DISTINCT rank, worker, epoch, epochs, eligible, observed, refused FROM {map} WHERE {held})
    )"""

_HIST = f"""
    WITH buckets AS (
        SELECT {{keys}}, low, sum(n)::BIGINT AS n
        FROM (SELECT {{keys}}, unnest("lower") AS low, unnest(counts) AS n FROM {{map}} WHERE {{held}})
        GROUP BY ALL
    ), merged AS (
        SELECT {{keys}}, sum(n)::BIGINT AS "count", list(low ORDER BY low) AS "lower", list(n ORDER BY low) AS counts
        FROM buckets
        GROUP BY ALL
    ), heads AS (
        SELECT {{keys}}, sum("sum"::DOUBLE) AS "sum", min("min") AS "min", max("max") AS "max"
        FROM {{map}}
        WHERE {{held}}
        GROUP BY ALL
    ),{_COVERED}
    SELECT {{names}}, h."count", s."sum" / h."count" AS "mean", s."min", s."max", missing, refused,
        hist_quantile("lower", counts, 0.5) AS p50, hist_quantile("lower", counts, 0.99) AS p99,
        CASE WHEN missing > 0 THEN hist_bounds("lower", counts, 0.5, missing) END AS p50_bounds,
        CASE WHEN missing > 0 THEN hist_bounds("lower", counts, 0.99, missing) END AS p99_bounds,
        "lower", counts
    FROM merged AS h JOIN heads AS s {{same}} CROSS JOIN missed
    {{join}}
    ORDER BY h."count" DESC, {{keys}}
    LIMIT {{limit}}
"""

_STATS = f"""
    WITH merged AS (
        SELECT {{keys}}, sum("count")::BIGINT AS "count", sum("sum"::DOUBLE) AS "sum", min("min") AS "min",
            max("max") AS "max"
        FROM {{map}}
        WHERE {{held}}
        GROUP BY ALL
    ),{_COVERED}
    SELECT {{names}}, "count", "sum", "sum" / nullif("count", 0) AS "mean", "min", "max", missing, refused
    FROM merged AS h CROSS JOIN missed
    {{join}}
    ORDER BY "count" DESC, {{keys}}
    LIMIT {{limit}}
"""

_NUMBERS = f"""
    WITH merged AS (
        SELECT {{keys}}, {{values}}
        FROM {{map}}
        WHERE {{held}}
        GROUP BY ALL
    ),{_COVERED}
    SELECT {{names}}, h.* EXCLUDE ({{keys}}), missing, refused
    FROM merged AS h CROSS JOIN missed
    {{join}}
    ORDER BY {{order}}
    LIMIT {{limit}}
"""

_STATE = """
    WITH merged AS (
        SELECT rank, worker, {keys}, {values}
        FROM {map}
        WHERE {held}
        QUALIFY t_end = max(t_end) OVER (PARTITION BY rank, worker)
    )
    SELECT rank, worker AS of_worker, {names}, h.* EXCLUDE (rank, worker, {keys}), 0.0 AS missing, 0 AS refused
    FROM merged AS h
    {join}
    ORDER BY rank, of_worker, {keys}
    LIMIT {limit}
"""


def _over(stream: str, program: int, span: str) -> str:
    if span == SPANS[0]:
        return ""
    last = "(SELECT max({what}) FROM " + fill("{map} WHERE program = {program})", map=Clause(stream), program=program)
    if span == SPANS[1]:
        return f" AND t_end > {last.format(what='t_end')} - {_RECENT_NS}"
    return f" AND epoch = {last.format(what='epoch')}"


def _named(keys: Sequence[str]) -> str:
    """Keys as people read them: classes by name."""
    return ", ".join(f'coalesce(k.name, h."{k}"::VARCHAR) AS "{k}"' if k in _CLASS else f'h."{k}"' for k in keys)


def _join(keys: Sequence[str]) -> str:
    of = next((k for k in keys if k in _CLASS), None)
    return f'LEFT JOIN task_classes AS k ON k.id = h."{of}"' if of is not None else ""


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
    if found is None:
        return "too few" if row[name] is None else scaled(row[name], unit)
    if found["refused"]:
        return "too few"
    low, high = scaled(found["low"], unit), scaled(found["high"], unit)
    if found["high_open"]:
        return f"≥ {low}"
    return f"≤ {high}" if found["low_open"] else f"{low} – {high}"


def _least(row: dict[str, Any], n: int) -> str:
    """A count: of what was observed, with how many it may be at most where some is missing."""
    missing = row["missing"]
    return count(n) if missing <= 0 or missing >= 1 else f"{count(n)} – {count(n / (1 - missing))}"


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
            scaled(row["max"], unit),
            scaled(row["mean"], unit),
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
            *(scaled(row[name], unit) for name in ("mean", "min", "max", "sum")),
            bar(row["mean"] or 0, most, min(max(width // 5, 8), 60)),
        )
        for row in rows
    )
    keys = len(titles) - 6
    return Held(Page(titles, (*[False] * keys, *[True] * 5, False), cells, tuple(rows)), (), *_missing(rows))


def _numbers_page(info: MapInfo, rows: list[dict[str, Any]], what: str, unit: str, width: int) -> Held:
    first = info.values[0] if info.values else ""
    drawn = bool(first) and what in ("sum", "min", "max", "lhist", "") and all(_number(row[first]) for row in rows)
    most = max((row[first] for row in rows), default=0) if drawn else 0
    of = ("rank", "of_worker") if what == "last" else ()
    values = info.values if what != "rows" else ()
    name = {"sum": "total", "min": "least", "max": "greatest", "lhist": "count"}.get(what, "value")
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
    if what == "sum" and not unit:
        return _least(row, value)
    return duration(value) if unit == "ns" and what != "lhist" else scaled(value, unit if what != "lhist" else "")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _missing(rows: Sequence[dict[str, Any]]) -> tuple[float, int]:
    return (rows[0]["missing"], rows[0]["refused"]) if rows else (0.0, 0)
