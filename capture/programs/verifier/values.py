"""What is known of a number in a register: known bits and ranges, all of which hold at once.

Five views of the same 64 bits: known bits (a tristate number: a bit set in `mask` is unknown, else it is that of
`value`), the unsigned and the signed range, and the unsigned and signed range of the low 32 bits. Each narrows the
others; `narrow` does that, and is the only place where they meet, so that everything else may treat one view at a time.

A set of numbers is described from outside: whatever the register can hold is in all five views, and more may be.
Tristate arithmetic is that of Vishwanathan et al., "Sound, Precise, and Fast Abstract Interpretation with Tristate
Numbers" (CGO 2022).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
SIGN32, SIGN64 = 1 << 31, 1 << 63
MIN32, MAX32, MIN64, MAX64 = -SIGN32, SIGN32 - 1, -SIGN64, SIGN64 - 1


class Scalar(NamedTuple):
    """A number. link: registers and stack slots with the same link (not 0) hold the same number."""

    value: int
    mask: int
    umin: int
    umax: int
    smin: int
    smax: int
    umin32: int
    umax32: int
    smin32: int
    smax32: int
    link: int = 0


UNKNOWN = Scalar(0, M64, 0, M64, MIN64, MAX64, 0, M32, MIN32, MAX32)


@lru_cache(4096)
def constant(value: int) -> Scalar:
    """Exactly this number, given as unsigned or signed 64 bits."""
    u = value & M64
    s, low = u - ((u & SIGN64) << 1), u & M32
    s32 = low - ((low & SIGN32) << 1)
    return Scalar(u, 0, u, u, s, s, low, low, s32, s32)


@lru_cache(64)
def of_bytes(size: int) -> Scalar:
    """Any number of so many bytes, zero-extended."""
    return UNKNOWN if size == 8 else unsigned_range(0, (1 << 8 * size) - 1)


def unsigned_range(low: int, high: int) -> Scalar:
    """Any number from low to high, unsigned, of which there is at least one."""
    return narrow(0, M64, low, high, MIN64, MAX64, 0, M32, MIN32, MAX32) or UNKNOWN


def narrow(
    value: int,
    mask: int,
    umin: int,
    umax: int,
    smin: int,
    smax: int,
    umin32: int,
    umax32: int,
    smin32: int,
    smax32: int,
    link: int = 0,
) -> Scalar | None:
    """The numbers that all views allow, each view made as narrow as the others show; None: there is no such number.

    Every step below is implied by the views, so that no number is lost; two rounds let each view reach every other.
    """
    for _ in range(2):
        # known bits narrow the ranges: unknown bits all 0, or all 1
        top = value | mask
        if value > umin:
            umin = value
        if top < umax:
            umax = top
        low, high = value | mask & SIGN64, top & ~(mask & SIGN64)
        low, high = low - ((low & SIGN64) << 1), high - ((high & SIGN64) << 1)
        if low > smin:
            smin = low
        if high < smax:
            smax = high
        low, high = value & M32, top & M32
        if low > umin32:
            umin32 = low
        if high < umax32:
            umax32 = high
        low, high = low | mask & SIGN32, high & ~(mask & SIGN32)
        low, high = low - ((low & SIGN32) << 1), high - ((high & SIGN32) << 1)
        if low > smin32:
            smin32 = low
        if high < smax32:
            smax32 = high
        # where the high halves of a range's ends agree, its low halves are a range too
        if umin >> 32 == umax >> 32:
            low, high = umin & M32, umax & M32
            umin32, umax32 = low if low > umin32 else umin32, high if high < umax32 else umax32
        if smin >> 32 == smax >> 32:
            low, high = smin & M32, smax & M32
            umin32, umax32 = low if low > umin32 else umin32, high if high < umax32 else umax32
        # where both ends of a range have the same sign, signed and unsigned order agree
        if umin32 & SIGN32 == umax32 & SIGN32:
            sign = (umin32 & SIGN32) << 1
            low, high = umin32 - sign, umax32 - sign
            smin32, smax32 = low if low > smin32 else smin32, high if high < smax32 else smax32
        if (smin32 < 0) == (smax32 < 0):
            low, high = smin32 & M32, smax32 & M32
            umin32, umax32 = low if low > umin32 else umin32, high if high < umax32 else umax32
        # a number's low half bounds how near to the end of a range it can come
        if umin32 or umax32 != M32:
            low, high = umin & ~M32 | umin32, umax & ~M32 | umax32
            umin, umax = low if low > umin else umin, high if high < umax else umax
            low, high = smin & ~M32 | umin32, smax & ~M32 | umax32
            smin, smax = low if low > smin else smin, high if high < smax else smax
        if umin & SIGN64 == umax & SIGN64:
            sign = (umin & SIGN64) << 1
            low, high = umin - sign, umax - sign
            smin, smax = low if low > smin else smin, high if high < smax else smax
        if (smin < 0) == (smax < 0):
            low, high = smin & M64, smax & M64
            umin, umax = low if low > umin else umin, high if high < umax else umax
        if umin > umax or smin > smax or umin32 > umax32 or smin32 > smax32:
            return None
        # bits above the highest in which the ends of a range differ are known
        known = -1 << (umin ^ umax).bit_length() & M64
        if (value ^ umin) & known & ~mask:
            return None
        value, mask = value | umin & known & mask, mask & ~known
        known = -1 << (umin32 ^ umax32).bit_length() & M32
        if (value ^ umin32) & known & ~mask:
            return None
        value, mask = value | umin32 & known & mask, mask & ~known
        if not mask:
            break
    if not mask:
        exact = constant(value)
        inside = (
            umin <= exact.umin <= umax
            and smin <= exact.smin <= smax
            and umin32 <= exact.umin32 <= umax32
            and smin32 <= exact.smin32 <= smax32
        )
        return exact if inside else None
    return Scalar(value, mask, umin, umax, smin, smax, umin32, umax32, smin32, smax32, link)


def within(new: Scalar, old: Scalar) -> bool:
    """Whether every number that `new` allows is allowed by `old`; sound, and exact view by view."""
    return new is old or (
        old.umin <= new.umin
        and new.umax <= old.umax
        and old.smin <= new.smin
        and new.smax <= old.smax
        and old.umin32 <= new.umin32
        and new.umax32 <= old.umax32
        and old.smin32 <= new.smin32
        and new.smax32 <= old.smax32
        and not new.mask & ~old.mask
        and not (new.value ^ old.value) & ~old.mask
    )


def hull(a: Scalar, b: Scalar) -> Scalar:
    """A number that allows what either allows."""
    mask = a.mask | b.mask | a.value ^ b.value
    ends = [max(a[i], b[i]) if i % 2 else min(a[i], b[i]) for i in range(2, 10)]
    views: list[int] = [a.value & ~mask, mask, *ends]
    return narrow(*views) or UNKNOWN


def contains(scalar: Scalar, number: int) -> bool:
    """Whether a concrete 64-bit number is allowed."""
    return within(constant(number), scalar)


def linked(scalar: Scalar, link: int) -> Scalar:
    """The same number under another link; a constant needs none."""
    return Scalar(*scalar[:10], link) if scalar.mask else scalar


def text(scalar: Scalar) -> str:
    """For people: `5`, `0..31`, `-8..8`, `any number`."""
    if not scalar.mask:
        return str(scalar.smin)
    signed, unsigned = (scalar.smin, scalar.smax), (scalar.umin, scalar.umax)
    low, high = min(signed, unsigned, key=lambda ends: ends[1] - ends[0])
    return "any number" if (low, high) == (MIN64, MAX64) else f"{low}..{high}"
