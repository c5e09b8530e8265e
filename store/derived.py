"""Derived tables on disk: which parts there are, what they were made from, and what is carried over between steps.

A step takes one sealed part: of events, to tasks, waits and tiles; of intervals, to the tiles that say where events
were lost. So each derived part is a function of the parts up to its own, whenever the steps were taken.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import durable, spool
from .errors import Refused
from .parquet import BY_NAME, read_side_table
from .stored import ROW_GROUP
from .tables import DERIVED, EVENTS, HOOK_BY_NAME, INTERVALS, WORKERS

# Pairing is imported where it is needed: to read a trace that is derived whole is not to pair.
if TYPE_CHECKING:
    from .pairing import Context
    from .pairing_rows import Rows

KEY = "derived"
"""Of the manifest."""
NAMES = tuple(t.name for t in DERIVED)
SOURCES = {EVENTS.name: "upto", INTERVALS.name: "lost_upto"}
"""The streams from which is derived, and what the manifest calls the number of the last part that was taken."""
COUNTS = (
    "tasks", "waits", "missing_ready", "missing_assign", "missing_start", "missing_complete", "missing_wait",
    "missing_resume", "open_waits", "duplicates", "impossible_ranges", "given_up", "hurried", "left_out", "unreadable",
)  # fmt: skip
"""What the manifest counts: rows, expected events that are not there, and what was odd about the rest.

open_waits: still going on at the end; not missing. given_up, hurried: tasks (see `pairing_tasks`). left_out: tasks,
waits and losses with impossible times that are in no tile. unreadable: parts of events that could not be read.
"""

STATE_MOST = 32 << 20
"""A state larger than this is not kept: bytes."""


def fresh() -> dict[str, Any]:
    """The manifest's entry before the first step."""
    parts: dict[str, Any] = {name: {"parts": []} for name in NAMES}
    return {"upto": 0, "lost_upto": 0, "finished": False, "counts": {}} | parts


def parts_of(content: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The manifest's entries of a stream's or derived table's parts."""
    of = content.get(KEY) or {} if name in NAMES else content["streams"]
    parts: list[dict[str, Any]] = of.get(name, {}).get("parts", [])
    return parts


def number_of(file: str) -> int:
    """The number in a part's name."""
    return int(file.removesuffix(".parquet").rpartition("-")[2])


def file_name(name: str, stream: str, number: int) -> str:
    """Of the part of a derived table that was made from that part of a stream."""
    return f"{name}-{number:06d}.parquet" if stream == EVENTS.name else f"{name}-lost-{number:06d}.parquet"


def by_origin(entry: dict[str, Any]) -> tuple[bool, int]:
    """The order of entries: first those from events, each by number, whichever came first."""
    return "-lost-" in entry["file"], number_of(entry["file"])


def not_taken(content: dict[str, Any], stream: str) -> list[int]:
    """Numbers of the stream's parts from which nothing has been derived."""
    upto = (content.get(KEY) or fresh())[SOURCES[stream]]
    return [n for n in (number_of(p["file"]) for p in parts_of(content, stream)) if n > upto]


def is_finished(content: dict[str, Any]) -> bool:
    """Has everything been derived that there is to derive?"""
    return bool((content.get(KEY) or {}).get("finished"))


def context(folder: Path, content: dict[str, Any]) -> Context:
    """What pairing must know beside the events; without the workers where their table cannot be read."""
    from .pairing import Context

    entry = content["tables"].get(WORKERS.name)
    try:
        workers = None if entry is None else read_side_table(folder, WORKERS, entry)
    except Refused:
        workers = None
    return Context.of(content, workers)


def read_part(path: Path, name: str, entry: dict[str, Any]) -> pa.Table | None:
    """The rows of a sealed part; None when it is not what the manifest's entry says."""
    try:
        with _open_part(path, name, entry) as file:
            rows = file.read(use_threads=False).replace_schema_metadata(None)
        rows.validate(full=True)
    except (OSError, pa.ArrowException, ValueError):
        return None
    return rows if rows.num_rows == entry["rows"] else None


def read_events(path: Path, entry: dict[str, Any], scratch: Rows) -> Rows | None:
    """The columns of a sealed part of events that pairing works on, in `scratch`; None as `read_part`.

    A row group at a time: as a table a part takes 110 MB, and twice as much while it is read.
    """
    from .pairing_rows import columns_of

    try:
        with _open_part(path, EVENTS.name, entry) as file:
            columns = columns_of(_batches(file), entry["rows"], scratch)
    except (OSError, pa.ArrowException, ValueError):
        return None
    return columns if len(columns["t"]) == entry["rows"] else None


def _open_part(path: Path, name: str, entry: dict[str, Any]) -> pq.ParquetFile:
    """Raises OSError or ValueError when it is not what the manifest's entry says."""
    data = durable.read_regular(path, entry["bytes"])
    if (len(data), zlib.crc32(data)) != (entry["bytes"], entry["crc32"]):
        raise ValueError("it fails its checksum")
    file = pq.ParquetFile(pa.BufferReader(data))
    if file.schema_arrow.remove_metadata() != BY_NAME[name].schema or file.metadata.num_rows != entry["rows"]:
        raise ValueError("it has other columns or rows than declared")
    return file


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    from .pairing_rows import COLUMNS

    for batch in file.iter_batches(ROW_GROUP, columns=list(COLUMNS), use_threads=False):
        batch.validate(full=True)
        yield batch


def state_path(folder: Path, file: str) -> Path:
    """Where what is carried over is kept."""
    return folder / spool.FOLDER / file


def open_state(folder: Path, content: dict[str, Any]) -> int:
    """A descriptor of what is carried over; -1 when the manifest names none or it cannot be opened."""
    entry = (content.get(KEY) or {}).get("state")
    try:
        return -1 if entry is None else durable.open_regular(state_path(folder, entry["file"]))
    except OSError:
        return -1


def read_state(fd: int, content: dict[str, Any]) -> bytes | None:
    """What is carried over; None when it is not what the manifest says."""
    entry = (content.get(KEY) or {}).get("state")
    if entry is None or fd < 0 or os.fstat(fd).st_size != entry["bytes"]:
        return None
    data = durable.read_at(fd, 0, entry["bytes"])
    return data if zlib.crc32(data) == entry["crc32"] else None


def remarks(counts: dict[str, int]) -> list[tuple[str, str]]:
    """(table, what) for each count of something odd."""
    out = []
    for hook in ("ready", "assign", "start", "complete", "wait", "resume"):
        if n := counts.get(f"missing_{hook}", 0):
            of = "waits" if HOOK_BY_NAME[hook].id > HOOK_BY_NAME["complete"].id else "tasks"
            out.append((of, f"{n:,} without their {hook} event, which was not recorded"))
    for key, of, what in (
        ("duplicates", "tasks", "events stood there twice and were taken once"),
        ("impossible_ranges", "tasks", "range events were left out: they stand for an impossible number of tasks"),
        ("given_up", "tasks", "were given up unfinished: too many were open at once"),
        ("hurried", "tasks", "were decided early: too many waited for the events of a silent worker"),
        ("left_out", "tiles", "tasks, waits and losses are in none: their times are impossible"),
        ("unreadable", "tasks", "parts of events could not be read"),
    ):
        if n := counts.get(key, 0):
            out.append((of, f"{n:,} {what}"))
    return out
