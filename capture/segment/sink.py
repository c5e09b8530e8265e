"""What an engine's process itself writes to a segment and reads from it: rings, records, words and requests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...store.tables import EVENT_ROW
from .map_ring import filler
from .program_words import MAP_CHUNKS, Code, Slot, SlotState
from .requests import Damaged, Request, RequestReader
from .words import CHUNK, Cursor, HostStatus, Policy, Summary, Worker
from .writer import SegmentWriter

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


class SegmentSink:
    """Writes into a segment's rings. The tails are bytes that the drainer moves; here they are counted on."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._w = writer
        lay = self._layout = writer.layout
        self._policy = Policy(lay.policy)
        self._head = np.zeros(lay.monitors, np.int64)
        self._freed = np.zeros(lay.monitors, np.int64)
        self._kept = np.zeros(lay.monitors, np.int64)
        self._chunks = np.zeros(lay.monitors, np.int64)
        self._lost = np.zeros(lay.monitors, np.int64)
        self._map_head = np.zeros(lay.monitors, np.int64)
        self._map_chunks = np.zeros(lay.monitors, np.int64)
        self._commit = -1
        self.map_bytes = lay.map_bytes
        self._requests = RequestReader(writer) if lay.program_slots else None

    @property
    def waits(self) -> bool:
        return self._policy == Policy.WAIT and not self._w.cut

    @property
    def stopped(self) -> bool:
        return self._w.stop

    def room(self, monitor: int) -> int:
        if self._policy == Policy.OVERWRITE:
            return 1 << 62
        self._freed[monitor] += int(self._w.tail[monitor]) - int(self._freed[monitor]) & 0xFF
        taken = int(self._freed[monitor]) * self._layout.block_rows
        # A drainer cannot have taken more than was written: whoever says so is no drainer, and gets no room.
        return self._layout.ring_rows - int(self._head[monitor]) + min(taken, int(self._head[monitor]))

    def write(self, monitor: int, rows: U64, by: U32) -> None:
        lay, records = self._layout, rows.view(EVENT_ROW.dtype).reshape(-1)
        columns = {name: records[name] for name in EVENT_ROW.names} | {"by": by}
        done = 0
        while done < len(records):
            head = int(self._head[monitor])
            block, at = head // lay.block_rows, head % lay.block_rows
            turn, place = block // lay.blocks, block % lay.blocks
            whole = (len(records) - done) // lay.block_rows
            if at or not whole:
                n = min(lay.block_rows - at, len(records) - done)
                self._w.generation[monitor, place] = 2 * turn + 1
                for name, values in columns.items():
                    self._w.columns[name][monitor, place, at : at + n] = values[done : done + n]
                self._w.generation[monitor, place] = 2 * turn + 1 + (at + n == lay.block_rows)
            else:
                blocks = min(whole, lay.blocks - place, max(1, lay.blocks // 4))
                n = blocks * lay.block_rows
                self._w.generation[monitor, place : place + blocks] = 2 * turn + 1
                for name, values in columns.items():
                    column = values[done : done + n].reshape(blocks, lay.block_rows)
                    self._w.columns[name][monitor, place : place + blocks] = column
                self._w.generation[monitor, place : place + blocks] = 2 * turn + 2
            done += n
            self._head[monitor] = head + n
            self._w.cursor[monitor, Cursor.HEAD] = head + n

    def lose(self, monitor: int, rows: int) -> None:
        self._lost[monitor] += rows
        self._w.cursor[monitor, Cursor.RING_LOST] = self._lost[monitor]

    def keep(self, monitor: int, records: I64) -> bool:
        lay, head = self._layout, int(self._kept[monitor])
        self._chunks[monitor] += int(self._w.summary_tail[monitor]) - int(self._chunks[monitor]) & 0xFF
        freed = min(int(self._chunks[monitor]) * CHUNK, head)
        if len(records) > lay.summary_rows - (head - freed):
            return False
        place = (head + np.arange(len(records))) % lay.summary_rows
        ring = self._w.summary[monitor]
        ring[place, Summary.STAMP] = 0
        ring[place, 1:] = records[:, 1:].view(np.uint64)
        ring[place, Summary.STAMP] = (head + 1 + np.arange(len(records))).astype(np.uint64)
        self._kept[monitor] = head + len(records)
        self._w.cursor[monitor, Cursor.SUMMARY_HEAD] = head + len(records)
        return True

    def say(self, table: str, rows: Iterable[tuple[int | str, ...]]) -> None:
        self._w.say(table, rows)

    def show(self, worker: I64, t: int, step: int, epoch: int, *, waits: bool = False) -> None:
        words: Any = worker.view(np.uint64)
        for column in (
            *range(Worker.NOW_T, Worker.NOW_CHECK + 1),
            Worker.FIRED,
            Worker.DEQUEUED,
            Worker.LOST,
        ):
            self._w.worker[:, column] = words[:, column]
        self._w.cursor[:, Cursor.EPOCH] = epoch
        self._w.cursor[:, Cursor.HEARTBEAT] = t
        self._w.beat(t, step)
        since = self._w.status[HostStatus.WAITS_SINCE]
        if waits != bool(since):
            self._w.status[HostStatus.WAITS_SINCE] = time.time_ns() if waits else 0

    def wanted(self) -> tuple[int, int] | None:
        commit = self._w.commit
        if commit == self._commit:
            return None
        self._commit = commit
        return self._w.mask & self._layout.exported, commit

    def latched(self, mask: int, commit: int) -> None:
        self._w.cursor[:, Cursor.MASK] = mask
        self._w.cursor[:, Cursor.ACK] = commit

    # --- programs ----------------------------------------------------------------------------------------------

    def keep_map(self, monitor: int, record: bytes) -> bool:
        size, head = self.map_bytes, int(self._map_head[monitor])
        chunk = size // MAP_CHUNKS
        self._map_chunks[monitor] += int(self._w.map_tail[monitor]) - int(self._map_chunks[monitor]) & 0xFF
        free = size - head + min(int(self._map_chunks[monitor]) * chunk, head)
        left = size - head % size
        gap = left if left < len(record) else 0
        if gap + len(record) > free:
            return False
        ring = self._w.map_rings[monitor]
        if gap:
            ring[head % size :] = np.frombuffer(filler(gap), np.uint8)
        at = (head + gap) % size
        ring[at : at + len(record)] = np.frombuffer(record, np.uint8)
        self._map_head[monitor] = head + gap + len(record)
        self._w.cursor[monitor, Cursor.MAP_HEAD] = self._map_head[monitor]
        return True

    def next_request(self) -> Request | Damaged | None:
        return self._requests.next() if self._requests else None

    def answer(self, number: int, code: Code, program: int, text: str, *, arena_used: int) -> None:
        if self._requests:
            self._requests.answer(number, code, program, text, arena_used=arena_used)

    def tell(self, slot: int, state: SlotState, words: dict[Slot, int]) -> None:
        if self._requests:
            self._requests.tell(slot, state, words)

    def feedback(self) -> tuple[int, list[tuple[int, int, int, int, int]]] | None:
        return self._requests.feedback() if self._requests else None

    def fed(self, commit: int) -> None:
        if self._requests:
            self._requests.fed(commit)
