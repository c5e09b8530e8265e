"""Intervals of time cut into slices: what of a task or wait lies in which slice of a level.

An interval that covers whole slices is not cut into all of them: a wait of an hour has 55 million slices of level 16.
What it covers wholly is one *run*; only its two ends are pieces of slices that it shares with others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pairing_rows import I64, Array, Bools

LEVELS = (16, 18, 20, 22, 24, 26)
COARSEST = LEVELS[-1]

WAITS_FROM = 1 << 16
"""What an interval is: a task class below this, or this plus the dep_class of a wait."""
STARTS = 1 << 17
"""A piece that is no time but a count: how many tasks start in the slice."""

_KEY_BITS = 62
_DENSE = 8
"""A table of sums may have this many times as many places as there are pieces."""


@dataclass(frozen=True)
class Intervals:
    """Tasks and waits: `place` is who (see tiles), `what` as above, [begin, end) in ns, end > begin."""

    place: I64
    what: I64
    begin: I64
    end: I64

    def __len__(self) -> int:
        return len(self.begin)

    def pick(self, which: Array) -> Intervals:
        return Intervals(self.place[which], self.what[which], self.begin[which], self.end[which])

    @staticmethod
    def join(several: list[Intervals]) -> Intervals:
        return Intervals(*(np.concatenate([getattr(s, n) for s in several]) for n in ("place", "what", "begin", "end")))

    @staticmethod
    def none() -> Intervals:
        empty = np.empty(0, np.int64)
        return Intervals(empty, empty, empty, empty)

    def cut(self, t: int) -> tuple[Intervals, Intervals]:
        """What lies before t and what lies after."""
        before, after = self.pick(np.flatnonzero(self.begin < t)), self.pick(np.flatnonzero(self.end > t))
        return (
            Intervals(before.place, before.what, before.begin, np.minimum(before.end, t)),
            Intervals(after.place, after.what, np.maximum(after.begin, t), after.end),
        )

    def covers(self, level: int) -> Bools:
        """Does it cover a whole slice besides those of its ends?"""
        covers: Bools = (self.end - 1 >> level) - (self.begin >> level) > 1
        return covers


@dataclass(frozen=True)
class Sums:
    """ns by key (see `Grid`), keys ascending and unique."""

    key: I64
    ns: I64

    @staticmethod
    def of(keys: list[I64], values: list[I64]) -> Sums:
        """Add up the values of equal keys."""
        key, ns = np.concatenate(keys), np.concatenate(values)
        if not len(key):
            return Sums(key, ns)
        size = int(key.max()) + 1
        if size <= _DENSE * len(key) + 4096:
            # ns of a slice stay far below 2^53, so that sums of doubles are exact.
            dense = np.bincount(key, ns, size)
            key = np.flatnonzero(dense)
            return Sums(key, dense[key].astype(np.int64))
        order = np.argsort(key)
        key = key[order]
        at = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        return Sums(key[at], np.add.reduceat(ns[order], at))


class Grid:
    """Keys for (place, slice, what): place above slice above what, each in just the bits that these intervals need.

    Slices are numbered within those of the coarsest level in which anything begins or ends, so that a shift gives the
    key at a coarser level. `bits` says how long keys are; they must not be longer than `_KEY_BITS` (see `fits`).
    """

    def __init__(self, intervals: Intervals, place: I64, start: I64) -> None:
        """place, start: where and when tasks started, which is counted besides."""
        self.places, both = _numbered(np.concatenate([intervals.place, place]))
        self.place, self.start_place = both[: len(intervals)], both[len(intervals) :]
        self.whats, what = _numbered(np.concatenate([intervals.what, [STARTS]]))
        self._what, self._starts = what[:-1], what[-1]
        self._what_bits = (len(self.whats) - 1).bit_length()
        touched = (intervals.begin >> COARSEST, intervals.end - 1 >> COARSEST, start >> COARSEST)
        self._tiles = _numbered(np.concatenate(touched))[0]
        self._tile_bits = (max(len(self._tiles), 1) - 1).bit_length()
        self.bits = len(self.places).bit_length() + self._tile_bits + COARSEST - LEVELS[0] + self._what_bits
        self.intervals, self._start = intervals, start

    @property
    def fits(self) -> bool:
        return self.bits <= _KEY_BITS

    def _key(self, place: I64, t: I64, what: Array, level: int) -> I64:
        coarse = COARSEST - level
        tile = np.searchsorted(self._tiles, t >> COARSEST) << coarse | (t >> level & (1 << coarse) - 1)
        above = place << (self._tile_bits + coarse) | tile
        key: I64 = above << self._what_bits | what
        return key

    def starts(self) -> Sums:
        """How many tasks start in each slice of the finest level."""
        key = self._key(self.start_place, self._start, self._starts, LEVELS[0])
        return Sums.of([key], [np.ones(len(key), np.int64)])

    def ends(self, which: I64, level: int) -> tuple[list[I64], list[I64]]:
        """The pieces of intervals in the slices in which they begin and end."""
        begin, end = self.intervals.begin[which], self.intervals.end[which]
        place, what = self.place[which], self._what[which]
        edge = (begin >> level) + 1 << level
        two = np.flatnonzero(end > edge)
        last = end[two] - 1
        head = self._key(place, begin, what, level)
        tail = self._key(place[two], last, what[two], level)
        return [head, tail], [np.minimum(end, edge) - begin, (last & (1 << level) - 1) + 1]

    def coarser(self, sums: Sums, bits: int) -> I64:
        """The keys of sums at a level that is coarser by so many bits."""
        key: I64 = sums.key >> (self._what_bits + bits) << self._what_bits | (sums.key & (1 << self._what_bits) - 1)
        return key

    def read(self, sums: Sums, level: int) -> tuple[I64, I64, I64]:
        """(place, slice, what) of the keys."""
        coarse = COARSEST - level
        tile_bits = self._tile_bits + coarse
        above = sums.key >> self._what_bits
        tile = above & (1 << tile_bits) - 1
        slices = self._tiles[tile >> coarse] << coarse | (tile & (1 << coarse) - 1)
        return self.places[above >> tile_bits], slices, self.whats[sums.key & (1 << self._what_bits) - 1]


def runs(of: Intervals, level: int) -> tuple[I64, I64]:
    """The slices that intervals cover wholly: the first of them and how many."""
    first = (of.begin >> level) + 1
    return first, (of.end - 1 >> level) - first


def _numbered(values: I64) -> tuple[I64, I64]:
    """The values there are, ascending, and for each value its number among them."""
    if not len(values):
        return values, values
    low = int(values.min())
    size = int(values.max()) - low + 1
    if size > 1 << 20:
        unique, number = np.unique(values, return_inverse=True)
        return unique, number
    there = np.zeros(size, np.int64)
    there[values - low] = 1
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]
