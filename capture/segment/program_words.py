"""The words by which programs come, run and go: requests, the table of slots, replies, feedback, exports of maps.

The area of programs stands behind the host ring, where an engine has one:

    requests   one page, written from outside: a request of attachers, and what the drainer answers and feeds back
    map tails  one byte per map ring, written by the drainer
    slots      one line per program that runs, and the reply to the last request; written by the engine
    images     bytes of programs (`programs.image`), written by attachers where no slot in use has its own
    map ring   one byte ring per monitor: what its programs' maps held when their epochs closed

A request is made by whoever holds the lock of this area (`mailbox`): image first, then the request with its own
checksum, then the commit byte. The engine answers by its number, and each monitor says in its cursor when that change
is in force there. Whoever makes the next request waits for all of them, and for a live drainer to have read it.

Whoever gives up withdraws what he asked for: he puts the commit byte back. The engine takes a request by writing its
number to TAKEN. Either is done only under the lock of the commit byte (`file_lock`), after a look at the other's word,
so that a request is taken or withdrawn and never both; what is taken is carried out and answered. The engine does not
wait for that lock but looks again later. A request whose maker died stands: it is carried out, and the next one waits.
"""

from __future__ import annotations

import struct
from enum import IntEnum

SLOTS = 32
"""Lines of the slot table. Slot s is bit s of `by`; slot 0 is the recorder's."""
MAP_CHUNKS = 128
"""Chunks of a map ring: in these the drainer frees it."""


class Requests(IntEnum):
    """Byte offsets in the requests page. The first two are the attachers', the rest the drainer's."""

    REQUEST = 0
    COMMIT = 64
    """u8: the low byte of the request's number, written after it; of the one before when it is withdrawn"""
    SEEN = 128
    """u8: the low byte of the last change that the drainer has read"""
    FEEDBACK_COMMIT = 192
    """u8: changed after the feedback below has been written"""
    FEEDBACK = 1024
    """count u32, CRC-32 u32 of count and cells, then cells"""


REQUEST = struct.Struct("<QIIQQIIQQI")
"""number u64, op u32, slot u32, offset u64, length u64, CRC-32 of the image u32, reserved u32, instructions u64,
rows u64, CRC-32 of all that u32"""
FEEDBACK_HEAD = struct.Struct("<II")
FEEDBACK_CELL = struct.Struct("<IHHQQQ")
"""program u32, map u16, reserved u16, index u64, value u64, epoch u64"""
FEEDBACK_CELLS = 80
"""at most so many at once"""


class Op(IntEnum):
    """What a request asks for."""

    ATTACH = 1
    REPLACE = 2
    """put another program in the slot, so that each event runs under one of the two"""
    DETACH = 3


class SlotState(IntEnum):
    """What a slot is in."""

    FREE = 0
    ATTACHED = 1
    LEAVING = 2
    """its program does not run any more, and not all of its maps have been exported yet"""


class Slot(IntEnum):
    """Words of a slot's line; written by the engine alone."""

    STATE = 0
    CHANGE = 1
    """number of the request that put it there, or took it away"""
    PROGRAM = 2
    """program id, never used again"""
    OFFSET = 3
    """of the image, in the area of images"""
    LENGTH = 4
    IMAGE_CRC = 5
    HOOKS = 6
    """bit h set: it runs at hook h"""
    INSTRUCTIONS = 7
    """per worker and epoch"""
    ROWS = 8
    """per worker and epoch"""
    SINCE = 9
    """device time from which it sees events, ns"""
    UNTIL = 10
    """device time from which it does not, ns; 0 while it runs"""
    MEMORY = 11
    """bytes of its maps"""
    OBSERVED = 12
    EMITTED = 13
    MISSING = 14
    """events throttled, lost or faulted, as of the last cut"""
    CHECK = 15
    """xor of the words before: a reader takes the line only if it agrees"""
    WORDS = 16


class Reply(IntEnum):
    """Words of the reply, behind the slots; written by the engine alone."""

    CODE = 1
    PROGRAM = 2
    ARENA = 3
    """bytes for maps in all"""
    ARENA_USED = 4
    TEXT_LENGTH = 5
    TEXT = 8
    """UTF-8, up to 448 bytes"""
    NUMBER = 0
    """of the last request that was answered; written last"""
    WORDS = 64


class HostReply(IntEnum):
    """More words of the reply, of the engine's process on the host: no device knows them."""

    TAKEN = 6
    """number of the last request that cannot be withdrawn any more"""


REPLY_TEXT = (Reply.WORDS - Reply.TEXT) * 8


class Code(IntEnum):
    """What became of a request."""

    DONE = 0
    DAMAGED = 1
    """the request or the image is not what its checksum says"""
    IMAGE = 2
    """the image is no program"""
    REJECTED = 3
    """the verifier refuses it"""
    HOOK = 4
    """a hook that the engine does not export"""
    ARENA = 5
    """no memory for its maps"""
    SLOT = 6
    """no such slot, or it is in another state"""
    KIND = 7
    """this engine runs no program of that kind"""
    SPENT = 8
    """all program ids have been used"""
    FAILED = 9


class MapRecord(IntEnum):
    """Words of a record in a map ring, before its entries. A record never wraps: fillers end a pass of the ring."""

    WHAT = 0
    """bytes of the record | kind << 32 | map << 48"""
    PROGRAM = 1
    """program id | workers << 32: how many workers the record stands for"""
    WORKER = 2
    """the worker, or MERGED_WORKERS; rank << 32"""
    EPOCH = 3
    """epoch | epochs << 48"""
    T_BEGIN = 4
    T_END = 5
    ELIGIBLE = 6
    """this word and the next four: the program's coverage over the same workers and epochs, all hooks together"""
    OBSERVED = 7
    THROTTLED = 8
    LOST = 9
    FAULTED = 10
    REFUSED = 11
    """updates that found the map full"""
    ENTRIES = 12
    SUM = 13
    """CRC-32 of the entries"""
    WORDS = 14


class MapKindOfRecord(IntEnum):
    """Kinds of a record in a map ring."""

    FILLER = 0
    AGGREGATE = 1
    """of an epoch that has closed"""
    STATE = 2
    """as it stood when the program was detached or the engine ended"""


MERGED_WORKERS = 0xFFFF_FFFF
