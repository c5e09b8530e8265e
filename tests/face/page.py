"""The console blocks of a page of documentation, run as they stand: what they print is what stands there."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from megascope.__main__ import main
from megascope.capture import control

PROMPT = "$ "


@dataclass(frozen=True)
class Command:
    """A line after the prompt, and what stands below it. background: it ends in &."""

    line: str
    shown: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line.removesuffix("&"))

    @property
    def background(self) -> bool:
        return self.line.endswith("&")


@dataclass(frozen=True)
class Block:
    """A console block, under the heading of its section."""

    section: str
    commands: tuple[Command, ...]


def blocks(text: str) -> list[Block]:
    """The console blocks of a page, in order."""
    out, section = [], ""
    for heading, body in re.findall(r"^#+ ([^\n]*)$|^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if heading:
            section = heading
            continue
        parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
        assert parts[0] == "", body
        out.append(Block(section, tuple(Command(*part.partition("\n")[::2]) for part in parts[1:])))
    return out


@dataclass
class Shell:
    """Runs commands in a folder of their own. running: those in the background."""

    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: Command) -> str:
        """What it prints: its data, then its notes; of one in the background nothing, but its engine is live then."""
        name, *words = command.words
        assert name == "megascope"
        if command.background:
            self._start(words)
            return ""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with self._here(), patch.object(sys, "argv", [name, *words]), redirect_stdout(out), redirect_stderr(err):
            main()
        text = b"".join(s.buffer.getvalue() for s in (out, err))  # type: ignore[attr-defined]
        return text.decode()

    def _start(self, words: list[str]) -> None:
        with self._here():
            quiet = subprocess.DEVNULL
            self.running.append(
                subprocess.Popen([sys.executable, "-m", "megascope", *words], stdout=quiet, stderr=quiet)
            )
            until = time.monotonic() + 60
            while not self._recorded():
                assert self.running[-1].poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)

    @staticmethod
    def _recorded() -> bool:
        """An engine is live and runs for its recorder, which has attached what it will."""
        return any(f.live and f.drainer and f.status is not None and f.status.step > 0 for f in control.find())

    def stop(self) -> None:
        """End what runs in the background, as Ctrl-C does."""
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            process.wait(60)
        self.running = []

    @contextmanager
    def _here(self) -> Iterator[None]:
        before = Path.cwd()
        with patch.dict(os.environ, {"MEGASCOPE_DIR": str(self.folder)}):
            os.chdir(self.folder)
            try:
                yield
            finally:
                os.chdir(before)


def matches(shown: str, printed: str) -> bool:
    """Whether it is the same text; … stands for anything within a line, and alone for any lines, or none."""
    lines = ["(?:[^\n]*\n)*?" if s == "…" else re.escape(s).replace("…", "[^\n]*") + "\n" for s in shown.splitlines()]
    return re.fullmatch("".join(lines), "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None


def asked_of(recording: str) -> list[str]:
    """The queries that docs/ask.md asks of one of its recordings."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "ask.md").read_text(encoding="utf-8")
    out = []
    for words in (c.words for block in blocks(text) for c in block.commands):
        if f"{recording}.mscope" in words and "--program" in words:
            out += [words[i + 1] for i, word in enumerate(words) if word == "--program" and "{" in words[i + 1]]
    return out
