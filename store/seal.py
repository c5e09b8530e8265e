"""Sealing: finished spool files become one Parquet part, and only then go.

The order is what makes a crash harmless: write the part under a temporary name, make it durable, rename it, name it
in the manifest together with the number of the last spool file it holds, and only then remove those files. Before
the manifest speaks, the spool counts and a part without entry is litter; after, the spool up to that number is.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import durable, spool, stored
from .manifest import Manifest
from .tables import EVENTS, RING_ROW, SIDE_TABLES, STREAMS, Table

PART_ROWS = 1 << 20
_PART_MOST = PART_ROWS * 5 // 4
_PART_BYTES = spool.ROTATE_BYTES
_PART_FRAMES = 8 * spool.ROTATE_FRAMES
_RETRY_S = 1.0

BY_NAME: dict[str, Table] = {t.name: t for t in (*STREAMS, *SIDE_TABLES)}
TIMES = {"events": ("t", "t"), "intervals": ("t_begin", "t_end"), "coverage": ("t_begin", "t_end")}
TIMES |= {"loss": ("t_begin", "t_end"), "now": ("heartbeat", "heartbeat")}
"""The columns that say when a row of a stream begins and ends."""

# Chosen by measuring each column of ordered rows (benchmarks/spool_seal.py --columns). Split by byte, small numbers
# deflate to next to nothing; a dictionary costs more time than that and saves no space. lz4 where zstd takes longer
# and saves little.
_ENCODING = {"t": ("DELTA_BINARY_PACKED", "lz4"), "since_ns": ("BYTE_STREAM_SPLIT", "zstd")}
_ENCODING |= dict.fromkeys(
    ("request", "step", "comm", "worker", "sm", "peer", "hook", "flags", "rank", "by"), ("PLAIN", "lz4")
)
_ENCODING |= {"task_class": ("BYTE_STREAM_SPLIT", "zstd")}
_BY_BYTE = ("BYTE_STREAM_SPLIT", "lz4")
_EVENTS_PARQUET: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {n: _ENCODING.get(n, _BY_BYTE)[0] for n in EVENTS.names},
    "compression": {n: _ENCODING.get(n, _BY_BYTE)[1] for n in EVENTS.names},
    "compression_level": {n: 1 for n in EVENTS.names if _ENCODING.get(n, _BY_BYTE)[1] == "zstd"},
    "write_statistics": ["t", "seq", "worker", "rank"],
}
_OTHER_PARQUET: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
_PARQUET: dict[str, Any] = {
    "write_page_checksum": True,
    "write_batch_size": stored.ROW_GROUP,
    "data_page_size": 256 << 10,
}


def spooled_schema(name: str) -> pa.Schema:
    """The schema in which a stream or engine table stands in the spool: events as ring rows, the rest as stored."""
    return RING_ROW.schema if name == EVENTS.name else BY_NAME[name].schema


def stored_table(name: str, batches: list[pa.RecordBatch]) -> pa.Table:
    """Spooled batches in the schema in which they are stored; events ordered by (rank, worker, seq)."""
    if name != EVENTS.name:
        return pa.Table.from_batches(batches, schema=BY_NAME[name].schema)
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
    folder: Path, stream: str, number: int, files: list[spool.SpoolFile], scratch: stored.Columns | None = None
) -> Sealed:
    """Write the part `number` of a stream from the spool, durably.

    Holds the spooled rows once and one row group in stored form. Raises OSError.
    """
    unreadable: list[tuple[Path, int]] = []
    batches = _readable(stream, files, unreadable)
    saturated = 0
    path = folder / stream / f"{stream}-{number:06d}.parquet"
    path.parent.mkdir(exist_ok=True)
    if stream == EVENTS.name:
        columns = stored.ring_columns(batches, sum(f.rows for f in files), scratch)
        t = columns["t"].view("<i8")
        if not len(t):
            return Sealed(None, tuple(unreadable))
        times: tuple[int | None, int | None] = (int(t.min()), int(t.max()))
        order = stored.arrival_to_order(columns)
        with durable.replacing(path) as temporary:
            with pq.ParquetWriter(temporary, EVENTS.schema, **_PARQUET, **_EVENTS_PARQUET) as parquet:
                for batch, beyond in stored.stored_events(columns, order):
                    parquet.write_batch(batch, row_group_size=stored.ROW_GROUP)
                    saturated += beyond
            entry = _entry(path.name, len(t), temporary)
    else:
        table = stored_table(stream, list(batches))
        if not table.num_rows:
            return Sealed(None, tuple(unreadable))
        begins, ends = (table[c] for c in TIMES[stream])
        times = (pc.min(begins).as_py(), pc.max(ends).as_py())
        with durable.replacing(path) as temporary:
            pq.write_table(table, temporary, row_group_size=stored.ROW_GROUP, **_PARQUET, **_OTHER_PARQUET)
            entry = _entry(path.name, table.num_rows, temporary)
    if None in times or times[0] > times[1]:  # type: ignore[operator]
        times = (None, None)
    entry |= {"t_min": times[0], "t_max": times[1]}
    if saturated:
        entry["since_saturated"] = saturated
    return Sealed(entry, tuple(unreadable))


def _readable(
    stream: str, files: Iterable[spool.SpoolFile], unreadable: list[tuple[Path, int]]
) -> Iterator[pa.RecordBatch]:
    """The batches that can be read, one by one; files with others go to `unreadable` with the rows these had."""
    for f in files:
        bad = 0
        for frame, batch in zip(f.frames, spool.read(f, spooled_schema(stream)), strict=True):
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


def groups(files: list[spool.SpoolFile], *, last: bool) -> Iterator[list[spool.SpoolFile]]:
    """Consecutive files that make parts of about a million rows; a remainder only when it is the `last`."""
    group: list[spool.SpoolFile] = []
    rows = size = frames = 0
    for f in files:
        if group and rows + f.rows > _PART_MOST:
            yield group
            group, rows, size, frames = [], 0, 0, 0
        group.append(f)
        rows, size, frames = rows + f.rows, size + f.size, frames + len(f.frames)
        if rows >= PART_ROWS or size >= _PART_BYTES or frames >= _PART_FRAMES:
            yield group
            group, rows, size, frames = [], 0, 0, 0
    if group and last:
        yield group


def seal(
    folder: Path,
    manifest: Manifest,
    stream: str,
    files: list[spool.SpoolFile],
    scratch: stored.Columns | None = None,
) -> Sealed:
    """One part from `files`, in the five steps above. Raises OSError; then the spool still counts."""
    parts = manifest.snapshot()["streams"][stream]["parts"]
    number = 1 + max((int(p["file"].removesuffix(".parquet").rpartition("-")[2]) for p in parts), default=0)
    sealed = write_part(folder, stream, number, files, scratch)

    def change(m: dict[str, Any]) -> None:
        if sealed.entry is not None:
            m["streams"][stream]["parts"].append(sealed.entry)
        m["spool_sealed"][stream] = files[-1].number

    manifest.commit(change)
    for f in files:
        spool.remove(f)
    return sealed


def seal_table(
    folder: Path, manifest: Manifest, table: Table, files: list[spool.SpoolFile], before: pa.Table | None = None
) -> None:
    """One file of an engine table from what was upserted, on top of what was sealed `before`. Raises OSError."""
    batches = [b for f in files for b in spool.read(f, table.schema) if b is not None]
    rows = pa.Table.from_batches(batches, schema=table.schema)
    entry = write_side_table(
        folder, table, last_of_each(table, rows if before is None else pa.concat_tables([before, rows]))
    )

    def change(m: dict[str, Any]) -> None:
        m["tables"][table.name] = entry
        if files:
            m["spool_sealed"][table.name] = files[-1].number

    manifest.commit(change)
    for f in files:
        spool.remove(f)


def untold_saturation(manifest: dict[str, Any], told: int) -> int:
    """Rows with saturated `since_ns` in sealed events beyond the `told` ones.

    They are counted in the part's own entry, which is written with the part or not at all, and become a row of
    `loss` at the end: so that no crash counts them twice or never.
    """
    parts = manifest["streams"][EVENTS.name]["parts"]
    total: int = sum(p.get("since_saturated", 0) for p in parts)
    return max(0, total - told)


class Sealer(threading.Thread):
    """Seals finished spool files in the background while the recording goes on."""

    def __init__(
        self, folder: Path, manifest: Manifest, on_sealed: Callable[[str, list[spool.SpoolFile], Sealed], None]
    ) -> None:
        super().__init__(name="megascope-seal", daemon=True)
        self._folder, self._manifest, self._on_sealed = folder, manifest, on_sealed
        self._wake = threading.Condition()
        self._stopped = False
        self._scratch: stored.Columns = {}
        self.waiting: dict[str, list[spool.SpoolFile]] = {}
        """What is not sealed yet; to be touched from outside only after `stop`."""

    def submit(self, f: spool.SpoolFile) -> None:
        """Hand over a finished file. Files of a stream come in the order of their numbers."""
        with self._wake:
            self.waiting.setdefault(f.stream, []).append(f)
            self._wake.notify()

    def stop(self) -> None:
        """End the thread after the part in hand."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self.is_alive():
            self.join()

    def seal(self, stream: str, files: list[spool.SpoolFile]) -> None:
        """Seal the first files that wait. Raises OSError; then they still wait."""
        sealed = seal(self._folder, self._manifest, stream, files, self._scratch)
        with self._wake:
            del self.waiting[stream][: len(files)]
        self._on_sealed(stream, files, sealed)

    def run(self) -> None:
        while True:
            with self._wake:
                ready = None
                while not self._stopped and (ready := self._ready()) is None:
                    self._wake.wait()
            if ready is None:
                return
            try:
                self.seal(*ready)
            except OSError:
                # Most likely a full disk: the spool still counts, and the end of the recording tries once more.
                with self._wake:
                    self._wake.wait(_RETRY_S)

    def _ready(self) -> tuple[str, list[spool.SpoolFile]] | None:
        for stream, files in self.waiting.items():
            if stream in TIMES and (group := next(groups(files, last=False), None)):
                return stream, group
        return None
