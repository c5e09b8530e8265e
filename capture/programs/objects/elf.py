"""Sections, symbols and relocations of a relocatable ELF object for BPF; every offset and size is checked here.

Read with three structs rather than a library: what a library makes of hostile counts and links is not in our hands.
Sources: the System V ABI's generic ELF64 tables, and "LLVM: BPF relocation types" of the kernel's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from .unfit import DAMAGED, Unfit, printable

MAX_BYTES = 4 << 20
MAX_SECTIONS = 1024
MAX_NAME = 256
MAX_SYMBOLS = 1 << 16
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REL = struct.Struct("<QQ")
_SYMTAB, _RELA, _NOBITS, _REL_TYPE = 2, 4, 8, 9
_RELOCATABLE, _BPF = 1, 247
_MACHINES = {3: "x86", 62: "x86-64", 183: "AArch64", 190: "CUDA"}
_FLAG_EXEC = 4
UNDEFINED = 0
_RESERVED = 0xFF00
COMPILE = "compile it with clang -target bpf -g -O2 -c"


class SymbolType(IntEnum):
    NONE = 0
    OBJECT = 1
    FUNC = 2
    SECTION = 3


class Rel(IntEnum):
    """Relocation types that a program or its BTF may have."""

    LDDW = 1
    """R_BPF_64_64: a 64-bit immediate load of a symbol's address"""
    DATA32 = 3
    """R_BPF_64_ABS32"""
    DATA32_KEEP = 4
    """R_BPF_64_NODYLD32, in .BTF and .BTF.ext"""
    CALL = 10
    """R_BPF_64_32: a call, counted in slots from the next one"""


@dataclass(frozen=True)
class Section:
    """A section; data is empty, size is not, where it takes no room in the file (.bss)."""

    index: int
    name: str
    data: bytes
    size: int
    code: bool
    in_file: bool


@dataclass(frozen=True)
class Symbol:
    """A symbol; value: byte offset in its section. section 0: not defined in this object."""

    name: str
    type: int
    local: bool
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Relocation:
    offset: int
    type: int
    symbol: Symbol


@dataclass
class Elf:
    """An object. relocations: by index of the section that they change."""

    sections: list[Section]
    symbols: list[Symbol]
    relocations: dict[int, list[Relocation]] = field(default_factory=dict)

    def section(self, name: str) -> Section | None:
        """The section of that name; the first, where several have it."""
        return next((s for s in self.sections if s.name == name), None)

    def relocated(self, name: str) -> bytes | None:
        """Bytes of a section of 32-bit words (.BTF, .BTF.ext) with the values of the symbols they refer to added."""
        section = self.section(name)
        if section is None:
            return None
        out = bytearray(section.data)
        for r in self.relocations.get(section.index, ()):
            if r.type in (Rel.DATA32, Rel.DATA32_KEEP) and r.offset <= len(out) - 4:
                (addend,) = struct.unpack_from("<I", out, r.offset)
                struct.pack_into("<I", out, r.offset, addend + r.symbol.value & 0xFFFF_FFFF)
        return bytes(out)


def read(data: bytes) -> Elf:
    """The object in `data`. Raises Unfit for anything but a sound relocatable little-endian ELF64 object for BPF."""
    headers, names_at = _headers(data)
    if not headers:
        raise Unfit("it has no sections")
    if names_at >= len(headers):
        raise Unfit(f"its names stand in section {names_at} of {len(headers)}")
    names = _contents(data, headers[names_at], names_at)
    sections = []
    for i, h in enumerate(headers):
        body = _contents(data, h, i) if i else b""
        if h[1] == _NOBITS and h[5] > MAX_BYTES:
            raise Unfit(f"section {i} has {h[5]:,} bytes", f"keep an object below {MAX_BYTES:,} bytes")
        name = _string(names, h[0], f"section {i}") if i else ""
        sections.append(Section(i, name, body, h[5], bool(h[2] & _FLAG_EXEC), h[1] != _NOBITS))
    symbols: list[Symbol] = []
    table = next((i for i, h in enumerate(headers) if h[1] == _SYMTAB), None)
    if table is not None:
        symbols = list(_symbols(sections, table, headers[table]))
    out = Elf(sections, symbols)
    for i, h in enumerate(headers):
        if h[1] not in (_REL_TYPE, _RELA):
            continue
        if h[7] >= len(headers):
            raise Unfit(f"section {i} changes section {h[7]} of {len(headers)}")
        changed = sections[h[7]]
        if h[1] == _RELA and changed.code:
            raise Unfit(f"section {changed.name} has relocations with addends, which BPF does not", COMPILE)
        # Relocations of debugging sections are none of ours, and there are many.
        if h[1] == _REL_TYPE and (changed.code or changed.name.startswith(".BTF")):
            if h[6] != table:
                raise Unfit(f"section {i} refers to symbols in section {h[6]}, which is no symbol table")
            out.relocations.setdefault(changed.index, []).extend(_relocations(sections[i].data, symbols, changed))
    return out


