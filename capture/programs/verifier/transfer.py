"""What arithmetic does to what is known: from every pair of operands that is allowed, the result is allowed.

Each operation is written once, for a width of 32 or 64 bits, on a `View` of that width: known bits, unsigned and
signed range. A 32-bit operation sees the low halves and leaves zeros above. Of a 64-bit operation whose low half
depends on the operands' low halves alone, that half is computed as well: it may be known where the whole is not.

Ranges are computed on whole numbers and then folded into the width (`_unsigned`, `_signed`): a range that is longer
than the width holds, or that would wrap in its middle, becomes every number.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import arithmetic
from .values import M32, M64, MAX32, MAX64, MIN32, MIN64, UNKNOWN, Scalar, constant, narrow

View = tuple[int, int, int, int, int, int]
"""value, mask, umin, umax, smin, smax"""


def _wide(a: Scalar) -> View:
    return a[:6]


def _low(a: Scalar) -> View:
    return a[0] & M32, a[1] & M32, a[6], a[7], a[8], a[9]


def _unsigned(low: int, high: int, bits: int) -> tuple[int, int]:
    base = low & (1 << bits) - 1
    high += base - low
    return (0, (1 << bits) - 1) if high >> bits else (base, high)


def _signed(low: int, high: int, bits: int) -> tuple[int, int]:
    half = 1 << bits - 1
    low, high = _unsigned(low + half, high + half, bits)
    return low - half, high - half


def _trailing_zeros(a: View, bits: int) -> int:
    """How many low bits are 0 whatever the number."""
    some = a[0] | a[1]
    return (some & -some).bit_length() - 1 if some else bits


def _known_low(a: View, bits: int) -> int:
    """How many low bits are known."""
    return (a[1] & -a[1]).bit_length() - 1 if a[1] else bits


def _any(bits: int) -> View:
    return 0, (1 << bits) - 1, 0, (1 << bits) - 1, -1 << bits - 1, (1 << bits - 1) - 1


def _exact(number: int, bits: int) -> View:
    u = number & (1 << bits) - 1
    s = u - ((u >> bits - 1) << bits)
    return u, 0, u, u, s, s


def _of_unsigned(low: int, high: int, bits: int) -> View:
    return 0, (1 << bits) - 1, low, high, -1 << bits - 1, (1 << bits - 1) - 1


def _of_signed(low: int, high: int, bits: int) -> View:
    return 0, (1 << bits) - 1, 0, (1 << bits) - 1, low, high


def _of_bits(value: int, mask: int, bits: int) -> View:
    return value, mask, 0, (1 << bits) - 1, -1 << bits - 1, (1 << bits - 1) - 1


def _add(a: View, b: View, bits: int) -> View:
    every = (1 << bits) - 1
    base = a[0] + b[0]
    unknown = base + a[1] + b[1] ^ base | a[1] | b[1]
    u = _unsigned(a[2] + b[2], a[3] + b[3], bits)
    s = _signed(a[4] + b[4], a[5] + b[5], bits)
    return base & ~unknown & every, unknown & every, *u, *s


def _sub(a: View, b: View, bits: int) -> View:
    every = (1 << bits) - 1
    base = a[0] - b[0]
    unknown = base + a[1] ^ base - b[1] | a[1] | b[1]
    u = _unsigned(a[2] - b[3], a[3] - b[2], bits)
    s = _signed(a[4] - b[5], a[5] - b[4], bits)
    return base & ~unknown & every, unknown & every, *u, *s


def _mul(a: View, b: View, bits: int) -> View:
    # a = known low bits + 2^known * rest, likewise b: the product's low bits follow up to where a rest comes in
    known = min(_known_low(a, bits) + _trailing_zeros(b, bits), _known_low(b, bits) + _trailing_zeros(a, bits), bits)
    low = (1 << known) - 1
    corners = [x * y for x in (a[4], a[5]) for y in (b[4], b[5])]
    u = _unsigned(a[2] * b[2], a[3] * b[3], bits)
    s = _signed(min(corners), max(corners), bits)
    return a[0] * b[0] & low, ((1 << bits) - 1) & ~low, *u, *s


def _div(a: View, b: View, bits: int) -> View:
    if not b[3]:
        return _exact(0, bits)
    return _of_unsigned(a[2] // b[3] if b[2] else 0, a[3] // max(b[2], 1), bits)


def _mod(a: View, b: View, bits: int) -> View:
    if a[3] < b[2] or not b[3]:  # smaller than any divisor; or the divisor is 0
        return a
    return _of_unsigned(0, min(a[3], b[3] - 1) if b[2] else a[3], bits)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def _sdiv(a: View, b: View, bits: int) -> View:
    least = -1 << bits - 1
    if a[4] == least and b[4] <= -1 <= b[5]:
        return _any(bits)  # one quotient does not fit, and wraps
    # for a divisor of one sign the quotient is monotone in either operand, so that its ends are at corners
    divisors = [(max(b[4], 1), b[5]), (b[4], min(b[5], -1))]
    ends = [_quotient(x, y) for low, high in divisors if low <= high for x in (a[4], a[5]) for y in (low, high)]
    if b[4] <= 0 <= b[5]:
        ends.append(0)
    return _of_signed(min(ends), max(ends), bits)


def _smod(a: View, b: View, bits: int) -> View:
    # the sign of the dividend, no longer than it, and shorter than the divisor if that is not 0
    limit = (1 << bits) if b[4] <= 0 <= b[5] else max(abs(b[4]), abs(b[5])) - 1
    return _of_signed(max(min(a[4], 0), -limit), min(max(a[5], 0), limit), bits)


def _and(a: View, b: View, bits: int) -> View:
    value = a[0] & b[0]
    mask = (a[0] | a[1]) & (b[0] | b[1]) & ~value
    return value, mask, 0, min(a[3], b[3]), -1 << bits - 1, (1 << bits - 1) - 1


def _or(a: View, b: View, bits: int) -> View:
    value = a[0] | b[0]
    top = (1 << (a[3] | b[3]).bit_length()) - 1
    return value, (a[1] | b[1]) & ~value, max(a[2], b[2]), top, -1 << bits - 1, (1 << bits - 1) - 1


def _xor(a: View, b: View, bits: int) -> View:
    mask = a[1] | b[1]
    top = (1 << (a[3] | b[3]).bit_length()) - 1
    return (a[0] ^ b[0]) & ~mask, mask, 0, top, -1 << bits - 1, (1 << bits - 1) - 1


def _counts(b: View, bits: int) -> tuple[int, int]:
    """The least and the greatest number of bits that a shift may go: counts are masked."""
    if not b[1]:
        return b[0] & bits - 1, b[0] & bits - 1
    return (b[2], b[3]) if b[3] < bits else (0, bits - 1)


def _lsh(a: View, b: View, bits: int) -> View:
    every = (1 << bits) - 1
    least, most = _counts(b, bits)
    if least == most:
        # bits that leave at the top take their ranges with them: what stays is a range where they are all alike
        stay = bits - least
        u = _unsigned(a[2], a[3], stay)
        s = _signed(a[4], a[5], stay)
        value, mask = a[0] << least & every, a[1] << least & every
        return value, mask, u[0] << least, u[1] << least, s[0] << least, s[1] << least
    low = (1 << min(_trailing_zeros(a, bits) + least, bits)) - 1
    return 0, every & ~low, *_unsigned(a[2] << least, a[3] << most, bits), -1 << bits - 1, (1 << bits - 1) - 1


def _rsh(a: View, b: View, bits: int) -> View:
    least, most = _counts(b, bits)
    value, mask = (a[0] >> least, a[1] >> least) if least == most else (0, (1 << bits) - 1)
    return value, mask, a[2] >> most, a[3] >> least, -1 << bits - 1, (1 << bits - 1) - 1


def _arsh(a: View, b: View, bits: int) -> View:
    least, most = _counts(b, bits)
    low, high = min(a[4] >> least, a[4] >> most), max(a[5] >> least, a[5] >> most)
    if least != most:
        return _of_signed(low, high, bits)
    every, half = (1 << bits) - 1, 1 << bits - 1
    value, mask = ((x ^ half) - half >> least & every for x in a[:2])  # an unknown sign makes every copy of it unknown
    return value, mask, 0, every, low, high


def _neg(a: View, _: View, bits: int) -> View:
    return _sub(_exact(0, bits), a, bits)


def _mov(_: View, b: View, __: int) -> View:
    return b


_OPERATIONS: dict[str, Callable[[View, View, int], View]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "sdiv": _sdiv,
    "smod": _smod,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "lsh": _lsh,
    "rsh": _rsh,
    "arsh": _arsh,
    "neg": _neg,
    "mov": _mov,
}
_LOW_BY_LOW = frozenset(("add", "sub", "mul", "and", "or", "xor", "neg"))
"""Operations whose low 32 bits depend on the operands' low 32 bits alone."""


