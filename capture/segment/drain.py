"""Taking rows out of the event rings.

A pass reads every monitor's head, copies the blocks that hold new rows, checks the rows, and frees what was copied.
A block that is only partly published is copied as far as it goes (a prefix), and freed once all of it was taken.
Memory is bounded by the copy buffer, whatever the engine's rate.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.errors import Refused
from ...store.tables import RING_ROW
from .reader import SegmentReader, Truncated
from .words import WORD, Cursor, Policy

COPY_BYTES = 1 << 24
"""Blocks copied at once."""


@dataclass(frozen=True)
class Loss:
    """Rows known to be missing: a kind of store.loss, a count, and where."""

    kind: str
    count: int
    monitor: int | None = None
    worker: int | None = None
    detail: str = ""
    t_begin: int | None = None
    t_end: int | None = None


@dataclass
class Batch:
    """What a pass brought: rows by column (the ring row's types), and what is missing of them."""

    rows: pa.RecordBatch
    losses: list[Loss] = field(default_factory=list)


@dataclass(frozen=True)
class _Run:
    """Consecutive blocks of one monitor's ring: `count` whole ones, or rows [begin, end) of a single one."""

    monitor: int
    block: int
    count: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.count * (self.end - self.begin)


class RingReader:
    """The drainer's position in every event ring of a segment."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        lay = self._layout = segment.layout
        self._copied = max(1, COPY_BYTES // lay.block_bytes)
        self._buffer = np.empty((self._copied, lay.block_bytes), np.uint8)
        self._cut: Truncated | None = None
        self._exported = np.array([lay.exported >> h & 1 for h in range(256)], np.bool_)
        self._rank_of, self._monitor_of = segment.rank_of.astype(np.uint8), segment.monitor_of.astype(np.uint16)
        self.position = self._begin()
        """[monitors] rows taken or given up so far, by monitor."""
        self.taken = 0
        self.backlog = 0
        """Rows published but not taken, as of the last pass."""

    def _begin(self) -> npt.NDArray[np.int64]:
        """Where the last drainer stopped; under `overwrite` no earlier than the oldest rows that still stand."""
        lay = self._layout
        heads = self._heads()
        position, self._tails = self.segment.freed(heads, lay.block_rows, lay.tails_offset)
        if lay.policy == Policy.OVERWRITE:
            position = np.maximum(position, heads - lay.ring_rows + lay.block_rows)
        return position

    def _heads(self) -> npt.NDArray[np.int64]:
        return self.segment.heads(Cursor.HEAD, "ring")

    def take(self) -> Batch:
        """One pass, at most COPY_BYTES.

        Raises Refused when a head moved backwards or further than its ring, Truncated when the file was cut.
        """
        if self._cut:
            raise self._cut
        heads, losses = self._heads(), []
        for monitor in np.nonzero(heads != self.position)[0].tolist():
            loss = self._catch_up(monitor, int(heads[monitor]))
            if loss:
                losses.append(loss)
        rows, more = self._copy(self._runs(heads))
        self.backlog = int((heads - self.position).sum())
        self.taken += rows.num_rows
        if not self._cut:
            self._free()
        return Batch(rows, losses + more)

    def pass_by(self) -> int:
        """Free what is in the rings, unread. How many rows, but for those that a drainer cannot have freed."""
        heads = self._heads()
        passed = (heads - self.position) // self._layout.block_rows * self._layout.block_rows
        self.position = heads
        self._free()
        return int(np.maximum(passed, 0).sum())

    def _catch_up(self, monitor: int, head: int) -> Loss | None:
        """Give up rows that the engine has overwritten; refuse a head that cannot be."""
        lay, position = self._layout, int(self.position[monitor])
        if head < position:
            raise Refused(
                self.segment.what,
                f"the head of ring {monitor} went back from {position} to {head}",
                "restart the engine",
            )
        if head - position <= lay.ring_rows:
            return None
        if lay.policy != Policy.OVERWRITE:
            why = f"the head of ring {monitor} is {head - position} rows ahead in a ring of {lay.ring_rows}"
            raise Refused(self.segment.what, why, "restart the engine")
        # The block being written is the oldest that stands; one more keeps clear of the pen.
        safe = head - lay.ring_rows + lay.block_rows
        self.position[monitor] = safe
        return Loss("overwritten", safe - position, monitor)

    def _runs(self, heads: npt.NDArray[np.int64]) -> list[_Run]:
        """What to copy in this pass: fullest rings first, so that no ring is starved when a pass is not enough."""
        lay, runs, room = self._layout, [], self._copied
        waiting = heads - self.position
        for monitor in np.argsort(-waiting, kind="stable").tolist():
            row, head = int(self.position[monitor]), int(heads[monitor])
            while row < head and room:
                block, begin = divmod(row, lay.block_rows)
                whole = 0 if begin else (head - row) // lay.block_rows
                count = max(1, min(whole, room, lay.blocks - block % lay.blocks))
                end = lay.block_rows if whole else min(lay.block_rows, begin + head - row)
                runs.append(_Run(monitor, block, count, begin, end))
                row += runs[-1].rows
                room -= count
            if not room:
                break
        return runs

    def _copy(self, runs: list[_Run]) -> tuple[pa.RecordBatch, list[Loss]]:
        """Rows of all runs, run after run, so that the rows of a worker stay in order."""
        losses: list[Loss] = []
        kept: list[tuple[int, _Run]] = []
        at = 0
        for run in runs:
            into = self._buffer[at : at + run.count]
            try:
                self._read(run, into)
            except Truncated as e:
                # What was copied before the cut is whole: hand it on, and say so in the next pass.
                self._cut = e
                break
            self.position[run.monitor] += run.rows
            if self._layout.policy == Policy.OVERWRITE:
                whole = self._unbroken(run, into)
                kept += [(at + i, _Run(run.monitor, run.block + i, 1, run.begin, run.end)) for i in whole]
                torn = run.rows - len(whole) * (run.end - run.begin)
                if torn:
                    losses.append(Loss("torn_block", torn, run.monitor))
            else:
                kept.append((at, run))
            at += run.count
        columns = {c.name: self._gather(c.name, kept) for c in RING_ROW}
        good = self._plausible(columns, kept)
        if not good.all():
            bad = int(len(good) - good.sum())
            losses.append(Loss("bad_row", bad, detail="hook, worker or rank that the engine did not declare"))
            columns = {name: values[good] for name, values in columns.items()}
        return pa.record_batch([pa.array(v) for v in columns.values()], schema=RING_ROW.schema), losses

    def _read(self, run: _Run, into: npt.NDArray[np.uint8]) -> None:
        offset, length = self._offset(run), run.count * self._layout.block_bytes
        got = os.preadv(self.segment.fd, [into.data], offset)
        if got < length:
            # Either the file was cut, and this raises, or the read was interrupted, and this makes it good.
            rest = self.segment.read(offset + got, length - got)
            into.reshape(-1)[got:] = np.frombuffer(rest, np.uint8)

    def _offset(self, run: _Run) -> int:
        lay = self._layout
        return lay.ring_offset + (run.monitor * lay.blocks + run.block % lay.blocks) * lay.block_bytes

    def _unbroken(self, run: _Run, copy: npt.NDArray[np.uint8]) -> list[int]:
        """Which of the blocks had, before and after the copy, the generation of the pass that their rows belong to."""
        turn, lay = run.block // self._layout.blocks, self._layout
        ours = (2 * turn + 1, 2 * turn + 2)
        before = copy[:, :WORD].view("<u8")[:, 0].tolist()
        after = [
            int.from_bytes(self.segment.read(self._offset(run) + i * lay.block_bytes, WORD), "little")
            for i in range(run.count)
        ]
        return [i for i in range(run.count) if before[i] in ours and after[i] in ours]

    def _gather(self, name: str, kept: list[tuple[int, _Run]]) -> npt.NDArray[np.unsignedinteger]:
        """One column of all runs: each copied once, from the blocks to where the rows stand in a row."""
        dtype, rows = RING_ROW.dtype[name], self._layout.block_rows
        at = self._layout.column_offset(name)
        whole = self._buffer[:, at : at + rows * dtype.itemsize].view(dtype)
        out: npt.NDArray[np.unsignedinteger] = np.empty(sum(run.rows for _, run in kept), dtype)
        to = 0
        for i, run in kept:
            part = out[to : to + run.rows].reshape(run.count, -1)
            part[:] = whole[i : i + run.count, run.begin : run.end]
            to += run.rows
        return out

    def _plausible(
        self, columns: dict[str, npt.NDArray[np.unsignedinteger]], kept: list[tuple[int, _Run]]
    ) -> npt.NDArray[np.bool_]:
        """Rows whose hook, worker and rank the engine declared, and whose worker belongs to the ring they stand in."""
        worker = columns["worker"]
        declared = worker < self._layout.workers
        if not declared.all():
            worker = np.where(declared, worker, 0)
        monitor = np.repeat(
            np.array([run.monitor for _, run in kept], np.uint16), np.array([run.rows for _, run in kept], np.int64)
        )
        good: npt.NDArray[np.bool_] = declared & self._exported[columns["hook"]]
        good &= self._rank_of[worker] == columns["rank"]
        good &= self._monitor_of[worker] == monitor
        return good

    def _free(self) -> None:
        """Publish the tails. One byte each, so that however the write becomes visible, no tail is ever torn."""
        tails = (self.position // self._layout.block_rows).astype(np.uint8)
        if not np.array_equal(tails, self._tails):
            self.segment.poke(self._layout.tails_offset, tails.tobytes())
            self._tails = tails
