"""What is missing of the events, by hook and time: the tables behind `missing_rows` and `covered`.

`stored_flow` has how many events a hook's recorder was eligible for and how many rows of them reached the ring, per
interval. `stored_gone` has the rows lost after the ring, which no hook is known of. `unaccounted` counts rows that
were written and are neither in the trace nor in any count of loss. Together they bound what a filter could not see.
What came after the last cut is in no interval, and so is unknown: see `Account.open_from`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from ..store import loss, tables
from ..store.manifest import bit_of
from ..store.reader import Trace
from ..store.verify import REPAIRED
from .inputs import Inputs

BEFORE_TRACE = ("queue_full", "ring_full")
"""Kinds of loss that coverage counts itself, by hook."""
ABRUPT = frozenset({REPAIRED, "died", "failed", "truncated", "refused"})
"""Reasons of an end before which nobody closed the last intervals."""
ACCOUNTED = (tables.EVENTS.name, tables.COVERAGE.name, tables.LOSS.name)
"""Without rows of these it is not known how many events are missing."""
_LOSSES = """
    SELECT kind, CASE WHEN kind IN (SELECT unnest(?::VARCHAR[])) THEN detail ELSE '' END AS detail,
        sum("count")::BIGINT AS "count"
    FROM stored_loss GROUP BY ALL ORDER BY ALL
"""

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
_LAST_CUT = """
    WITH expected AS (
        -- A worker whose attach fell into the epoch may stand in two rows of it.
        SELECT c.rank, least(max(c.n), coalesce(any_value(w.n), max(c.n))) AS n
        FROM (SELECT rank, t_end, sum(workers) AS n FROM stored_intervals WHERE closed GROUP BY rank, t_end) AS c
            LEFT JOIN (SELECT rank, count(*) AS n FROM stored_workers GROUP BY rank) AS w ON w.rank = c.rank
        GROUP BY c.rank
    ),
    cut AS (
        SELECT rank, max(t_end) AS t FROM (
            SELECT i.rank, i.t_end FROM stored_intervals AS i JOIN expected AS e ON i.rank = e.rank
            WHERE i.closed GROUP BY i.rank, i.t_end HAVING sum(i.workers) >= any_value(e.n)
        ) GROUP BY rank
    ),
    told AS (SELECT rank, max(t_end) AS t FROM stored_coverage WHERE program = ? AND closed GROUP BY rank)
    -- Intervals and coverage are two streams: a kill may have taken the end of one of them.
    SELECT min(least(cut.t, told.t)), count(*) = count(cut.t) AND count(*) = count(told.t) OR count(cut.t) = 0,
        min(told.t)
    FROM cut FULL JOIN told ON cut.rank = told.rank