def alu(name: str, bits: int, a: Scalar, b: Scalar) -> Scalar:
    """`a name b` as isa.Kind.ALU means it, for every name but `movsx`; of `neg`, b counts for nothing."""
    if name == "mov" and (bits == 64 or b.umax <= M32):
        return b
    if not a.mask and not b.mask:
        return constant(arithmetic.alu(name, bits, a.value, b.value))
    operation = _OPERATIONS[name]
    if bits == 32:
        value, mask, umin, umax, smin, smax = operation(_low(a), _low(b), 32)
        return narrow(value, mask, umin, umax, 0, M32, umin, umax, smin, smax) or UNKNOWN
    if name == "lsh" and not b.mask and b.value & 63 >= 32:
        # nothing of the high half stays, and of the low half more may be known: shifting up and down again extends it
        return narrow(*_lsh(_low(a), _wide(b), 64), 0, M32, MIN32, MAX32) or UNKNOWN
    wide = operation(_wide(a), _wide(b), 64)
    if name in _LOW_BY_LOW and (a.umax > M32 or b.umax > M32 or wide[3] > M32):
        return narrow(*wide, *operation(_low(a), _low(b), 32)[2:]) or UNKNOWN
    return narrow(*wide, 0, M32, MIN32, MAX32) or UNKNOWN


