"""How fast ring rows go to the spool and the spool to sealed parts, on one core.

    python benchmarks/spool_seal.py [--rows 4000000] [--rounds 5] [--dir /tmp] [--trace TRACE.mscope]

Every figure is the median of `--rounds`, taken in turns, so that a busy machine troubles all rows alike. The raw
writes beside the spool put the same bytes into one file: what the disk itself can do.
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

import pyarrow as pa
import ring_rows

from megascope.store import manifest, seal, spool, stored
from megascope.store.gather import BATCH_ROWS
from megascope.store.tables import RING_ROW

ID = "0" * 32


def joined(blocks: list[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    """Blocks in batches of `rows`, each in memory of its own."""
    return pa.Table.from_batches(blocks).combine_chunks().to_batches(max_chunksize=rows)


def to_spool(folder: Path, batches: list[pa.RecordBatch], sync: bool) -> list[spool.SpoolFile]:
    """All batches into spool files of the usual size."""
    writer = spool.SpoolWriter(folder, "events", RING_ROW.schema, ID, sync=sync)
    files = []
    for batch in batches:
        writer.write(batch)
        if writer.full and (f := writer.finish()):
            files.append(f)
    if f := writer.finish():
        files.append(f)
    return files


def raw_write(folder: Path, data: list[pa.Buffer], sync: bool) -> None:
    """What `dd` would do with the same bytes, with `fdatasync` after every batch if `sync`."""
    fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for piece in data:
        os.write(fd, piece)
        if sync:
            os.fdatasync(fd)
    os.close(fd)


def timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--trace", type=Path, help="the rows of a recorded trace instead of made-up ones")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    blocks = list(ring_rows.recorded(args.trace) if args.trace else ring_rows.blocks(args.rows))
    rows = sum(b.num_rows for b in blocks)
    batches = joined(blocks, BATCH_ROWS)
    data = [b.serialize() for b in batches]
    spooled_bytes = sum(d.size for d in data)
    times: dict[str, list[float]] = {}
    sealed_bytes = 0
    for _ in range(args.rounds):
        home = Path(tempfile.mkdtemp(dir=args.dir, prefix="megascope-bench-"))
        try:
            for sync in (False, True):
                after = ", fsync every batch" if sync else ""
                took = timed(lambda s=sync, h=home: raw_write(h, data, s))  # type: ignore[misc]
                times.setdefault(f"raw write of the same bytes{after}", []).append(took)
                (home / "raw").unlink()
                folder = home / f"spool{sync}"
                folder.mkdir()
                took = timed(lambda s=sync, f=folder: to_spool(f, batches, s))  # type: ignore[misc]
                times.setdefault(f"ring batch -> spool{after}", []).append(took)
            shutil.rmtree(home / "spoolTrue")
            files = [spool.scan(p, ID) for p in sorted((home / "spoolFalse").glob("*.arrows"))]
            fresh = manifest.fresh(name="", trace_id=ID, created_utc="", writer={"pid": 0, "start": 0}, max_bytes=None)
            book = manifest.Manifest(home, fresh)

            def all_parts(f: list[spool.SpoolFile] = files, b: manifest.Manifest = book, h: Path = home) -> None:
                scratch: stored.Columns = {}
                for group in seal.groups(f, last=True):
                    seal.seal(h, b, "events", group, scratch=scratch)

            times.setdefault("spool -> sealed", []).append(timed(all_parts))
            sealed_bytes = sum(p["bytes"] for p in book.snapshot()["streams"]["events"]["parts"])
        finally:
            shutil.rmtree(home)
    print(f"{rows} rows, {len(batches)} batches, median of {args.rounds}, one core, {args.dir}")
    print(f"{'':44}{'M rows/s':>9}{'MB/s':>8}{'B/row':>7}")
    for name, taken in times.items():
        s = statistics.median(taken)
        size = sealed_bytes if "sealed" in name else spooled_bytes
        print(f"{name:44}{rows / s / 1e6:9.2f}{spooled_bytes / s / 1e6:8.0f}{size / rows:7.2f}")


if __name__ == "__main__":
    main()
