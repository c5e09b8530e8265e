"""What the stack holds: which bytes are written, and what is known of them.

A frame's stack is a dict from slot to content; slot s is the eight bytes from -8(s + 1). A slot holds a spilled
`Pointer`, or `Bytes`: which of the eight are written, and all eight as one number, in which unwritten bytes are not
known. So a narrow store is an insertion of bits and a narrow load an extraction, by the same arithmetic as in
registers, and a spilled number comes back with all that was known of it. Aligned accesses never cross a slot.
"""

from __future__ import annotations

from typing import NamedTuple

from .registers import Dead, Pointer
from .transfer import alu, sign_extend, zero_extend
from .values import M32, M64, MAX64, MIN64, UNKNOWN, Scalar, constant, narrow

SLOTS = 32
WHOLE = 0xFF


class Bytes(NamedTuple):
    """written: bit i for the byte i of the slot. number: all eight, little-endian."""

    written: int
    number: Scalar


Slot = Bytes | Pointer | Dead
Stack = dict[int, Slot]


def slot_of(offset: int) -> int:
    """The slot of a byte below the frame's end."""
    return -offset - 1 >> 3


def span(low: int, high: int) -> int:
    """Slots from byte `low` up to, not including, byte `high`, as bits."""
    first, last = slot_of(high - 1), slot_of(low)
    return (1 << last + 1) - (1 << first)


def store(stack: Stack, offset: int, size: int, number: Scalar) -> None:
    """Write the low bytes of a number. What was left of a spilled pointer there is no longer written."""
    slot, at = slot_of(offset), offset & 7
    if size == 8:
        stack[slot] = Bytes(WHOLE, number)
        return
    old = stack.get(slot)
    written, before = old if isinstance(old, Bytes) else (0, UNKNOWN)
    stack[slot] = Bytes(written | (1 << size) - 1 << at, _insert(before, number, at, size))


def _insert(before: Scalar, number: Scalar, at: int, size: int) -> Scalar:
    """`before`, with `size` of its bytes from byte `at` replaced."""
    shift, every = 8 * at, (1 << 8 * size) - 1
    value = before.value & ~(every << shift) | (number.value & every) << shift
    mask = before.mask & ~(every << shift) | (number.mask & every) << shift
    if size == 4 and at == 0:
        return narrow(value, mask, 0, M64, MIN64, MAX64, *number[6:10]) or UNKNOWN
    if size == 4:
        high = number.umin32 << 32, number.umax32 << 32 | M32, number.smin32 << 32, number.smax32 << 32 | M32
        return narrow(value, mask, *high, *before[6:10]) or UNKNOWN
    return narrow(value, mask, 0, M64, MIN64, MAX64, *UNKNOWN[6:10]) or UNKNOWN


def load(slot: Bytes, offset: int, size: int, signed: bool) -> Scalar | None:
    """The number that a load gives; None: a byte of it was never written."""
    at = offset & 7
    need = (1 << size) - 1 << at
    if slot.written & need != need:
        return None
    if size == 8:
        return slot.number
    number = alu("rsh", 64, slot.number, constant(8 * at)) if at else slot.number
    return sign_extend(number, size) if signed else zero_extend(number, size)


def unwritten(stack: Stack, low: int, high: int) -> int | None:
    """The first byte in [low, high) that holds nothing that may be read as bytes; None: all may be."""
    for offset in range(low, high):
        slot = stack.get(slot_of(offset))
        if not isinstance(slot, Bytes) or not slot.written >> (offset & 7) & 1:
            return offset
    return None


def blur(stack: Stack, low: int, high: int, pc: int) -> None:
    """A number is written somewhere in [low, high) by the instruction at `pc`.

    Nothing is known of these bytes any more, none becomes written, and a pointer spilled there may be none now.
    """
    for slot in range(slot_of(high - 1), slot_of(low) + 1):
        held = stack.get(slot)
        if isinstance(held, Pointer):
            stack[slot] = Dead(f"was a spilled pointer, which the store at instruction {pc} may have hit")
        elif isinstance(held, Bytes):
            stack[slot] = Bytes(held.written, UNKNOWN)
