"""Rows of tasks that have begun and not completed, carried from part to part until an event of theirs turns up.

They are kept in the order in which they were put there, in chunks: a part looks only into chunks that can hold one of
its iterations, and what falls out when there are too many is the oldest.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from .pairing_match import Groups
from .pairing_rows import I64, Rows, join, nothing, pick

OPEN_MOST = 1 << 20
"""Rows kept, at about 80 bytes each; then the oldest chunk is given up."""
_CHUNKS = 64


class OpenRows:
    """All rows of a task are in one chunk, because an event of it takes all of them out again."""

    def __init__(self, most: int = OPEN_MOST) -> None:
        self._most = most
        self._chunks: deque[tuple[int, int, Rows]] = deque()
        self.count = 0

    def pull(self, groups: Groups) -> tuple[Rows, I64]:
        """Take out the rows whose identity is among `groups`; returns them and their codes."""
        pulled: list[Rows] = []
        codes: list[I64] = []
        kept: deque[tuple[int, int, Rows]] = deque()
        for low, high, rows in self._chunks:
            if not groups.may_have(low, high):
                kept.append((low, high, rows))
                continue
            code = groups.find(rows["rank"], rows["task"])
            hit = code >= 0
            if not hit.any():
                kept.append((low, high, rows))
                continue
            pulled.append(pick(rows, np.flatnonzero(hit)))
            codes.append(code[hit])
            self.count -= len(codes[-1])
            if not hit.all():
                kept.append(_chunk(pick(rows, np.flatnonzero(~hit))))
        self._chunks = kept
        return join(pulled), np.concatenate(codes) if codes else np.empty(0, np.int64)

    def put(self, rows: Rows) -> Rows:
        """Keep rows; returns those that are given up for them, which had been kept the longest."""
        if len(rows["t"]):
            self._chunks.append(_chunk(rows))
            self.count += len(rows["t"])
        given_up = []
        while self.count > self._most:
            _, _, oldest = self._chunks.popleft()
            self.count -= len(oldest["t"])
            given_up.append(oldest)
        if len(self._chunks) > _CHUNKS:
            # Neighbours in twos, which keeps their order by age; every row is copied a few times at the most.
            pairs = [[c[2] for c in list(self._chunks)[i : i + 2]] for i in range(0, len(self._chunks), 2)]
            self._chunks = deque(_chunk(join(pair)) for pair in pairs)
        return join(given_up)

    def take_all(self) -> Rows:
        """Take out everything."""
        rows = join([c[2] for c in self._chunks])
        self._chunks.clear()
        self.count = 0
        return rows

    def chunks(self) -> list[Rows]:
        """What is kept, the oldest first; `put` in this order restores it."""
        return [c[2] for c in self._chunks] or [nothing()]


def _chunk(rows: Rows) -> tuple[int, int, Rows]:
    iteration = rows["task"] >> 32
    return int(iteration.min()), int(iteration.max()), rows
