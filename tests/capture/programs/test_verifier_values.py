"""What the verifier believes of numbers contains what happens, in every operation and every comparison."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.programs import arithmetic
from megascope.capture.programs.verifier import stack
from megascope.capture.programs.verifier.branches import outcomes
from megascope.capture.programs.verifier.transfer import alu, sign_extend, swap, zero_extend
from megascope.capture.programs.verifier.values import (
    M64,
    UNKNOWN,
    Scalar,
    constant,
    contains,
    hull,
    narrow,
    of_bytes,
    text,
    unsigned_range,
    within,
)

ALU = ("add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "neg", "mov")
JUMPS = ("jeq", "jne", "jset", "jlt", "jle", "jgt", "jge", "jslt", "jsle", "jsgt", "jsge")
POWERS = sorted(
    {(1 << b) + d & M64 for b in (0, 1, 3, 5, 7, 8, 15, 16, 31, 32, 33, 62, 63, 64) for d in (-2, -1, 0, 1)}
)
numbers = st.one_of(st.sampled_from(POWERS), st.integers(0, M64), st.integers(0, 70), st.integers(M64 - 70, M64))
distances = st.one_of(st.sampled_from((0, 1, 2, 7, 100)), st.integers(0, M64))


@st.composite
def members(draw: Any) -> tuple[Scalar, list[int]]:
    """What is known of a number, by any of the views, and some numbers that it may be."""
    number = draw(numbers)
    exact = constant(number)
    views: list[int] = [*UNKNOWN[:10]]
    for view in draw(st.lists(st.integers(0, 4), max_size=4)):
        if view == 0:
            mask = views[1] & draw(numbers)
            views[:2] = number & ~mask, mask
        else:
            low, high = exact[2 * view] - draw(distances), exact[2 * view] + draw(distances)
            views[2 * view], views[2 * view + 1] = max(views[2 * view], low), min(views[2 * view + 1], high)
    known = narrow(*views)
    assert known is not None
    assert contains(known, number)
    corners = (known.umin, known.umax, known.smin & M64, known.smax & M64, known.value, known.value | known.mask)
    others = [known.value | draw(numbers) & known.mask, *corners]
    return known, [number, *(x for x in others if contains(known, x))]


@given(members())
def test_views_narrow_each_other_and_lose_nothing(drawn: tuple[Scalar, list[int]]) -> None:
    known, some = drawn
    again = narrow(*known[:10])
    assert again is not None
    assert within(again, known)
    assert all(contains(again, x) for x in some)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", ALU)
@given(one=members(), other=members())
@settings(max_examples=60)
def test_operations(name: str, bits: int, one: tuple[Scalar, list[int]], other: tuple[Scalar, list[int]]) -> None:
    believed = alu(name, bits, one[0], other[0])
    for a, b in product(one[1], other[1]):
        assert contains(believed, arithmetic.alu(name, bits, a, b)), (a, b)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", JUMPS)
@given(one=members(), other=members())
@settings(max_examples=80)
def test_comparisons(name: str, bits: int, one: tuple[Scalar, list[int]], other: tuple[Scalar, list[int]]) -> None:
    sides = outcomes(name, bits, one[0], other[0])
    for a, b in product(one[1], other[1]):
        side = sides[0 if arithmetic.holds(name, bits, a, b) else 1]
        assert side is not None, (a, b)
        assert contains(side[0], a), (a, b)
        assert contains(side[1], b), (a, b)
    for side in sides:
        assert side is None or (within(side[0], one[0]) and within(side[1], other[0]))


@given(members(), st.sampled_from((1, 2, 4)), st.sampled_from((32, 64)))
def test_extensions(drawn: tuple[Scalar, list[int]], size: int, bits: int) -> None:
    known, some = drawn
    signed, unsigned = sign_extend(known, size, bits), zero_extend(known, size)
    for x in some:
        assert contains(signed, arithmetic.unsigned(arithmetic.signed(x, 8 * size), bits))
        assert contains(unsigned, arithmetic.unsigned(x, 8 * size))


@given(members(), st.sampled_from(("le", "be", "bswap")), st.sampled_from((16, 32, 64)))
def test_swaps(drawn: tuple[Scalar, list[int]], name: str, bits: int) -> None:
    believed = swap(name, bits, drawn[0])
    assert all(contains(believed, arithmetic.swap(name, bits, x)) for x in drawn[1])


@given(members(), members())
def test_a_hull_holds_both(one: tuple[Scalar, list[int]], other: tuple[Scalar, list[int]]) -> None:
    both = hull(one[0], other[0])
    assert within(one[0], both)
    assert within(other[0], both)


writes = st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, 7), members())


@given(st.lists(writes, min_size=1, max_size=6))
def test_a_stack_slot_remembers_what_was_written(done: list[tuple[int, int, tuple[Scalar, list[int]]]]) -> None:
    held: stack.Stack = {}
    concrete, written = bytearray(8), bytearray(8)
    for size, at, (known, some) in done:
        at &= -size
        stack.store(held, at - 8, size, known)
        concrete[at : at + size] = (some[-1] & (1 << 8 * size) - 1).to_bytes(size, "little")
        written[at : at + size] = b"\1" * size
    slot = held[0]
    assert isinstance(slot, stack.Bytes)
    for size in (1, 2, 4, 8):
        for at in range(0, 8, size):
            number = int.from_bytes(concrete[at : at + size], "little")
            for signed in (False, True)[: 1 + (size < 8)]:
                known_now = stack.load(slot, at - 8, size, signed)
                assert (known_now is not None) == all(written[at : at + size])
                want = arithmetic.unsigned(arithmetic.signed(number, 8 * size)) if signed else number
                assert known_now is None or contains(known_now, want)


@pytest.mark.parametrize(
    ("name", "bits", "a", "b", "range_"),
    [
        ("add", 64, unsigned_range(3, 9), unsigned_range(10, 20), "13..29"),
        ("sub", 64, unsigned_range(3, 9), unsigned_range(10, 20), "-17..-1"),
        ("mul", 64, unsigned_range(3, 9), unsigned_range(10, 20), "30..180"),
        ("div", 64, unsigned_range(100, 200), unsigned_range(10, 20), "5..20"),
        ("mod", 64, UNKNOWN, unsigned_range(10, 20), "0..19"),
        ("mod", 64, unsigned_range(3, 9), unsigned_range(10, 20), "3..9"),
        ("sdiv", 64, unsigned_range(100, 200), constant(-10), "-20..-10"),
        ("smod", 64, UNKNOWN, constant(-10), "-9..9"),
        ("and", 64, UNKNOWN, constant(24), "0..24"),
        ("or", 64, unsigned_range(0, 15), constant(16), "16..31"),
        ("xor", 64, unsigned_range(0, 15), unsigned_range(0, 3), "0..15"),
        ("lsh", 64, unsigned_range(3, 9), constant(2), "12..36"),
        ("rsh", 32, UNKNOWN, constant(28), "0..15"),
        ("arsh", 64, UNKNOWN, constant(60), "-8..7"),
        ("neg", 64, unsigned_range(3, 9), UNKNOWN, "-9..-3"),
        ("add", 32, of_bytes(4), constant(0), "0..4294967295"),
        ("mov", 32, UNKNOWN, constant(-1), "4294967295"),
    ],
)
def test_nothing_is_given_away(name: str, bits: int, a: Scalar, b: Scalar, range_: str) -> None:
    assert text(alu(name, bits, a, b)) == range_


def test_known_bits_survive() -> None:
    eights = alu("and", 64, UNKNOWN, constant(-8))
    assert alu("add", 64, eights, constant(3)).mask & 7 == 0
    assert alu("mul", 64, of_bytes(2), constant(24)).mask & 7 == 0
    assert alu("lsh", 64, of_bytes(4), unsigned_range(3, 5)).mask & 7 == 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_tristate_number_of_three_bits() -> None:
    """Each operation and comparison on every pair, at the bottom and at both ends of 32 and 64 bits."""
    tristates = [(v, m) for v in range(8) for m in range(8) if not v & m]
    for shift, ((v, m), (w, n)) in product((0, 29, 61), product(tristates, tristates)):
        a, b = narrow(v << shift, m << shift, *UNKNOWN[2:10]), narrow(w, n, *UNKNOWN[2:10])
        assert a is not None
        assert b is not None
        inside = [(x << shift, y) for x in range(8) if not (x ^ v) & ~m for y in range(8) if not (y ^ w) & ~n]
        for name, bits in product(ALU, (32, 64)):
            believed = alu(name, bits, a, b)
            assert all(contains(believed, arithmetic.alu(name, bits, x, y)) for x, y in inside), (name, bits, a, b)
        for name, bits in product(JUMPS, (32, 64)):
            sides = outcomes(name, bits, a, b)
            for x, y in inside:
                side = sides[0 if arithmetic.holds(name, bits, x, y) else 1]
                assert side is not None, (name, bits, a, b)
                assert contains(side[0], x), (name, bits, a, b)
                assert contains(side[1], y), (name, bits, a, b)
