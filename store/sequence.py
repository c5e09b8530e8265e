"""Is every (rank, worker, seq) in a trace once?

Parts are far too many rows to hold at once. Each worker's numbers rise with time, so that parts hold ranges of them
that do not meet; only where two ranges meet are the numbers themselves compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_PAIRS = 1000


@dataclass(frozen=True)
class Keys:
    """Keys of some rows: `who` is rank << 32 | worker; both arrays of equal length, in any order."""

    who: Numbers
    seq: Numbers

    @classmethod
    def of(cls, rank: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], seq: npt.NDArray[np.integer]) -> Keys:
        return cls(rank.astype(np.int64) << 32 | worker.astype(np.int64), seq.astype(np.int64))


class Once:
    """Collects the keys of part after part, in a few bytes per worker and part."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._load: list[Callable[[], Keys]] = []
        self._who: list[Numbers] = []
        self._low: list[Numbers] = []
        self._high: list[Numbers] = []
        self._part: list[Numbers] = []

    def add(self, name: str, keys: Keys, load: Callable[[], Keys]) -> int:
        """Take the keys of one part; `load` reads them again if need be. Returns how many stand in it twice."""
        if not len(keys.who):
            return 0
        order = np.lexsort((keys.seq, keys.who))
        who, seq = keys.who[order], keys.seq[order]
        first = np.flatnonzero(np.concatenate([[True], who[1:] != who[:-1]]))
        last = np.concatenate([first[1:], [len(who)]]) - 1
        self._part.append(np.full(len(first), len(self._names)))
        self._names.append(name)
        self._load.append(load)
        self._who.append(who[first])
        self._low.append(seq[first])
        self._high.append(seq[last])
        return int(np.count_nonzero((who[1:] == who[:-1]) & (seq[1:] == seq[:-1])))

    def twice(self) -> Iterator[tuple[str, str, int]]:
        """Pairs of parts with rows in common, and how many."""
        if not self._who:
            return
        part, who, low, high = (np.concatenate(x) for x in (self._part, self._who, self._low, self._high))
        order = np.lexsort((low, who))
        part, who, low, high = part[order], who[order], low[order], high[order]
        pairs: set[tuple[int, int]] = set()
        near: list[int] = []
        for i in range(len(who)):
            near = [j for j in near if who[j] == who[i] and high[j] >= low[i]]
            pairs |= {(min(part[i], part[j]), max(part[i], part[j])) for j in near}
            near.append(i)
        for a, b in sorted(pairs)[:_PAIRS]:
            first, second = self._load[a](), self._load[b]()
            common = _common(first, second)
            if common:
                yield self._names[a], self._names[b], common


def _common(a: Keys, b: Keys) -> int:
    pair = np.dtype([("who", "<i8"), ("seq", "<i8")])
    first, second = np.empty(len(a.who), pair), np.empty(len(b.who), pair)
    first["who"], first["seq"] = a.who, a.seq
    second["who"], second["seq"] = b.who, b.seq
    return len(np.intersect1d(first, second))
