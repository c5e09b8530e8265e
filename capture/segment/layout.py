"""Where everything stands in a segment: areas, words and records, declared once for engines, readers and headers.

The file is a sequence of areas, each on its own pages. All integers are little-endian, all words are aligned u64.

    header    written once by the engine, then constant; ends with its own CRC-32
    side      side tables: a directory of entries, each with a CRC-32
    status    the engine's host side: state, heartbeat, clock fits, head of the host ring
    control   the drainer's side: lease, hook mask, commit byte, stop byte, and one tail byte per ring
    cursor    one line of 32 words per monitor, written by that monitor alone
    worker    one line of 16 words per worker: the first half written by the worker, the second by its monitor
    summary   one ring of 128-byte records per monitor: intervals and coverage
    ring      one ring of blocks per monitor: event rows by column
    host      one byte ring: requests, request sets and membership, told by the engine's host side

Only the engine maps the file. Everyone else reads by `pread` and writes by `pwrite`, so that a file truncated under
them is a short read and not a SIGBUS. What they write must therefore be right even if it becomes visible byte by
byte: a tail is one byte (blocks freed, modulo 256; a ring has at most 255 blocks), and the control words are latched
by the engine only when the commit byte beside them changes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property

from ...store.errors import Refused, Usage
from ...store.tables import ABI_MAJOR, ABI_MINOR, EVENT_ROW, HOOKS, MAX_WORKERS, RING_ROW, schema_hash

MAGIC = b"MEGASCOP"
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
    WORDS = 32


class Worker(IntEnum):
    """Words of a worker's line. 0 to 7 are written by the worker, 8 to 15 by its monitor."""

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


class Summary(IntEnum):
    """Words of a summary record: 0 to 6 in both kinds, then by kind."""

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


def _pages(n: int) -> int:
    return (n + PAGE - 1) // PAGE * PAGE


_HEADER = (
    ("magic", "8s"),
    ("abi_major", "I"),
    ("abi_minor", "I"),
    ("file_bytes", "Q"),
    ("schema_hash", "32s"),
    ("engine_pid", "Q"),
    ("engine_start", "Q"),
    ("created_ns", "Q"),
    ("clock", "I"),
    ("clock_tick_ns", "I"),
    ("epoch_ns", "Q"),
    ("ranks", "I"),
    ("workers", "I"),
    ("monitors", "I"),
    ("policy", "I"),
    ("block_rows", "I"),
    ("blocks", "I"),
    ("summary_rows", "I"),
    ("exported", "I"),
    ("side_bytes", "Q"),
    ("side_entries", "I"),
    ("reserved", "I"),
    ("host_bytes", "Q"),
    ("name", "64s"),
)
HEADER = struct.Struct("<" + "".join(code for _, code in _HEADER))
HEADER_OFFSETS = {
    name: struct.calcsize("<" + "".join(code for _, code in _HEADER[:i])) for i, (name, _) in enumerate(_HEADER)
}
_LIMITS = {
    "clock": (0, max(Clock)),
    "clock_tick_ns": (1, 1_000_000_000),
    "epoch_ns": (1_000, 1 << 48),
    "ranks": (1, 255),
    "workers": (1, MAX_WORKERS),
    "monitors": (1, MAX_WORKERS),
    "policy": (0, max(Policy)),
    "block_rows": (64, 1 << 20),
    "blocks": (2, MAX_BLOCKS),
    "summary_rows": (2 * CHUNK, MAX_BLOCKS * CHUNK),
    "side_bytes": (0, 1 << 34),
    "side_entries": (0, 64),
    "host_bytes": (PAGE, 1 << 32),
}
ALL_HOOKS = sum(1 << h.id for h in HOOKS)


