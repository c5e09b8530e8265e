"""Every kind of loss once: name, severity, unit, where it happens, what to do.

A recording, a check and a report all speak of loss through these kinds; a count without a kind cannot be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .tables import Column, Table

SEVERITIES = ("info", "degraded", "damaged")
"""info: nothing is missing that was to be kept; degraded: rows are missing and counted; damaged: not counted."""


@dataclass(frozen=True)
class LossKind:
    """A way in which something goes missing. `unit`: rows, events, records, bytes or intervals.

    kept: what it counts is in the trace all the same, and only less exact. in_file: its detail begins with the name of
    the file that is gone, of which `table_of` says whose rows it had.
    """

    name: str
    severity: str
    unit: str
    where: str
    todo: str
    kept: bool = False
    in_file: bool = False


LOSS_KINDS = (
    LossKind(
        "queue_full",
        "degraded",
        "events",
        "a worker's queue to its monitor",
        "attach to fewer hooks, or give the monitor fewer workers",
    ),
    LossKind(
        "ring_full",
        "degraded",
        "rows",
        "the segment's event ring",
        "make the ring larger, drain faster, or record fewer hooks",
    ),
    LossKind(
        "overwritten",
        "degraded",
        "rows",
        "the segment's event ring under policy overwrite",
        "read sooner, or make the ring larger",
    ),
    LossKind(
        "torn_block", "degraded", "rows", "a ring block that changed while it was copied", "none: it was left out"
    ),
    LossKind(
        "bad_row",
        "damaged",
        "rows",
        "a ring row with a hook or worker that the engine did not declare",
        "run megascope lint on the integration",
    ),
    LossKind(
        "stale_descriptor",
        "degraded",
        "rows",
        "a task descriptor that was reused before its event was drained",
        "keep descriptors unchanged until consumed",
    ),
    LossKind(
        "host_ring_overwritten",
        "degraded",
        "bytes",
        "the segment's host ring of requests and steps",
        "start the capture earlier, or make the host ring larger",
    ),
    LossKind(
        "map_full",
        "degraded",
        "records",
        "updates of a program's map that found it full",
        "declare it with more entries, or count by fewer keys",
    ),
    LossKind(
        "map_export",
        "degraded",
        "records",
        "an export of a map that could not be read or has no stream",
        "attach fewer different programs in one recording, or run megascope check",
    ),
    LossKind(
        "disk_budget",
        "degraded",
        "rows",
        "the trace's declared disk budget",
        "raise --max-bytes, or in a rolling recording lower --keep",
    ),
    LossKind("disk_full", "degraded", "rows", "the file system of the trace", "free space, or record elsewhere"),
    LossKind(
        "engine_died",
        "damaged",
        "intervals",
        "the engine ended without closing its last interval",
        "rows up to its last publication are kept; nothing is claimed of the last interval",
    ),
    LossKind(
        "engine_stalled",
        "info",
        "intervals",
        "monitors whose heartbeat stopped while the engine lived",
        "run megascope now on the segment",
    ),
    LossKind(
        "spool_tail",
        "damaged",
        "bytes",
        "the end of a spool file that was cut off",
        "run megascope check --repair to seal what can be read",
        in_file=True,
    ),
    LossKind(
        "part_unreadable",
        "damaged",
        "rows",
        "a sealed part that cannot be read or fails its checks",
        "run megascope check for its name",
        in_file=True,
    ),
    LossKind(
        "retired",
        "info",
        "rows",
        "a rolling recording's window, which has moved on",
        "raise --keep to hold more",
    ),
    LossKind(
        "retired_early",
        "degraded",
        "rows",
        "a rolling recording's window, which its disk budget made shorter than asked",
        "raise --max-bytes, or lower --keep",
    ),
    LossKind(
        "pins_spent",
        "degraded",
        "records",
        "triggers and marks that came when the budget of pinned rows was spent, or were cut by it or by refused rows",
        "raise --max-bytes, or fire more rarely: emit() limit(n/s)",
    ),
    LossKind(
        "marks_left_out",
        "degraded",
        "records",
        "marks beyond the 10,000 that a trace lists; the rows for them are kept",
        "fire more rarely, or keep more around each firing",
    ),
    LossKind(
        "since_saturated",
        "info",
        "rows",
        "since_ns above 4.29 s",
        "none: the row is kept, its time is a lower bound",
        kept=True,
    ),
    LossKind(
        "segment_truncated",
        "damaged",
        "intervals",
        "a segment file that shrank while it was read",
        "find out who truncated it; rows copied before are kept",
    ),
)
LOSS_BY_NAME = {k.name: k for k in LOSS_KINDS}

FILE = r"^(?:spool(?:/|: ))?(maps/[a-z0-9_]+|[a-z0-9_.]+?)[-/]"
"""Where the detail of a kind that is `in_file` says which table that was; a map's with / for its dot. For SQL too."""


def table_of(kind: str, detail: str) -> str | None:
    """The stream or table whose rows, or bytes, a row of `loss` counts; None where it is of no file."""
    known = LOSS_BY_NAME.get(kind)
    found = re.match(FILE, detail) if known is not None and known.in_file else None
    return found[1].replace("/", ".") if found else None


LOSS_KINDS_TABLE = Table(
    "loss_kinds",
    "What each kind of loss means.",
    (
        Column("kind", "str", "name"),
        Column("severity", "str", "info, degraded or damaged"),
        Column("unit", "str", "what its count counts"),
        Column("place", "str", "where it happens"),
        Column("todo", "str", "what to do"),
    ),
    key=("kind",),
)
