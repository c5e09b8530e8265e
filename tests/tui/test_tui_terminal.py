"""A session in a real terminal, driven by keys through tmux: open, zoom, find the slowest class, follow it, export."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
PATIENCE_S = 60.0


class Terminal:
    """A tmux session of its own server."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        self.folder = folder
        self._socket = str(folder / "tmux.sock")
        width, height = size
        environment = {k: v for k, v in os.environ.items() if k != "TMUX"} | {"TERM": "xterm-256color"}
        self._environment = environment
        shell = f"exec env PS1='$ ' {shlex.quote(shutil.which('sh') or 'sh')}"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), shell
        )

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self._environment).stdout

    def keys(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a text as it is."""
        self._tmux("send-keys", "-l", text)

    @property
    def text(self) -> str:
        """What stands on the screen."""
        return self._tmux("capture-pane", "-p")

    def until(self, *texts: str) -> str:
        """Until the screen shows all of these."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(text in (shown := self.text) for text in texts):
            assert time.monotonic() < deadline, f"{texts} do not appear in\n{shown}"
            time.sleep(0.05)
        return shown

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path, (100, 30))
    yield made
    made.close()


def test_a_session(terminal: Terminal, host: Path) -> None:
    python = shlex.quote(sys.executable)
    terminal.type(f"{python} -m megascope tui {shlex.quote(str(host))}; echo left with $?")
    terminal.keys("Enter")
    # Open: coverage first.
    terminal.until("coverage 100 %", "slowest classes, by total", "l01.attn")
    # Zoom in the timeline, and out again.
    terminal.keys("2")
    wide = terminal.until("1 = ", "0 r0 compute", "█")
    terminal.keys("+", "+")
    scale = wide[wide.index("1 = ") :].split("│")[0].strip()
    deadline = time.monotonic() + PATIENCE_S
    while scale in (close := terminal.text):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "compute" in close
    terminal.keys("f")
    terminal.until(scale)
    # The slowest class, and its slowest tasks.
    terminal.keys("1")
    terminal.until("slowest classes")
    terminal.keys("Enter")
    terminal.until("looking at class l01.attn", "by exec, most first", "waited last for l01.qkv")
    # Follow the dependency of the slowest to who released it.
    terminal.keys("d")
    terminal.until("tasks 1 to 1", "l01.qkv", "waited last for l01.norm1")
    terminal.keys("w")
    terminal.until("· worker ", "━")
    # Ask in SQL, and export the answer.
    terminal.keys("c", "6")
    terminal.until("FROM tasks")
    terminal.keys("F5")
    terminal.until("28 rows in", "total_ns")
    terminal.keys("F2")
    terminal.until("export to")
    terminal.keys("Enter")
    terminal.until("wrote 28 rows to answer.csv")
    assert len((terminal.folder / "answer.csv").read_text().splitlines()) == 29
    # Quit: the terminal is as it was.
    terminal.keys("Escape")
    terminal.until("28 rows in")
    time.sleep(0.3)
    terminal.keys("q")
    terminal.until("left with 0")


def test_what_cannot_be_browsed_leaves_one_line(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "broken.mscope").mkdir()
    (tmp_path / "file").write_text("no segment")
    python = shlex.quote(sys.executable)
    for name, why in (("broken.mscope", "manifest"), ("file", "cannot browse file"), ("none", "cannot browse none")):
        terminal.type(f"clear; {python} -m megascope tui {name}; echo left with $?")
        terminal.keys("Enter")
        shown = terminal.until("left with 3", why)
        assert "Traceback" not in shown
