"""Too little disk: raw rows stop and are counted, summaries go on, and all that was written stays readable."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_traces import GIVEN, all_events, expected_keys, keys, ring_rows, summaries

from megascope.store import budget, durable
from megascope.store.check import check, repair
from megascope.store.errors import MegascopeError
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "megascope-test", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def fill(disk: Path) -> None:
    """Somebody else takes all that is left."""
    with (disk / "others").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def losses(path: Path) -> list[dict[str, Any]]:
    with Trace.open(path) as trace:
        tables = [pq.read_table(p.path) for p in trace.verified("loss")] + [trace.tail("loss")]
    return [row for t in tables for row in t.to_pylist()]


def record_until_stopped(w: TraceWriter, more: int) -> int:
    """Rows appended: until raw rows are dropped, and `more` after that."""
    rows, left = 0, more
    while left > 0:
        if w.raw_stopped:
            left -= 500
        w.append("events", ring_rows(rows, 500))
        rows += 500
        assert rows < 500_000
        for name in ("coverage", "intervals"):
            if rows % 5000 == 0:
                w.append(name, summaries(5000)[name])
        w.flush()
    return rows


def test_disk_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mscope"
    limit = 400_000
    w = TraceWriter.create(path, GIVEN, {}, max_bytes=limit)
    most = 0
    real = budget.Gate.admits

    def watched(gate: budget.Gate, used: int, more: int) -> bool:
        nonlocal most
        most = max(most, used)
        return real(gate, used, more)

    monkeypatch.setattr(budget.Gate, "admits", watched)
    rows = record_until_stopped(w, 5000)
    assert most <= limit
    w.finish("done")
    assert sum(f.stat().st_size for f in path.rglob("*.parquet")) < limit
    lost = [r for r in losses(path) if r["kind"] == "disk_budget"]
    assert lost, "raw rows were dropped, even if sealing has since made room again"
    with Trace.open(path) as trace:
        got = all_events(trace)
    assert got.num_rows + sum(r["count"] for r in lost) == rows
    times = set(got["t"].to_pylist())
    for row in lost:
        assert row["t_begin"] not in times
        assert row["t_begin"] <= row["t_end"]
    assert not keys(got) - expected_keys(rows)
    assert trace.state == "sealed"
    check_is_only_short_of_coverage(path)


def check_is_only_short_of_coverage(path: Path) -> None:
    """These recordings write coverage for some rows only, which check must notice and nothing else."""
    problems = [f for f in check(path).findings if f.severity != "info"]
    assert all("counted as lost" in f.what for f in problems), problems


def test_budget_and_coverage_add_up(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {}, max_bytes=200_000)
    rows = 20_000
    for first in range(0, rows, 500):
        w.append("events", ring_rows(first, 500))
    for name, summary in summaries(rows).items():
        w.append(name, summary)
    w.finish("done")
    assert any(r["kind"] == "disk_budget" for r in losses(path))
    report = check(path)
    assert report.clean, report.findings
    assert 0 < report.rows["events"] < rows


def test_rows_that_are_dropped_at_the_very_end_are_told(tmp_path: Path) -> None:
    """What was gathered and not yet written when the recording ends is dropped and counted like all before it."""
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {}, max_bytes=200_000)
    w._sealer.stop()  # so that no room comes back
    rows = record_until_stopped(w, 500)
    w.flush()
    w.append("events", ring_rows(rows, 20))
    w.finish("done")
    with Trace.open(path) as trace:
        kept = all_events(trace).num_rows
    assert kept + sum(r["count"] for r in losses(path) if r["kind"] == "disk_budget") == rows + 20


def test_of_a_large_batch_what_fits_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {}, max_bytes=400_000)
    w._sealer.stop()
    w.append("events", ring_rows(0, 20_000))
    w.finish("done")
    with Trace.open(path) as trace:
        got = all_events(trace)
    assert 1000 < got.num_rows < 6000
    assert keys(got) == expected_keys(got.num_rows)
    assert got.num_rows + sum(r["count"] for r in losses(path)) == 20_000


def test_full_disk(tiny_disk: Path) -> None:
    path = tiny_disk / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {})
    w._sealer.stop()  # as if sealing lagged behind: the spool alone fills the disk
    rows = record_until_stopped(w, 20_000)
    assert w.raw_stopped == "disk_full"
    with Trace.open(path) as trace:
        before = keys(all_events(trace))
    assert before.total() > 5000
    w.finish("the engine ended")
    with Trace.open(path) as trace:
        got = all_events(trace)
        assert trace.state == "sealed"
        assert trace.manifest["end"] == {"reason": "the engine ended"}
    assert keys(got) == before
    lost = [r for r in losses(path) if r["kind"] == "disk_full"]
    assert got.num_rows + sum(r["count"] for r in lost) == rows
    check_is_only_short_of_coverage(path)


def test_disk_that_others_have_filled(tiny_disk: Path) -> None:
    """Not even the reserve's space can be used for sealing: the spool stays, readable, and repair seals it later."""
    path = tiny_disk / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {})
    w._sealer.stop()
    for first in range(0, 3000, 500):
        w.append("events", ring_rows(first, 500))
    w.flush()
    fill(tiny_disk)
    w._reserve.remove()
    fill(tiny_disk)
    with pytest.raises(MegascopeError, match=r"^cannot finish .*: No space left on device; .*--repair"):
        w.finish("the engine ended")
    with Trace.open(path) as trace:
        assert trace.state == "unsealed"
        assert keys(all_events(trace)) == expected_keys(3000)
    with pytest.raises(MegascopeError, match="No space"):
        repair(path)
    with Trace.open(path) as trace:
        assert keys(all_events(trace)) == expected_keys(3000)
    (tiny_disk / "others").unlink()
    repair(path)
    with Trace.open(path) as trace:
        assert trace.state == "sealed"
        assert keys(all_events(trace)) == expected_keys(3000)


