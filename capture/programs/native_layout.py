"""Where native code finds what it works on: words of eight bytes in flat buffers.

`env`, one per execution, holds the addresses and limits of `Env`. At env[TABLES] stand the tables of the workers' maps,
[workers, maps, TABLE_WORDS]; at env[COMMON] those of the maps that workers share (feedback cells among them),
[maps, TABLE_WORDS]. A table holds the live bank of a map, and the one that closed last if the program reads that:

    LIVE    + VALUES  address of the values, each padded to 8 bytes; arrays by index, keyed maps by slot
            + KEYS    address of the keys by slot, packed
            + CELLS   address of the index of a keyed map: 1 << 32 - SHIFT words, tag << 32 | slot + 1, or 0: free
            + SHIFT   32 minus the bits of a tag that say where a key's cell is looked for first
            + COUNT   slots in use, [0, COUNT)
    LOW     the COUNT from which the worker needs more memory before it sees its next row
    REFUSED upserts and updates that found the map full
    CLOSED  a bank like LIVE; of an array VALUES is 0 before the first close

Keyed maps (hash, HIST, STATS) are open addressing with linear probing over the cells, at most half of them used. A key
of up to 4 bytes and its tag determine one another; longer keys are compared. Slots are dense: deleting moves the last
one into the hole, which is allowed because pointers to values do not outlive a delete, and shifts the cells of a probe
sequence back, so that there are no tombstones. Nothing is allocated while code runs: a row is started only if all that
it may insert has room (READY), and what is short of room is enlarged between rows. Shared maps have all their room from
the begin.
"""

from __future__ import annotations

from enum import IntEnum

from .maps import FIXED_VALUE_BYTES, Map, MapKind


class Env(IntEnum):
    """Words of `env`."""

    TABLES = 0
    COMMON = 1
    READY = 2
    """address of a byte per worker: its tables have room for any one row"""
    COUNTERS = 3
    SPENT = 4
    """address of a word per worker: instructions spent in this epoch"""
    EMITTED = 5
    """the same for rows allowed to be emitted"""
    INSTRUCTIONS = 6
    ROWS = 7


ENV_WORDS = len(Env)


class Bank(IntEnum):
    """Words of a bank."""

    VALUES = 0
    KEYS = 1
    CELLS = 2
    SHIFT = 3
    COUNT = 4


LIVE, LOW, REFUSED, CLOSED, TABLE_WORDS = 0, 5, 6, 8, 16
MIN_CELLS_BITS = 3


def value_bytes(m: Map) -> int:
    return FIXED_VALUE_BYTES.get(m.kind, m.value_size)


def stride(m: Map) -> int:
    """Bytes from one value to the next."""
    return (value_bytes(m) + 7) // 8 * 8


def is_keyed(m: Map) -> bool:
    return m.kind in (MapKind.HASH, MapKind.HIST, MapKind.STATS)


def is_common(m: Map) -> bool:
    """One table for all workers."""
    return m.shared or m.kind is MapKind.FEEDBACK


def aggregates(m: Map) -> bool:
    """Its epochs are exported."""
    return m.aggregate or m.kind in (MapKind.HIST, MapKind.STATS)
