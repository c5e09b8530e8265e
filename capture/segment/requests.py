"""The engine's side of attaching: requests as they come, the table of slots, and replies."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from . import file_lock
from .program_words import (
    FEEDBACK_CELL,
    FEEDBACK_CELLS,
    FEEDBACK_HEAD,
    REPLY_TEXT,
    REQUEST,
    SLOTS,
    Code,
    HostReply,
    Op,
    Reply,
    Requests,
    Slot,
    SlotState,
)
from .words import Cursor
from .writer import SegmentWriter


@dataclass(frozen=True)
class Request:
    """What somebody asks for, whole as its checksum says; not trusted any further. `image`: a copy."""

    number: int
    op: Op
    slot: int
    offset: int
    length: int
    image_crc: int
    instructions: int
    rows: int
    image: bytes


@dataclass(frozen=True)
class Damaged:
    """A request that cannot be read, and why; it is answered all the same, so that nobody waits."""

    number: int
    why: str


class RequestReader:
    """Requests and feedback from outside, each once; replies and slots to the outside."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._w = writer
        self._number = 0
        self._fed = int(writer.requests[Requests.FEEDBACK_COMMIT])
        self._w.reply[Reply.ARENA] = writer.layout.arena_bytes

    def next(self) -> Request | Damaged | None:
        """The request that waits for an answer, if there is one."""
        commit = int(self._w.requests[Requests.COMMIT])
        if commit == self._number & 0xFF:
            return None
        if not self._take():
            return None
        raw = self._w.requests[: REQUEST.size].tobytes()
        number, op, slot, offset, length, crc, reserved, instructions, rows, own = REQUEST.unpack(raw)
        if own != zlib.crc32(raw[:-4]) or number != self._number or reserved:
            return Damaged(self._number, "it was not written whole")
        if op not in tuple(Op) or not 0 < slot < SLOTS or max(instructions, rows) >= 1 << 63:
            return Damaged(self._number, f"operation {op} on slot {slot} is none")
        room = self._w.layout.image_bytes
        if offset > room or length > room - offset:
            return Damaged(self._number, f"an image of {length} bytes at {offset} of {room}")
        # A copy, because whoever wrote it may write again.
        image = self._w.images[offset : offset + length].tobytes()
        if op != Op.DETACH and zlib.crc32(image) != crc:
            return Damaged(self._number, "its image is not what its checksum says")
        return Request(number, Op(op), slot, offset, length, crc, instructions, rows, image)

    def _take(self) -> bool:
        """Take what was asked for, so that it cannot be withdrawn; False: not now, as that is just being done."""
        at = self._w.layout.requests_offset + Requests.COMMIT
        try:
            if not file_lock.take(self._w.fd, at):
                return False
        except (OSError, ValueError):
            return False  # no locks, or closed: an engine goes on where nobody can ask it for anything
        try:
            # Once more, under the lock: it may have been withdrawn since.
            ahead = (int(self._w.requests[Requests.COMMIT]) - self._number) & 0xFF
            self._number += ahead
            self._w.reply[HostReply.TAKEN] = self._number
            return ahead > 0
        finally:
            file_lock.release(self._w.fd, at)

    def answer(self, number: int, code: Code, program: int = 0, text: str = "", *, arena_used: int) -> None:
        """Say what became of request `number`; in force in every monitor from now on."""
        reply, data = self._w.reply, text.encode()[:REPLY_TEXT]
        self._w.cursor[:, Cursor.PROGRAMS] = number
        reply[Reply.CODE], reply[Reply.PROGRAM], reply[Reply.ARENA_USED] = code, program, arena_used
        reply[Reply.TEXT_LENGTH] = len(data)
        reply[Reply.TEXT :].view(np.uint8)[:] = np.frombuffer(data.ljust(REPLY_TEXT, b"\0"), np.uint8)
        reply[Reply.NUMBER] = number

    def tell(self, slot: int, state: SlotState, words: dict[Slot, int]) -> None:
        """Write a slot's line; words that are not given stay."""
        line = self._w.slots[slot]
        now = line.copy()
        now[Slot.STATE] = state
        for word, value in words.items():
            now[word] = value
        now[Slot.CHECK] = np.bitwise_xor.reduce(now[: Slot.CHECK])
        line[:] = now

    def feedback(self) -> tuple[int, list[tuple[int, int, int, int, int]]] | None:
        """(commit byte, [program, map, index, value, epoch]) when the drainer has fed back anew; damaged: none."""
        commit = int(self._w.requests[Requests.FEEDBACK_COMMIT])
        if commit == self._fed:
            return None
        self._fed = commit
        raw = self._w.requests[Requests.FEEDBACK :].tobytes()
        count, crc = FEEDBACK_HEAD.unpack_from(raw)
        size = FEEDBACK_HEAD.size + min(count, FEEDBACK_CELLS) * FEEDBACK_CELL.size
        cells = raw[FEEDBACK_HEAD.size : size]
        if count > FEEDBACK_CELLS or zlib.crc32(struct.pack("<I", count) + cells) != crc:
            return commit, []
        return commit, [(p, m, i, v, e) for p, m, _, i, v, e in FEEDBACK_CELL.iter_unpack(cells)]

    def fed(self, commit: int) -> None:
        """The feedback of this commit byte is in force in every monitor."""
        self._w.cursor[:, Cursor.FEEDBACK] = commit
