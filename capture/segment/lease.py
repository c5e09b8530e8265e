"""The drainer's lease: of all who look at a segment, one takes rows out and speaks to the engine.

The lock is the kernel's (`flock`), so it goes when its holder dies, however it dies; pid and start time beside it say
who holds it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from types import TracebackType

from ...store.errors import MegascopeError
from .layout import ALL_HOOKS
from .process import alive, named, start_time
from .reader import SegmentReader
from .words import Control

TUI = "megascope tui"
ENGINE_S = 0.5
"""How long a lock that nobody has signed is waited for."""


class Held(MegascopeError):
    """Somebody else records the segment; which process that is, and what it is, if it can be seen."""

    def __init__(self, segment: SegmentReader, pid: int) -> None:
        who = named(pid) if pid else "a process that does not say which"
        why, todo = f"{who} records it already", "end that first, or look with megascope now"
        if who.endswith(f"{TUI})"):
            why += ", for a workbench that shows maps (r on its Monitors screen)"
            todo = "quit that workbench first, or look with megascope now"
        super().__init__(f"cannot record {segment.path}", why, todo)


class Lease:
    """Held from construction to `release`. Raises Held when someone else holds it."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        until = time.monotonic() + ENGINE_S
        while not self._locked():
            pid, start = segment.lease()
            pid = pid if alive(pid, start) else 0  # a recorder that was killed has left its name there
            if not pid and time.monotonic() < until:  # the engine, which frees what nobody reads (unread.py)
                time.sleep(0.001)
                continue
            raise Held(segment, pid)
        pid = os.getpid()
        words = struct.pack("<QQQ", pid, start_time(pid), time.time_ns())
        segment.poke(self._at(Control.LEASE_PID), words)
        self._held = True

    def record(self, mask: int) -> int:
        """Ask the engine to record the hooks of `mask`; returns the commit byte that it will acknowledge."""
        self.segment.poke(self._at(Control.MASK), struct.pack("<Q", mask & ALL_HOOKS))
        commit = (self.segment.read(self._at(Control.COMMIT), 1)[0] + 1) & 0xFF
        self.segment.poke(self._at(Control.COMMIT), bytes([commit]))
        return commit

    def stop_engine(self) -> None:
        """Ask the engine for an orderly end."""
        self.segment.poke(self._at(Control.STOP), b"\1")

    def release(self) -> None:
        """Let go of it; nothing where that was done: somebody else may hold it by now."""
        if not self._held:
            return
        self._held = False
        # Who holds it no more may live on, and is waited for by nobody.
        with suppress(MegascopeError, OSError):
            self.segment.poke(self._at(Control.LEASE_PID), bytes(24))
        fcntl.flock(self.segment.fd, fcntl.LOCK_UN)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _locked(self) -> bool:
        try:
            fcntl.flock(self.segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _at(self, offset: Control) -> int:
        return self.segment.layout.control_offset + offset
