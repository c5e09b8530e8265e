"""What is so of an engine, beyond that it runs: its process is stopped, it waits for a recorder, it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import ScriptedEngine

from megascope.__main__ import run
from megascope.capture import control
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.process import named, start_time, stopped
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.standing import Standing, standing
from megascope.capture.segment.words import Control, HostStatus, Policy

ENGINE = """
import pathlib, sys
sys.path.insert(0, {here!r})
from scripted import ScriptedEngine
engine = ScriptedEngine(pathlib.Path({path!r}), [0, 0])
engine.wait(1, 9 << 32, 4, 0, 1)
print("there", flush=True)
sys.stdin.read()
"""


def of(path: Path) -> Standing:
    with SegmentReader.open(path) as segment:
        return standing(segment)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    found = subprocess.Popen(["sleep", "60"])
    yield found
    found.kill()
    found.wait()


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_process_that_is_stopped_is_told_from_one_that_runs(child: subprocess.Popen[bytes]) -> None:
    pid, start = child.pid, start_time(child.pid)
    assert not stopped(pid, start)
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: stopped(pid, start))
    assert not stopped(pid, start + 1)
    child.kill()
    child.wait()
    assert not stopped(pid, start)


def test_a_process_is_named(child: subprocess.Popen[bytes]) -> None:
    eventually(lambda: named(child.pid) == f"process {child.pid} (sleep 60)")
    odd = subprocess.Popen(["/bin/sh", "-c", "read x", "/x/megascope\x1b[2J" + "y" * 90], stdin=subprocess.PIPE)
    ours = subprocess.Popen(["/bin/sh", "-c", "read x", "/x/megascope", "tui", "--threads", "1"], stdin=subprocess.PIPE)
    eventually(lambda: named(ours.pid) == f"process {ours.pid} (megascope tui)")
    eventually(lambda: "read x" in named(odd.pid))
    told = named(odd.pid)
    assert told.isprintable()
    assert len(told) < 100
    for one in (odd, ours):
        one.communicate()
    assert named(ours.pid) == f"process {ours.pid}"


def test_an_engine_that_waits_for_room_says_for_whom(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0], policy=Policy.WAIT)
    path = engine.writer.path
    assert of(path) == Standing("running")
    engine.writer.status[HostStatus.WAITS_SINCE] = time.time_ns() - 10**9
    assert of(path).told == (
        "waits for a recorder: its rings have been full for 1 s (policy wait) and nobody records it; "
        f"megascope capture {path} lets it go on"
    )
    lease = engine.writer.control[Control.LEASE_PID : Control.LEASE_PID + 16].view("<u8")
    lease[:] = child.pid, start_time(child.pid)
    assert of(path) == Standing("running")  # it goes at its recorder's pace
    engine.writer.status[HostStatus.WAITS_SINCE] = time.time_ns() - 9 * 10**9
    assert of(path).text == "waits for its recorder"
    assert "makes no room" in of(path).why
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: "is stopped" in of(path).why)
    assert of(path).todo == f"kill -CONT {child.pid} lets that go on"
    child.kill()
    child.wait()
    assert of(path).text == "waits for a recorder"
    assert f"its recorder, process {child.pid}, is gone" in of(path).why
    engine.end()
    assert of(path) == Standing("ended", live=False)


def test_ls_and_now_tell_what_keeps_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process is stopped; rings are full; it is silent; it has died, and what its workers did is past."""
    monkeypatch.setenv("MEGASCOPE_DIR", str(tmp_path))
    path = tmp_path / "a.mseg"
    code = ENGINE.format(here=str(Path(__file__).parent), path=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"there\n"

    def says(verb: str) -> tuple[str, str]:
        capsys.readouterr()
        assert run([verb] if verb == "ls" else [verb, str(path)]) == 0
        return capsys.readouterr()

    child.send_signal(signal.SIGSTOP)
    eventually(lambda: of(path).text == "stopped")
    for verb in ("ls", "now"):
        out, err = says(verb)
        assert f"its process {child.pid} is stopped, by a signal or a debugger; kill -CONT {child.pid} lets it" in err
    assert "  waits  " in out
    assert "  runs  " in out
    child.send_signal(signal.SIGCONT)
    with SegmentReader.open(path) as segment:
        offset = segment.layout.status_offset
    with path.open("r+b") as file:
        file.seek(offset + 8)
        file.write((time.time_ns() - 9 * 10**9).to_bytes(8, "little"))
    eventually(lambda: of(path).text == "silent")
    assert "nothing has been heard of it for 9 s" in says("ls")[1]
    child.kill()
    child.wait()
    out, err = says("now")
    assert "host (died)" in err or "engine (died)" in err
    assert "the engine is gone: this is what its workers did last" in err
    assert "  waited  " in out
    assert "  ran  " in out
    assert "runs" not in out
    look = control.now(path)
    assert [w["what"].split()[0] for w in look.workers] == ["ran", "waited"]


def test_a_lease_is_let_go_once(tmp_path: Path) -> None:
    """Whoever lets go twice takes nothing from who holds it by then."""
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    with (
        SegmentReader.open(engine.writer.path, write=True) as one,
        SegmentReader.open(engine.writer.path, write=True) as two,
    ):
        first = Lease(one)
        first.release()
        second = Lease(two)
        first.release()
        assert two.lease()[0] == os.getpid()
        second.release()
        assert two.lease()[0] == 0
