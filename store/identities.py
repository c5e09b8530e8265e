"""What must add up in a trace, on rows whose interval was closed.

Sums are over rows of `intervals`, `coverage` and `loss`; a row that a death cut short claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .loss import table_of
from .tables import EVENTS

AFTER_RING = (
    *("overwritten", "torn_block", "bad_row", "disk_budget", "disk_full", "part_unreadable"),
    *("retired", "retired_early"),
)
"""Losses, in rows, of what the device had written to its event ring."""

_EVENTS = (None, EVENTS.name)

UNKNOWN = ("engine_died", "segment_truncated", "spool_tail", "host_ring_overwritten")
"""Losses after which nobody knows how many rows there should be."""


def unequal_rows(intervals: pa.Table, coverage: pa.Table) -> Iterator[tuple[str, str]]:
    """(stream, what is wrong) for each identity that fails within rows, with how many rows fail it."""
    closed = intervals.filter(intervals["closed"])
    own = closed.filter(pc.is_valid(closed["seq_from"]))
    covered = coverage.filter(coverage["closed"])
    for stream, rows, left, right in (
        ("intervals", closed, "seqs", ("dequeued", "lost")),
        ("coverage", covered, "eligible", ("observed", "throttled", "lost", "faulted")),
        ("coverage", covered, "emitted", ("written", "ring_lost", "emit_throttled")),
    ):
        wrong = np.count_nonzero(_column(rows, left) != sum(_column(rows, name) for name in right))
        if wrong:
            yield stream, f"{left} is not {' + '.join(right)} in {wrong} rows"
    wrong = np.count_nonzero(_column(own, "seq_to") - _column(own, "seq_from") != _column(own, "seqs"))
    if wrong:
        yield "intervals", f"seqs is not seq_to - seq_from in {wrong} rows"
    for stream, rows in (("intervals", closed), ("coverage", covered)):
        counts = [n for n in rows.column_names if rows.schema.field(n).type == pa.int64() and n not in _NO_COUNT]
        if negative := [n for n in counts if (_column(rows, n) < 0).any()]:
            yield stream, f"{', '.join(negative)} below zero"


_NO_COUNT = ("epoch", "t_begin", "t_end")


def unequal_events(rows_by_program: Mapping[int, int], coverage: pa.Table, loss: pa.Table) -> tuple[str, str] | None:
    """Do the events of each program and the counted losses make up what its coverage calls written?

    Returns (severity, what is wrong); None when it adds up. With several programs a lost row's programs are not
    known, so the sum is only bounded. `info` where it cannot be claimed.
    """
    if coverage.num_rows == 0:
        return ("info", "there is no coverage to hold the events against") if any(rows_by_program.values()) else None
    kinds = set(loss["kind"].to_pylist())
    if not pc.all(coverage["closed"]).as_py() or kinds & set(UNKNOWN):
        return (
            "info",
            "events are not held against coverage: its last interval was not closed, or rows were lost uncounted",
        )
    rows = loss.select(["kind", "detail", "count"]).to_pylist()
    if {table_of(row["kind"], row["detail"]) for row in rows} & {"coverage", "loss"}:
        return "info", "events are not held against coverage: parts of coverage or loss are gone"
    # Of other tables nothing was in the ring.
    lost = sum(r["count"] for r in rows if r["kind"] in AFTER_RING and table_of(r["kind"], r["detail"]) in _EVENTS)
    watched, wrote = _column(coverage, "program"), _column(coverage, "written")
    programs = sorted({*watched.tolist(), *(p for p, n in rows_by_program.items() if n)})
    for program in programs:
        written = int(wrote[watched == program].sum())
        have = rows_by_program.get(program, 0)
        enough = have + lost == written if len(programs) == 1 else have <= written <= have + lost
        if not enough:
            what = f"program {program} wrote {written} rows, {have} are here and {lost} are counted as lost"
            return "damaged", what
    return None


def _column(rows: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    column: Any = rows[name]
    values: np.ndarray[tuple[int], np.dtype[np.int64]] = column.fill_null(0).to_numpy().astype(np.int64)
    return values