def _headers(data: bytes) -> tuple[list[tuple[int, ...]], int]:
    """The section headers, and which of them holds their names."""
    if len(data) > MAX_BYTES:
        raise Unfit(f"it has {len(data):,} bytes", f"keep an object below {MAX_BYTES:,} bytes")
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        raise Unfit("it is no ELF object", COMPILE)
    ident, kind, machine, _, _, _, at, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
    if ident[4] != 2 or ident[5] not in (1, 2):
        raise Unfit("it is no 64-bit ELF object", COMPILE)
    if ident[5] == 2:
        raise Unfit("it is big-endian", "compile it with clang -target bpfel")
    if machine != _BPF:
        raise Unfit(f"it is for {_MACHINES.get(machine, f'machine {machine}')}, not for BPF", COMPILE)
    if kind != _RELOCATABLE:
        raise Unfit(f"it is of ELF type {kind}, no relocatable object", COMPILE)
    if count > MAX_SECTIONS or (count and (size != _SECTION.size or at + size * count > len(data))):
        raise Unfit(f"its {count} section headers of {size} bytes at {at} do not fit its {len(data):,} bytes", DAMAGED)
    return [_SECTION.unpack_from(data, at + i * size) for i in range(count)], names


def _contents(data: bytes, header: tuple[int, ...], index: int) -> bytes:
    kind, at, size = header[1], header[4], header[5]
    if kind == _NOBITS:
        return b""
    if at + size > len(data):
        raise Unfit(f"section {index} ({size:,} bytes at {at:,}) does not fit its {len(data):,} bytes")
    return data[at : at + size]


def _string(table: bytes, at: int, of: str) -> str:
    end = table.find(b"\0", at, at + MAX_NAME)
    if at >= len(table) or end < 0:
        raise Unfit(f"the name of {of} is not in its string table")
    return printable(table[at:end])


def _symbols(sections: list[Section], index: int, header: tuple[int, ...]) -> Iterator[Symbol]:
    data, link, size = sections[index].data, header[6], header[9]
    if size != _SYMBOL.size or len(data) % size or link >= len(sections):
        raise Unfit(f"its symbol table has entries of {size} bytes and names in section {link}")
    if len(data) > MAX_SYMBOLS * size:
        raise Unfit(f"it has more than {MAX_SYMBOLS:,} symbols", "include fewer headers")
    for i, (name, info, _, section, value, length) in enumerate(_SYMBOL.iter_unpack(data)):
        if section >= len(sections) and section < _RESERVED:
            raise Unfit(f"symbol {i} is in section {section} of {len(sections)}")
        # A symbol of no section (absolute, common) is as undefined to a program as one of another object.
        inside = section if section < len(sections) else UNDEFINED
        kind = info & 15
        text = (
            sections[inside].name if kind == SymbolType.SECTION else _string(sections[link].data, name, f"symbol {i}")
        )
        yield Symbol(text, kind, info >> 4 == 0, inside, value, length)


def _relocations(data: bytes, symbols: list[Symbol], changed: Section) -> Iterator[Relocation]:
    if len(data) % _REL.size:
        raise Unfit(f"the relocations of section {changed.name} have {len(data)} bytes, no multiple of {_REL.size}")
    for offset, info in _REL.iter_unpack(data):
        if info >> 32 >= len(symbols):
            raise Unfit(f"a relocation of section {changed.name} names symbol {info >> 32} of {len(symbols)}")
        if offset >= changed.size:
            raise Unfit(f"a relocation of section {changed.name} is at {offset:,} of its {changed.size:,} bytes")
        yield Relocation(offset, info & 0xFFFF_FFFF, symbols[info >> 32])