def test_no_room_to_begin(tiny_disk: Path) -> None:
    fill(tiny_disk)
    with pytest.raises(MegascopeError, match=r"cannot create .*: No space left on device"):
        TraceWriter.create(tiny_disk / "a.mscope", GIVEN, {})
    assert [p.name for p in tiny_disk.iterdir()] == ["others"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_half_written_batches_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """The disk takes half of a batch and refuses the rest; what follows is still readable."""
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {})
    w.append("events", ring_rows(0, 100))
    w.flush()
    real = durable.write_all

    def half(fd: int, data: Any) -> None:
        view = memoryview(data)
        real(fd, view[: len(view) // 2])
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(durable, "write_all", half)
    w.append("events", ring_rows(100, 100))
    w.flush()
    assert w.raw_stopped == "disk_full"
    monkeypatch.setattr(durable, "write_all", real)
    w.append("events", ring_rows(200, 100))
    w.append("coverage", summaries(300)["coverage"])
    w.append("intervals", summaries(300)["intervals"])
    w.flush()
    with Trace.open(path) as trace:
        assert keys(all_events(trace)) == expected_keys(100)
        assert trace.tail("coverage").num_rows == 1
    w.finish("done")
    (lost,) = losses(path)
    assert (lost["kind"], lost["count"]) == ("disk_full", 200)
    assert (lost["t_begin"], lost["t_end"]) == (1000 + 32 * 100, 1000 + 32 * 299)
    report = check(path)
    assert report.clean, report.findings


def test_another_disk_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = TraceWriter.create(tmp_path / "a.mscope", GIVEN, {})

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "write_all", broken)
    w.append("events", ring_rows(0, 10))
    with pytest.raises(MegascopeError, match=r"cannot write to .*: Input/output error"):
        w.flush()
    w.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=80), st.integers(1000, 20_000))
def test_gate_counts_what_it_refuses(steps: list[tuple[bool, int]], limit: int) -> None:
    """Whatever comes and goes: admitted and told rows are all rows, and stretches are few."""
    gate = budget.Gate(limit)
    used = first = admitted = 0
    told: list[budget.Stretch] = []
    for seal, count in steps:
        if seal:
            used //= 3
        batch = ring_rows(first, count)
        first += count
        if gate.admits(used, batch.nbytes):
            used += batch.nbytes
            admitted += count
            assert used <= limit
        else:
            told += gate.drop(batch)
    told += gate.close(last=True)
    assert admitted + sum(s.count for s in told) == first
    assert all(s.kind == "disk_budget" for s in told)


def test_reserve_is_given_back_in_pieces(tmp_path: Path) -> None:
    reserve = budget.Reserve(tmp_path / "reserve", None)
    sizes = [(tmp_path / "reserve").stat().st_size]
    while reserve.give_back():
        sizes.append((tmp_path / "reserve").stat().st_size)
    assert sizes[0] == 16 << 20
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
    reserve.remove()
    assert not (tmp_path / "reserve").exists()
