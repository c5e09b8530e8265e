"""What a comparison shows: of both operands, where it holds and where it does not.

Either side may be impossible; then the branch is decided. A 32-bit comparison narrows the views of the low half, and
the whole only through `values.narrow`: it says nothing of the high half.
"""

from __future__ import annotations

from .values import M32, M64, MAX32, MAX64, MIN32, MIN64, Scalar, narrow

Pair = tuple[Scalar, Scalar]


def outcomes(name: str, bits: int, a: Scalar, b: Scalar) -> tuple[Pair | None, Pair | None]:
    """`a name b` of isa.Kind.JUMP: the operands where it holds, and where it does not; None: impossible."""
    match name:
        case "jeq":
            return _equal(a, b, bits), _different(a, b, bits)
        case "jne":
            return _different(a, b, bits), _equal(a, b, bits)
        case "jset":
            return _share_bits(a, b, bits), _share_none(a, b, bits)
        case "jlt" | "jslt":
            return _less(a, b, bits, name == "jslt", 1), _turned(_less(b, a, bits, name == "jslt", 0))
        case "jle" | "jsle":
            return _less(a, b, bits, name == "jsle", 0), _turned(_less(b, a, bits, name == "jsle", 1))
        case "jgt" | "jsgt":
            return _turned(_less(b, a, bits, name == "jsgt", 1)), _less(a, b, bits, name == "jsgt", 0)
        case "jge" | "jsge":
            return _turned(_less(b, a, bits, name == "jsge", 0)), _less(a, b, bits, name == "jsge", 1)
    raise ValueError(f"{name} is no comparison")


def _turned(pair: Pair | None) -> Pair | None:
    return pair and (pair[1], pair[0])


def _between(a: Scalar, low: int, high: int, bits: int, signed: bool) -> Scalar | None:
    """`a`, known to be from low to high in one of its ranges."""
    at = (4 if signed else 2) if bits == 64 else 8 if signed else 6
    if low <= a[at] and a[at + 1] <= high:
        return a
    if low > a[at + 1] or high < a[at]:
        return None
    views: list[int] = [*a]
    views[at : at + 2] = max(low, a[at]), min(high, a[at + 1])
    return narrow(*views)


def _bits(a: Scalar, value: int, mask: int) -> Scalar | None:
    """`a`, with other known bits."""
    views: list[int] = [*a]
    views[:2] = value, mask
    return a if (value, mask) == a[:2] else narrow(*views)


def _less(a: Scalar, b: Scalar, bits: int, signed: bool, strictly: int) -> Pair | None:
    """a + strictly <= b."""
    if signed:
        ends, least, most = (4, MIN64, MAX64) if bits == 64 else (8, MIN32, MAX32)
    else:
        ends, least, most = (2, 0, M64) if bits == 64 else (6, 0, M32)
    below = _between(a, least, b[ends + 1] - strictly, bits, signed)
    above = _between(b, a[ends] + strictly, most, bits, signed)
    return (below, above) if below and above else None


def _equal(a: Scalar, b: Scalar, bits: int) -> Pair | None:
    same = M64 if bits == 64 else M32
    if (a.value ^ b.value) & ~a.mask & ~b.mask & same:
        return None
    value, mask = (a.value | b.value) & same, a.mask & b.mask & same
    first = 2 if bits == 64 else 6
    # of every range the lower end stands at an even place, the upper end at the next
    common = [min(a[i], b[i]) if i % 2 else max(a[i], b[i]) for i in range(first, 10)]
    known: list[Scalar | None] = []
    for x in (a, b):
        views: list[int] = [x.value & ~same | value, x.mask & ~same | mask, *x[2:first], *common, x.link]
        known.append(narrow(*views))
    one, other = known
    return (one, other) if one and other else None


def _different(a: Scalar, b: Scalar, bits: int) -> Pair | None:
    """Only a number at the end of a range can be taken from it."""
    one, other = _without(a, b, bits), _without(b, a, bits)
    return (one, other) if one and other else None


def _without(a: Scalar, b: Scalar, bits: int) -> Scalar | None:
    if b.mask & (M64 if bits == 64 else M32):
        return a
    views = list(a)
    for at in (2, 4) if bits == 64 else (6, 8):
        # a range that is only this number is turned inside out, which narrow takes as empty
        if a[at] == b[at]:
            views[at] += 1
        if a[at + 1] == b[at]:
            views[at + 1] -= 1
    return a if views == list(a) else narrow(*views)


def _share_bits(a: Scalar, b: Scalar, bits: int) -> Pair | None:
    """a & b is not 0."""
    same = M64 if bits == 64 else M32
    both = (a.value | a.mask) & (b.value | b.mask) & same
    if not both:
        return None
    if both & both - 1:
        # which of them is not known, but a number with any of these bits is no smaller than the lowest
        one, other = (_between(x, both & -both, same, bits, False) for x in (a, b))
        return (one, other) if one and other else None
    one, other = _bits(a, a.value | both, a.mask & ~both), _bits(b, b.value | both, b.mask & ~both)
    return (one, other) if one and other else None


def _share_none(a: Scalar, b: Scalar, bits: int) -> Pair | None:
    """a & b is 0."""
    same = M64 if bits == 64 else M32
    if a.value & b.value & same:
        return None
    one, other = _bits(a, a.value, a.mask & ~(b.value & same)), _bits(b, b.value, b.mask & ~(a.value & same))
    return (one, other) if one and other else None