@dataclass(frozen=True)
class Layout:
    """Sizes of a segment, from which every offset follows.

    block_rows: rows of a block, a multiple of 64, so that every column begins on a 64-byte line. blocks: per monitor.
    summary_rows: records per monitor, a multiple of CHUNK. exported: bit h set, the engine fires hook h.
    Raises Usage when a size is out of its limits.
    """

    workers: int
    monitors: int
    ranks: int = 1
    block_rows: int = 512
    blocks: int = 64
    summary_rows: int = 512
    side_bytes: int = 0
    side_entries: int = 0
    host_bytes: int = 1 << 20
    clock: int = Clock.VIRTUAL
    clock_tick_ns: int = 1
    epoch_ns: int = 100_000_000
    policy: int = Policy.DROP
    exported: int = ALL_HOOKS & ~(1 << 13)
    name: str = "engine"
    engine_pid: int = 0
    engine_start: int = 0
    created_ns: int = 0
    schema: str = field(default_factory=schema_hash)

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise Usage("cannot lay out a segment", f"{name} is {value}, outside {low} to {high}")
        if self.block_rows % 64:
            raise Usage("cannot lay out a segment", f"block_rows {self.block_rows} is no multiple of 64")
        if self.summary_rows % CHUNK:
            raise Usage("cannot lay out a segment", f"summary_rows {self.summary_rows} is no multiple of {CHUNK}")
        if self.exported & ~ALL_HOOKS:
            raise Usage("cannot lay out a segment", f"exported {self.exported:#x} names hooks that the ABI does not")

    side_offset = PAGE

    @cached_property
    def status_offset(self) -> int:
        return self.side_offset + _pages(self.side_bytes)

    @cached_property
    def control_offset(self) -> int:
        return self.status_offset + PAGE

    @cached_property
    def tails_offset(self) -> int:
        return self.control_offset + Control.TAILS

    @cached_property
    def cursor_offset(self) -> int:
        return self.tails_offset + _pages(2 * self.monitors)

    @cached_property
    def worker_offset(self) -> int:
        return self.cursor_offset + _pages(self.monitors * Cursor.WORDS * WORD)

    @cached_property
    def summary_offset(self) -> int:
        return self.worker_offset + _pages(self.workers * Worker.WORDS * WORD)

    @cached_property
    def ring_offset(self) -> int:
        return self.summary_offset + _pages(self.monitors * self.summary_rows * Summary.WORDS * WORD)

    @cached_property
    def block_bytes(self) -> int:
        return BLOCK_HEADER + self.block_rows * RING_ROW.dtype.itemsize

    @cached_property
    def host_offset(self) -> int:
        return self.ring_offset + _pages(self.monitors * self.blocks * self.block_bytes)

    @cached_property
    def file_bytes(self) -> int:
        return self.host_offset + _pages(self.host_bytes)

    @property
    def ring_rows(self) -> int:
        """Rows that one monitor's ring holds."""
        return self.blocks * self.block_rows

    def column_offset(self, name: str) -> int:
        """Byte offset of a column inside a block."""
        return BLOCK_HEADER + self.block_rows * RING_ROW.offsets[name]

    def pack(self) -> bytes:
        """The header page, with its CRC-32 in the last four bytes."""
        values = {
            "magic": MAGIC,
            "abi_major": ABI_MAJOR,
            "abi_minor": ABI_MINOR,
            "schema_hash": bytes.fromhex(self.schema),
            "reserved": 0,
            "name": self.name.encode()[:64],
        }
        body = HEADER.pack(*(values.get(n, getattr(self, n, None)) for n, _ in _HEADER))
        body = body.ljust(PAGE - 4, b"\0")
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def unpack(cls, page: bytes, what: str) -> Layout:
        """The layout that a header page declares.

        Raises Refused, naming `what`, for another file, another ABI, a damaged header or impossible sizes.
        """
        if len(page) < PAGE:
            raise Refused(
                what, f"it has {len(page)} bytes and no header", "it is not a segment, or its engine is just starting"
            )
        if page[:8] != MAGIC:
            raise Refused(what, "it does not begin as a segment does", "name a file that megascope ls shows")
        got = dict(zip((n for n, _ in _HEADER), HEADER.unpack_from(page), strict=True))
        if got["abi_major"] != ABI_MAJOR:
            raise Refused(
                what,
                f"its hook ABI is {got['abi_major']}.{got['abi_minor']}, this megascope speaks {ABI_MAJOR}.{ABI_MINOR}",
                "use the megascope of the engine's version",
            )
        if zlib.crc32(page[: PAGE - 4]) != struct.unpack_from("<I", page, PAGE - 4)[0]:
            raise Refused(what, "its header is damaged (checksum)", "restart the engine")
        sizes = {f.name: got[f.name] for f in fields(cls) if f.name in got}
        sizes["name"] = got["name"].rstrip(b"\0").decode("utf-8", "replace")
        sizes["schema"] = got["schema_hash"].hex()
        try:
            layout = cls(**sizes)
        except Usage as e:
            raise Refused(what, e.why, "restart the engine") from e
        if layout.file_bytes != got["file_bytes"]:
            raise Refused(
                what, f"its sizes add up to {layout.file_bytes} bytes, not {got['file_bytes']}", "restart the engine"
            )
        # A newer minor may have added to the tables; within one minor they are the same or the header lies.
        if got["abi_minor"] == ABI_MINOR and layout.schema != schema_hash():
            raise Refused(
                what,
                f"its tables (schema {layout.schema[:12]}) are not this megascope's ({schema_hash()[:12]})",
                "use the megascope of the engine's version",
            )
        return layout


assert RING_ROW.dtype.itemsize == EVENT_ROW.dtype.itemsize + 4
