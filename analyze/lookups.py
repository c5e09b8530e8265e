"""What the views look up by position instead of joining: names, selections and the clock, as variables of DuckDB.

A list element is an expression, which DuckDB drops when nobody asks for it. A join is not.
"""

from __future__ import annotations

import duckdb

from ..store import loss, tables
from ..store.manifest import bit_of, slot_of
from ..store.reader import Trace
from .clock import clock_from_fits
from .inputs import Inputs
from .window import Window

_IDS = 1 << 16
"""An event's task_class has 16 bits; a table that claims others must not make a list of gigabytes. Of dependencies,
those with larger ids have no name here, and still have one in `dependencies`."""


def set_variables(con: duckdb.DuckDBPyConnection, trace: Trace, read: str) -> None:
    """The lookups of what reads `read`: class names, names of dependencies, selections or the clock."""
    if read == "task_classes":
        _set(con, "class_names", _by_id(trace, read), "VARCHAR[]")
    elif read == "dependencies":
        _set(con, "dep_names", _by_id(trace, read), "VARCHAR[]")
    elif read == "programs":
        _set_selections(con, trace)
    elif read == "clock":
        _set_clock(con, trace)


def set_constants(con: duckdb.DuckDBPyConnection) -> None:
    """The names that the ABI gives."""
    # No longer than need be: DuckDB copies the whole list for every 2,048 rows that look something up.
    hooks: list[str | None] = [None] * (1 + max(hook.id for hook in tables.HOOKS))
    for hook in tables.HOOKS:
        hooks[hook.id] = hook.name
    _set(con, "hook_names", hooks, "VARCHAR[]")
    _set(con, "dep_class_names", list(tables.DEP_CLASSES), "VARCHAR[]")
    _set(con, "loss_file", loss.FILE, "VARCHAR")
    _set(con, "request_states", list(tables.REQUEST_STATES), "VARCHAR[]")


def set_window(con: duckdb.DuckDBPyConnection, window: Window, ends: tuple[int | None, int | None]) -> None:
    """What the macros say of the window; ends: [begin, end) of what is seen through it, ns."""
    begin, end = ends
    _set(con, "window_from", window.begin, "BIGINT")
    _set(con, "window_to", window.last, "BIGINT")
    _set(con, "window_begin", begin, "BIGINT")
    _set(con, "window_end", end, "BIGINT")


def set_derived_selection(con: duckdb.DuckDBPyConnection, aside: duckdb.DuckDBPyConnection, inputs: Inputs) -> None:
    """What rows stand for that were put together from several events: the least that any of these stands for.

    Rows that only a sampling or escalating program emitted are looked for with `aside`, where there are such programs.
    """
    _set(con, "derived_selection", _derived_selection(aside, inputs), "VARCHAR")


def _derived_selection(aside: duckdb.DuckDBPyConnection, inputs: Inputs) -> str | None:
    programs = inputs.trace.manifest["programs"]
    partial = [p for p in programs if p["selection"] != "all"]
    if not partial:
        return "all" if programs else None
    emitted = sum(bit_of(p) for p in programs if p["selection"] == "all")
    inputs.store(aside, "events")
    found = aside.execute('SELECT DISTINCT "by" FROM stored_events WHERE "by" & ? = 0', [emitted]).fetchall()
    who = [p["selection"] for p in partial if any(by & bit_of(p) for (by,) in found)]
    if not found:
        return "all"
    return min(who, key=lambda selection: selection.startswith("sampled"), default=None)


def _by_id(trace: Trace, table: str) -> list[str | None]:
    known = trace.table(table)
    named = {
        i: n
        for i, n in zip(known["id"].to_pylist(), known["name"].to_pylist(), strict=True)
        if i is not None and 0 <= i < _IDS
    }
    return [named.get(i) for i in range(max(named, default=-1) + 1)]


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
    for program in trace.manifest["programs"]:
        slot = slot_of(program)
        if slot is not None:
            names[slot] = _either(names[slot], program["selection"])
    masks = {"all": 0, "sampled": 0}
    for bit, selection in enumerate(names):
        kind = (selection or "").partition("(")[0]
        if kind in masks:
            masks[kind] |= 1 << bit
    _set(con, "selections", names, "VARCHAR[]")
    _set(con, "all_programs", masks["all"], "BIGINT")
    _set(con, "sampled_programs", masks["sampled"], "BIGINT")


def _either(before: str | None, selection: str) -> str:
    """What the rows of a slot are that several programs had, one after the other."""
    if before is None or before == selection:
        return selection
    kinds = {s.partition("(")[0] for s in (before, selection)}
    parts = [s.partition("(")[2].removesuffix(")") for s in (before, selection)]
    return f"{min(kinds, key=('escalated', 'sampled', 'all').index)}({' or '.join(p for p in parts if p)})"


def _set(con: duckdb.DuckDBPyConnection, name: str, value: object, type_: str) -> None:
    con.execute(f"SET VARIABLE {name} = CAST(? AS {type_})", [value])
