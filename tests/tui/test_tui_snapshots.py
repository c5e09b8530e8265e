"""Every screen at two sizes, on a host recording, a lossy, an unsealed and an empty one, and the H200 samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tui_snapshots
from tui_driver import opened

from megascope.tui.editor import Editor
from megascope.tui.workbench import SCREENS

SIZES = {"80x24": (80, 24), "200x60": (200, 60)}
TRACES = ("host", "lossy", "unsealed", "empty", "h200")
PICTURES = [(trace, size) for trace in TRACES for size in SIZES] + [("h200-experts", "80x24")]
"""The second H200 sample has two ranks of workers and maps of the standard monitors: that shows in a small picture."""
SOAKED = ("lossy-200x60", "unsealed-200x60", "empty-200x60")
"""Large pictures of what small ones show too."""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("trace", "size"),
    [pytest.param(*p, id="-".join(p), marks=[pytest.mark.slow] * ("-".join(p) in SOAKED)) for p in PICTURES],
)
async def test_every_screen(trace: str, size: str, trace_of: Callable[[str], Path], tmp_path: Path) -> None:
    async with opened(trace_of(trace), size=SIZES[size]) as bench:
        problems = []
        for number, name in enumerate(SCREENS, 1):
            if name == "sql":
                await bench.press(str(number))
                # A cursor that blinks would make two pictures of one screen.
                bench.widget(Editor).cursor_blink = False
                await bench.press("f5")
                # How long it took is not the same twice.
                bench.mask_seconds()
                bench.widget(Editor)._pause_blink(visible=True)
                # A line may be kept from before it had the cursor, which then shows or not as the machine is busy.
                bench.widget(Editor)._line_cache.clear()
                bench.widget(Editor).refresh()
                await bench.settle()
            else:
                await bench.press(str(number))
            try:
                tui_snapshots.check(bench.app, f"{trace}-{size}-{name}", tmp_path)
            except AssertionError as different:
                problems.append(str(different))
            if name == "sql":
                # Out of the editor, which would take the next screen's number as text.
                await bench.press("escape")
        assert not problems, "\n\n".join(problems)


@pytest.mark.asyncio
async def test_timeline_up_close(host: Path, tmp_path: Path) -> None:
    """Zoomed in below the finest tiles: drawn from tasks and waits, with an interval selected."""
    async with opened(host, size=(120, 30)) as bench:
        await bench.press("2", *["equals_sign"] * 4, *["right"] * 10, "space", *["right"] * 30, "space")
        tui_snapshots.check(bench.app, "host-120x30-timeline-close", tmp_path)


@pytest.mark.asyncio
async def test_dialogs(host: Path, tmp_path: Path) -> None:
    async with opened(host) as bench:
        await bench.press("3", "question_mark")
        tui_snapshots.check(bench.app, "host-80x24-keys", tmp_path)
        await bench.press("escape", "s")
        tui_snapshots.check(bench.app, "host-80x24-behind", tmp_path)


def test_a_difference_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed picture fails with the changed lines and how to renew them; renewing makes it pass."""
    monkeypatch.delenv(tui_snapshots.RENEW, raising=False)
    monkeypatch.setattr(tui_snapshots, "GOLDEN", tmp_path / "golden")

    class Picture:
        svg = '<svg class="terminal-7"><text x="0" y="1">old</text></svg>'

        def export_screenshot(self) -> str:
            return self.svg

    picture: object = Picture()
    with pytest.raises(AssertionError, match=r"no golden picture"):
        tui_snapshots.check(picture, "made", tmp_path)  # type: ignore[arg-type]
    monkeypatch.setenv(tui_snapshots.RENEW, "1")
    tui_snapshots.check(picture, "made", tmp_path)  # type: ignore[arg-type]
    monkeypatch.delenv(tui_snapshots.RENEW)
    Picture.svg = Picture.svg.replace("terminal-7", "terminal-8")
    tui_snapshots.check(picture, "made", tmp_path)  # type: ignore[arg-type]
    Picture.svg = Picture.svg.replace("old", "new")
    with pytest.raises(AssertionError, match=r"(?s)-old\n\+new.*MEGASCOPE_RENEW_SNAPSHOTS=1"):
        tui_snapshots.check(picture, "made", tmp_path)  # type: ignore[arg-type]
