"""The C library's heap, which keeps what was freed: how much of it a long recording holds on to.

glibc gives every thread an arena of its own and leaves in each what its largest step once needed. Sealing, deriving
and the thread that ends a recording each need a part's columns, hardly ever at the same time. Where libc is another,
both functions do nothing.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
_libc = ctypes.CDLL(None)


def share() -> None:
    """Let threads that are started from now on allocate where the main thread does."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give back to the system what is free."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
