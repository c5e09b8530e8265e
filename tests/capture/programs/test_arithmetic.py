"""Laws that fix each operation, beside the numbers of the conformance suite."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs.arithmetic import alu, holds, signed, swap, unsigned

NAMES = ("add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "mov", "neg")
bits_of = st.sampled_from([32, 64])
words = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
)


@given(bits_of, words, words)
def test_results_fit_and_ignore_what_is_above(bits: int, a: int, b: int) -> None:
    for name in NAMES:
        out = alu(name, bits, a, b)
        assert 0 <= out < 1 << bits
        assert out == alu(name, bits, unsigned(a, bits), unsigned(b, bits))


@given(bits_of, words, words)
def test_division(bits: int, a: int, b: int) -> None:
    ua, ub, sa, sb = unsigned(a, bits), unsigned(b, bits), signed(a, bits), signed(b, bits)
    q, r = alu("div", bits, a, b), alu("mod", bits, a, b)
    sq, sr = signed(alu("sdiv", bits, a, b), bits), signed(alu("smod", bits, a, b), bits)
    if ub == 0:
        assert (q, r, sq, sr) == (0, ua, 0, sa)
        return
    assert q * ub + r == ua
    assert 0 <= r < ub
    assert unsigned(sq * sb + sr, bits) == ua
    assert abs(sr) < abs(sb)
    assert sr == 0 or (sr < 0) == (sa < 0), "the remainder has the dividend's sign"


@pytest.mark.parametrize("bits", [32, 64])
def test_the_smallest_by_minus_one(bits: int) -> None:
    low, minus_one = 1 << bits - 1, (1 << bits) - 1
    assert alu("sdiv", bits, low, minus_one) == low
    assert alu("smod", bits, low, minus_one) == 0


@given(bits_of, words, words)
def test_shifts_mask_their_count(bits: int, a: int, b: int) -> None:
    n = b % bits
    assert alu("lsh", bits, a, b) == unsigned(a << n, bits)
    assert alu("rsh", bits, a, b) == unsigned(a, bits) >> n
    assert signed(alu("arsh", bits, a, b), bits) == signed(a, bits) >> n


@given(bits_of, words, words)
def test_comparisons(bits: int, a: int, b: int) -> None:
    for prefix, x, y in (("j", unsigned(a, bits), unsigned(b, bits)), ("js", signed(a, bits), signed(b, bits))):
        assert holds(f"{prefix}gt", bits, a, b) == (x > y) == (not holds(f"{prefix}le", bits, a, b))
        assert holds(f"{prefix}lt", bits, a, b) == (x < y) == (not holds(f"{prefix}ge", bits, a, b))
    assert holds("jeq", bits, a, b) == (unsigned(a - b, bits) == 0) == (not holds("jne", bits, a, b))
    assert holds("jset", bits, a, b) == bool(unsigned(a & b, bits))


@given(words, st.sampled_from([16, 32, 64]))
def test_swaps(a: int, bits: int) -> None:
    low = unsigned(a, bits)
    assert swap("le", bits, a) == low
    assert swap("be", bits, a) == swap("bswap", bits, a)
    assert swap("be", bits, swap("be", bits, a)) == low
    assert swap("be", bits, a).to_bytes(bits // 8, "big") == low.to_bytes(bits // 8, "little")


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError):
        alu("nand", 64, 1, 2)
    with pytest.raises(ValueError):
        holds("jno", 64, 1, 2)
