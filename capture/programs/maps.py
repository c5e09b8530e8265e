"""What a map is: bounded state of a program, declared before it runs.

Per worker unless `shared`. *Aggregations* are exported and reset when their epoch closes; *state* persists until it is
deleted. What the values of the fixed kinds hold, and how a histogram divides the numbers, stands in `histogram`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .histogram import VALUE_BYTES


class MapKind(IntEnum):
    """`type` of a map definition. The first two are the kernel's numbers, so that its headers compile."""

    HASH = 1
    ARRAY = 2
    HIST = 0x4D01
    """any key → histogram of u64; only through hist_add"""
    STATS = 0x4D02
    """any key → count, sum, min, max of u64; only through stats_add"""
    FEEDBACK = 0x4D03
    """u32 index → an engine-wide value and the epoch it was computed from; written by the host alone"""


class MapFlag(IntEnum):
    """Bits of `map_flags`."""

    READ_ONLY = 1 << 7
    """programs may not write it (BPF_F_RDONLY_PROG)"""
    SHARED = 1 << 16
    """one for all workers of a rank"""
    AGGREGATE = 1 << 17
    """exported and reset at each epoch's end; always set for HIST and STATS"""


MAX_KEY_BYTES = 64
MAX_VALUE_BYTES = 4096
"""of hash and array maps"""
MAX_ENTRIES = 1 << 20
STATS_BYTES = 32
FEEDBACK_BYTES = 16
FIXED_VALUE_BYTES = {MapKind.HIST: VALUE_BYTES, MapKind.STATS: STATS_BYTES, MapKind.FEEDBACK: FEEDBACK_BYTES}


@dataclass(frozen=True)
class Member:
    """A leaf of a key or value type. kind: u, i (integers), b (bool), c (bytes); count > 1: an array of them."""

    name: str
    offset: int
    size: int
    kind: str = "u"
    count: int = 1
    bit_offset: int = 0
    bits: int = 0
    """not 0: a bit field of so many bits, `bit_offset` above the lowest bit of the `size` bytes at `offset`"""


@dataclass(frozen=True)
class TypeLayout:
    """A key or value type: its name, size in bytes and leaves in order; padding belongs to no leaf.

    A scalar, or an array of them, is one leaf whose name is empty. Leaves of a union overlap.
    """

    name: str
    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Map:
    """One map of a program. Sizes in bytes. initial: contents of a global data section, empty: zero."""

    name: str
    kind: MapKind
    key_size: int
    value_size: int
    max_entries: int
    shared: bool = False
    aggregate: bool = False
    read_only: bool = False
    initial: bytes = b""
    key: TypeLayout | None = None
    value: TypeLayout | None = None

    @property
    def indexed(self) -> bool:
        """Keys are the numbers below max_entries, all of them always there."""
        return self.kind in (MapKind.ARRAY, MapKind.FEEDBACK)
