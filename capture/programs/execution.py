"""What every execution of an attached program does alike: budgets, counters, epochs. See `Execution`.

An execution serves one monitor domain: `workers` workers, numbered as in the event rows. Rows come in batches, of each
worker in order of seq. For each row at a hook with an entry:

    spent[worker] + cost > budget        throttled, nothing else happens
    else spent += cost, the entry runs   observed, or faulted where the VM stops it (verified code never is)
    the entry called emit                emitted; written to `by` unless the worker's emit allowance is spent

cost is the verdict's worst case, so that executions agree on what a budget holds. Epochs end worker by worker: `close`
gives the entries of aggregations as exports, makes them what map_closed reads, and begins the next with empty maps and
a full budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
HOOK_SLOTS = 16
UNLIMITED = (1 << 63) - 1


class Count(IntEnum):
    """Last axis of `counters`. emitted = allowed + emit_throttled; what becomes of an allowed row the ring says."""

    OBSERVED = 0
    THROTTLED = 1
    FAULTED = 2
    EMITTED = 3
    EMIT_THROTTLED = 4


COUNTS = len(Count)


@dataclass(frozen=True)
class Limits:
    """Per worker and epoch: instructions that may be spent, rows that may be emitted."""

    instructions: int = UNLIMITED
    rows: int = UNLIMITED


@dataclass(frozen=True)
class Export:
    """Entries of one map of one worker (-1: shared or feedback). keys: [n, key_size] bytes; values: [n, value_size].

    Sorted by the key as a little-endian number (np.lexsort(keys.T)), so that the indexes of an array ascend.
    refused: upserts and updates that found the map full, or an index beyond an array, since the last close (of an
    aggregation), or since the execution was made (of state).
    """

    map: int
    worker: int
    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    refused: int


class Execution(Protocol):
    """An attached program: its maps, budgets and counters. Executions agree bit for bit, see the module."""

    counters: I64
    """[workers, HOOK_SLOTS, COUNTS] since the execution was made"""

    def run(self, rows: U64, by: U32, bit: int) -> None:
        """Let the program see rows, [n, 8] words each; set `bit` in by[i] where row i is to be exported."""

    def close(self, workers: I64) -> list[Export]:
        """End the epoch of these workers: exports of their aggregations (array maps: entries that are not all zero).

        A shared map's epoch ends when `workers` are all of them.
        """

    def entries(self, map_index: int, worker: int) -> Export:
        """What a map holds now, of one worker (any, if it is shared); array maps: every entry. Changes nothing."""

    def feed(self, map_index: int, index: int, value: int, epoch: int) -> None:
        """Write a feedback cell: seen by rows that run later."""
