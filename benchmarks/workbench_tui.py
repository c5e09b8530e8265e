"""The terminal workbench, driven headless: when its first screen is there, and from a key to what the key changes.

Textual draws nothing without a terminal; here it writes the same bytes and throws them away. A key is measured to the
first picture that is drawn after it, and to the last: when all that it asked for has been answered and drawn.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
SCREENS = ("timeline", "tasks", "requests", "now", "sql", "overview")
KEY_OF = {"overview": "1", "timeline": "2", "tasks": "3", "requests": "4", "now": "5", "sql": "6"}
MOVES = {
    "zoom in": ("equals_sign",) * 12,
    "pan": ("l", "l", "h", "l", "l", "h", "l", "l"),
    "zoom out": ("minus",) * 12,
    "cursor": ("right", "down", "right", "down", "left", "up") * 2,
    "workers": ("pagedown", "pagedown", "pageup", "pagedown"),
}


class Watch:
    """Drives an app and remembers when it drew."""

    def __init__(self, path: str, size: tuple[int, int]) -> None:
        from textual._compositor import CompositorUpdate

        from megascope.tui.app import Megascope
        from megascope.tui.model import Source

        app = self.app = Megascope(Source(trace=Path(path)))
        display = app._display

        def drawing(screen: Any, renderable: Any) -> None:
            if isinstance(renderable, CompositorUpdate):
                renderable.render_segments(app.console)
            display(screen, renderable)
            self.drawn, self.cpu = time.perf_counter(), time.thread_time()

        app._display = drawing  # type: ignore[method-assign]
        self.drawn = self.began = time.perf_counter()
        self.cpu = time.thread_time()
        self._test = self.app.run_test(size=size)

    async def __aenter__(self) -> Watch:
        self.pilot = await self._test.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._test.__aexit__(*error)  # type: ignore[arg-type]

    async def until(self, done: Callable[[], bool]) -> float:
        """Wait until it is so and drawn; returns ms since the app began."""
        while not done():
            assert time.perf_counter() - self.began < PATIENCE_S, "the app does not get there"
            await asyncio.sleep(0.001)
        seen = time.perf_counter()
        while self.drawn < seen and time.perf_counter() - seen < 0.2:
            await asyncio.sleep(0.001)
        return (max(self.drawn, seen) - self.began) * 1e3

    async def key(self, key: str) -> tuple[float, float, float]:
        """Press it; ms to the first picture, to the last one, and of CPU of the screen's thread to the first."""
        from textual import events

        driver = self.app._driver
        assert driver is not None
        pressed, used = time.perf_counter(), time.thread_time()
        driver.send_message(events.Key(key, key if len(key) == 1 else None))
        first, cpu = None, 0.0
        quiet = pressed
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            if first is None and self.drawn > pressed:
                first, cpu = self.drawn, self.cpu - used
            if self.busy:
                quiet = now
            if first is not None and now - max(quiet, self.drawn) > 0.1:
                break
            assert now - quiet < 5.0, f"{key} draws nothing on {self.app.current_mode}"
        return (first - pressed) * 1e3, (self.drawn - pressed) * 1e3, cpu * 1e3

    @property
    def busy(self) -> bool:
        return self.app.database.busy or self.app.sql_database.busy


async def _measure(path: str, size: tuple[int, int]) -> dict[str, float]:
    """The first screen of a fresh app, then every key."""
    from textual.widgets import Static

    from megascope.tui.rows import Rows

    out: dict[str, float] = {}
    watch = Watch(path, size)

    def shown(selector: str) -> str:
        return str(watch.app.screen.query_one(selector, Static).content)

    async with watch:
        out["first picture"] = (watch.drawn - watch.began) * 1e3
        out["trace, coverage and loss"] = await watch.until(
            lambda: bool(watch.app.trust.hooks) and "%" in shown("#trust")
        )
        out["and epochs"] = await watch.until(lambda: ":" in shown("#epochs-heading"))
        out["and slowest classes"] = await watch.until(
            lambda: bool(watch.app.screen.query_one("#classes", Rows).page.cells)
        )
        await watch.until(lambda: not watch.busy)
        switched = {}
        for screen in SCREENS:
            switched[screen] = await watch.key(KEY_OF[screen])
            if screen == "sql":
                await watch.key("escape")  # whose editor would take the next key for text
        again = [await watch.key(KEY_OF[screen]) for screen in ("timeline", "tasks", "requests", "now", "overview")]
        out |= {f"screen {s} the first time, to its answer": last for s, (_, last, _) in switched.items()}
        took = {"switch screen": [*switched.values(), *again]}
        await watch.key(KEY_OF["timeline"])
        for move, keys in MOVES.items():
            took[move] = [await watch.key(key) for key in keys]
    for what, times in took.items():
        first, last, cpu = zip(*times, strict=True)
        out[f"{what}, key → picture, p50"] = statistics.median(first)
        out[f"{what}, key → picture, max"] = max(first)
        out[f"{what}, key → picture, CPU of its thread, max"] = max(cpu)
        if what != "switch screen":
            out[f"{what}, key → answer, p50"] = statistics.median(last)
            out[f"{what}, key → answer, max"] = max(last)
    return out


def measure(path: str, size: tuple[int, int]) -> dict[str, float]:
    """ms, and MB, of one size; in a process of its own."""
    began = time.perf_counter()
    import megascope.tui.app  # noqa: F401

    out = {"loading the modules": (time.perf_counter() - began) * 1e3}
    out |= asyncio.run(_measure(path, size))
    status = Path("/proc/self/status").read_text()
    return out | {"peak memory, MB": int(status.split("VmHWM:")[1].split()[0]) / 1024}


SEEN = {
    "first picture": re.compile(rb"looking at"),
    "trace, coverage and loss": re.compile(rb"coverage \d"),
    "and epochs": re.compile(rb"at most in one of|one epoch"),
    "and slowest classes": re.compile(rb"slowest classes, by"),
}
"""What the terminal is told when it is there."""


def measure_shell(path: str) -> dict[str, float]:
    """`megascope tui` in a terminal of 200x60, from the start of its process."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    began = time.perf_counter()
    app = subprocess.Popen(
        [sys.executable, "-m", "megascope", "tui", path, "--no-history"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=os.environ | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    out: dict[str, float] = {}
    told = b""
    try:
        while len(out) < len(SEEN):
            assert time.perf_counter() - began < PATIENCE_S, "the app does not get there"
            if select.select([ours], [], [], 0.1)[0]:
                told += os.read(ours, 1 << 16)
                now = (time.perf_counter() - began) * 1e3
                for name, text in SEEN.items():
                    if text.search(told):
                        out.setdefault(f"from the shell: {name}", now)
    finally:
        app.terminate()
        app.wait()
        os.close(ours)
    return out
