"""What monitors write to their export buffers: slices, each a header and the records of one worker's maps.

As capture/device/exports.cuh and vm_epochs.cuh lay them out. Programs that nobody verified may have run on the device,
so lengths, buckets and counts are checked before they are used.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numba
import numpy as np
from numpy.typing import NDArray

from ...programs.histogram import HEAD, WORDS
from ...programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from ...programs.merging import Rule, groups, merge

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
HEADER = 10
"""`SLICE_HEADER`."""
COUNT_BITS = 48


class SliceOf(IntEnum):
    """`enum SliceOf`."""

    EPOCH = 0
    EPOCH_ENDS = 1
    STATE = 2
    LEFT = 3


@dataclass(frozen=True)
class Slice:
    """One slice: of which program and worker, over what time (ns), and its records. coverage as in `Span`,
    and rows emitted.
    """

    place: int
    what: SliceOf
    program: int
    worker: int
    t_begin: int
    t_end: int
    coverage: I64
    records: U64


def slices(buffer: U64) -> Iterator[Slice]:
    """The slices of a buffer, as views of it. Raises ValueError for words that no monitor writes."""
    at = 0
    while at < len(buffer):
        head = buffer[at : at + HEADER].tolist()
        length = head[0] & 0xFFFF_FFFF
        if len(head) < HEADER or not HEADER <= length <= len(buffer) - at:
            raise ValueError(f"no slice at word {at}")
        yield Slice(
            head[0] >> 32 & 0xFF,
            SliceOf(head[0] >> 40),
            head[1] & 0xFFFF_FFFF,
            head[1] >> 32,
            head[2],
            head[3],
            np.array(head[4:], np.int64),
            buffer[at + HEADER : at + length],
        )
        at += length


@numba.njit("int64[:, :](uint64[::1])", cache=True, nogil=True)
def walk(words: U64) -> I64:
    """[records, 4]: kind, map, first word, length of each; where they do not fit, no more of them."""
    out = np.empty((len(words) // 3 + 1, 4), np.int64)
    at, n = np.int64(0), 0
    while at < len(words):
        length = np.int64(words[at] >> np.uint64(32))
        if length < 3 or length > len(words) - at:
            break
        out[n, 0] = np.int64(words[at] & np.uint64(0xFF))
        out[n, 1] = np.int64(words[at] >> np.uint64(8) & np.uint64(0xFF))
        out[n, 2] = at
        out[n, 3] = length
        at += length
        n += 1
    return out[:n]


@numba.njit("uint64[:, :](uint64[::1], int64[::1], int64[::1], int64[::1], int64)", cache=True, nogil=True)
def _sums(words: U64, at: I64, counts: I64, group: I64, n: int) -> U64:
    """[n, WORDS] histograms: of each group, the sum of those at `at`, which have `counts` packed buckets."""
    out = np.zeros((n, WORDS), np.uint64)
    for i in range(len(at)):
        row, head = out[group[i]], at[i]
        if row[0] == 0 or words[head + 2] < row[2]:
            row[2] = words[head + 2]
        if words[head + 3] > row[3]:
            row[3] = words[head + 3]
        row[0] += words[head]
        row[1] += words[head + 1]
        for j in range(head + HEAD, head + HEAD + counts[i]):
            bucket = HEAD + np.int64(words[j] >> np.uint64(COUNT_BITS))
            if bucket < WORDS:
                row[bucket] += words[j] & np.uint64((1 << COUNT_BITS) - 1)
    return out


class Found:
    """Entries of one map: where they stand in the words of the slices that they came in."""

    def __init__(self, declared: Map) -> None:
        self.declared = declared
        self._words: list[U64] = []
        self._at: list[I64] = []
        self._length: list[I64] = []
        self._size = 0

    def add(self, words: U64, at: I64, length: I64) -> None:
        """The records at `at`, of so many words; those that are too short or too long for the map are left out."""
        least = 1 + self._key_words + (HEAD if self._packed else self._value_words)
        fits = (length >= least) & ((length <= least + WORDS - HEAD) if self._packed else (length == least))
        if fits.any():
            self._words.append(words)
            self._at.append(at[fits] + self._size)
            self._length.append(length[fits])
            self._size += len(words)

    def __iadd__(self, other: Found) -> Found:
        self._words += other._words
        self._at += [at + self._size for at in other._at]
        self._length += other._length
        self._size += other._size
        return self

    def __bool__(self) -> bool:
        return bool(self._at)

    def entries(self, rule: Rule | None) -> tuple[U8, U8]:
        """keys [n, key_size] and values [n, value_size]: with a rule merged by key, else all as they came."""
        if not self:
            return np.empty((0, self.declared.key_size), np.uint8), np.empty((0, self._value_size), np.uint8)
        words, at = np.concatenate(self._words), np.concatenate(self._at)
        size = self.declared.key_size
        keys = words[at[:, None] + 1 + np.arange(self._key_words)].view(np.uint8).reshape(len(at), -1)[:, :size]
        begin = at + 1 + self._key_words
        if not self._packed:
            values = words[begin[:, None] + np.arange(self._value_words)].view(np.uint8).reshape(len(at), -1)
            values = values[:, : self._value_size]
            return (keys, values) if rule is None else merge(rule, keys, values)
        group = np.arange(len(at))
        if rule is not None:
            keys, group = groups(keys)
        sums = _sums(words, begin, np.concatenate(self._length) - (begin - at) - HEAD, group, len(keys))
        return keys, sums.view(np.uint8).reshape(len(keys), -1)

    @property
    def _packed(self) -> bool:
        """Histograms come as their head and the buckets that are not empty."""
        return self.declared.kind == MapKind.HIST

    @property
    def _key_words(self) -> int:
        return 1 if self.declared.indexed else -(-self.declared.key_size // 8)

    @property
    def _value_size(self) -> int:
        return FIXED_VALUE_BYTES.get(self.declared.kind, self.declared.value_size)

    @property
    def _value_words(self) -> int:
        return -(-self._value_size // 8)


def together(declared: Map, several: Iterable[Found]) -> Found:
    """All entries of one map."""
    out = Found(declared)
    for found in several:
        out += found
    return out
