"""Maps from the BTF of section .maps, as libbpf defines them: numbers are array lengths, types are pointees."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..c_header import map_kind_name
from ..maps import FIXED_VALUE_BYTES, MAX_ENTRIES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Map, MapFlag, MapKind, TypeLayout
from . import layouts
from .btf import Btf, Kind, Variable
from .unfit import Unfit, nearest

SECTION = ".maps"
INDEX_BYTES = 4
MAX_MAPS = 64
_ATTRIBUTES = ("type", "key", "value", "key_size", "value_size", "max_entries", "map_flags")
_KINDS = {map_kind_name(k): k for k in MapKind}
_ELSEWHERE = {
    3: ("BPF_MAP_TYPE_PROG_ARRAY", "call functions instead of tail calls"),
    4: ("BPF_MAP_TYPE_PERF_EVENT_ARRAY", "ms_emit exports the event's row"),
    5: ("BPF_MAP_TYPE_PERCPU_HASH", "a BPF_MAP_TYPE_HASH is per worker unless it is MS_F_SHARED"),
    6: ("BPF_MAP_TYPE_PERCPU_ARRAY", "a BPF_MAP_TYPE_ARRAY is per worker unless it is MS_F_SHARED"),
    9: ("BPF_MAP_TYPE_LRU_HASH", "use BPF_MAP_TYPE_HASH, and delete what is done"),
    10: ("BPF_MAP_TYPE_LRU_PERCPU_HASH", "use BPF_MAP_TYPE_HASH, and delete what is done"),
    27: ("BPF_MAP_TYPE_RINGBUF", "ms_emit exports the event's row"),
}
"""Kinds of the kernel's that people will try, and what does their work here."""


def of_section(btf: Btf, size: int) -> dict[int, Map]:
    """Byte offset in .maps, of `size` bytes → the map that is defined there, in order of offset."""
    section = btf.section(SECTION)
    if section is None:
        if size:
            raise Unfit("its maps have no types", "compile it with -g")
        return {}
    found: dict[int, Map] = {}
    if len(section.parts) > MAX_MAPS:
        raise Unfit(f"it has {len(section.parts):,} maps", f"use at most {MAX_MAPS}")
    for v in sorted(btf.variables(section), key=lambda v: v.offset):
        if v.offset in found or v.offset >= size:
            raise Unfit(f"map {v.name} is at {v.offset} of {size} bytes, or has another's place")
        found[v.offset] = _define(btf, v)
    return found


@dataclass
class _Definition:
    """What a map's struct says: numbers by attribute, types by `key` and `value`."""

    numbers: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)


def _read(btf: Btf, v: Variable) -> _Definition:
    _, t = btf.plain(v.type)
    if t.kind != Kind.STRUCT:
        raise Unfit(f"map {v.name} is {btf.describe(v.type)}", 'define it as struct { … } NAME SEC(".maps")')
    out = _Definition()
    for i in range(len(t.parts)):
        f = btf.field(t, i)
        if f.name not in _ATTRIBUTES:
            todo = nearest(f.name, _ATTRIBUTES, f"a map has {', '.join(_ATTRIBUTES)}")
            raise Unfit(f"map {v.name} says {f.name}, which no map has here", todo)
        if f.name in out.types or f.name in out.numbers:
            raise Unfit(f"map {v.name} says {f.name} twice", "say it once")
        _, pointer = btf.plain(f.type)
        if pointer.kind != Kind.PTR:
            raise Unfit(f"{f.name} of map {v.name} is {btf.describe(f.type)}", "use __uint(…) and __type(…)")
        if f.name in ("key", "value"):
            out.types[f.name] = pointer.word
            continue
        _, array = btf.plain(pointer.word)
        if array.kind != Kind.ARRAY:
            raise Unfit(f"{f.name} of map {v.name} is no number", f"use __uint({f.name}, …)")
        out.numbers[f.name] = array.extra[2]
    return out


