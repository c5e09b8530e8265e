"""A capture's limits: memory that does not grow with the run, a disk budget, a disk that is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from megascope.store.check import check
from megascope.store.trace import Trace


def capture(out: Path, spec: str, *options: str) -> tuple[int, str, int]:
    """Exit code, what it said, and the peak resident memory in bytes of the capture alone, without its engine.

    Not by getrusage: its peak begins with that of the process that started this one, which has run many tests.
    """
    code = (
        "import re, sys; from pathlib import Path; from megascope.__main__ import main\n"
        f"sys.argv = ['megascope', 'capture', {spec!r}, '-o', {str(out)!r}, '--quiet', *{list(options)!r}]\n"
        "code = main(); said = Path('/proc/self/status').read_text()\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+) kB', said)[1]) * 1024); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=1200)
    return done.returncode, done.stderr, int(done.stdout.split()[-1])


def test_many_events_in_the_memory_of_a_quarter(tmp_path: Path) -> None:
    """Peak memory of a run of 6 M events against one of 1.5 M: it does not grow with the run."""
    code, said, short = capture(tmp_path / "short.mscope", "demo:steps=320")
    assert code == 0, said
    code, said, long = capture(tmp_path / "long.mscope", "demo:steps=1280")
    assert code == 0, said
    with Trace.open(tmp_path / "short.mscope") as a, Trace.open(tmp_path / "long.mscope") as b:
        rows = [sum(p.rows for p in t.parts("events")) for t in (a, b)]
    assert rows[1] > 6_000_000 > 3.9 * rows[0] * 0.9
    assert long < 1.25 * short + (64 << 20), (
        f"{short / 1e6:.0f} MB for {rows[0]:,} rows, {long / 1e6:.0f} for {rows[1]:,}"
    )
    assert long < 1 << 30


def test_a_disk_budget_stops_raw_rows_and_keeps_the_summaries(tmp_path: Path) -> None:
    out = tmp_path / "a.mscope"
    code, said, _ = capture(out, "demo:steps=800", "--max-bytes", "12M")
    assert code == 0, said
    assert "raw rows were dropped for the disk budget" in said
    with Trace.open(out) as trace:
        assert trace.state == "sealed"
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        assert size < 14_000_000
        written = sum(sum(pq.read_table(p.path)["written"].to_pylist()) for p in trace.parts("coverage"))
        kept = sum(p.rows for p in trace.parts("events"))
        loss = [r for p in trace.parts("loss") for r in pq.read_table(p.path).to_pylist()]
    dropped = sum(r["count"] for r in loss if r["kind"] == "disk_budget")
    assert 0 < kept < written
    assert kept + dropped == written, "every row is in the trace or in a counted loss"
    assert f"{dropped:,} raw rows were dropped" in said
    assert f"wrote {out}: {kept:,} rows, " in said
    assert all(r["t_begin"] is not None for r in loss if r["kind"] == "disk_budget")
    assert not [f for f in check(out).findings if f.severity == "damaged"]
    code, said, _ = capture(tmp_path / "b.mscope", "demo:steps=800", "--max-bytes", "12M", "--max-loss", "1")
    assert code == 4, said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_all_that_was_written_readable(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        code, said, _ = capture(disk / "a.mscope", "demo:steps=800")
        assert "Traceback" not in said
        assert code in (0, 1), said
        with Trace.open(disk / "a.mscope") as trace:
            kept = sum(p.rows for p in trace.parts("events")) + trace.tail("events").num_rows
            assert kept > 0
        assert not [f for f in check(disk / "a.mscope").findings if f.severity == "damaged"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_hundred_million_events(tmp_path: Path) -> None:
    """A soak: 100 M events, in the memory of ten, sound to the last row."""
    code, said, peak = capture(tmp_path / "a.mscope", "demo:steps=21200")
    assert code == 0, said
    with Trace.open(tmp_path / "a.mscope") as trace:
        assert sum(p.rows for p in trace.parts("events")) > 100_000_000
    assert peak < 1 << 30, f"{peak / 1e6:.0f} MB"
    report = check(tmp_path / "a.mscope")
    assert not report.findings
    assert report.state == "sealed"
