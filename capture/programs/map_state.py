"""What the maps of a program hold, for one worker or for all: the reference semantics.

An *aggregation* has two banks: live, which helpers write, and closed, which map_closed reads. Closing an epoch exports
live, makes it closed, and begins with an empty one; before the first close there is no closed bank. *State* has a
live bank that stays. An empty bank of an array is zero everywhere (of a global section: its initial contents), and
every index below max_entries is there.

A new key beyond max_entries, or an index beyond an array, is refused and counted; nothing else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from . import histogram
from .arithmetic import unsigned
from .execution import Export
from .helpers import ANY, E_2BIG, E_EXIST, E_INVAL, E_NOENT, NEW, OLD
from .maps import FIXED_VALUE_BYTES, Map, MapKind

Bank = dict[bytes, bytearray]


class MapState:
    """One map's entries: keys and values of the declared sizes. What was never touched of an array is not in a bank."""

    def __init__(self, declared: Map) -> None:
        self.declared = declared
        self.aggregates = declared.aggregate or declared.kind in (MapKind.HIST, MapKind.STATS)
        self.value_size = FIXED_VALUE_BYTES.get(declared.kind, declared.value_size)
        self.live: Bank = {}
        self.closed: Bank | None = None
        self.refused = 0

    # Keys that are there, and keys that are made

    def lookup(self, key: bytes) -> bytearray | None:
        """The live value itself, not a copy; None where the key is not there."""
        return self._find(self.live, key)

    def lookup_closed(self, key: bytes) -> bytearray | None:
        """The value in the last closed epoch."""
        return None if self.closed is None else self._find(self.closed, key)

    def _find(self, bank: Bank, key: bytes) -> bytearray | None:
        if not self.declared.indexed:
            return bank.get(key)
        if int.from_bytes(key, "little") >= self.declared.max_entries:
            return None
        return bank.setdefault(key, bytearray(self.declared.initial or self.value_size))

    def _find_or_make(self, key: bytes) -> bytearray | None:
        """The live value of a key, zero where it is new; None, counted, where there is no room."""
        value = self.lookup(key)
        if value is None:
            if self.declared.indexed or len(self.live) >= self.declared.max_entries:
                self.refused += 1
                return None
            value = self.live[key] = bytearray(self.value_size)
        return value

    # What map_update_elem and map_delete_elem do

    def update(self, key: bytes, value: bytes, flags: int) -> int:
        """Returns what the helper returns, signed."""
        if flags not in (ANY, NEW, OLD):
            return E_INVAL
        old = self.lookup(key)
        if flags == NEW and old is not None:
            return E_EXIST
        if flags == OLD and old is None and not self.declared.indexed:
            return E_NOENT
        there = self._find_or_make(key)
        if there is None:
            return E_2BIG
        there[:] = value
        return 0

    def delete(self, key: bytes) -> int:
        """Returns what the helper returns, signed."""
        return E_NOENT if self.live.pop(key, None) is None else 0

    # Upserts: they commute, and return nothing

    def add(self, key: bytes, operand: int) -> None:
        """Modulo 2^64, from 0 for a new key."""
        value = self._find_or_make(key)
        if value is not None:
            _write(value, 0, _word(value, 0) + operand)

    def min(self, key: bytes, operand: int) -> None:
        """Of unsigned numbers; the operand for a new key."""
        new = self.lookup(key) is None
        value = self._find_or_make(key)
        if value is not None:
            _write(value, 0, operand if new else min(_word(value, 0), operand))

    def max(self, key: bytes, operand: int) -> None:
        """Of unsigned numbers; the operand for a new key."""
        value = self._find_or_make(key)
        if value is not None:
            _write(value, 0, max(_word(value, 0), operand))

    def hist_add(self, key: bytes, operand: int) -> None:
        """Count a number in the key's histogram."""
        value = self._find_or_make(key)
        if value is not None:
            histogram.add(np.frombuffer(value, np.uint64), operand)

    def stats_add(self, key: bytes, operand: int) -> None:
        """count, sum (modulo 2^64), min, max of the key's numbers."""
        value = self._find_or_make(key)
        if value is None:
            return
        count, total, low, high = (_word(value, i) for i in range(4))
        low, high = (min(low, operand), max(high, operand)) if count else (operand, operand)
        for i, word in enumerate((count + 1, total + operand, low, high)):
            _write(value, i, word)

    # What the host does

    def feed(self, index: int, value: int, epoch: int) -> None:
        """Write a feedback cell. Raises ValueError for another kind of map, or a cell that is not there."""
        cell = self.lookup(index.to_bytes(4, "little")) if self.declared.kind == MapKind.FEEDBACK else None
        if cell is None:
            raise ValueError(f"map {self.declared.name} has no feedback cell {index}")
        _write(cell, 0, value)
        _write(cell, 1, epoch)

    def close(self, index: int, worker: int) -> Export:
        """End the epoch of an aggregation: its entries, of an array those that are not all zero."""
        some = {k: v for k, v in self.live.items() if not self.declared.indexed or any(v)}
        out = self._export(index, worker, some.items(), len(some))
        self.live, self.closed, self.refused = {}, self.live, 0
        return out

    def entries(self, index: int, worker: int) -> Export:
        """What is live now, of an array every entry. Changes nothing, not even the count of what was refused."""
        if not self.declared.indexed:
            return self._export(index, worker, self.live.items(), len(self.live))
        n = self.declared.max_entries
        keys = (i.to_bytes(4, "little") for i in range(n))
        blank = bytearray(self.declared.initial or self.value_size)
        return self._export(index, worker, ((k, self.live.get(k, blank)) for k in keys), n)

    def _export(self, index: int, worker: int, items: Iterable[tuple[bytes, bytearray]], n: int) -> Export:
        keys = np.zeros((n, self.declared.key_size), np.uint8)
        values = np.zeros((n, self.value_size), np.uint8)
        for i, (key, value) in enumerate(items):
            keys[i], values[i] = np.frombuffer(key, np.uint8), np.frombuffer(value, np.uint8)
        order = sort_order(keys)
        return Export(index, worker, keys[order], values[order], self.refused)


def sort_order(keys: NDArray[np.uint8]) -> NDArray[np.intp]:
    """How exports are sorted: keys as little-endian numbers, so that the indexes of an array ascend."""
    order: NDArray[np.intp] = np.lexsort(keys.T)
    return order


def _word(value: bytearray, index: int) -> int:
    return int.from_bytes(value[8 * index : 8 * index + 8], "little")


def _write(value: bytearray, index: int, word: int) -> None:
    value[8 * index : 8 * index + 8] = unsigned(word).to_bytes(8, "little")