def _define(btf: Btf, v: Variable) -> Map:
    said = _read(btf, v)
    kind = _kind(v.name, said.numbers.get("type"))
    flags = said.numbers.get("map_flags", 0)
    if flags & ~sum(MapFlag):
        known = "BPF_F_RDONLY_PROG, MS_F_SHARED, MS_F_AGGREGATE"
        raise Unfit(f"map {v.name} has flags {flags & ~sum(MapFlag):#x}", f"a map may have {known}")
    aggregate = bool(flags & MapFlag.AGGREGATE) or kind in (MapKind.HIST, MapKind.STATS)
    read_only = bool(flags & MapFlag.READ_ONLY) or kind == MapKind.FEEDBACK
    if kind == MapKind.FEEDBACK and flags & (MapFlag.AGGREGATE | MapFlag.SHARED):
        raise Unfit(f"map {v.name} is a feedback map with flags {flags:#x}", "feedback is the engine's: drop them")
    if aggregate and read_only:
        raise Unfit(f"map {v.name} is an aggregation that nobody may write", "drop BPF_F_RDONLY_PROG")
    indexed = kind in (MapKind.ARRAY, MapKind.FEEDBACK)
    fixed = FIXED_VALUE_BYTES.get(kind, 0)
    key_size, key = _side(btf, v.name, said, "key", INDEX_BYTES if indexed else 0)
    value_size, value = _side(btf, v.name, said, "value", fixed)
    if indexed and key_size != INDEX_BYTES:
        raise Unfit(f"map {v.name} has keys of {key_size} bytes", "an array's key is a __u32")
    if fixed and value_size != fixed:
        raise Unfit(f"map {v.name} has values of {value_size} bytes", f"use struct ms_{kind.name.lower()}, or none")
    _within(v.name, "keys of {} bytes", key_size, MAX_KEY_BYTES)
    _within(v.name, "values of {} bytes", value_size, fixed or MAX_VALUE_BYTES)
    entries = said.numbers.get("max_entries")
    if entries is None:
        raise Unfit(f"map {v.name} does not say max_entries", "add __uint(max_entries, …)")
    _within(v.name, "max_entries {}", entries, MAX_ENTRIES)
    return Map(
        v.name,
        kind,
        key_size,
        value_size,
        entries,
        shared=bool(flags & MapFlag.SHARED),
        aggregate=aggregate,
        read_only=read_only,
        key=key,
        value=None if fixed else value,
    )


def _kind(name: str, number: int | None) -> MapKind:
    if number is None:
        raise Unfit(f"map {name} does not say its type", "add __uint(type, BPF_MAP_TYPE_HASH), or another kind")
    if number in _KINDS.values():
        return MapKind(number)
    said, todo = _ELSEWHERE.get(number, (f"type {number}", f"kinds are {', '.join(_KINDS)}"))
    raise Unfit(f"map {name} is a {said}, which does not exist here", todo)


def _side(btf: Btf, name: str, said: _Definition, side: str, default: int) -> tuple[int, TypeLayout | None]:
    """(bytes, leaves if a type is given) of a map's key or value; `default` bytes where the kind says them."""
    size = said.numbers.get(f"{side}_size")
    if side not in said.types:
        if size is None and not default:
            raise Unfit(f"map {name} does not say its {side}", f"add __type({side}, …)")
        return default if size is None else size, None
    type_id = said.types[side]
    of = btf.size(type_id)
    if size is not None and size != of:
        raise Unfit(f"map {name} says {side}_size {size}, but its {side} type has {of} bytes", "say one of them")
    if of > MAX_VALUE_BYTES:
        return of, None  # too large: refused, or one of the fixed kinds, whose leaves are known
    return of, layouts.of_type(btf, type_id)


def _within(name: str, what: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise Unfit(f"map {name} has {what.format(f'{value:,}')}", f"keep it between 1 and {most:,}")
