"""The memory of one map of one worker, in numpy arrays at fixed addresses. Layout: native_layout.

Memory is the system's own zero pages: what is declared and never touched costs nothing, so that histograms of many keys
for many workers cost what they hold.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...store.errors import MegascopeError
from .maps import Map, MapKind
from .native_layout import MIN_CELLS_BITS, Bank, is_keyed, stride, value_bytes

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
LARGE = 1 << 16
"""bytes from which pages come from the system; below, the allocator's zeroing is cheaper"""
NOWHERE = np.zeros(1 << MIN_CELLS_BITS, np.uint64)
"""cells of a bank that never held a key"""
Rebuild = Callable[[int, int, int, int], None]
"""cell.rebuild(cells, shift, old cells, how many): see native_keyed"""


def zeros(n: int, what: str) -> U8:
    """n bytes of zero. Raises MegascopeError when there is no memory for them."""
    try:
        if n < LARGE:
            return np.zeros(n, np.uint8)
        return np.frombuffer(mmap.mmap(-1, n, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    except (OSError, MemoryError, OverflowError) as e:
        raise MegascopeError(f"map {what}", f"no memory for {n} bytes ({e})", "declare fewer entries") from e


class MapBank:
    """Values, keys and cells of one bank. capacity: slots that there is room for."""

    def __init__(self, declared: Map) -> None:
        self.declared = declared
        self.capacity = 0
        self.values = self.keys = zeros(0, declared.name)
        self.cells = NOWHERE
        if not is_keyed(declared):
            self.capacity = declared.max_entries
            self.values = zeros(self.capacity * stride(declared), declared.name)
            self.values[: len(declared.initial)] = np.frombuffer(declared.initial, np.uint8)

    @property
    def shift(self) -> int:
        return 33 - len(self.cells).bit_length()

    def write(self, words: U64) -> None:
        """Say in a table's words for this bank where it is; COUNT stays."""
        words[Bank.VALUES], words[Bank.KEYS] = self.values.ctypes.data, self.keys.ctypes.data
        words[Bank.CELLS], words[Bank.SHIFT] = self.cells.ctypes.data, self.shift

    def enlarge(self, capacity: int, rebuild: Rebuild) -> None:
        """Make room for more keys; addresses change."""
        name, old = self.declared.name, self.cells
        values, keys = zeros(capacity * stride(self.declared), name), zeros(capacity * self.declared.key_size, name)
        values[: len(self.values)], keys[: len(self.keys)] = self.values, self.keys
        bits = max(MIN_CELLS_BITS, (2 * capacity - 1).bit_length())
        cells = zeros(8 << bits, name).view(np.uint64)
        self.values, self.keys, self.cells, self.capacity = values, keys, cells, capacity
        rebuild(cells.ctypes.data, self.shift, old.ctypes.data, len(old))

    def clear(self, count: int) -> None:
        """Begin an epoch: no keys, and zero where values are expected to be zero."""
        if self.declared.kind is not MapKind.HASH:
            used = count * stride(self.declared) if is_keyed(self.declared) else len(self.values)
            self.values[:used] = 0
            self.values[: len(self.declared.initial)] = np.frombuffer(self.declared.initial, np.uint8)
        if self.cells is not NOWHERE:
            self.cells[:] = 0

    def contents(self, count: int, sparse: bool) -> tuple[U8, U8]:
        """Copies of keys [n, key_size] and values [n, value_size]. sparse: of an array, those that are not all zero."""
        n = count if is_keyed(self.declared) else self.declared.max_entries
        values = self.values[: n * stride(self.declared)].reshape(n, stride(self.declared))[
            :, : value_bytes(self.declared)
        ]
        if is_keyed(self.declared):
            return self.keys[: n * self.declared.key_size].reshape(n, self.declared.key_size).copy(), values.copy()
        index = np.flatnonzero(values.any(axis=1)) if sparse else np.arange(n)
        return index.astype("<u4").view(np.uint8).reshape(-1, 4), values[index]


def has_room(bank: MapBank, count: int, inserts: int) -> bool:
    return bank.capacity == bank.declared.max_entries or count + inserts <= bank.capacity


def wanted(bank: MapBank, count: int, inserts: int) -> int:
    """The capacity that gives room for a row's inserts."""
    return min(bank.declared.max_entries, max(2 * bank.capacity, count + inserts, 16))
