"""The maps of an execution: who has which memory, and what happens to it between batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .execution import Export
from .map_state import sort_order
from .maps import Map
from .native_bank import U64, MapBank, Rebuild, has_room, wanted
from .native_layout import CLOSED, LIVE, LOW, REFUSED, TABLE_WORDS, Bank, is_keyed

NEVER = (1 << 64) - 1


class Tables:
    """Tables of some maps of a program for each of their owners: workers, or one owner for all of them.

    words: [owners, maps, TABLE_WORDS], of which those of the maps `mine` are used. inserts: the most keys that one row
    may insert into a map; None: every map has all its room from the begin. remembered: maps whose closed epochs the
    program reads. An owner has memory from when it is asked for.
    """

    def __init__(
        self,
        maps: Sequence[Map],
        mine: frozenset[int],
        owners: int,
        rebuild: Rebuild,
        remembered: frozenset[int],
        inserts: int | None = None,
    ) -> None:
        self.maps, self.mine, self.remembered = maps, mine, remembered
        self.inserts, self._rebuild = inserts, rebuild
        self.words: U64 = np.zeros((owners, len(maps), TABLE_WORDS), np.uint64)
        self._banks: dict[tuple[int, int], tuple[MapBank, MapBank | None]] = {}
        self._closed: set[tuple[int, int]] = set()

    def prepare(self, owner: int) -> None:
        """Give an owner room for a row. Raises MegascopeError when there is no memory."""
        for m in self.mine:
            self._live(m, owner)
            self._enlarge(m, owner)

    def _live(self, m: int, owner: int) -> MapBank:
        if (m, owner) not in self._banks:
            closed = MapBank(self.maps[m]) if m in self.remembered else None
            self._banks[m, owner] = MapBank(self.maps[m]), closed
            self._point(m, owner)
        return self._banks[m, owner][0]

    def _enlarge(self, m: int, owner: int) -> None:
        live, count = self._live(m, owner), int(self.words[owner, m, LIVE + Bank.COUNT])
        inserts = self.maps[m].max_entries if self.inserts is None else self.inserts
        if is_keyed(self.maps[m]) and not has_room(live, count, inserts):
            live.enlarge(wanted(live, count, inserts), self._rebuild)
            self._point(m, owner)

    def _point(self, m: int, owner: int) -> None:
        """Have a table say where its banks are."""
        words, (live, closed) = self.words[owner, m], self._banks[m, owner]
        live.write(words[LIVE:])
        # An array has no closed epoch before its first one ends; keyed maps have an empty one.
        if closed and ((m, owner) in self._closed or is_keyed(self.maps[m])):
            closed.write(words[CLOSED:])
        short = self.inserts is not None and live.capacity < self.maps[m].max_entries
        words[LOW] = max(live.capacity - (self.inserts or 0) + 1, 0) if short else NEVER

    def close(self, m: int, owner: int, worker: int) -> Export:
        """End the epoch of an aggregation. The owner must be prepared before it sees the next row."""
        out = self.export(m, owner, worker, sparse=True)
        words, (live, closed) = self.words[owner, m], self._banks[m, owner]
        count = int(words[LIVE + Bank.COUNT])
        self._closed.add((m, owner))
        if closed:
            closed.clear(int(words[CLOSED + Bank.COUNT]))
            self._banks[m, owner] = closed, live
            words[CLOSED + Bank.COUNT] = count
        else:
            live.clear(count)
        words[LIVE + Bank.COUNT] = words[REFUSED] = 0
        self._point(m, owner)
        return out

    def export(self, m: int, owner: int, worker: int, *, sparse: bool) -> Export:
        """What is live, as `worker`'s. sparse: of an array, what is not all zero."""
        live, words = self._live(m, owner), self.words[owner, m]
        keys, values = live.contents(int(words[LIVE + Bank.COUNT]), sparse)
        order = sort_order(keys)
        return Export(m, worker, keys[order], values[order], int(words[REFUSED]))

    def value(self, m: int, index: int) -> U64:
        """An array's value, as words."""
        words: U64 = self._live(m, 0).values.view(np.uint64)
        width = len(words) // self.maps[m].max_entries
        return words[width * index : width * (index + 1)]
