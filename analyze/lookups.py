"""What the views look up by position instead of joining: names, selections and the clock, as variables of DuckDB.

A list element is an expression, which DuckDB drops when nobody asks for it. A join is not.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from ..store import tables
from ..store.trace import Trace
from .clock import clock_from_fits

_CLASS_IDS = 1 << 16
"""An event's task_class has 16 bits; a table that claims others must not make a list of gigabytes."""


def set_variables(con: duckdb.DuckDBPyConnection, trace: Trace, reads: Collection[str]) -> None:
    """The lookups of views/*.sql: names by hook and, for those that read them, classes, programs and the clock."""
    hooks: list[str | None] = [None] * 256
    for hook in tables.HOOKS:
        hooks[hook.id] = hook.name
    _set(con, "hook_names", hooks, "VARCHAR[]")
    if "task_classes" in reads:
        known = trace.table("task_classes")
        named = {
            i: n
            for i, n in zip(known["id"].to_pylist(), known["name"].to_pylist(), strict=True)
            if i is not None and 0 <= i < _CLASS_IDS
        }
        _set(con, "class_names", [named.get(i) for i in range(max(named, default=-1) + 1)], "VARCHAR[]")
    if "events" in reads:
        _set_clock(con, trace)
        _set_selections(con, trace)


def _set_clock(con: duckdb.DuckDBPyConnection, trace: Trace) -> None:
    clock = clock_from_fits(trace.manifest["clock"]["fits"])
    for name, value in (
        ("begin", clock and clock.begin),
        ("end", clock and clock.end),
        ("width", clock and clock.width),
        ("cells", clock and len(clock.errors)),
        ("base", clock and clock.base),
    ):
        _set(con, f"clock_{name}", value, "BIGINT")
    _set(con, "clock_offsets", clock and clock.offsets, "BIGINT[]")
    _set(con, "clock_errors", clock and clock.errors, "BIGINT[]")


def _set_selections(con: duckdb.DuckDBPyConnection, trace: Trace) -> None:
    names: list[str | None] = [None] * 32
    masks = {"all": 0, "sampled": 0}
    for program in trace.manifest["programs"]:
        bit = program["program"] - 1
        names[bit] = program["selection"]
        kind = program["selection"].partition("(")[0]
        if kind in masks:
            masks[kind] |= 1 << bit
    _set(con, "selections", names, "VARCHAR[]")
    _set(con, "all_programs", masks["all"], "BIGINT")
    _set(con, "sampled_programs", masks["sampled"], "BIGINT")


def _set(con: duckdb.DuckDBPyConnection, name: str, value: object, type_: str) -> None:
    con.execute(f"SET VARIABLE {name} = CAST(? AS {type_})", [value])
