"""A part: rows of one stream as a Parquet file, and how each column of it is encoded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import durable, map_streams, spool, stored
from .errors import Refused
from .tables import DERIVED, EVENTS, KEPT_TABLES, RING_ROW, STREAMS, TILES, Table

BY_NAME: dict[str, Table] = {t.name: t for t in (*STREAMS, *DERIVED, *KEPT_TABLES)}
TIMES = {"events": ("t", "t"), "intervals": ("t_begin", "t_end"), "coverage": ("t_begin", "t_end")}
_MAP_TIMES = ("t_begin", "t_end")
TIMES |= {"loss": ("t_begin", "t_end"), "now": ("heartbeat", "heartbeat")}
"""The columns that say when a row of a stream begins and ends."""
_DERIVED_TIMES = {"tasks": ("ready", "assign", "start", "complete"), "waits": ("t_begin", "t_end")}

# Chosen by measuring each column of ordered rows. Split by byte, numbers that differ little deflate to next to
# nothing, and lz4 is enough for that: zstd-1 and delta save a quarter of the space and cost a fifth of the rate. What
# rarely changes in this order needs no splitting. A dictionary costs more time than either and saves no space.
_CALM = ("request", "step", "comm", "worker", "sm", "peer", "hook", "flags", "rank", "by")
_EVENTS_PARQUET: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {n: "PLAIN" if n in _CALM else "BYTE_STREAM_SPLIT" for n in EVENTS.names},
    "compression": "lz4",
    "write_statistics": ["t", "worker", "rank"],
}
_TABLE_BYTES = 1 << 32
_OTHER_PARQUET: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
# Split by byte, zstd takes a quarter less space than lz4 here and is written as fast; whole numbers or a dictionary
# take half as much again. A zoom wants few rows of many workers, so row groups are a quarter of those of events.
_DERIVED_ROW_GROUP = stored.ROW_GROUP // 4
_PARQUET: dict[str, Any] = {
    "write_page_checksum": True,
    "write_batch_size": stored.ROW_GROUP,
    "data_page_size": 256 << 10,
}


def table_of(content: Mapping[str, Any], name: str) -> Table:
    """The table of a stream (of a map, as the manifest's `content` declares it), derived table or side table."""
    return BY_NAME[name] if name in BY_NAME else map_streams.tables(content)[name]


def folder_of(stream: str) -> str:
    """The folder of a stream's parts, in that of the trace."""
    return stream.replace(".", "/")


def part_path(folder: Path, table: Table, number: int) -> Path:
    """Where a part of a stream stands, in the folder of its trace."""
    return folder / folder_of(table.name) / f"{table.name.rpartition('.')[2]}-{number:06d}.parquet"


def spooled_schema(table: Table) -> pa.Schema:
    """The schema in which a stream or engine table stands in the spool: events as ring rows, the rest as stored."""
    return RING_ROW.schema if table is EVENTS else table.schema


def stored_table(table: Table, batches: list[pa.RecordBatch]) -> pa.Table:
    """Spooled batches in the schema in which they are stored; events ordered by (rank, worker, seq)."""
    if table is not EVENTS:
        return pa.Table.from_batches(batches, schema=table.schema)
    columns = stored.ring_columns(batches, sum(b.num_rows for b in batches))
    rows = stored.stored_events(columns, stored.arrival_to_order(columns))
    return pa.Table.from_batches([batch for batch, _ in rows], schema=EVENTS.schema)


def last_of_each(table: Table, rows: pa.Table) -> pa.Table:
    """Of rows with the same key the last, in order of the key."""
    numbered = rows.append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(table.key)).aggregate([("_row", "max")])
    return rows.take(last["_row_max"]).sort_by([(k, "ascending") for k in table.key]).combine_chunks()


@dataclass(frozen=True)
class Sealed:
    """What a part holds, as the manifest says it."""

    entry: dict[str, Any] | None
    """None when nothing could be read, so that there is no part."""
    unreadable: tuple[tuple[Path, int], ...]
    """Spool files with damaged batches, and how many rows those were."""


def write_part(
    folder: Path,
    table: Table,
    number: int,
    files: list[spool.SpoolFile],
    more: Sequence[pa.RecordBatch] = (),
    scratch: stored.Columns | None = None,
) -> Sealed:
    """Write the part `number` of a stream from the spool, durably.

    Holds the spooled rows once and one row group in stored form. Raises OSError.
    """
    unreadable: list[tuple[Path, int]] = []
    batches = _readable(table, files, unreadable)
    saturated = 0
    path = part_path(folder, table, number)
    path.parent.mkdir(exist_ok=True, parents=True)
    if table is EVENTS:
        columns = stored.ring_columns(batches, sum(f.rows for f in files), scratch)
        t = columns["t"].view("<i8")
        if not len(t):
            return Sealed(None, tuple(unreadable))
        times: tuple[int | None, int | None] = (int(t.min()), int(t.max()))
        order = stored.arrival_to_order(columns)
        with durable.replacing(path) as temporary:
            with pq.ParquetWriter(temporary, EVENTS.schema, **_PARQUET, **_EVENTS_PARQUET) as out:
                for batch, beyond in stored.stored_events(columns, order):
                    out.write_batch(batch, row_group_size=stored.ROW_GROUP)
                    saturated += beyond
            entry = _entry(path.name, len(t), temporary)
    else:
        rows = stored_table(table, [*batches, *more])
        if not rows.num_rows:
            return Sealed(None, tuple(unreadable))
        times = time_range(table.name, rows)
        with durable.replacing(path) as temporary:
            pq.write_table(rows, temporary, row_group_size=stored.ROW_GROUP, **_PARQUET, **_OTHER_PARQUET)
            entry = _entry(path.name, rows.num_rows, temporary)
    if None in times or times[0] > times[1]:  # type: ignore[operator]
        times = (None, None)
    entry |= {"t_min": times[0], "t_max": times[1]}
    if saturated:
        entry["since_saturated"] = saturated
    return Sealed(entry, tuple(unreadable))


