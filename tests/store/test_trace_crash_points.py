"""A crash at every step of recording and sealing: no row is lost that was in the spool, and none is there twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from made_traces import (
    GIVEN,
    all_events,
    all_of,
    expected_keys,
    expected_starts,
    keys,
    record,
    request,
    ring_rows,
    started,
    task_classes,
)

from megascope.store import durable, manifest
from megascope.store.check import check, repair
from megascope.store.derived import NAMES
from megascope.store.errors import MegascopeError
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small")

ROWS = 1000
STEPS_APART = pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.slow)])
STEPS = ("replace", "unlink", "fsync", "rename", "rmdir", "ftruncate")


def in_child(act: Callable[[], None]) -> int:
    """Run `act` in a forked process that ends without any clean-up; its exit status, 77 for a planned crash."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            act()
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash_at(step: int) -> None:
    """End this process before its `step`-th change of a directory or fsync."""
    left = [step]

    def armed(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os._exit(77)
            return real(*args, **kwargs)

        return wrapped

    for name in STEPS:
        setattr(os, name, armed(name))


def assert_whole(path: Path) -> None:
    with Trace.open(path) as trace:
        assert keys(all_events(trace)) == expected_keys(ROWS)
        assert started(trace) == expected_starts(ROWS)
        assert sum(all_of(trace, "tiles").filter(pc.field("level") == 16)["tasks"].to_pylist()) == ROWS
        assert {r["request"]: r["slot"] for r in trace.table("requests").to_pylist()} == {1: 7, 2: 2}
        assert trace.table("task_classes").equals(task_classes())


def derived_files(path: Path) -> dict[str, bytes]:
    """Every file of the derived tables and what is in it."""
    return {str(f.relative_to(path)): f.read_bytes() for n in NAMES for f in (path / n).glob("*")}


def spool_everything(path: Path) -> TraceWriter:
    """All rows in the spool, and neither sealing nor deriving begun."""
    w = TraceWriter.create(path, GIVEN, {"task_classes": task_classes()})
    w._sealer.stop()
    w._deriver.stop()
    w.append("events", ring_rows(0, ROWS))
    for number, slot in ((1, 1), (2, 2), (1, 7)):
        w.upsert("requests", request(number, slot))
    w.flush()
    return w


@STEPS_APART
def test_crash_anywhere_in_sealing(memory_path: Path, apart: int) -> None:
    crashes = 0
    spool_everything(memory_path / "whole.mscope").finish("done")
    for step in range(1, 1000, apart):
        path = memory_path / f"{step}.mscope"

        def act(path: Path = path, step: int = step) -> None:
            w = spool_everything(path)
            crash_at(step)
            w.finish("done")

        status = in_child(act)
        assert status in (0, 77)
        assert_whole(path)
        if status == 77:
            assert repair(path).clean
            assert_whole(path)
            with Trace.open(path) as trace:
                assert (trace.state, trace.is_derived, trace.notes) == ("sealed", True, [])
                assert derived_files(path) == derived_files(memory_path / "whole.mscope")
            assert not (path / "spool").exists()
            crashes += 1
        elif status == 0:
            assert check(path).clean
            break
    assert crashes > 30 // apart


@STEPS_APART
def test_crash_anywhere_in_repair(memory_path: Path, apart: int) -> None:
    """Repair that is killed and run again says each loss once and puts aside what is damaged."""
    crashes = 0
    for step in range(1, 1000, apart):
        path = memory_path / f"{step}.mscope"
        in_child(lambda path=path: (spool_everything(path), None)[1])  # type: ignore[misc]
        first = min((path / "spool").glob("events-*.arrows"))
        with first.open("ab") as file:
            file.write(b"half a batch")

        def act(path: Path = path, step: int = step) -> None:
            crash_at(step)
            repair(path)

        status = in_child(act)
        assert status in (0, 77)
        assert_whole(path)
        report = repair(path)
        assert report.clean, report.findings
        assert_whole(path)
        losses = [r for p in Trace.open(path).verified("loss") for r in rows_of(p.path)]
        assert [(r["kind"], r["count"]) for r in losses] == [("spool_tail", 12)]
        if status == 0:
            break
        crashes += 1
    assert crashes > 20 // apart


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_a_failing_disk_leaves_the_spool(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is no full disk ends the recording with one line, and repair finishes it later."""
    path = memory_path / "a.mscope"
    w = spool_everything(path)
    real = os.replace

    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(MegascopeError, match="Input/output error"):
        w.finish("done")
    monkeypatch.setattr(os, "replace", real)
    assert Trace.open(path).state == "unsealed"
    assert_whole(path)
    assert repair(path).clean
    assert_whole(path)


def test_failed_replacement_changes_nothing(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = memory_path / "a.mscope"
    record(path, 10)
    before = (path / manifest.FILE).read_bytes()

    def broken(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"), durable.replacing(path / manifest.FILE) as temporary:
        temporary.write_text("{}")
    assert (path / manifest.FILE).read_bytes() == before
    assert not list(path.glob(".*"))


@pytest.mark.parametrize("kills", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_killed_again_and_again(memory_path: Path, kills: int) -> None:
    """SIGKILL at a random moment of a recording at full speed: all that flush had confirmed is there, once."""
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    wait = seed
    for round_ in range(kills):
        path = memory_path / f"{round_}.mscope"
        reader, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                w = TraceWriter.create(path, GIVEN, {})
                rows = 0
                while True:
                    w.append("events", ring_rows(rows, 61))
                    rows += 61
                    w.flush()
                    os.write(told, rows.to_bytes(8))
            finally:
                os._exit(1)
        os.close(told)
        assert len(os.read(reader, 8)) == 8
        wait = wait * 6364136223846793005 + 1 & (1 << 64) - 1
        time.sleep((wait >> 33) % 30 / 1000)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest = b""
        while piece := os.read(reader, 1 << 16):
            rest += piece
        os.close(reader)
        confirmed = int.from_bytes(rest[-8:]) if rest else 61
        with Trace.open(path) as trace:
            assert trace.state == "unsealed"
            sealed = sum(p.rows for p in trace.parts("events"))
            got = keys(all_events(trace))
            assert started(trace) == expected_starts(got.total())
        assert got.total() >= confirmed
        assert got == expected_keys(got.total())
        assert got.total() - confirmed <= 61
        report = repair(path)
        assert report.clean, report.findings
        with Trace.open(path) as trace:
            assert trace.state == "sealed"
            assert trace.manifest["end"] == {"reason": "repaired"}
            assert keys(all_events(trace)) == got
            assert trace.is_derived
            assert started(trace) == expected_starts(got.total())
            assert sum(p.rows for p in trace.parts("events")) >= sealed
        assert repair(path).findings == report.findings
