"""Notes from any process to whoever records an engine: a socket beside the segment, which only its recorder answers.

`SEGMENT.marks` is a Unix socket (mode 0600) that the drainer listens at for as long as it records. A message is one
JSON object; so is the answer, which says when that was, or why not. The kernel knows whether somebody listens: the
socket of a recorder that was killed refuses, and the next recorder takes its place.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..store.errors import MegascopeError, Refused, Usage

SUFFIX = ".marks"
TEXT_MOST = 500
"""Characters of a note."""
_MESSAGE = 8192
_PENDING = 16
_PATIENCE_S = 1.0
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Note:
    """What somebody says. before, after: ns of rows to be kept around it; None: none are."""

    text: str
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True)
class Taken:
    """What became of a note: its number and device time, which rows are kept for it (ns), in which trace.

    goes_with: pid of the recorder with whose end the trace is removed; 0: it stays.
    """

    mark: int
    t: int
    t_from: int | None
    t_to: int | None
    trace: str
    goes_with: int = 0


def clean(text: str) -> str:
    """A note as it may stand in a trace. Raises Usage for one that says nothing, or too much."""
    out = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not out or len(out) > TEXT_MOST:
        raise Usage("cannot mark", f"the note has {len(out)} characters", f"say 1 to {TEXT_MOST}")
    return out


@contextmanager
def _address(segment: Path) -> Iterator[str]:
    """The socket's address, however long the path: addresses have at most 107 bytes."""
    folder = os.open(segment.absolute().parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{segment.name}{SUFFIX}"
    finally:
        os.close(folder)


class NoteListener:
    """The recorder's side. `problem`: why nobody can be heard, where that is so."""

    def __init__(self, segment: Path) -> None:
        """The recorder must hold the segment's lease: then whoever listened here before is gone."""
        self._path = segment.with_name(segment.name + SUFFIX)
        self._socket: socket.socket | None = None
        self._pending: list[tuple[socket.socket, float]] = []
        self.problem = ""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._path.unlink(missing_ok=True)
            # Before it is bound: so nobody else can connect, not even for a moment.
            os.fchmod(found.fileno(), 0o600)
            with _address(segment) as address:
                found.bind(address)
            found.listen(_PENDING)
            self._socket = found
        except OSError as error:
            found.close()
            self.problem = error.strerror or str(error)

    def poll(self, take: Callable[[Note], Taken]) -> None:
        """Take what has come, without waiting for anybody."""
        if self._socket is None:
            return
        while len(self._pending) < _PENDING:
            try:
                self._pending.append((self._socket.accept()[0], time.monotonic() + _PATIENCE_S))
            except OSError:
                break
        self._pending = [(c, until) for c, until in self._pending if not self._serve(c, until, take)]

    def close(self) -> None:
        """Listen no more."""
        if self._socket is None:
            return
        self._path.unlink(missing_ok=True)
        for found in (self._socket, *(c for c, _ in self._pending)):
            found.close()
        self._socket, self._pending = None, []

    @staticmethod
    def _serve(connection: socket.socket, until: float, take: Callable[[Note], Taken]) -> bool:
        """Whether this one is done with."""
        try:
            raw = connection.recv(_MESSAGE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.monotonic() < until:
                return False
            raw = b""
        except OSError:
            raw = b""
        with connection, suppress(OSError):
            if raw:
                connection.send(json.dumps(_answer(raw, take)).encode(), socket.MSG_DONTWAIT)
        return True


def _answer(raw: bytes, take: Callable[[Note], Taken]) -> dict[str, Any]:
    try:
        said = json.loads(raw)
        around = [said.get(key) for key in ("before", "after")]
        if not isinstance(said["text"], str) or not all(
            a is None or (type(a) is int and 0 <= a < 1 << 60) for a in around
        ):
            raise ValueError
        note = Note(clean(said["text"]), *around)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Usage):
        return {"problem": "the message is no note"}
    taken = take(note)
    return asdict(taken)


def send(segment: Path, note: Note) -> Taken:
    """Tell whoever records the engine of `segment`.

    Raises Refused where nobody does, Usage for a text that is no note, MegascopeError without an answer.
    """
    what = f"cannot mark {segment}"
    note = Note(clean(note.text), note.before, note.after)
    nobody = Refused(what, "nobody records it", f"start megascope capture {segment} first")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            with _address(segment) as address:
                connection.connect(address)
            connection.send(json.dumps({"text": note.text, "before": note.before, "after": note.after}).encode())
            raw = connection.recv(_MESSAGE)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise nobody from None
        except TimeoutError:
            raise MegascopeError(what, f"its recorder did not answer within {_ANSWER_S:g} s", "try again") from None
        except (ConnectionError, BrokenPipeError):
            raw = b""
        except OSError as error:
            raise MegascopeError(what, error.strerror or str(error)) from None
    if not raw:
        raise Refused(what, "its recording has just ended", "start another megascope capture first")
    said = json.loads(raw)
    if "problem" in said:
        raise Refused(what, said["problem"])
    return Taken(*(said[f.name] for f in fields(Taken)))
