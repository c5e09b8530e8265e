"""What a Pairer carries over, as bytes: a few Arrow tables and some numbers, with a checksum.

The bytes may come from a file that was damaged, so nothing in them is believed before it is checked.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Literal

import pyarrow as pa

from .errors import Refused
from .pairing_rows import I64, SCHEMA, TASK_HOOKS

_MAGIC = b"MSCOPEN1"
_WHAT = "cannot go on with pairing"
_TODO = "pair the events from the first part on"
WORKERS_SCHEMA = pa.schema([pa.field("worker", pa.int64(), nullable=False), pa.field("t", pa.int64(), nullable=False)])
_FIELDS: list[pa.Field[Any]] = [pa.field("name", pa.string()), pa.field("stream", pa.binary())]
_TABLES = pa.schema(_FIELDS)
_COUNTS = {
    "tasks": {"tasks", "duplicates", "impossible_ranges", "given_up", "hurried", "missing"},
    "waits": {"waits", "duplicates", "missing_wait", "missing_resume"},
}


def dump(tables: dict[str, pa.Table], numbers: dict[str, Any]) -> bytes:
    """Magic, CRC-32 of the rest, and an Arrow stream of named streams with the numbers in its metadata."""
    streams = [_stream(t) for t in tables.values()]
    outer = pa.table([pa.array(tables), pa.array(streams, pa.binary())], schema=_TABLES)
    # Ids and times of one part: lz4 makes an eighth of it.
    body = _stream(outer.replace_schema_metadata({"numbers": json.dumps(numbers)}), "lz4")
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def load(state: bytes) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The tables and numbers. Raises Refused for bytes that `dump` did not make."""
    body = state[12:]
    if state[:8] != _MAGIC or int.from_bytes(state[8:12], "little") != zlib.crc32(body):
        raise Refused(_WHAT, "its state is damaged or of another version", _TODO)
    try:
        outer = _read(body)
        numbers = json.loads((outer.schema.metadata or {})[b"numbers"])
        tables = {str(row["name"]): _read(row["stream"] or b"") for row in outer.to_pylist()}
        sound = {"held", "waits", "workers"} <= set(tables)
        for name, table in tables.items():
            sound &= table.schema.equals(WORKERS_SCHEMA if name == "workers" else SCHEMA)
            sound &= all(c.null_count == 0 for c in table.columns)
        sound &= type(numbers["frontier"]) is int and -(1 << 63) <= numbers["frontier"] < 1 << 63
        for kind, names in _COUNTS.items():
            sound &= set(numbers[kind]) == names
        missing = numbers["tasks"]["missing"]
        sound &= set(missing) == {str(h) for h in TASK_HOOKS}
        counts = [v for kind in _COUNTS for name, v in numbers[kind].items() if name != "missing"]
        sound &= all(type(v) is int for v in (*counts, *missing.values()))
        if not sound:
            raise ValueError
    except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError):
        raise Refused(_WHAT, "its state is none of a Pairer's", _TODO) from None
    return tables, numbers


def workers_table(worker: I64, t: I64) -> pa.Table:
    """Each worker's latest time."""
    return pa.table([pa.array(worker, pa.int64()), pa.array(t, pa.int64())], schema=WORKERS_SCHEMA)


def _stream(table: pa.Table, compression: Literal["lz4"] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _read(stream: bytes) -> pa.Table:
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    return table
