"""The error of histograms, for every unsigned 64-bit number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs import histogram
from megascope.capture.programs.histogram import BUCKETS, HEAD, LOWER, WORDS, add, bucket, lower, merge, middle, upper

U64 = (1 << 64) - 1
by_octave = st.integers(0, 63).flatmap(lambda bits: st.integers(1 << bits >> 1, (1 << bits + 1) - 1))
edges = st.integers(0, BUCKETS - 1).flatmap(lambda i: st.sampled_from([lower(i), upper(i)]))
numbers = st.one_of(st.integers(0, U64), by_octave, edges)


def test_buckets_divide_all_numbers() -> None:
    """Each begins where the one before ends, from 0 to 2^64 - 1: none is missed, none counted twice."""
    assert (lower(0), upper(BUCKETS - 1)) == (0, U64)
    for i in range(BUCKETS):
        assert lower(i) <= middle(i) <= upper(i)
        assert bucket(lower(i)) == bucket(upper(i)) == i
        assert int(LOWER[i]) == lower(i)
        if i:
            assert lower(i) == upper(i - 1) + 1


def test_the_error_of_every_bucket() -> None:
    """|middle - v| <= v / 32 for every v of a bucket, if it holds at both ends: the left side is largest there, and the
    right side grows with v. So this is all of them, not a sample."""
    for i in range(BUCKETS):
        for v in (lower(i), upper(i)):
            assert 32 * abs(middle(i) - v) <= v
        if upper(i) < 32:
            assert lower(i) == upper(i), "exact below 32"


@given(numbers)
def test_a_number_is_in_its_bucket(v: int) -> None:
    assert 0 <= bucket(v) < BUCKETS
    assert lower(bucket(v)) <= v <= upper(bucket(v))
    assert 32 * abs(middle(bucket(v)) - v) <= v
    assert v >= 32 or middle(bucket(v)) == v


def counted(values: list[int]) -> histogram.U64:
    words = np.zeros(WORDS, np.uint64)
    for v in values:
        add(words, v)
    return words


@given(st.lists(numbers, max_size=40))
def test_counting(values: list[int]) -> None:
    words = counted(values)
    assert words[0] == len(values)
    assert int(words[1]) == sum(values) & U64
    assert [int(w) for w in words[2:4]] == ([min(values), max(values)] if values else [0, 0])
    assert int(words[HEAD:].sum()) == len(values)
    assert all(words[HEAD + bucket(v)] for v in values)


@given(st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=6))
def test_merging_is_counting_the_union(parts: list[list[int]]) -> None:
    merged = merge(np.stack([counted(p) for p in parts]))
    assert np.array_equal(merged, counted([v for p in parts for v in p]))


@given(st.lists(numbers, min_size=1, max_size=200), st.integers(1, 100))
def test_quantiles_are_within_an_error_of_a_32nd(values: list[int], percent: int) -> None:
    """The rank's number and the middle of the bucket that holds this rank."""
    rank = -(-len(values) * percent // 100)
    running = np.cumsum(counted(values)[HEAD:].astype(np.int64))
    said = middle(int(np.searchsorted(running, rank)))
    true = sorted(values)[rank - 1]
    assert 32 * abs(said - true) <= true