def write_derived(folder: Path, name: str, file: str, rows: pa.Table) -> dict[str, Any]:
    """Write a part of a derived table, durably; returns its manifest entry. Raises OSError."""
    path = folder / name / file
    path.parent.mkdir(exist_ok=True)
    # A bit has no bytes to be split into.
    split = {c.name: "BYTE_STREAM_SPLIT" for c in BY_NAME[name] if c.type != "bool"}
    with durable.replacing(path) as temporary:
        pq.write_table(
            rows,
            temporary,
            row_group_size=_DERIVED_ROW_GROUP,
            use_dictionary=False,
            column_encoding=split,
            **_PARQUET,
            **_OTHER_PARQUET,
        )
        entry = _entry(file, rows.num_rows, temporary)
    low, high = time_range(name, rows)
    return entry | {"t_min": low, "t_max": high}


def time_range(name: str, rows: pa.Table) -> tuple[int | None, int | None]:
    """From when to when rows of a stream or derived table are, in ns; (None, None) where no row has a time.

    A tile is from the begin of its first slice to the end of its last.
    """
    if name == TILES.name:
        level, tile = (rows[c].to_numpy().astype("<i8") for c in ("level", "tile"))
        if not len(tile):
            return None, None
        return int((tile << level).min()), int((tile + rows["span"].to_numpy() << level).max())
    import pyarrow.compute as pc  # which takes its time to import, and readers do without

    columns = _DERIVED_TIMES.get(name)
    begin, end = TIMES.get(name, _MAP_TIMES)
    begins, ends = (columns, columns) if columns else ((begin,), (end,))
    low = [t for t in (pc.min(rows[c]).as_py() for c in begins) if t is not None]
    high = [t for t in (pc.max(rows[c]).as_py() for c in ends) if t is not None]
    return (min(low), max(high)) if low and high else (None, None)


def _readable(
    table: Table, files: Iterable[spool.SpoolFile], unreadable: list[tuple[Path, int]]
) -> Iterator[pa.RecordBatch]:
    """The batches that can be read, one by one; files with others go to `unreadable` with the rows these had."""
    for f in files:
        bad = 0
        for frame, batch in zip(f.frames, spool.read(f, spooled_schema(table)), strict=True):
            if batch is None:
                bad += frame.rows
            else:
                yield batch
        if bad:
            unreadable.append((f.path, bad))


def write_side_table(folder: Path, table: Table, rows: pa.Table) -> dict[str, Any]:
    """Write a side table, durably; returns its manifest entry. Raises OSError."""
    path = folder / "tables" / f"{table.name}.parquet"
    path.parent.mkdir(exist_ok=True)
    with durable.replacing(path) as temporary:
        pq.write_table(rows, temporary, row_group_size=stored.ROW_GROUP, **_PARQUET, **_OTHER_PARQUET)
        return _entry(path.name, rows.num_rows, temporary)


def read_side_table(folder: Path, table: Table, entry: dict[str, Any]) -> pa.Table:
    """The side table that a manifest entry names, checked. Raises Refused when it is missing, damaged or another."""
    what = f"cannot read the table {table.name} of {folder}"
    todo = "run megascope check on the trace"
    file = folder / "tables" / entry["file"]
    try:
        if file.parent.is_symlink():
            raise OSError(0, "its folder is a link")
        data = durable.read_regular(file, min(entry["bytes"], _TABLE_BYTES))
        if (len(data), zlib.crc32(data)) != (entry["bytes"], entry["crc32"]):
            raise OSError(0, "it fails its checksum")
        with pq.ParquetFile(pa.BufferReader(data)) as parquet:
            rows = parquet.read(use_threads=False)
    except (OSError, pa.ArrowException, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise Refused(what, f"tables/{entry['file']}: {why}", todo) from None
    if rows.schema.remove_metadata() != table.schema or rows.num_rows != entry["rows"]:
        raise Refused(what, "it has other columns or rows than declared", todo)
    return rows.replace_schema_metadata(None)


def _entry(name: str, rows: int, written: Path) -> dict[str, Any]:
    size, crc = file_crc(written)
    return {"file": name, "rows": rows, "bytes": size, "crc32": crc}


def file_crc(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file, read in pieces. Raises OSError."""
    fd = durable.open_regular(path)
    try:
        size = crc = 0
        while piece := os.pread(fd, 4 << 20, size):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
        return size, crc
    finally:
        os.close(fd)
