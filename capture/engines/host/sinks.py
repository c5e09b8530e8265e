"""Where the host engine's rows, records and words go: a segment, or memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ....store.tables import EVENT_ROW, RECORDER
from ...segment.layout import CHUNK, Cursor, Policy, Summary, Worker
from ...segment.writer import SegmentWriter
from .account import U64
from .state import I64


class Sink(Protocol):
    """A monitor's far side. Methods that may have no room say so; the engine decides whether to wait."""

    @property
    def waits(self) -> bool:
        """Whether the engine waits for room (policy `wait`) instead of losing rows."""

    def room(self, monitor: int) -> int:
        """Rows that a monitor's ring can take now."""

    def write(self, monitor: int, rows: U64) -> None:
        """[n, 8] rows of the ABI into a monitor's ring, n not above its room."""

    def lose(self, monitor: int, rows: int) -> None:
        """That many rows found no room."""

    def keep(self, monitor: int, records: I64) -> bool:
        """Summary records of one cut, all or (False: no room) none."""

    def say(self, table: str, rows: Iterable[tuple[int | str, ...]]) -> None:
        """Rows of an engine table."""

    def show(self, worker: I64, t: int, step: int, epoch: int) -> None:
        """Publish the words of all workers, [workers, Worker.WORDS], and a sign of life."""

    def wanted(self) -> tuple[int, int] | None:
        """(mask, commit byte) when the hooks to record have been asked for anew."""

    def latched(self, mask: int, commit: int) -> None:
        """The mask is in force."""

    @property
    def stopped(self) -> bool:
        """An orderly end is asked for."""


class MemorySink:
    """Keeps everything: for tests, and for whoever wants the events of a run as one array.

    mask: hooks to record. keep_rows False: rows are counted by the engine but not kept.
    """

    waits = True
    stopped = False

    def __init__(self, *, mask: int = 0x1FFE, keep_rows: bool = True) -> None:
        self._mask: int | None = mask
        self._keep = keep_rows
        self._rows: list[U64] = []
        self._records: list[I64] = []
        self.told: dict[str, list[tuple[int | str, ...]]] = defaultdict(list)
        self.workers: I64 = np.empty((0, Worker.WORDS), np.int64)

    def room(self, monitor: int) -> int:  # noqa: ARG002
        return 1 << 62

    def write(self, monitor: int, rows: U64) -> None:  # noqa: ARG002
        if self._keep:
            self._rows.append(rows.copy())

    def lose(self, monitor: int, rows: int) -> None:
        raise AssertionError(f"monitor {monitor} lost {rows} rows in memory")

    def keep(self, monitor: int, records: I64) -> bool:  # noqa: ARG002
        self._records.append(records)
        return True

    def say(self, table: str, rows: Iterable[tuple[int | str, ...]]) -> None:
        self.told[table] += rows

    def show(self, worker: I64, t: int, step: int, epoch: int) -> None:  # noqa: ARG002
        self.workers = worker.copy()

    def wanted(self) -> tuple[int, int] | None:
        mask, self._mask = self._mask, None
        return None if mask is None else (mask, 0)

    def latched(self, mask: int, commit: int) -> None:
        pass

    @property
    def events(self) -> NDArray[np.void]:
        """All rows as records of the ABI's event row: by monitor's passes, each worker's in order."""
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, 8), np.uint64)
        return rows.view(EVENT_ROW.dtype).reshape(-1)

    @property
    def records(self) -> I64:
        """[records, 16] interval and coverage records, words by `Summary`."""
        return np.concatenate(self._records) if self._records else np.empty((0, Summary.WORDS), np.int64)


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
        self._commit = -1
        # The recorder is the only program, so it emitted every row.
        writer.columns["by"][:] = RECORDER

    @property
    def waits(self) -> bool:
        return self._policy == Policy.WAIT

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

    def write(self, monitor: int, rows: U64) -> None:
        lay, records = self._layout, rows.view(EVENT_ROW.dtype).reshape(-1)
        done = 0
        while done < len(records):
            head = int(self._head[monitor])
            block, at = head // lay.block_rows, head % lay.block_rows
            turn, place = block // lay.blocks, block % lay.blocks
            whole = (len(records) - done) // lay.block_rows
            if at or not whole:
                n = min(lay.block_rows - at, len(records) - done)
                self._w.generation[monitor, place] = 2 * turn + 1
                for name in EVENT_ROW.names:
                    self._w.columns[name][monitor, place, at : at + n] = records[name][done : done + n]
                self._w.generation[monitor, place] = 2 * turn + 1 + (at + n == lay.block_rows)
            else:
                blocks = min(whole, lay.blocks - place, max(1, lay.blocks // 4))
                n = blocks * lay.block_rows
                self._w.generation[monitor, place : place + blocks] = 2 * turn + 1
                for name in EVENT_ROW.names:
                    column = records[name][done : done + n].reshape(blocks, lay.block_rows)
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

    def show(self, worker: I64, t: int, step: int, epoch: int) -> None:
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

    def wanted(self) -> tuple[int, int] | None:
        commit = self._w.commit
        if commit == self._commit:
            return None
        self._commit = commit
        return self._w.mask & self._layout.exported, commit

    def latched(self, mask: int, commit: int) -> None:
        self._w.cursor[:, Cursor.MASK] = mask
        self._w.cursor[:, Cursor.ACK] = commit
