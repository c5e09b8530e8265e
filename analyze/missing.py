"""What is missing of the events, by hook and time: the tables behind `missing_rows` and `covered`.

`stored_flow` has how many events a hook's recorder was eligible for and how many rows of them reached the ring, per
interval. `stored_gone` has the rows lost after the ring, which no hook is known of. `unaccounted` counts rows that
were written and are neither in the trace nor in any count of loss. Together they bound what a filter could not see.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from ..store import loss
from ..store.reader import Trace
from .inputs import Inputs

BEFORE_TRACE = ("queue_full", "ring_full")
"""Kinds of loss that coverage counts itself, by hook."""

_TYPES: list[tuple[str, pa.DataType]] = [
    ("hook", pa.int16()),
    ("t_begin", pa.int64()),
    ("t_end", pa.int64()),
    ("eligible", pa.int64()),
    ("written", pa.int64()),
    ("closed", pa.bool_()),
]
_FLOW = pa.schema(_TYPES)
_FLOW_SQL = """
    SELECT hook, t_begin, t_end, sum(eligible)::BIGINT AS eligible, sum(written)::BIGINT AS written,
        bool_and(closed) AS closed
    FROM stored_coverage WHERE program = ? GROUP BY hook, t_begin, t_end
"""
_EVER = (1 << 63) - 1


def recorder_of(trace: Trace) -> int | None:
    """The first program whose rows are all events at its hooks: what is complete is judged by it."""
    everything = [p["program"] for p in trace.manifest["programs"] if p["selection"] == "all"]
    return min(everything, default=None)


def after_the_ring(kind: str) -> bool:
    """Whether this kind of loss takes event rows between the ring and the trace."""
    known = loss.LOSS_BY_NAME.get(kind)
    if known is None:
        return True
    return known.unit == "rows" and not known.kept and kind not in BEFORE_TRACE


def _uncounted(kind: str) -> bool:
    """Whether more may be missing than its count says. What a death took is told by open intervals, with its place."""
    known = loss.LOSS_BY_NAME.get(kind)
    return known is None or (known.severity == "damaged" and known.unit != "intervals")


def store_missing(con: duckdb.DuckDBPyConnection, aside: duckdb.DuckDBPyConnection, inputs: Inputs) -> None:
    """Make `stored_flow`, `stored_gone` and the variables `has_flow` and `unaccounted` on `con`.

    aside: another connection, to read the whole trace with, whatever window `con` looks through. Raises duckdb.Error
    and what Trace raises for parts that cannot be read.
    """
    recorder = recorder_of(inputs.trace)
    inputs.store(aside, "coverage")
    inputs.store(aside, "loss")
    flow = aside.sql(_FLOW_SQL, params=[recorder]).to_arrow_table()
    kinds = aside.execute("SELECT kind, count, t_begin, t_end FROM stored_loss").fetchall()
    gone = [
        (count if after_the_ring(kind) else 0, begin, end, not _uncounted(kind)) for kind, count, begin, end in kinds
    ]
    gone = [row for row in gone if row[0] or not row[3]]
    if not inputs.trace.is_derived:
        from ..store import derived_rest

        if event_rows(inputs) > derived_rest.EVENTS_MOST:
            # Of so many events some are left out of tasks and waits, and nobody counted what of.
            gone.append((0, None, None, False))
    written = sum(flow["written"].to_pylist())
    missing = written - sum(row[0] for row in gone) - event_rows(inputs)
    open_from = None if inputs.trace.state == "sealed" else max(flow["t_end"].to_pylist(), default=-_EVER)
    rows = flow.to_pylist()
    if open_from is not None:
        # What was fired since the last cut is in no interval yet, at any hook.
        rows.append({"hook": 0, "t_begin": open_from, "t_end": _EVER, "eligible": 0, "written": 0, "closed": False})
    con.register("stored_flow", pa.Table.from_pylist(rows, schema=_FLOW))
    con.register(
        "stored_gone",
        pa.table(
            {
                "rows": pa.array([row[0] for row in gone], pa.int64()),
                "t_begin": pa.array([row[1] for row in gone], pa.int64()),
                "t_end": pa.array([row[2] for row in gone], pa.int64()),
                "counted": pa.array([row[3] for row in gone], pa.bool_()),
            }
        ),
    )
    con.execute("SET VARIABLE has_flow = CAST(? AS BOOLEAN)", [bool(flow.num_rows)])
    con.execute("SET VARIABLE unaccounted = CAST(? AS BIGINT)", [max(missing, 0)])


def event_rows(inputs: Inputs) -> int:
    """Rows of events that can be read, of the whole trace."""
    return sum(part.rows for part in inputs.parts("events")) + int(inputs.tail("events").num_rows)
