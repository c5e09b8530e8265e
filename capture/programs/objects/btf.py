"""BTF: the types of an object, read from bytes that nobody vouches for.

Every id, offset and length is checked when it is used, and chains of types are followed for a bounded number of steps:
a hostile object's lead to themselves. Source: the kernel's documentation, "BPF Type Format (BTF)".
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from .unfit import Unfit, printable

MAX_TYPES = 1 << 16
MAX_STRING = 1024
MAX_CHAIN = 64
POINTER_BYTES = 8
MAGIC, VERSION = 0xEB9F, 1
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_TRIPLE = struct.Struct("<III")
_PAIR = struct.Struct("<II")


class Kind(IntEnum):
    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


_KINDS = tuple(Kind)
_PART = {
    **dict.fromkeys((Kind.STRUCT, Kind.UNION, Kind.DATASEC, Kind.ENUM64), _TRIPLE),
    **dict.fromkeys((Kind.ENUM, Kind.FUNC_PROTO), _PAIR),
}
"""What follows a type `vlen` times."""
_TAIL = {Kind.INT: 4, Kind.ARRAY: 12, Kind.VAR: 4, Kind.DECL_TAG: 4}
"""Bytes that follow a type once."""
MODIFIERS = frozenset((Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG))
_SIGNED, _CHAR, _BOOL = 1, 2, 4


class Field(NamedTuple):
    """A member of a struct or union. bits: width of a bit field, 0: it is none."""

    name: str
    type: int
    bit_offset: int
    bits: int


class Variable(NamedTuple):
    """A variable of a data section. offset: bytes."""

    name: str
    type: int
    offset: int
    size: int


class Type(NamedTuple):
    """A type as it is encoded. word: its size in bytes or the id of another type; flag: kind_flag; parts: numbers of
    its members, parameters, enumerators or variables; extra: what follows once."""

    kind: Kind
    name_at: int
    word: int
    flag: bool
    parts: tuple[tuple[int, ...], ...]
    extra: tuple[int, ...]


_VOID = Type(Kind.VOID, 0, 0, False, (), ())


class Btf:
    """The types of an object, by id; 0 is void."""

    def __init__(self, data: bytes) -> None:
        """Raises Unfit where `data` is no BTF of version 1, little-endian."""
        if len(data) < _HEADER.size:
            raise Unfit(f"its .BTF has {len(data)} bytes")
        magic, version, _, header, type_at, type_bytes, text_at, text_bytes = _HEADER.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise Unfit("its .BTF is of another kind or version", "compile it with clang 14 to 19")
        size = len(data)
        if header < _HEADER.size or header + type_at + type_bytes > size or header + text_at + text_bytes > size:
            raise Unfit(f"types and names of its .BTF do not fit its {size:,} bytes")
        self._text = data[header + text_at : header + text_at + text_bytes]
        self._types = [_VOID]
        self._read(data[header + type_at : header + type_at + type_bytes])
        self._strings: dict[int, str] = {}

    def _read(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if len(self._types) >= MAX_TYPES:
                raise Unfit(f"it has more than {MAX_TYPES:,} types", "include fewer headers")
            if at + _TYPE.size > len(data):
                raise Unfit(f"type {len(self._types)} is cut off")
            name, info, word = _TYPE.unpack_from(data, at)
            number, count = info >> 24 & 31, info & 0xFFFF
            if not 1 <= number < len(_KINDS):
                raise Unfit(f"type {len(self._types)} is of kind {number}", "compile it with clang 14 to 19")
            kind = _KINDS[number]
            part, tail = _PART.get(kind), _TAIL.get(kind, 0)
            begin = at + _TYPE.size
            at = begin + (part.size * count if part else tail)
            if at > len(data):
                raise Unfit(f"type {len(self._types)} is cut off")
            parts = tuple(part.iter_unpack(data[begin:at])) if part else ()
            extra = struct.unpack_from(f"<{tail // 4}I", data, begin) if tail else ()
            self._types.append(Type(kind, name, word, bool(info >> 31), parts, extra))

    def __len__(self) -> int:
        return len(self._types)

    def __getitem__(self, type_id: int) -> Type:
        if not 0 <= type_id < len(self._types):
            raise Unfit(f"it refers to type {type_id} of {len(self._types)}")
        return self._types[type_id]

    def string(self, at: int) -> str:
        """The string at an offset of the string section, at most MAX_STRING bytes of it."""
        if at not in self._strings:
            if at >= len(self._text):
                raise Unfit(f"it refers to a name at {at} of {len(self._text)} bytes of names")
            end = self._text.find(b"\0", at, at + MAX_STRING)
            self._strings[at] = printable(self._text[at : end if end >= 0 else at + MAX_STRING])
        return self._strings[at]

    def name(self, type_id: int) -> str:
        """A type's name; empty where it has none."""
        return self.string(self[type_id].name_at)

    def plain(self, type_id: int) -> tuple[int, Type]:
        """The type (id, type) behind typedef, const, volatile, restrict and tags."""
        for _ in range(MAX_CHAIN):
            t = self[type_id]
            if t.kind not in MODIFIERS:
                return type_id, t
            type_id = t.word
        raise Unfit(f"type {type_id} leads to itself or through more than {MAX_CHAIN} others")

    def modifiers(self, type_id: int) -> frozenset[Kind]:
        """What stands before the plain type."""
        found = set()
        for _ in range(MAX_CHAIN):
            t = self[type_id]
            if t.kind not in MODIFIERS:
                break
            found.add(t.kind)
            type_id = t.word
        return frozenset(found)

    def size(self, type_id: int) -> int:
        """Bytes of a type. Raises Unfit for one that has no size."""
        many = 1
        for _ in range(MAX_CHAIN):
            _, t = self.plain(type_id)
            match t.kind:
                case Kind.INT | Kind.ENUM | Kind.ENUM64 | Kind.STRUCT | Kind.UNION | Kind.FLOAT | Kind.DATASEC:
                    return many * t.word
                case Kind.PTR:
                    return many * POINTER_BYTES
                case Kind.ARRAY:
                    many, type_id = many * t.extra[2], t.extra[0]
                case _:
                    raise Unfit(f"{self.describe(type_id)} has no size")
        raise Unfit(f"type {type_id} is an array of more than {MAX_CHAIN} dimensions")

    def field(self, t: Type, index: int) -> Field:
        """Member `index` of a struct or union."""
        name, type_id, at = t.parts[index]
        return Field(self.string(name), type_id, at & 0xFF_FFFF if t.flag else at, at >> 24 if t.flag else 0)

    def variables(self, t: Type) -> tuple[Variable, ...]:
        """Variables of a data section. An id that is no variable's raises Unfit."""
        out = []
        for i, at, size in t.parts:
            var = self[i]
            if var.kind != Kind.VAR:
                raise Unfit(f"type {i} of a data section is a {var.kind.name.lower()}, no variable")
            out.append(Variable(self.string(var.name_at), var.word, at, size))
        return tuple(out)

    def enumerators(self, t: Type) -> dict[str, int]:
        """Names and values of an enum."""
        if t.kind == Kind.ENUM:
            return {self.string(n): _signed(v, 32) if t.flag else v for n, v in t.parts}
        return {self.string(n): _signed(v | h << 32, 64) if t.flag else v | h << 32 for n, v, h in t.parts}

    def section(self, name: str) -> Type | None:
        """The data section of that name."""
        want = name.encode() + b"\0"
        return next((t for t in self._types if t.kind == Kind.DATASEC and self._text.startswith(want, t.name_at)), None)

    def signed(self, t: Type) -> bool:
        """An integer or enum that has negative values."""
        return bool(t.extra[0] >> 24 & _SIGNED) if t.kind == Kind.INT else t.flag

    def boolean(self, t: Type) -> bool:
        return t.kind == Kind.INT and bool(t.extra[0] >> 24 & _BOOL)

    def character(self, t: Type) -> bool:
        """`char` itself, of which text is made; not the one-byte numbers. clang tells it by name alone."""
        return (
            t.kind == Kind.INT and t.word == 1 and (bool(t.extra[0] >> 24 & _CHAR) or self.string(t.name_at) == "char")
        )

    def describe(self, type_id: int) -> str:
        """A type as C would say it, as far as an error needs it."""
        t = self[type_id]
        name = self.string(t.name_at)
        match t.kind:
            case Kind.VOID:
                return "void"
            case Kind.PTR:
                inner = self[t.word]
                return f"{self.string(inner.name_at) or inner.kind.name.lower()} *"
            case Kind.STRUCT | Kind.UNION | Kind.ENUM | Kind.FWD:
                return f"{'struct' if t.kind == Kind.FWD else t.kind.name.lower()} {name or '(no name)'}"
            case Kind.ARRAY:
                return f"an array of {t.extra[2]}"
        return name or t.kind.name.lower()


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
