"""The words of a segment: what stands at which place of each area, declared once for engines, readers and headers.

All integers are little-endian, all words are aligned u64. Who may write which area is said in `layout`.
"""

from __future__ import annotations

import struct
from enum import IntEnum

PAGE = 4096
WORD = 8
BLOCK_HEADER = 64
CHUNK = 16
"""Summary records are freed in chunks of this many."""
MAX_BLOCKS = 255
FITS = 112
"""Clock fits kept in the status page, newest replacing oldest."""
SIDE_ENTRY = struct.Struct("<32sIIQQ8x")
SIDE_JSON, SIDE_ARROW = 1, 2


class Clock(IntEnum):
    """What device time is."""

    VIRTUAL = 0
    GLOBALTIMER = 1
    MONOTONIC = 2


class Policy(IntEnum):
    """What happens to a row when the ring is full."""

    DROP = 0
    OVERWRITE = 1
    WAIT = 2
    """the engine stands still until a drainer makes room, for as long as there is none or none any more (`standing`)"""


class State(IntEnum):
    """What the engine says of itself."""

    STARTING = 1
    RUNNING = 2
    ENDED = 3
    FAILED = 4


class Status(IntEnum):
    """Words of the status page; written by the engine's host side alone."""

    STATE = 0
    HEARTBEAT = 1
    """CLOCK_REALTIME, ns"""
    T_NOW = 2
    """device time, ns"""
    STEP = 3
    HOST_BASE = 4
    """oldest byte of the host ring that begins a record still whole"""
    HOST_RESERVED = 5
    """bytes that may have been touched: written before a record is"""
    HOST_HEAD = 6
    """bytes that are whole: written after"""
    FIT_COUNT = 7
    """clock fits taken so far"""
    FIT_FIRST = 64
    """FITS fits of four words: host ns (CLOCK_REALTIME), device ns, error ns, xor of the three"""


class HostStatus(IntEnum):
    """More words of the status page, of engines that run on the host: no device knows them."""

    WAITS_SINCE = 8
    """CLOCK_REALTIME, ns, since when the engine has waited for room in a ring (policy wait); 0: it does not"""


class Control(IntEnum):
    """Byte offsets in the control page; written by the drainer alone."""

    LEASE_PID = 0
    LEASE_START = 8
    LEASE_SINCE = 16
    MASK = 64
    """u64: bit h set, hook h is recorded"""
    COMMIT = 128
    """u8: changed after the words above have been written"""
    STOP = 129
    """u8: not zero asks the engine for an orderly end"""
    TAILS = 4096
    """u8 per monitor: blocks of its event ring freed, modulo 256; then u8 per monitor: chunks of its summary ring"""


class Cursor(IntEnum):
    """Words of a monitor's line; written by that monitor alone."""

    HEAD = 0
    """event rows published, monotonic: row r stands in block r // block_rows % blocks, row r % block_rows"""
    SUMMARY_HEAD = 1
    """summary records published, monotonic"""
    HEARTBEAT = 2
    """device time of the last pass, ns"""
    EPOCH = 3
    RING_LOST = 4
    STALE = 5
    MASK = 6
    """hooks recorded now"""
    ACK = 7
    """commit byte that the mask belongs to"""
    PROGRAMS = 8
    """number of the last change of programs that is in force here"""
    FEEDBACK = 9
    """commit byte of the last feedback taken over"""
    MAP_HEAD = 10
    """bytes of its map ring published, monotonic"""
    WORDS = 32


class Worker(IntEnum):
    """Words of a worker's line. 0 to 7 by the worker, or by its monitor for it; 8 to 15 by its monitor."""

    NOW_T = 0
    """begin of the wait it is in, ns; 0: it does not wait"""
    NOW_TASK = 1
    NOW_DEP = 2
    NOW_SEEN_WANTED = 3
    NOW_CHECK = 4
    """xor of the four before: a reader takes the record only if it agrees"""
    FIRED = 8
    DEQUEUED = 9
    LOST = 10
    WORDS = 16


class Record(IntEnum):
    """Kinds of a summary record."""

    INTERVAL = 1
    COVERAGE = 2
    """of one worker"""
    MERGED = 3
    """coverage of several workers of the monitor that lost nothing: SEQ_FROM is how many, SEQ_TO their rank"""


class Summary(IntEnum):
    """Words of a summary record: 0 to 6 in every kind, then by kind."""

    STAMP = 0
    """its index in the stream, from 1; written last"""
    WHAT = 1
    """kind | hook << 8 | program << 16 | worker << 32"""
    EPOCH = 2
    """epoch | epochs << 48"""
    T_BEGIN = 3
    T_END = 4
    SEQ_FROM = 5
    SEQ_TO = 6
    DEQUEUED = 7
    INTERVAL_LOST = 8
    UNCLAIMED = 9
    ELIGIBLE = 7
    OBSERVED = 8
    THROTTLED = 9
    LOST = 10
    FAULTED = 11
    EMITTED = 12
    WRITTEN = 13
    RING_LOST = 14
    EMIT_THROTTLED = 15
    WORDS = 16
