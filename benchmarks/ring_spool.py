"""From the segment's event rings to the spool: how many rows a second one core drains, checks, frees and writes.

    python benchmarks/ring_spool.py [--rounds 5] [--monitors 132] [--dir /tmp]

The rings of a segment in /dev/shm are filled once with realistic rows; each round drains all of them anew: copied out
only, into the spool, and into the spool with an fsync a batch. In turns, medians; the raw writes beside them put the
same bytes into one file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import ring_rows

from megascope.capture.accounts import Accounts
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.layout import Layout
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Control, Cursor, Policy
from megascope.capture.segment.writer import SegmentWriter
from megascope.store import spool
from megascope.store.gather import BATCH_ROWS
from megascope.store.tables import RING_ROW, WORKERS


def fill(path: Path, monitors: int, blocks: int) -> SegmentWriter:
    """A segment whose rings are full of rows of two workers a monitor."""
    layout = Layout(workers=2 * monitors, monitors=monitors, block_rows=512, blocks=blocks, policy=Policy.DROP)
    table = [{"worker": w, "monitor": w // 2, "sm": w // 2, "role": "compute", "rank": 0} for w in range(2 * monitors)]
    tables = {"workers": pa.Table.from_pylist(table, schema=WORKERS.schema)}
    writer = SegmentWriter.create(path, layout, side_tables=tables)
    rows = pa.Table.from_batches(ring_rows.blocks(layout.ring_rows)).combine_chunks()
    for c in RING_ROW:
        values = rows[c.name].to_numpy()[: layout.ring_rows].reshape(blocks, -1)
        for m in range(monitors):
            writer.columns[c.name][m] = values
    for m in range(monitors):
        which = (np.arange(layout.ring_rows) % 2).reshape(blocks, -1)
        writer.columns["worker"][m] = 2 * m + which
        writer.columns["rank"][m] = 0
    writer.cursor[:, Cursor.HEAD] = layout.ring_rows
    return writer


def drain(segment: SegmentReader, take: Callable[[pa.RecordBatch], None]) -> int:
    """Everything from the rings' begin; the tails are put back first."""
    lay = segment.layout
    segment.poke(lay.control_offset + Control.TAILS, bytes(lay.monitors))
    rings, rows = RingReader(segment), 0
    while True:
        batch = rings.take().rows
        if not batch.num_rows:
            return rows
        rows += batch.num_rows
        take(batch)


def to_spool(segment: SegmentReader, folder: Path, sync: bool) -> tuple[int, float]:
    """Rows, and seconds until the last of them was in the spool; nothing is sealed meanwhile."""
    shutil.rmtree(folder / "spool", ignore_errors=True)
    (folder / "spool").mkdir()
    writer = spool.SpoolWriter(folder / "spool", "events", RING_ROW.schema, "0" * 32, sync=sync)
    accounts = Accounts(segment)

    def take(batch: pa.RecordBatch) -> None:
        accounts.saw(batch)
        for at in range(0, batch.num_rows, BATCH_ROWS):
            writer.write(batch.slice(at, BATCH_ROWS))
        if writer.full:
            writer.finish()

    begin = time.perf_counter()
    rows = drain(segment, take)
    writer.finish()
    return rows, time.perf_counter() - begin


def raw(folder: Path, size: int, sync: bool) -> float:
    """Seconds for `size` bytes in one file, written 2 MB at a time, synced as often if `sync`."""
    data = os.urandom(1 << 21)
    fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    begin = time.perf_counter()
    for _ in range(size >> 21):
        os.write(fd, data)
        if sync:
            os.fdatasync(fd)
    os.close(fd)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--monitors", type=int, default=132)
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--dir", type=Path, default=None, help="where the spool goes")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    folder = Path(tempfile.mkdtemp(dir=args.dir))
    path = Path(tempfile.mkdtemp(dir="/dev/shm")) / "bench.mseg"
    try:
        fill(path, args.monitors, args.blocks)
        figures: dict[str, list[float]] = {}
        with SegmentReader.open(path, write=True) as segment:
            for _ in range(args.rounds):
                begin = time.perf_counter()
                rows = drain(segment, lambda _: None)
                figures.setdefault("ring, copied and checked", []).append(time.perf_counter() - begin)
                for name, sync in (("ring → spool", False), ("ring → spool, fsync a batch", True)):
                    rows, seconds = to_spool(segment, folder, sync)
                    figures.setdefault(name, []).append(seconds)
                size = rows * RING_ROW.dtype.itemsize
                for name, sync in (("raw write", False), ("raw write, fdatasync each 2 MB", True)):
                    figures.setdefault(name, []).append(raw(folder, size, sync))
        print(f"{rows:,} rows of {RING_ROW.dtype.itemsize} bytes, {args.rounds} rounds, one core, medians")
        for name, seconds_ in figures.items():
            s = statistics.median(seconds_)
            print(f"{name:32s} {rows / s / 1e6:7.1f} M rows/s  {size / s / 1e6:7.0f} MB/s")
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(path.parent)


if __name__ == "__main__":
    main()
