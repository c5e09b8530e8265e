"""Of which epochs a map's rows are, and what its program observed in these: where to look for what a row may lack.

A program that was attached before the recording began, or stays when it has ended, has coverage of epochs that its maps
are not told of here: the engine tells what maps held late, and to whoever records then. Of a program whose maps are
told from its attach to its end, an epoch without rows is one in which nothing was counted: it may have been lost there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

TOLD_FROM = "told_from"
"""Of the manifest's engine: device time in ns from which the recording takes what maps held."""

_HELD = """
    SELECT program, count(*), min(epoch), max(epoch + epochs - 1)
    FROM "stored_{stream}" GROUP BY program ORDER BY program
"""
_PLACED = """
    WITH held AS (
        SELECT program, rank, min(epoch) AS first, max(epoch + epochs - 1) AS last
        FROM "stored_{stream}" GROUP BY program, rank
    ),
    placed AS (
        SELECT c.*, CASE
            WHEN h.first IS NULL AND NOT (list_contains(told.begins, c.program) AND list_contains(told.ends, c.program))
                THEN 'rank'
            WHEN c.epoch + c.epochs <= h.first AND NOT list_contains(told.begins, c.program) THEN 'before'
            WHEN c.epoch > h.last AND NOT list_contains(told.ends, c.program) THEN 'after'
            ELSE 'inside' END AS place
        FROM stored_coverage AS c LEFT JOIN held AS h ON c.program = h.program AND c.rank = h.rank,
            (SELECT ?::INTEGER[] AS begins, ?::INTEGER[] AS ends) AS told
        WHERE c.closed AND c.eligible > 0 AND c.program IN (SELECT program FROM held)
    )
    SELECT program, place, min(epoch) AS first, max(epoch + epochs - 1) AS last, sum(eligible)::BIGINT AS eligible,
        sum(observed)::BIGINT AS observed, sum(throttled)::BIGINT AS throttled, sum(lost)::BIGINT AS lost,
        sum(faulted)::BIGINT AS faulted, sum(ring_lost)::BIGINT AS ring_lost,
        sum(emit_throttled)::BIGINT AS emit_throttled
    FROM placed GROUP BY program, place
"""


@dataclass(frozen=True)
class MapCoverage:
    """One program's rows in a map: how many, of the epochs `first` to `last`.

    flow: the counts of `coverage` in these epochs; None where no interval of them was closed. unknown: epochs of the
    rows of which there is no coverage. apart: what there is coverage of, and no rows because they are not told here.
    """

    program: int
    rows: int
    first: int
    last: int
    flow: dict[str, int] | None
    unknown: tuple[str, ...]
    apart: tuple[str, ...]

    @property
    def epochs(self) -> str:
        """Those that `flow` is of; of all rows, where there is none."""
        return _epochs(self.flow["first"], self.flow["last"]) if self.flow else _epochs(self.first, self.last)


def of_rows(con: duckdb.DuckDBPyConnection, stream: str, manifest: Mapping[str, Any]) -> list[MapCoverage]:
    """For each program with rows in the map `stream`. `con` has stored_coverage and the stream, of the whole trace.

    Raises duckdb.Error for parts that cannot be read.
    """
    held = con.execute(_HELD.format(stream=stream)).fetchall()
    placed = con.sql(_PLACED.format(stream=stream), params=[_begins(manifest), _ends(manifest)]).to_arrow_table()
    found: dict[tuple[int, str], dict[str, int]] = {
        (row.pop("program"), row.pop("place")): row for row in placed.to_pylist()
    }
    out = []
    for program, rows, first, last in held:
        flow = found.get((program, "inside"))
        gaps = [(first, flow["first"] - 1), (flow["last"] + 1, last)] if flow else []
        outside = [found[program, place] for place in ("before", "after") if (program, place) in found]
        apart = [_epochs(row["first"], row["last"]) for row in outside]
        apart += ["whole ranks"] if (program, "rank") in found else []
        unknown = tuple(_epochs(a, b) for a, b in gaps if a <= b)
        out.append(MapCoverage(program, rows, first, last, flow, unknown, tuple(apart)))
    return out


def _begins(manifest: Mapping[str, Any]) -> list[int]:
    """Programs of which the trace has all that their maps held from when they were attached."""
    since = manifest["engine"].get(TOLD_FROM)
    programs = [(p["program"], p.get("attached")) for p in manifest["programs"]]
    return [p for p, attached in programs if since is not None and attached is not None and attached >= since]


def _ends(manifest: Mapping[str, Any]) -> list[int]:
    """Programs of which the trace has all that their maps held until their end: who leaves is told of whole."""
    ended = (manifest["end"] or {}).get("reason") == "ended"
    return [p["program"] for p in manifest["programs"] if ended or p.get("detached") is not None]


def _epochs(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"
