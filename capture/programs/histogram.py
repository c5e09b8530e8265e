"""How a histogram divides the 64-bit numbers: 16 buckets an octave, exact below 32.

A bucket's width is at most 1/16 of its lower bound, so that its middle is off by at most 1/32 = 3.125 % of any value in
it, and histograms merge by adding. The idea is the log-linear histogram of HdrHistogram (Tene) with fixed precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SUB_BITS = 4
SUB = 1 << SUB_BITS
BUCKETS = SUB * (64 - SUB_BITS + 1)
"""976"""
HEAD = 4
"""words before the buckets: count, sum (modulo 2^64), min, max"""
WORDS = HEAD + BUCKETS
VALUE_BYTES = 8 * WORDS
U64 = NDArray[np.uint64]


def bucket(value: int) -> int:
    """Bucket of an unsigned 64-bit value."""
    if value < SUB:
        return value
    shift = value.bit_length() - 1 - SUB_BITS
    return (shift + 1) * SUB + (value >> shift) - SUB


def lower(index: int) -> int:
    """The smallest value of a bucket."""
    if index < SUB:
        return index
    return (SUB + index % SUB) << (index // SUB - 1)


def upper(index: int) -> int:
    """The largest value of a bucket."""
    return lower(index + 1) - 1


LOWER: NDArray[Any] = np.array([lower(i) for i in range(BUCKETS)], np.uint64)
"""[BUCKETS] smallest value of each bucket"""


def middle(index: int) -> int:
    """What a bucket stands for: off by at most 1/32 of any value in it."""
    return (lower(index) + upper(index)) // 2


def add(words: U64, value: int) -> None:
    """Count `value` in a histogram's [WORDS] words."""
    count, total = int(words[0]), int(words[1])
    words[2] = value if count == 0 else min(int(words[2]), value)
    words[3] = value if count == 0 else max(int(words[3]), value)
    words[0], words[1] = count + 1 & 0xFFFF_FFFF_FFFF_FFFF, total + value & 0xFFFF_FFFF_FFFF_FFFF
    words[HEAD + bucket(value)] += np.uint64(1)


def merge(words: NDArray[np.uint64]) -> U64:
    """One histogram out of [n, WORDS]."""
    some = words[words[:, 0] > 0]
    out: U64 = words.sum(axis=0, dtype=np.uint64)
    if len(some):
        out[2], out[3] = some[:, 2].min(), some[:, 3].max()
    return out
