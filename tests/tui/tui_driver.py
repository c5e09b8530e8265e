"""Drives the app in tests: opens it, waits until nothing is asked any more, reads its screen."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from megascope.tui.app import Megascope
from megascope.tui.model import Source

PATIENCE_S = 30.0


class Driven:
    """An app that runs, and what a test does with it."""

    def __init__(self, app: Megascope, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, and wait for what comes of them."""
        await self.pilot.press(*keys)
        await self.settle()

    async def type(self, text: str) -> None:
        """Type text into what has the focus."""
        names = {" ": "space", "\n": "enter", "*": "asterisk", ">": "greater_than_sign", "=": "equals_sign"}
        await self.press(*(names.get(c, c) for c in text))

    async def settle(self) -> None:
        """Until both databases have answered all there is, and the screen shows it."""
        deadline = time.monotonic() + PATIENCE_S
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < deadline, "the app does not come to rest"
            await self.pilot.pause()
            busy = self.app.database.busy or self.app.sql_database.busy
            quiet = 0 if busy else quiet + 1
            if busy:
                await asyncio.sleep(0.01)

    async def until(self, text: str) -> None:
        """Until the screen shows a text."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} does not appear in\n{self.text}"
            await self.pilot.pause(0.02)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        """The same, as one text."""
        return "\n".join(self.lines)

    @property
    def status(self) -> str:
        """What is said at the bottom, as one line however it is wrapped."""
        return str(self.widget(Static, "#status").content)

    def mask_seconds(self) -> None:
        """Take out of the SQL screen how long its query took."""
        line = self.widget(Static, "#answer")
        line.update(re.sub(r" in [\d.,]+ (ns|µs|ms|s)", " in a while", str(line.content)))

    def widget(self, kind: Any, selector: str = "") -> Any:
        """A widget of the current screen."""
        return self.app.screen.query_one(selector, kind) if selector else self.app.screen.query_one(kind)


@asynccontextmanager
async def opened(
    trace: Path | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    segment: Path | None = None,
    history: Path | None = None,
) -> AsyncIterator[Driven]:
    """The app over a trace or a segment."""
    app = Megascope(Source(trace=trace, segment=segment), threads=1, history=history)
    async with app.run_test(size=size) as pilot:
        driven = Driven(app, pilot)
        await driven.settle()
        yield driven
