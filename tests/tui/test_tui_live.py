"""A trace that grows is followed; a live engine is looked at; what cannot be browsed is refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tui_recordings
from textual.widgets import TextArea
from tui_driver import opened

from megascope.capture import control, session, target
from megascope.capture.segment.reader import SegmentReader
from megascope.tui import app as app_module
from megascope.tui.rows import Rows
from megascope.tui.workbench import NO_TRACE


@pytest.fixture
def engine() -> Iterator[target.Target]:
    """An engine that runs without end until its ring is full: nobody drains it yet."""
    running = target.start(f"demo:{tui_recordings.SMALL},workers=4,steps=0,ring_mb=1", [])
    running.wait_for_segment(120.0, lambda: False, lambda _: None)
    yield running
    assert running.process is not None
    running.process.terminate()
    running.end()


@pytest.mark.asyncio
async def test_now_follows_a_live_engine(engine: target.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(segment=engine.path, size=(100, 24)) as bench:
        await bench.until("running")
        await bench.until("step")
        assert len(bench.widget(Rows).page.rows) == 4
        looks: list[Path] = []
        look = control.now
        monkeypatch.setattr(control, "now", lambda path: looks.append(path) or look(path))
        await bench.pilot.pause(1.2)
        assert len(looks) >= 2
        await bench.press("space")
        await bench.pilot.pause(0.6)
        frozen = len(looks)
        await bench.pilot.pause(1.2)
        assert len(looks) == frozen
        assert "frozen" in bench.text
        await bench.press("6", "f5")
        assert NO_TRACE in bench.text
        engine.path.unlink()
        await bench.press("escape", "5", "space")
        await bench.until("cannot read segment")


@pytest.mark.asyncio
async def test_screens_that_need_a_trace_say_how_to_have_one(tmp_path: Path) -> None:
    segment = tmp_path / "a b" / "demo.mseg"
    async with opened(segment=segment, size=(80, 24)) as bench:
        for key in "12346":
            await bench.press(key)
            # All of it, though a path may be longer than a line.
            told = "".join(line.strip() for line in bench.lines)
            for part in (f"megascope capture '{segment}' -o NAME.mscope", "megascope tui NAME.mscope", NO_TRACE):
                assert part.replace(" ", "") in told.replace(" ", ""), bench.text
            assert "…" not in "".join(bench.lines[1:])
        await bench.press("7", "5")
        assert NO_TRACE not in bench.text


@pytest.mark.asyncio
async def test_screens_come_back_when_there_is_a_trace(host: Path, tmp_path: Path) -> None:
    async with opened(segment=tmp_path / "demo.mseg", size=(80, 24)) as bench:
        await bench.press("3")
        bench.app.follow_trace(host)
        await bench.settle()
        await bench.until("tasks 1 to")
        assert NO_TRACE not in bench.text
        assert bench.app.focused is bench.widget(Rows)
        await bench.press("6")
        assert bench.app.focused is bench.widget(TextArea)


@pytest.mark.asyncio
async def test_what_keeps_an_engine_is_told_and_of_one_that_is_gone_its_last(
    engine: target.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = control.now(engine.path)
    stuck = control.Standing(
        "waits for a recorder", "its rings have been full for 3 s", "megascope capture X " + "x" * 60
    )
    looks = [control.Look(look.name, stuck, look.step, 0.0, look.workers, ())]
    monkeypatch.setattr(control, "now", lambda _: looks[-1])
    async with opened(segment=engine.path, size=(80, 24)) as bench:
        await bench.until("waits for a recorder: its rings have been full for 3 s; megascope capture X")
        assert "x" * 60 in bench.text
        assert engine.process is not None
        engine.process.kill()
        engine.process.wait()
        monkeypatch.undo()
        await bench.until("this is what they did last")
        await bench.until("did last  ")
        assert " ran " in bench.text
        assert " runs " not in bench.text


@pytest.mark.asyncio
async def test_a_deadlock_is_shown(engine: target.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    look = control.now(engine.path)
    knots = tuple((1, 2 + i) for i in range(5))
    stuck = control.Look(look.name, control.Standing("died", live=False), look.step, 7.0, look.workers, knots)
    monkeypatch.setattr(control, "now", lambda _: stuck)
    async with opened(segment=engine.path, size=(100, 24)) as bench:
        await bench.until("deadlock: worker 1 → worker 2 → worker 1")
        assert "and 2 more cycles" in bench.text
        assert "silent for 7 s" in bench.text


@pytest.mark.asyncio
async def test_a_trace_that_is_being_recorded_is_followed(
    engine: target.Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "FOLLOW_S", 0.1)
    path = tmp_path / "live.mscope"
    with SegmentReader.open(engine.path, write=True) as segment:
        recording = session.Session(segment, path)
        recording.lease.record(segment.layout.exported)

        def drain(rows: int) -> None:
            deadline = time.monotonic() + 90
            while recording.rings.taken < rows:
                assert time.monotonic() < deadline
                recording._pass()
            recording.writer.flush()

        drain(5_000)
        async with opened(path, size=(100, 30)) as bench:
            await bench.until("recording")
            assert bench.app.info is not None
            before = bench.app.info.events
            assert before >= 5_000
            await bench.press("3")
            drain(before + 20_000)
            deadline = time.monotonic() + 90
            while bench.app.info.events <= before:
                assert time.monotonic() < deadline
                await bench.pilot.pause(0.05)
            await bench.until("tasks 1 to 200 of >200")
            # The engine of the trace is found, so that Now shows this moment.
            await bench.press("5")
            await bench.until("workers wait")
        recording.writer.finish("stopped", t=recording._events.t_seen)
        recording.release()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "megascope", *arguments], capture_output=True, text=True, check=False, env=os.environ
    )


def test_no_terminal_is_refused(host: Path) -> None:
    done = _run("tui", str(host))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "this is no terminal" in done.stderr


def test_the_verb_loads_no_screen_before_it_runs() -> None:
    code = "import sys, megascope.tui.verbs; sys.exit('textual' in sys.modules or 'duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
