"""A program as bytes: what a segment's slot carries, and a trace keeps beside the name.

    8 bytes   magic "MSPROG" and version, u16
    u32, u32  bytes of the description, bytes of the code
    u32       CRC-32 of all that follows
    …         description, JSON; code, 8 bytes a slot

Bytes from elsewhere are checked before use: sizes, types and ranges here, meaning by the verifier.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from ...store.errors import Refused
from . import maps
from .isa import SLOT, decode, encode
from .maps import Map, MapKind, Member, TypeLayout
from .program import HOOK_IDS, MAX_SLOTS, PICK, Cell, Entry, Function, Program, SourceLine

VERSION = 1
_HEAD = struct.Struct("<6sHIII")
_MAGIC = b"MSPROG"
MAX_DESCRIPTION = 1 << 20


def pack(program: Program) -> bytes:
    """The image of a program."""
    description = json.dumps(_describe(program), separators=(",", ":")).encode()
    body = description + encode(program.insns)
    return _HEAD.pack(_MAGIC, VERSION, len(description), len(body) - len(description), zlib.crc32(body)) + body


def unpack(image: bytes, what: str = "program image", again: str = "attach the program again") -> Program:
    """The program of an image; not verified. Raises Refused, naming `what`, for anything that `pack` does not write."""
    if len(image) < _HEAD.size:
        raise Refused(what, f"it has {len(image)} bytes and no header", again)
    magic, version, described, code, crc = _HEAD.unpack_from(image)
    body = image[_HEAD.size :]
    if magic != _MAGIC or version != VERSION:
        raise Refused(what, "it is of another kind or version", "use the megascope of the engine's version")
    if described > MAX_DESCRIPTION or code > MAX_SLOTS * SLOT or described + code != len(body):
        raise Refused(what, f"its sizes ({described} and {code}) do not fit its {len(body)} bytes", again)
    if zlib.crc32(body) != crc:
        raise Refused(what, "its checksum is wrong", again)
    try:
        return _read(json.loads(body[:described]), body[described:])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise Refused(what, f"its description is not one of a program ({e})", again) from e


def _describe(p: Program) -> dict[str, Any]:
    return {
        "name": p.name,
        "kind": p.kind,
        "emit_limit": p.emit_limit,
        "sample": p.sample,
        "feedback": [[c.map, c.source, c.quantile, c.window_ns, c.keyed] for c in p.feedback],
        "source": p.source,
        "entries": [[e.name, list(e.hooks), e.pc] for e in p.entries],
        "functions": [[f.pc, f.name] for f in p.functions],
        "lines": [[x.pc, x.file, x.line, x.column, x.text] for x in p.lines],
        "maps": [_describe_map(m) for m in p.maps],
    }


def _describe_map(m: Map) -> dict[str, Any]:
    def layout(t: TypeLayout | None) -> Any:
        return t and [t.name, t.size, [[*vars(x).values()] for x in t.members]]

    return vars(m) | {"kind": int(m.kind), "initial": m.initial.hex(), "key": layout(m.key), "value": layout(m.value)}


def _whole(value: Any, low: int, high: int, name: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, not {low} to {high}")
    return value


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise ValueError(f"{name} is no text")
    return value


def _flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} is neither true nor false")
    return value


def _read(d: dict[str, Any], code: bytes) -> Program:
    insns = decode(code)
    pc = (0, max(len(insns) - 1, 0), "a slot")
    hooks = HOOK_IDS | {PICK}
    if any(h not in hooks for _, hs, _ in d["entries"] for h in hs):
        raise ValueError("an entry names a hook that the ABI does not")
    limit = d["emit_limit"]
    return Program(
        _text(d["name"], "name"),
        insns,
        tuple(Entry(_text(n, "an entry"), tuple(hs), _whole(at, *pc)) for n, hs, at in d["entries"]),
        tuple(_read_map(m) for m in d["maps"]),
        tuple(Function(_whole(at, *pc), _text(n, "a function")) for at, n in d["functions"]),
        {"observe": "observe", "advise": "advise"}[d["kind"]],
        tuple(
            SourceLine(_whole(at, *pc), _text(f, "a file"), int(line), int(column), _text(t, "a line"))
            for at, f, line, column, t in d["lines"]
        ),
        _text(d["source"], "source"),
        None if limit is None else _whole(limit, 0, 1 << 40, "emit_limit"),
        _whole(d["sample"], 1, 1 << 32, "sample"),
        tuple(_cell(*c) for c in d["feedback"]),
    )


def _cell(fed: Any, source: Any, quantile: Any, window: Any, keyed: Any) -> Cell:
    if quantile is not None and not (isinstance(quantile, float) and 0 < quantile < 1):
        raise ValueError(f"a quantile {quantile!r}")
    names = _text(fed, "a feedback map"), _text(source, "its source")
    return Cell(*names, quantile, _whole(window, 1, 1 << 53, "a window"), _flag(keyed, "keyed"))


def _read_map(m: dict[str, Any]) -> Map:
    kind = MapKind(m["kind"])
    indexed = kind in (MapKind.ARRAY, MapKind.FEEDBACK)
    fixed = maps.FIXED_VALUE_BYTES.get(kind, 0)
    value_size = _whole(m["value_size"], fixed or 1, fixed or maps.MAX_VALUE_BYTES, "value_size")
    initial = bytes.fromhex(m["initial"])
    if initial and (kind != MapKind.ARRAY or len(initial) != value_size or m["max_entries"] != 1):
        raise ValueError("initial contents are for a global section only")
    return Map(
        _text(m["name"], "a map's name"),
        kind,
        _whole(m["key_size"], 4 if indexed else 1, 4 if indexed else maps.MAX_KEY_BYTES, "key_size"),
        value_size,
        _whole(m["max_entries"], 1, maps.MAX_ENTRIES, "max_entries"),
        _flag(m["shared"], "shared"),
        _flag(m["aggregate"], "aggregate"),
        _flag(m["read_only"], "read_only"),
        initial,
        _read_layout(m["key"]),
        _read_layout(m["value"]),
    )


def _read_layout(t: Any) -> TypeLayout | None:
    if t is None:
        return None
    name, size, members = t
    size = _whole(size, 0, maps.FIXED_VALUE_BYTES[MapKind.HIST], "a type's size")
    return TypeLayout(_text(name, "a type's name"), size, tuple(_read_member(m, size) for m in members))


def _read_member(m: Any, size: int) -> Member:
    name, offset, width, kind, count, bit, bits = m
    if kind not in ("u", "i", "b", "c") or (kind != "c" and width not in (1, 2, 4, 8)):
        raise ValueError(f"a member of kind {kind!r} and {width!r} bytes")
    _whole(count, 1, size, "a member's count")
    _whole(width, 1, size, "a member's size")
    _whole(offset, 0, size - width * count, "a member's offset")
    _whole(bits, 0, 8 * width, "a member's bits")
    return Member(_text(name, "a member"), offset, width, kind, count, _whole(bit, 0, 8 * width - bits, "bits"), bits)
