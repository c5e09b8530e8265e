"""What a capture is pointed at: an engine to start, a command to run, or a segment that is there already."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ..store.errors import Exit, MegascopeError, Usage
from .control import SUFFIX, directory, only_live

ENGINES = {
    "demo": ("megascope.capture.engines.host", "--hold"),
    "cuda": ("megascope.capture.engines.cuda", "--hold"),
}
"""Name of a target → the module that is run as the engine's process, and its options."""
SEGMENT_VARIABLE = "MEGASCOPE_SEGMENT"
"""Where a command started by `capture -- cmd` is asked to put its segment."""
_PR_SET_PDEATHSIG = 1
NOTE_S = 4.0
"""After so long without a segment, the user is told what takes the time."""


class Target:
    """A segment, and the engine's process if this capture started it."""

    def __init__(
        self, path: Path, process: subprocess.Popen[bytes] | None = None, said: IO[bytes] | None = None
    ) -> None:
        self.path, self.process, self._said = path, process, said

    @property
    def ours(self) -> bool:
        """Whether the engine lives for this capture alone."""
        return self.process is not None

    def wait_for_segment(self, seconds: float, stopped: Callable[[], bool], note: Callable[[str], None]) -> None:
        """Until the engine has made its segment; `note` is told when that takes long (a first run compiles).

        Raises MegascopeError with the engine's own last line when it ends before, or does not within `seconds`.
        """
        if self.process is None:
            return
        begun = time.monotonic()
        deadline, noted = begun + seconds, False
        while not self._begun():
            if not noted and time.monotonic() - begun > NOTE_S:
                note("the engine is starting; its first run on a machine compiles for some seconds")
                noted = True
            if self.process.poll() is not None and not self._begun():
                raise MegascopeError("cannot start the engine", self.last_words(), code=_code(self.process.returncode))
            if stopped():
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                raise MegascopeError("cannot start the engine", f"it made no segment within {seconds:.0f} s")
            time.sleep(0.01)

    def _begun(self) -> bool:
        """The file has its first bytes, which an engine writes last."""
        try:
            with self.path.open("rb") as f:
                return f.read(1) not in (b"", b"\0")
        except OSError:
            return False

    def last_words(self) -> str:
        """What the engine wrote to stderr last, in one line."""
        if self._said is None:
            return "it ended"
        self._said.seek(0)
        lines = [line for line in self._said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return (
            lines[-1].strip().removeprefix("megascope: ")
            if lines
            else f"it ended with code {self.process and self.process.returncode}"
        )

    def abandon(self) -> None:
        """Tell an engine that holds itself for this capture alone that nobody will record it; it would wait for that.

        A command is left alone: it may have an end of its own.
        """
        if self.process is not None and self._said is not None:
            self.process.terminate()

    def end(self, seconds: float = 10.0) -> None:
        """See the engine off: wait, then SIGTERM, then SIGKILL; remove the segment that it made for us."""
        if self.process is None:
            return
        for seconds_, act in ((seconds, self.process.terminate), (3.0, self.process.kill), (3.0, lambda: None)):
            try:
                self.process.wait(seconds_)
                break
            except subprocess.TimeoutExpired:
                act()
        self.path.unlink(missing_ok=True)


def _code(returncode: int) -> Exit:
    return Exit(returncode) if returncode in (Exit.USAGE, Exit.REFUSED) else Exit.FAILED


def _die_with_parent() -> None:
    """In the engine's process: a SIGTERM when the capture dies, so that no engine waits for a drainer forever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def start(target: str | None, command: Sequence[str]) -> Target:
    """Resolve a target: None (the one live segment), `demo[:k=v,…]`, `cuda[:k=v,…]`, a path, or a command."""
    if command:
        if target is not None:
            raise Usage("cannot capture", "both a target and a command were given", "give one")
        return _spawn("cmd", list(command), hold=False)
    if target is None:
        return Target(only_live())
    name, _, spec = target.partition(":")
    if name in ENGINES:
        return _spawn(name, [sys.executable, "-m", *ENGINES[name]], spec=spec, hold=True)
    path = Path(target)
    if not path.exists():
        why = f"{target!r} is neither {', '.join(ENGINES)} nor a segment that exists"
        raise Usage("cannot capture", why, "megascope ls shows the live ones")
    return Target(path)


def _spawn(name: str, command: list[str], *, spec: str = "", hold: bool) -> Target:
    path = directory() / f"megascope-{name}-{os.getpid()}-{time.time_ns() % 1_000_000}{SUFFIX}"
    if hold:
        command += ["--segment", str(path)] + ([spec] if spec else [])
    said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (kept open for as long as the engine may speak)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if hold else None,
            stderr=said if hold else None,
            env=os.environ | {SEGMENT_VARIABLE: str(path)},
            start_new_session=True,
            preexec_fn=_die_with_parent if hold else None,
        )
    except OSError as e:
        raise MegascopeError(f"cannot run {command[0]}", e.strerror or str(e), "check the command") from e
    return Target(path, process, said if hold else None)
