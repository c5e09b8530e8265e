"""Which stretch of time the timeline shows: cells of 2^bits ns, aligned, so that every zoom draws from whole tiles."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BITS, MOST_BITS = 5, 52
TILE_LEVELS = (16, 18, 20, 22, 24, 26)
"""Levels of `tiles`: below the finest, cells are drawn from tasks and waits."""


@dataclass(frozen=True)
class Viewport:
    """`width` cells from number `first` on; cell n is [n << bits, (n + 1) << bits) of device time in ns."""

    bits: int
    first: int
    width: int

    @classmethod
    def fit(cls, begin: int, end: int, width: int) -> Viewport:
        """The finest that shows all of [begin, end)."""
        for bits in range(LEAST_BITS, MOST_BITS):
            if (max(end - 1, begin) >> bits) - (begin >> bits) < width:
                return cls(bits, begin >> bits, width)
        return cls(MOST_BITS, begin >> MOST_BITS, width)

    @property
    def cell_ns(self) -> int:
        return 1 << self.bits

    @property
    def last(self) -> int:
        """Number of the last cell."""
        return self.first + self.width - 1

    @property
    def begin(self) -> int:
        return self.first << self.bits

    @property
    def end(self) -> int:
        return (self.last + 1) << self.bits

    @property
    def level(self) -> int | None:
        """The coarsest level of tiles that is fine enough; None: tiles are too coarse."""
        return max((level for level in TILE_LEVELS if level <= self.bits), default=None)

    def time_of(self, column: int) -> int:
        """Begin of the cell in a column."""
        return (self.first + column) << self.bits

    def column_of(self, t: int) -> int:
        """The column of a time; it may lie outside."""
        return (t >> self.bits) - self.first

    def zoom(self, steps: int, column: int) -> Viewport:
        """Twice as wide or half as wide cells per step (in: negative), with the time in `column` kept in place."""
        bits = min(max(self.bits + steps, LEAST_BITS), MOST_BITS)
        t = self.time_of(column) + (self.cell_ns >> 1)
        return Viewport(bits, (t >> bits) - column, self.width)

    def pan(self, cells: int) -> Viewport:
        return Viewport(self.bits, self.first + cells, self.width)

    def resized(self, width: int) -> Viewport:
        return Viewport(self.bits, self.first, width)

    def within(self, begin: int, end: int) -> Viewport:
        """The same, moved so that it does not leave [begin, end) altogether."""
        low, high = (begin >> self.bits) - self.width + 1, max(end - 1, begin) >> self.bits
        return Viewport(self.bits, min(max(self.first, low), high), self.width)
