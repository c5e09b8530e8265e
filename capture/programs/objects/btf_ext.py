"""BTF.ext: what .BTF says of code: functions, source lines and CO-RE relocations, by section and byte offset.

Source: the kernel's documentation, "BPF Type Format (BTF)", section .BTF.ext.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from .btf import MAGIC, VERSION, Btf
from .unfit import Unfit

_HEADER = struct.Struct("<HBBIIIII")
_WORD = struct.Struct("<I")
_SECTION = struct.Struct("<II")
_COLUMN_BITS = 10
MAX_RECORDS = 1 << 16


class Line(NamedTuple):
    """The source line of the instructions from byte `offset` on; file and text: offsets of strings in the BTF."""

    offset: int
    file: int
    text: int
    line: int
    column: int


class CoreRelocation(NamedTuple):
    """An instruction at byte `offset` that holds a fact about a type.

    access: offset of a string of member indices, "0:3"; kind: a `Core`.
    """

    offset: int
    type: int
    access: int
    kind: int


class BtfExt:
    """By section name: functions ({byte offset: id of a FUNC type}), lines and CO-RE relocations, as they stand."""

    def __init__(self, data: bytes, btf: Btf) -> None:
        """Raises Unfit where `data` is no .BTF.ext of version 1."""
        self.functions: dict[str, dict[int, int]] = {}
        self.lines: dict[str, list[Line]] = {}
        self.core: dict[str, list[CoreRelocation]] = {}
        if not data:
            return
        if len(data) < _HEADER.size:
            raise Unfit(f"its .BTF.ext has {len(data)} bytes")
        magic, version, _, header, *rooms = _HEADER.unpack_from(data)
        if magic != MAGIC or version != VERSION or not _HEADER.size <= header <= len(data):
            raise Unfit("its .BTF.ext is of another kind or version", "compile it with clang 14 to 19")
        # The room of CO-RE relocations came later; a shorter header has none.
        rooms += struct.unpack_from("<II", data, _HEADER.size) if header >= _HEADER.size + 8 <= len(data) else (0, 0)
        body = data[header:]
        for name, (offset, type_id) in _records(body, rooms[0], rooms[1], 2, btf):
            self.functions.setdefault(name, {})[offset] = type_id
        for name, (offset, file, text, place) in _records(body, rooms[2], rooms[3], 4, btf):
            line, column = place >> _COLUMN_BITS, place & (1 << _COLUMN_BITS) - 1
            self.lines.setdefault(name, []).append(Line(offset, file, text, line, column))
        for name, (offset, type_id, access, kind) in _records(body, rooms[4], rooms[5], 4, btf):
            self.core.setdefault(name, []).append(CoreRelocation(offset, type_id, access, kind))
        for lines in self.lines.values():
            lines.sort()
        for core in self.core.values():
            core.sort()


def _records(body: bytes, at: int, size: int, words: int, btf: Btf) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(section name, first `words` words) of every record of a room at `at`, `size` bytes long."""
    if not size:
        return
    if at + size > len(body) or size < _WORD.size:
        raise Unfit(f"a room of its .BTF.ext ({size:,} bytes at {at:,}) does not fit its {len(body):,} bytes")
    room = body[at : at + size]
    (step,) = _WORD.unpack_from(room)
    if step < 4 * words or step % 4:
        raise Unfit(f"records of its .BTF.ext have {step} bytes")
    if len(room) > MAX_RECORDS * step:
        raise Unfit(f"it has more than {MAX_RECORDS:,} source lines or relocations", "split it into several programs")
    record = struct.Struct(f"<{words}I{step - 4 * words}x")
    at = _WORD.size
    while at < len(room):
        if at + _SECTION.size > len(room):
            raise Unfit("its .BTF.ext is cut off")
        name, count = _SECTION.unpack_from(room, at)
        at += _SECTION.size
        end = at + count * step
        if end > len(room):
            raise Unfit("its .BTF.ext is cut off")
        section = btf.string(name)
        for found in record.iter_unpack(room[at:end]):
            yield section, found
        at = end