"""
_EVER = (1 << 63) - 1


@dataclass(frozen=True)
class Lost:
    """A kind of loss and how much; table: whose rows, or bytes, these were, where that is known."""

    kind: str
    table: str | None
    count: int

    @property
    def unit(self) -> str:
        """What `count` counts."""
        unit = loss.LOSS_BY_NAME[self.kind].unit if self.kind in loss.LOSS_BY_NAME else "rows"
        return unit if self.table is None else f"{unit} of {self.table}"

    @property
    def severity(self) -> str:
        """That of its kind."""
        return loss.LOSS_BY_NAME[self.kind].severity if self.kind in loss.LOSS_BY_NAME else "damaged"

    @property
    def after_the_ring(self) -> bool:
        """Whether it is of event rows, between the ring and the trace."""
        return after_the_ring(self.kind, self.table)


@dataclass(frozen=True)
class Account:
    """What became of the rows that the recorder's closed intervals say were written to the ring.

    `gone` were lost on the way and counted; `unreadable` are in the trace and cannot be read; `unaccounted` are
    nowhere. `behind` are here and in no closed interval. `open_from`: device time (ns) from which on intervals were not
    closed at all, so that what is missing there is not known; None where all of them were.
    """

    written: int
    gone: int
    unreadable: int
    unaccounted: int
    behind: int
    open_from: int | None


def recorder_of(trace: Trace) -> int | None:
    """The first program whose rows are all events at its hooks: what is complete is judged by it."""
    everything = [p["program"] for p in trace.manifest["programs"] if p["selection"] == "all"]
    return min(everything, default=None)


def after_the_ring(kind: str, table: str | None = None) -> bool:
    """Whether this kind of loss takes event rows between the ring and the trace; table: of which it was, if known."""
    known = loss.LOSS_BY_NAME.get(kind)
    if known is None:
        return True
    if table not in (None, tables.EVENTS.name):
        return False
    return known.unit == "rows" and not known.kept and kind not in BEFORE_TRACE


def _uncounted(kind: str, table: str | None) -> bool:
    """Whether more may be missing than its count says. What a death took is told by open intervals, with its place."""
    known = loss.LOSS_BY_NAME.get(kind)
    if table not in (None, *ACCOUNTED):
        return False
    return known is None or (known.severity == "damaged" and known.unit != "intervals")


def losses_of(con: duckdb.DuckDBPyConnection) -> list[Lost]:
    """What was lost in all, in order of kind. `con` has stored_loss."""
    out: dict[tuple[str, str | None], int] = {}
    for kind, detail, count in con.execute(_LOSSES, [[k.name for k in loss.LOSS_KINDS if k.in_file]]).fetchall():
        key = kind, loss.table_of(kind, detail)
        out[key] = out.get(key, 0) + count
    return [Lost(kind, table, count) for (kind, table), count in out.items()]


def _cut_short(kind: str) -> bool:
    """Whether this kind of loss says that intervals were not closed."""
    known = loss.LOSS_BY_NAME.get(kind)
    return known is not None and known.severity == "damaged" and known.unit == "intervals"


def account(aside: duckdb.DuckDBPyConnection, inputs: Inputs) -> Account:
    """Read the whole trace with `aside` and hold what is there against what was written.

    Raises duckdb.Error and what Trace raises for parts that cannot be read.
    """
    for name in ("coverage", "intervals", "loss", "workers"):
        inputs.store(aside, name)
    recorder = recorder_of(inputs.trace)
    (written,) = _one(
        aside, "SELECT coalesce(sum(written), 0)::BIGINT FROM stored_coverage WHERE program = ? AND closed", recorder
    )
    (held,) = _one(
        aside,
        "SELECT coalesce(sum(written), 0)::BIGINT FROM stored_coverage WHERE program = ? AND NOT closed",
        recorder,
    )
    losses = losses_of(aside)
    gone = sum(x.count for x in losses if x.after_the_ring)
    unreadable = sum(part.rows for part in inputs.unreadable("events"))
    here = _recorded(aside, inputs, recorder)
    left = max(written - gone - unreadable, 0)
    # What a count of loss took may have been other programs' rows: it cannot be held against the recorder's.
    surely = here > written + held
    abrupt = (
        inputs.trace.state != "sealed"
        or (inputs.trace.manifest["end"] or {}).get("reason") in ABRUPT
        or any(_cut_short(x.kind) for x in losses)
    )
    if not abrupt and not surely:
        return Account(written, gone, unreadable, max(left - here, 0), 0, None)
    least, whole, told = _one(aside, _LAST_CUT, recorder)
    # Without a cut that all workers of each rank share, no stretch of time is known to be closed.
    open_from = -_EVER if told is None or not whole else told if least is None else least
    (before,) = _one(
        aside,
        "SELECT coalesce(sum(written), 0)::BIGINT FROM stored_coverage "
        "WHERE program = ? AND closed AND t_end <= CAST(? AS BIGINT)",
        recorder,
        open_from,
    )
    # Rows behind the cut would make up for those that are missing before it.
    unaccounted = max(before - gone - unreadable - _recorded(aside, inputs, recorder, before=open_from), 0)
    return Account(written, gone, unreadable, unaccounted, max(here - left - held, 0), open_from)


def _recorded(aside: duckdb.DuckDBPyConnection, inputs: Inputs, recorder: int | None, before: int | None = None) -> int:
    """Readable rows of events that the recorder wrote: all of them, or those from before a time in ns."""
    programs = inputs.trace.manifest["programs"]
    others = any(p["program"] != recorder for p in programs)
    if before is None and not others:
        return event_rows(inputs)
    mask = sum(bit_of(p) for p in programs if p["program"] == recorder)
    if (
        before is None
        and not _one(aside, "SELECT count(*) FROM stored_coverage WHERE program <> ? AND emitted > 0", recorder)[0]
    ):
        return event_rows(inputs)
    inputs.store(aside, "events")
    tests = (['"by" & ? <> 0'] if others and mask else []) + (["t < CAST(? AS BIGINT)"] if before is not None else [])
    given = ([mask] if others and mask else []) + ([before] if before is not None else [])
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return int(aside.execute(f"SELECT count(*) FROM stored_events{where}", given).fetchall()[0][0])


def store_missing(
    con: duckdb.DuckDBPyConnection, aside: duckdb.DuckDBPyConnection, inputs: Inputs, found: Account
) -> None:
    """Make `stored_flow`, `stored_gone` and the variables `has_flow` and `unaccounted` on `con`.

    aside: another connection, to read the whole trace with, whatever window `con` looks through. found: the account of
    it. Raises duckdb.Error and what Trace raises for parts that cannot be read.
    """
    inputs.store(aside, "coverage")
    inputs.store(aside, "loss")
    flow = aside.sql(_FLOW_SQL, params=[recorder_of(inputs.trace)]).to_arrow_table()
    kinds = aside.execute("SELECT kind, detail, count, t_begin, t_end FROM stored_loss").fetchall()
    rows = [(kind, loss.table_of(kind, detail), *rest) for kind, detail, *rest in kinds]
    gone = [
        (count if after_the_ring(kind, table) else 0, begin, end, not _uncounted(kind, table))
        for kind, table, count, begin, end in rows
    ]
    gone = [row for row in gone if row[0] or not row[3]]
    # A row that cannot be read may have been of any hook; what lost coverage or loss counted, nobody knows.
    gone += [(*part, True) for name in ("events", "tasks", "waits") for part in inputs.unreadable(name)]
    gone += [(0, part.t_min, part.t_max, False) for name in ("coverage", "loss") for part in inputs.unreadable(name)]
    if not inputs.trace.is_derived:
        from ..store import derived_rest

        if event_rows(inputs) > derived_rest.EVENTS_MOST:
            # Of so many events some are left out of tasks and waits, and nobody counted what of.
            gone.append((0, None, None, False))
    flows = flow.to_pylist()
    if found.open_from is not None:
        # What was fired since the last cut is in no interval, at any hook.
        flows.append(
            {"hook": 0, "t_begin": found.open_from, "t_end": _EVER, "eligible": 0, "written": 0, "closed": False}
        )
    con.register("stored_flow", pa.Table.from_pylist(flows, schema=_FLOW))
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
    con.execute("SET VARIABLE unaccounted = CAST(? AS BIGINT)", [found.unaccounted])


def event_rows(inputs: Inputs) -> int:
    """Rows of events that can be read, of the whole trace."""
    return sum(part.rows for part in inputs.parts("events")) + int(inputs.tail("events").num_rows)


def _one(con: duckdb.DuckDBPyConnection, sql: str, *given: Any) -> Any:
    """The one row of an answer."""
    return con.execute(sql, list(given)).fetchall()[0]
