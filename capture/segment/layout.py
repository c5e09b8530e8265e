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
    programs  where the engine runs programs: see `program_words`

Only the engine maps the file. Everyone else reads by `pread` and writes by `pwrite`, so that a file truncated under
them is a short read and not a SIGBUS; the engine then goes on with private memory (`guard`). What they write must
therefore be right even if it becomes visible byte by byte: a tail is one byte (blocks freed, modulo 256; a ring has at
most 255 blocks), and the control words are latched by the engine only when the commit byte beside them changes. What
the words of each area mean stands in `words`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, fields
from functools import cached_property

from ...store.errors import Refused, Usage
from ...store.tables import ABI_MAJOR, ABI_MINOR, EVENT_ROW, HOOKS, MAX_WORKERS, RING_ROW, schema_hash
from .program_words import MAP_CHUNKS, SLOTS, Reply, Slot
from .words import BLOCK_HEADER, CHUNK, MAX_BLOCKS, PAGE, WORD, Clock, Control, Cursor, Policy, Summary, Worker

MAGIC = b"MEGASCOP"


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
    ("program_slots", "I"),
    ("telemetry", "I"),
    ("image_bytes", "Q"),
    ("map_bytes", "Q"),
    ("arena_bytes", "Q"),
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
    "program_slots": (0, SLOTS - 1),
    "telemetry": (0, (1 << 32) - 1),
    "image_bytes": (0, 1 << 28),
    "map_bytes": (0, 1 << 30),
    "arena_bytes": (0, 1 << 40),
}
MAP_LEAST = 1 << 16
"""Bytes of a map ring that takes the largest value, four times."""
ALL_HOOKS = sum(1 << h.id for h in HOOKS)


@dataclass(frozen=True)
class Layout:
    """Sizes of a segment, from which every offset follows.

    block_rows: rows of a block, a multiple of 64, so that every column begins on a 64-byte line. blocks: per monitor.
    summary_rows: records per monitor, a multiple of CHUNK. exported: bit h set, the engine fires hook h.
    program_slots: programs that can be attached at once, 0: none, and there is no area for them. image_bytes: for the
    programs themselves; map_bytes: of one monitor's map ring; arena_bytes: for what maps hold; telemetry: bytes of
    exports per second of device time, 0: as many as the ring takes.
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
    program_slots: int = 0
    telemetry: int = 0
    image_bytes: int = 0
    map_bytes: int = 0
    arena_bytes: int = 0
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
        if self.map_bytes % (WORD * MAP_CHUNKS) or bool(self.map_bytes) != bool(self.program_slots):
            why = f"map_bytes {self.map_bytes} is no multiple of {WORD * MAP_CHUNKS}, or there are no slots for it"
            raise Usage("cannot lay out a segment", why)
        if 0 < self.map_bytes < MAP_LEAST:
            raise Usage("cannot lay out a segment", f"map_bytes {self.map_bytes} is below {MAP_LEAST}")
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
    def requests_offset(self) -> int:
        return self.host_offset + _pages(self.host_bytes)

    @cached_property
    def map_tails_offset(self) -> int:
        return self.requests_offset + PAGE

    @cached_property
    def slots_offset(self) -> int:
        return self.map_tails_offset + _pages(self.monitors)

    @cached_property
    def reply_offset(self) -> int:
        return self.slots_offset + SLOTS * Slot.WORDS * WORD

    @cached_property
    def images_offset(self) -> int:
        return self.slots_offset + _pages((SLOTS * Slot.WORDS + Reply.WORDS) * WORD)

    @cached_property
    def map_offset(self) -> int:
        return self.images_offset + _pages(self.image_bytes)

    @cached_property
    def file_bytes(self) -> int:
        return self.map_offset + _pages(self.monitors * self.map_bytes) if self.program_slots else self.requests_offset

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
