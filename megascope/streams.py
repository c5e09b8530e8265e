"""Standard output and standard error as the command line writes them, also where they are full, closed or gone.

Data that cannot be written is an error of one line. A note that cannot be written is nothing: it must not end a
recording that its terminal was closed.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from .store.errors import MegascopeError


class _Data(io.FileIO):
    """Writes all of it or raises: BrokenPipeError where the reader has gone, MegascopeError for anything else."""

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:
                # Whoever shares the pipe has made it non-blocking.
                select.select([], [self], [])
            return written
        except BrokenPipeError:
            raise
        except OSError as error:
            why = error.strerror or str(error)
            raise MegascopeError("cannot write to standard output", why, "send it elsewhere") from None


class _Notes(io.FileIO):
    """Takes all, and writes what can be written."""

    def write(self, data: Any, /) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


@contextmanager
def guarded() -> Iterator[None]:
    """sys.stdout and sys.stderr are such streams until the block ends, unless they were replaced before."""
    out, err = sys.stdout, sys.stderr
    if out is None or out is sys.__stdout__:
        sys.stdout = _text(_Data(_open(1), "wb", closefd=False), out)
    if err is None or err is sys.__stderr__:
        sys.stderr = _text(_Notes(_open(2), "wb", closefd=False), err, always=True)
    try:
        yield
    finally:
        if sys.stdout is not out:
            _finish(sys.stdout)
        sys.stdout, sys.stderr = out, err


def _finish(stream: TextIO) -> None:
    """Write what is still held; what cannot be written goes nowhere, so that Python does not complain of it at exit."""
    try:
        stream.flush()
    except (OSError, MegascopeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


def _open(number: int) -> int:
    """The descriptor; a closed one is taken, so that no file that is opened later becomes standard output."""
    try:
        os.fstat(number)
    except OSError:
        # For reading: whatever is written to it fails, as it should.
        nowhere = os.open(os.devnull, os.O_RDONLY)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
    return number


def _text(raw: io.FileIO, like: Any, *, always: bool = False) -> io.TextIOWrapper:
    """always: every line is written at once, not only on a terminal."""
    encoding, errors = (like.encoding, like.errors) if like is not None else ("utf-8", "backslashreplace")
    lines = always or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=lines)
