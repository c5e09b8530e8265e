"""The side tables inside a segment: a directory of entries, each JSON or an Arrow IPC stream, each with a CRC-32.

An engine in C++ writes one entry `schema.json` (`{"task_classes": [{"id": 1, …}, …], …}`) and needs no Arrow; a
Python engine writes one Arrow stream a table. The entry `engine.json` holds what the engine says of itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...store.errors import Refused
from ...store.tables import COMPILER_TABLES
from .words import SIDE_ARROW, SIDE_ENTRY, SIDE_JSON

ENGINE_ENTRY = "engine.json"
SCHEMA_ENTRY = "schema.json"
_TABLES = {t.name: t for t in COMPILER_TABLES}


def pack(tables: Mapping[str, pa.Table], engine: Mapping[str, Any]) -> tuple[bytes, int]:
    """The side area's bytes and its number of entries."""
    entries: list[tuple[str, int, bytes]] = [(ENGINE_ENTRY, SIDE_JSON, json.dumps(dict(engine)).encode())]
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        entries.append((name, SIDE_ARROW, sink.getvalue().to_pybytes()))
    at = len(entries) * SIDE_ENTRY.size
    directory, body = b"", b""
    for name, form, data in entries:
        directory += SIDE_ENTRY.pack(name.encode(), form, zlib.crc32(data), at + len(body), len(data))
        body += data + b"\0" * (-len(data) % 64)
    return directory + body, len(entries)


def unpack(area: bytes, entries: int, what: str) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The compiler's tables in their declared schemas (absent ones empty) and the engine's word of itself.

    Raises Refused for a damaged directory, a wrong checksum, or a table that is not as declared.
    """
    tables = {name: t.schema.empty_table() for name, t in _TABLES.items()}
    engine: dict[str, Any] = {}
    for i in range(entries):
        if (i + 1) * SIDE_ENTRY.size > len(area):
            raise Refused(what, "its directory of side tables is cut off", "restart the engine")
        raw, form, crc, offset, length = SIDE_ENTRY.unpack_from(area, i * SIDE_ENTRY.size)
        name = raw.rstrip(b"\0").decode("utf-8", "replace")
        data = area[offset : offset + length]
        if len(data) != length or zlib.crc32(data) != crc:
            raise Refused(what, f"its side table {name!r} is damaged (checksum)", "restart the engine")
        try:
            if form == SIDE_ARROW:
                if name in _TABLES:
                    tables[name] = _declared(pa.ipc.open_stream(data).read_all(), name)
            elif form == SIDE_JSON:
                value = json.loads(data)
                if name == ENGINE_ENTRY:
                    engine = dict(value)
                elif name == SCHEMA_ENTRY:
                    tables |= {n: from_json(rows, n) for n, rows in value.items() if n in _TABLES}
        except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OSError) as e:
            raise Refused(what, f"its side table {name!r} is not as declared: {e}", "see megascope schema") from e
    return tables, engine


def from_json(rows: list[dict[str, Any]], name: str) -> pa.Table:
    """A side table from the rows of `schema.json`; raises ArrowException or KeyError where they do not fit."""
    table = _TABLES[name]
    return pa.table([pa.array([row[c.name] for row in rows], c.arrow) for c in table], schema=table.schema)


def _declared(got: pa.Table, name: str) -> pa.Table:
    got.validate(full=True)
    want = _TABLES[name].schema
    return got.select(want.names).cast(want)
