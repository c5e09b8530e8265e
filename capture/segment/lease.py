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

from ...store.errors import MegascopeError
from .layout import ALL_HOOKS
from .process import start_time
from .reader import SegmentReader
from .words import Control


class Lease:
    """Held from construction to `release`. Raises MegascopeError when someone else holds it."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        try:
            fcntl.flock(segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            pid, _ = segment.lease()
            why = f"process {pid} is draining it already"
            raise MegascopeError(
                f"cannot record {segment.path}", why, "stop that capture first, or look with megascope now"
            ) from e
        pid = os.getpid()
        words = struct.pack("<QQQ", pid, start_time(pid), time.time_ns())
        segment.poke(self._at(Control.LEASE_PID), words)

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
        # Who holds it no more may live on, and is waited for by nobody.
        with suppress(MegascopeError, OSError):
            self.segment.poke(self._at(Control.LEASE_PID), bytes(24))
        fcntl.flock(self.segment.fd, fcntl.LOCK_UN)

    def _at(self, offset: Control) -> int:
        return self.segment.layout.control_offset + offset
