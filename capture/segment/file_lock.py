"""Locks of single bytes of a segment's file, by which processes agree on who may do what in the area of programs.

They are the kernel's, so that one goes when its holder dies, and of the open file, not of the process, so that two
threads keep each other out too. `flock` of the whole file is the drainer's (lease.py) and is apart from them.
"""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid"""


def take(fd: int, offset: int) -> bool:
    """Lock the byte at `offset`, without waiting; whether it is held now. Raises OSError where there are no locks."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
    except BlockingIOError:
        return False
    return True


def release(fd: int, offset: int) -> None:
    """Unlock it; nothing where it is not held."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0))
