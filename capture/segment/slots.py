"""Who is attached to a live engine: its table of slots, as whoever looks at the segment reads it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ...store.errors import Refused
from ..programs import image
from ..programs.program import Program
from .program_words import REPLY_TEXT, SLOTS, Code, Reply, Requests, Slot, SlotState
from .reader import SegmentReader
from .words import WORD

TRIES = 100
"""A line that is being written is read again at most so often."""


@dataclass(frozen=True)
class Line:
    """A slot that has had a program. Times are device ns; instructions and rows per worker and epoch; memory in bytes.

    observed, emitted, missing: events since it was attached, as of the last cut.
    """

    slot: int
    state: SlotState
    change: int
    program: int
    offset: int
    length: int
    image_crc: int
    hooks: int
    instructions: int
    rows: int
    since: int
    until: int
    memory: int
    observed: int
    emitted: int
    missing: int


@dataclass(frozen=True)
class Answer:
    """The engine's reply to request `number`. arena, arena_used: bytes for maps."""

    number: int
    code: Code
    program: int
    arena: int
    arena_used: int
    text: str


def can_attach(segment: SegmentReader) -> bool:
    """Whether the engine runs programs."""
    return bool(segment.layout.program_slots)


def lines(segment: SegmentReader) -> list[Line]:
    """Every slot that has, or last had, a program. A line that is being written all the while is left out."""
    if not can_attach(segment):
        return []
    return [line for slot in range(1, SLOTS) if (line := _line(segment, slot)) is not None and line.program]


def _line(segment: SegmentReader, slot: int) -> Line | None:
    offset = segment.layout.slots_offset + slot * Slot.WORDS * WORD
    for _ in range(TRIES):
        words = segment.words(offset, Slot.WORDS).tolist()
        check = 0
        for word in words[: Slot.CHECK]:
            check ^= word
        if check == words[Slot.CHECK] and words[Slot.STATE] <= max(SlotState):
            return Line(slot, SlotState(words[0]), *words[1 : Slot.CHECK])
    return None


def answer(segment: SegmentReader) -> Answer:
    """The last reply. Raises Refused where none can be read whole."""
    offset = segment.layout.reply_offset
    for _ in range(TRIES):
        before = segment.words(offset, Reply.WORDS)
        after = segment.words(offset, Reply.WORDS)
        w = before.tolist()
        if (before == after).all() and w[Reply.CODE] <= max(Code):
            text = before[Reply.TEXT :].tobytes()[: min(w[Reply.TEXT_LENGTH], REPLY_TEXT)].decode("utf-8", "replace")
            return Answer(w[0], Code(w[1]), w[2], w[3], w[4], " ".join(text.split()))
    raise Refused(segment.what, "the reply to the last request changes all the time", "restart the engine")


def program_of(segment: SegmentReader, line: Line) -> Program:
    """The program in a slot. Raises Refused when its image is not what the line says; it is not verified."""
    what = f"program {line.program} of {segment.path}"
    if line.offset + line.length > segment.layout.image_bytes:
        raise Refused(what, "its image lies outside the segment", "restart the engine")
    data = segment.read(segment.layout.images_offset + line.offset, line.length)
    if zlib.crc32(data) != line.image_crc:
        raise Refused(what, "its image was written over", "attach it again")
    return image.unpack(data, what)


def saw(segment: SegmentReader, number: int) -> None:
    """As the drainer: all changes up to `number` have been read, so the next may come."""
    segment.poke(segment.layout.requests_offset + Requests.SEEN, bytes([number & 0xFF]))