def sign_extend(a: Scalar, size: int, bits: int = 64) -> Scalar:
    """The low `size` bytes (1, 2 or 4), as signed, in `bits` bits; zeros above 32. Loads and movsx."""
    width = 8 * size
    low, high = _signed(a.smin32, a.smax32, width)
    half = 1 << width - 1
    every = M64 if bits == 64 else M32
    value, mask = ((x & 2 * half - 1 ^ half) - half & every for x in a[:2])
    if bits == 64:
        return narrow(value, mask, 0, M64, low, high, 0, M32, max(low, MIN32), min(high, MAX32)) or UNKNOWN
    return narrow(value, mask, 0, M32, MIN64, MAX64, 0, M32, low, high) or UNKNOWN


def zero_extend(a: Scalar, size: int) -> Scalar:
    """The low `size` bytes."""
    if a.umax >> 8 * size == 0:
        return a
    every = (1 << 8 * size) - 1
    if size == 4:
        return narrow(a.value & M32, a.mask & M32, 0, M32, MIN64, MAX64, *a[6:10]) or UNKNOWN
    low, high = _unsigned(a.umin32, a.umax32, 8 * size)
    return narrow(a.value & every, a.mask & every, low, high, MIN64, MAX64, 0, M32, MIN32, MAX32) or UNKNOWN


def swap(name: str, bits: int, a: Scalar) -> Scalar:
    """le, be or bswap of the low bits."""
    size = bits // 8
    if name == "le":
        return a if size == 8 else zero_extend(a, size)
    every = (1 << bits) - 1
    value, mask = (int.from_bytes((x & every).to_bytes(size, "little"), "big") for x in a[:2])
    return narrow(value, mask, 0, M64, MIN64, MAX64, 0, M32, MIN32, MAX32) or UNKNOWN
