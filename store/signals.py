"""Signals that end a verb in order: SIGINT of Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed.

A SIGHUP that is ignored when the process begins (nohup) stays ignored.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from .errors import Exit

ENDING = (signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 1.0
"""A shell, a terminal and `timeout` may each send the signal: so soon after the first it is the same one."""


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP has arrived. Whatever is tidied up on Ctrl-C is tidied up on this. code: of the process."""

    def __init__(self, code: Exit) -> None:
        super().__init__()
        self.code = code


class Received:
    """Which signal has arrived, if one has."""

    def __init__(self) -> None:
        self.number: int | None = None

    def is_set(self) -> bool:
        """Whether one has arrived."""
        return self.number is not None

    @property
    def code(self) -> Exit:
        """The exit code of a process that it ended."""
        return Exit.INTERRUPTED if self.number is None else Exit(128 + self.number)


def heeded(numbers: Iterable[signal.Signals] = ENDING) -> list[signal.Signals]:
    """Those of the signals that are not to be ignored."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def ending() -> Iterator[Received]:
    """SIGTERM and SIGHUP raise Ended in the main thread, as SIGINT raises KeyboardInterrupt, until the block ends."""
    received, last = Received(), -AGAIN_S

    def end(number: int, _: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        received.number = number if received.number is None else received.number
        if last - before >= AGAIN_S:
            raise Ended(received.code)

    with _handled(ENDING, end):
        yield received


@contextmanager
def noted() -> Iterator[Received]:
    """SIGINT, SIGTERM and SIGHUP are only noted until the block ends, for whoever asks between two pieces of work.

    A KeyboardInterrupt that the block raises is Ended where it was not SIGINT.
    """
    received = Received()

    def note(number: int, _: FrameType | None) -> None:
        received.number = number if received.number is None else received.number

    with _handled((signal.SIGINT, *ENDING), note):
        try:
            yield received
        except KeyboardInterrupt:
            if received.number in ENDING:
                raise Ended(received.code) from None
            raise


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Python lets no other thread have signals.
        yield
        return
    before = {n: signal.signal(n, handler) for n in heeded(numbers)}
    try:
        yield
    finally:
        for n, was in before.items():
            # None: it was not Python's, and cannot be given back.
            signal.signal(n, signal.SIG_DFL if was is None else was)
