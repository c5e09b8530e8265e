"""The Monitors screen at two sizes: over an engine with two programs, recordings with and without, a rejected query."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import monitor_engines
import pytest
import tui_snapshots
from monitor_engines import Standing
from tui_driver import PATIENCE_S, Driven, opened

from megascope.tui.query_line import QueryLine
from megascope.tui.watching import Watching

pytestmark = pytest.mark.asyncio
SIZES = {"80x24": (80, 24), "200x60": (200, 60)}
BAD = "complete { @l[class] = hist(exec_n); }"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    with monitor_engines.standing(tmp_path_factory.mktemp("standing")) as found:
        yield found


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitor_engines.monitored(tmp_path_factory.mktemp("monitored") / "monitored.mscope")


async def engine_seen(bench: Driven) -> None:
    """Until the engine's own word is there, and what it changes is shown."""
    deadline = time.monotonic() + PATIENCE_S
    screen = bench.app.screen
    assert isinstance(screen, Watching)
    while screen._looked is None or any(p.judged is None for p in screen._programs):
        assert time.monotonic() < deadline
        await bench.pilot.pause(0.05)
    await bench.pilot.pause()


async def rejected(bench: Driven) -> None:
    """Type a query that is refused."""
    await bench.pilot.press("slash")
    bench.widget(QueryLine).cursor_blink = False
    bench.widget(QueryLine).put(BAD)
    await bench.until("did you mean exec_ns?")


@pytest.mark.parametrize("size", SIZES)
async def test_a_live_engine_with_two_programs(
    standing: Standing, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGASCOPE_DIR", str(standing.segment.parent))
    async with opened(standing.trace, size=SIZES[size]) as bench:
        await bench.press("7")
        # Who runs and what it costs comes from the engine, what its maps hold from the trace.
        await bench.until("99.4 %")
        await bench.until("l00.attn")
        await engine_seen(bench)
        tui_snapshots.check(bench.app, f"live-{size}-monitors", tmp_path)
        await bench.pilot.press("down")
        await bench.until("7.81 µs")
        tui_snapshots.check(bench.app, f"live-{size}-monitors-histograms", tmp_path)
        if size == "80x24":
            await bench.pilot.press("t")
            await bench.until("logarithmic axis")
            tui_snapshots.check(bench.app, f"live-{size}-monitors-chart", tmp_path)
        await rejected(bench)
        tui_snapshots.check(bench.app, f"live-{size}-monitors-rejected", tmp_path)


@pytest.mark.parametrize("size", SIZES)
async def test_a_segment_that_nobody_follows(standing: Standing, size: str) -> None:
    """Without the trace the engine says who runs; what maps hold is told to its recorder alone."""
    async with opened(segment=standing.segment, size=SIZES[size]) as bench:
        await bench.press("7")
        await bench.until("records this engine")
        assert "attached" in bench.text
        await bench.until("cost at most 71")


@pytest.mark.parametrize("size", SIZES)
async def test_a_recording_with_maps(monitored: Path, size: str, tmp_path: Path) -> None:
    async with opened(monitored, size=SIZES[size]) as bench:
        await bench.press("7")
        await bench.until("printf_1")
        await bench.press("down", "down", "down")
        await bench.until("execution")
        await bench.until("l00.attn")
        await bench.settle()
        tui_snapshots.check(bench.app, f"monitored-{size}-monitors", tmp_path)


@pytest.mark.parametrize("size", SIZES)
async def test_no_programs(host: Path, size: str, tmp_path: Path) -> None:
    async with opened(host, size=SIZES[size]) as bench:
        await bench.press("7")
        await bench.until("no program was attached")
        tui_snapshots.check(bench.app, f"bare-{size}-monitors", tmp_path)
        await rejected(bench)
        tui_snapshots.check(bench.app, f"bare-{size}-monitors-rejected", tmp_path)
        await bench.pilot.press("escape", "question_mark")
        await bench.until("keys: Monitors")
        tui_snapshots.check(bench.app, f"bare-{size}-monitors-keys", tmp_path)
