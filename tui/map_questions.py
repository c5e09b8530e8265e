"""Maps of programs as questions over `maps.*`: what each key held over some epochs, and what may be missing in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..analyze.session import Session
from ..store import map_streams
from .literals import Clause, fill

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
CLASS_KEYS = ("class", "task_class")
"""Keys that the question gives by name."""


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
    order = keys
    if what == "rows":
        order = f'"{info.keys[0]}" DESC, {keys}'
    elif info.values and what != "lhist":
        order = f'"{info.values[0]}" DESC, {keys}'
    return fill(_NUMBERS, **given, values=Clause(values), order=Clause(order))


_COVERED = """
    missed AS (
        -- What a row says of its epoch, every key's row of that epoch and teller says; two tellers may say the same.
        SELECT coalesce(sum(eligible), 0)::BIGINT AS eligible, coalesce(sum(refused), 0)::BIGINT AS refused,
            coalesce(sum(eligible - observed + refused), 0)::BIGINT AS missing
        FROM (
            SELECT DISTINCT rank, worker, workers, epoch, epochs, t_begin, t_end, eligible, observed, refused
            FROM {map} WHERE {held}
        )
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
    SELECT {{names}}, h."count", s."sum" / h."count" AS "mean", s."min", s."max", eligible, missing, refused,
        hist_quantile("lower", counts, 0.5) AS p50, hist_quantile("lower", counts, 0.99) AS p99,
        missing / (missing + h."count") AS share,
        CASE WHEN missing > 0 THEN hist_bounds("lower", counts, 0.5, share) END AS p50_bounds,
        CASE WHEN missing > 0 THEN hist_bounds("lower", counts, 0.99, share) END AS p99_bounds,
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
    SELECT {{names}}, "count", "sum", "sum" / nullif("count", 0) AS "mean", "min", "max", eligible, missing, refused
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
    SELECT {{names}}, h.* EXCLUDE ({{keys}}), eligible, missing, refused
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
    SELECT rank, worker AS of_worker, {names}, h.* EXCLUDE (rank, worker, {keys}),
        0 AS eligible, 0 AS missing, 0 AS refused
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
    return ", ".join(f'coalesce(k.name, h."{k}"::VARCHAR) AS "{k}"' if k in CLASS_KEYS else f'h."{k}"' for k in keys)


def _join(keys: Sequence[str]) -> str:
    of = next((k for k in keys if k in CLASS_KEYS), None)
    return f'LEFT JOIN task_classes AS k ON k.id = h."{of}"' if of is not None else ""
