"""Loads, stores and atomics: whose memory, inside it, aligned, and allowed.

Each function executes one instruction on a `Walk` and returns its `needs.Step`; any may raise Rejected. Frames, values
and the context begin at addresses that are multiples of 8 (a frame: ends), so that alignment is a matter of offsets.
"""

from __future__ import annotations

from functools import lru_cache

from ....store.tables import EVENT_ROW
from ..isa import R0, Kind
from ..maps import MapKind
from ..program import STACK_BYTES
from ..verdict import Access, Region, Rejected
from . import stack
from .needs import Step, slots
from .registers import CHECKED, Dead, Pointer, To, bytes_from, outside, read_only
from .simt import Update
from .structure import Op
from .transfer import sign_extend
from .values import UNKNOWN, Scalar, constant, linked, of_bytes
from .walk import Walk

_STACK = Access(Region.STACK)
_COLUMNS = {
    at: (c.name, EVENT_ROW.offsets[c.name], c.bits // 8)
    for c in EVENT_ROW
    for at in range(EVENT_ROW.offsets[c.name], EVENT_ROW.offsets[c.name] + c.bits // 8)
}
"""by byte of the row: its column's name, offset and size"""


@lru_cache(16)
def _unknown(size: int, signed: bool) -> Scalar:
    return sign_extend(UNKNOWN, size) if signed else of_bytes(size)


def load(walk: Walk, op: Op) -> Step:
    signed = op.kind is Kind.LOADSX
    at = _address(walk, op.src, op)
    written, base = walk.place(op.dst), walk.place(op.src)
    if at.to is To.STACK:
        walk.touch(_STACK)
        return _load_stack(walk, op, at, signed)
    if at.to is To.CONTEXT:
        _check_context(walk, op, at)
        walk.registers[op.dst] = _unknown(op.size, signed)
    else:
        walk.registers[op.dst] = _load_value(walk, op, at, signed)
    return written, base, 0, 0, 0


def store(walk: Walk, op: Op) -> Step:
    at = _address(walk, op.dst, op)
    content: Scalar | Pointer = op.operand
    read = walk.place(op.dst)
    if op.register:
        content = walk.read(op.src)
        read |= walk.place(op.src)
    if at.to is To.STACK:
        walk.touch(_STACK)
        return _store_stack(walk, op, at, content)
    _check_writable(walk, op, at)
    if isinstance(content, Pointer):
        raise walk.rejected(f"{walk.describe(op.src)} is stored in a map; what a pointer is must not show", op.src)
    _check_value(walk, op, at)
    walk.facts.effects.depends(walk.pc, f"it stores to map {walk.maps[at.map].name}")
    return 0, read, 0, 0, 0


def atomic(walk: Walk, op: Op) -> Step:
    at = _address(walk, op.dst, op)
    use = "is the operand of an atomic"
    walk.number(op.src, use)
    read = walk.place(op.dst) | walk.place(op.src)
    into = op.src
    if op.name == "cmpxchg":
        walk.number(R0, "is compared by cmpxchg")
        read, into = read | walk.place(R0), R0
    old, places = of_bytes(op.size), 0
    if at.to is To.STACK:
        walk.touch(_STACK)
        old, places = _atomic_stack(walk, op, at)
    else:
        _check_writable(walk, op, at)
        low, high = _check_value(walk, op, at)
        _effect_of_atomic(walk, op, at, low, high)
    if not op.fetch:
        return 0, read | places, 0, 0, 0
    walk.registers[into] = old
    return walk.place(into), read | places, walk.place(into), places, 0


def _address(walk: Walk, register: int, op: Op) -> Pointer:
    """The pointer that is the base of an access."""
    content = walk.read(register)
    if isinstance(content, Scalar):
        raise walk.rejected(f"{walk.describe(register)} is used as an address", register)
    if content.to in CHECKED:
        raise walk.rejected(f"{walk.describe(register)} is used as an address", register, "compare it with 0 before")
    if content.to is To.MAP:
        raise walk.rejected(f"{walk.describe(register)} is reached only through helpers", register)
    low = op.size - 1
    if (content.offset.value + op.off) & low or content.offset.mask & low:
        where, is_it = f"offset {content.offset.smin + op.off}", "is"
        if content.offset.mask:
            where, is_it = "an offset", "may be"
        what = f"{op.size} bytes at {where} of {content.to.value}, which {is_it} no multiple of {op.size}"
        raise walk.rejected(what, register)
    return content


# The context


def _check_context(walk: Walk, op: Op, at: Pointer) -> None:
    if at.offset.mask:
        raise walk.rejected("the context is read at an offset that is not constant", op.src)
    low = at.offset.smin + op.off
    if not 0 <= low < 64:
        raise walk.rejected(outside(at, low, low + op.size, "the context (0 to 63)"), op.src)
    name, begin, size = _COLUMNS[low]
    if low + op.size > begin + size:
        raise walk.rejected(
            f"{bytes_from(low, low + op.size)} of the context reach beyond {name}", op.src, "read one column"
        )
    walk.touch(Access(Region.CONTEXT, offset=low, size=op.size))
    walk.facts.columns.add(name)


def _check_writable(walk: Walk, op: Op, at: Pointer) -> None:
    if at.to is To.CONTEXT:
        raise walk.rejected("the context is read-only", op.dst)
    if at.to is To.CLOSED or read_only(walk.maps[at.map]):
        raise walk.rejected(f"{walk.describe(op.dst)}, which is read-only, is written", op.dst)


# Values of maps


def _check_value(walk: Walk, op: Op, at: Pointer) -> tuple[int, int]:
    """First byte of the value that the access can touch, and the one after the last."""
    low, high = value_range(walk, at, op.off, op.size, op.src if op.kind in (Kind.LOAD, Kind.LOADSX) else op.dst)
    walk.touch(Access(Region.VALUE, at.map), at.to is To.CLOSED)
    return low, high


def value_range(walk: Walk, at: Pointer, off: int, size: int, register: int) -> tuple[int, int]:
    """Where `size` bytes at an offset of a value's pointer can be: [low, high), inside the value."""
    m = walk.maps[at.map]
    low, high = at.offset.smin + off, at.offset.smax + off + size
    if low < 0 or high > m.value_size:
        where = outside(at, low, high, f"a value of map {m.name} (0 to {m.value_size - 1})")
        raise walk.rejected(where, register)
    return low, high


def _load_value(walk: Walk, op: Op, at: Pointer, signed: bool) -> Scalar:
    low, _ = _check_value(walk, op, at)
    m = walk.maps[at.map]
    if at.to is To.VALUE and not read_only(m):
        walk.facts.effects.depends(walk.pc, f"it reads live values of map {m.name}")
    if m.read_only and m.initial and not at.offset.mask:
        return constant(int.from_bytes(m.initial[low : low + op.size], "little", signed=signed))
    return _unknown(op.size, signed)


def _effect_of_atomic(walk: Walk, op: Op, at: Pointer, low: int, high: int) -> None:
    m = walk.maps[at.map]
    by = f"a {op.bits}-bit atomic {op.name}"
    if op.fetch:
        walk.facts.effects.depends(walk.pc, f"{by} fetches what it finds in map {m.name}")
    elif m.kind != MapKind.ARRAY:
        walk.facts.effects.depends(walk.pc, f"{by} is on a value of map {m.name}, which is no array")
    else:
        walk.facts.effects.update(Update(walk.pc, at.map, op.name, op.size, low, high, by))


# The stack


def stack_range(walk: Walk, at: Pointer, off: int, size: int, register: int) -> tuple[int, int]:
    """Where `size` bytes at an offset of a stack pointer can be: [low, high), inside its frame."""
    low, high = at.offset.smin + off, at.offset.smax + off + size
    if low < -STACK_BYTES or high > 0:
        raise walk.rejected(outside(at, low, high, f"the stack frame (-{STACK_BYTES} to -1)"), register)
    start, depth = walk.state.frames[at.ident].start, walk.facts.depth
    depth[start] = max(depth.get(start, 0), -low)
    return low, high


def _load_stack(walk: Walk, op: Op, at: Pointer, signed: bool) -> Step:
    low, high = stack_range(walk, at, op.off, op.size, op.src)
    held = walk.state.frames[at.ident].stack
    written, read = walk.place(op.dst), walk.place(op.src)
    if at.offset.mask:
        check_written(walk, at, low, high, op.src)
        walk.registers[op.dst] = _unknown(op.size, signed)
        return written, read | slots(at.ident, stack.span(low, high)), 0, 0, 0
    place = slots(at.ident, 1 << stack.slot_of(low))
    slot = held.get(stack.slot_of(low))
    if isinstance(slot, Pointer) and op.size == 8:
        walk.registers[op.dst] = slot
    else:
        number = stack.load(slot, low, op.size, signed) if isinstance(slot, stack.Bytes) else None
        if number is None:
            raise _unwritten(walk, at, low, high, op.src)
        if op.size == 8 and number.mask and not number.link:
            number = linked(number, walk.fresh())
            held[stack.slot_of(low)] = stack.Bytes(stack.WHOLE, number)
        walk.registers[op.dst] = number
    return written, read | place, written, place, 0


def _store_stack(walk: Walk, op: Op, at: Pointer, content: Scalar | Pointer) -> Step:
    low, high = stack_range(walk, at, op.off, op.size, op.dst)
    held = walk.state.frames[at.ident].stack
    source = walk.place(op.src) if op.register else 0
    read = walk.place(op.dst) | source
    if isinstance(content, Pointer):
        if op.size != 8 or at.offset.mask:
            how = "in part" if op.size != 8 else "at an offset that is not constant"
            raise walk.rejected(f"{walk.describe(op.src)} is spilled {how}", op.src)
        if content.to is To.STACK and content.ident > at.ident:
            raise walk.rejected("a pointer to this function's stack would outlive the call", op.src)
        held[stack.slot_of(low)] = content
    elif at.offset.mask:
        stack.blur(held, low, high, walk.pc)
        return 0, read, 0, 0, 0
    else:
        if op.size == 8 and op.register:
            content = walk.copied(op.src, content)
        stack.store(held, low, op.size, content)
    place = slots(at.ident, 1 << stack.slot_of(low))
    return place if op.size == 8 else 0, read, place, source, 0


def _atomic_stack(walk: Walk, op: Op, at: Pointer) -> tuple[Scalar, int]:
    """What was there before, and the places that were read."""
    low, high = stack_range(walk, at, op.off, op.size, op.dst)
    held = walk.state.frames[at.ident].stack
    check_written(walk, at, low, high, op.dst)
    if at.offset.mask:
        stack.blur(held, low, high, walk.pc)
        return of_bytes(op.size), slots(at.ident, stack.span(low, high))
    slot = held[stack.slot_of(low)]
    old = stack.load(slot, low, op.size, False) if isinstance(slot, stack.Bytes) else None
    stack.store(held, low, op.size, UNKNOWN)
    return old or UNKNOWN, slots(at.ident, 1 << stack.slot_of(low))


def check_written(walk: Walk, at: Pointer, low: int, high: int, register: int) -> None:
    """Every byte in [low, high) of the frame may be read as a number."""
    if stack.unwritten(walk.state.frames[at.ident].stack, low, high) is not None:
        raise _unwritten(walk, at, low, high, register)


def _unwritten(walk: Walk, at: Pointer, low: int, high: int, register: int) -> Rejected:
    """To be raised: something in [low, high) of the frame may not be read as a number."""
    held = walk.state.frames[at.ident].stack
    offset = stack.unwritten(held, low, high)
    slot = held.get(stack.slot_of(low if offset is None else offset))
    if isinstance(slot, Dead):
        return walk.unset(slot, f"what the stack holds at {offset}", register)
    if isinstance(slot, Pointer):
        return walk.rejected(
            f"stack byte {offset} is part of a spilled pointer; what a pointer is must not show", register
        )
    return walk.rejected(f"stack byte {offset} is read before it is written", register)
