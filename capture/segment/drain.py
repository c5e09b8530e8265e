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
from .layout import BLOCK_HEADER, WORD, Cursor, Policy
from .reader import SegmentReader, Truncated

COPY_BYTES = 16 << 20
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
class _Piece:
    """Rows [begin, end) of one block of one monitor."""

    monitor: int
    block: int
    begin: int
    end: int


class RingReader:
    """The drainer's position in every event ring of a segment."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        lay = self._layout = segment.layout
        self._copied = max(1, COPY_BYTES // lay.block_bytes)
        self._buffer = np.empty((self._copied, lay.block_bytes), np.uint8)
        self._tails = np.zeros(lay.monitors, np.uint8)
        self._cut: Truncated | None = None
        self.position = self._begin()
        """[monitors] rows taken or given up so far, by monitor."""
        self.taken = 0
        self.backlog = 0
        """Rows published but not taken, as of the last pass."""

    def _begin(self) -> npt.NDArray[np.int64]:
        """Where the last drainer stopped: its tail is known modulo 256 blocks, and a ring holds fewer."""
        lay = self._layout
        heads = self._heads()
        tails = np.frombuffer(self.segment.read(lay.tails_offset, lay.monitors), np.uint8).astype(np.int64)
        behind = (heads // lay.block_rows - tails) % 256
        position: npt.NDArray[np.int64] = np.maximum(heads // lay.block_rows - behind, 0) * lay.block_rows
        if lay.policy == Policy.OVERWRITE:
            position = np.maximum(position, heads - lay.ring_rows + lay.block_rows)
        self._tails[:] = tails
        return position

    def _heads(self) -> npt.NDArray[np.int64]:
        heads = self.segment.cursors()[:, Cursor.HEAD]
        if (heads >= 1 << 62).any():
            worst = int(heads.argmax())
            raise Refused(self.segment.what, f"the head of ring {worst} is {int(heads[worst])}", "restart the engine")
        return heads.astype(np.int64)

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
        pieces = self._pieces(heads)
        rows, more = self._copy(pieces)
        self.backlog = int((heads - self.position).sum())
        self.taken += rows.num_rows
        if not self._cut:
            self._free()
        return Batch(rows, losses + more)

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

    def _pieces(self, heads: npt.NDArray[np.int64]) -> list[_Piece]:
        """What to copy in this pass: fullest rings first, so that no ring is starved when a pass is not enough."""
        lay = self._layout
        pieces: list[_Piece] = []
        waiting = heads - self.position
        for monitor in np.argsort(-waiting, kind="stable").tolist():
            row, head = int(self.position[monitor]), int(heads[monitor])
            while row < head and len(pieces) < self._copied:
                begin = row % lay.block_rows
                end = min(lay.block_rows, begin + head - row)
                pieces.append(_Piece(monitor, row // lay.block_rows, begin, end))
                row += end - begin
            if len(pieces) == self._copied:
                break
        return pieces

    def _copy(self, pieces: list[_Piece]) -> tuple[pa.RecordBatch, list[Loss]]:
        lay, losses = self._layout, []
        kept: list[tuple[int, _Piece]] = []
        for at, piece in enumerate(pieces):
            try:
                self._read_block(piece, self._buffer[at])
            except Truncated as e:
                # What was copied before the cut is whole: hand it on, and say so in the next pass.
                self._cut = e
                break
            if lay.policy == Policy.OVERWRITE and not self._whole(piece, self._buffer[at]):
                losses.append(Loss("torn_block", piece.end - piece.begin, piece.monitor))
            else:
                kept.append((at, piece))
            self.position[piece.monitor] += piece.end - piece.begin
        columns = {c.name: self._gather(c.name, kept) for c in RING_ROW}
        good = self._plausible(columns, kept)
        if not good.all():
            bad = int(len(good) - good.sum())
            losses.append(Loss("bad_row", bad, detail="hook, worker or rank that the engine did not declare"))
            columns = {name: values[good] for name, values in columns.items()}
        return pa.record_batch([pa.array(v) for v in columns.values()], schema=RING_ROW.schema), losses

    def _read_block(self, piece: _Piece, into: npt.NDArray[np.uint8]) -> None:
        got = os.preadv(self.segment.fd, [into.data], self._offset(piece))
        if got < self._layout.block_bytes:
            self.segment.read(self._offset(piece), self._layout.block_bytes)  # raises Truncated, or was a short read
            raise Refused(self.segment.what, f"a block of ring {piece.monitor} came back short", "try again")

    def _offset(self, piece: _Piece) -> int:
        lay = self._layout
        return lay.ring_offset + (piece.monitor * lay.blocks + piece.block % lay.blocks) * lay.block_bytes

    def _whole(self, piece: _Piece, copy: npt.NDArray[np.uint8]) -> bool:
        """Whether the block's generation, before and after the copy, was that of the pass that the rows belong to."""
        turn = piece.block // self._layout.blocks
        after = np.frombuffer(self.segment.read(self._offset(piece), WORD), "<u8")
        return all(int(word[0]) in (2 * turn + 1, 2 * turn + 2) for word in (copy[:WORD].view("<u8"), after))

    def _gather(self, name: str, kept: list[tuple[int, _Piece]]) -> npt.NDArray[np.unsignedinteger]:
        """One column of all pieces, copied together."""
        dtype = RING_ROW.dtype[name]
        at = BLOCK_HEADER + self._layout.block_rows * RING_ROW.offsets[name]
        whole = self._buffer[:, at : at + self._layout.block_rows * dtype.itemsize].view(dtype)
        if not kept:
            return np.empty(0, dtype)
        return np.concatenate([whole[i, p.begin : p.end] for i, p in kept])

    def _plausible(
        self, columns: dict[str, npt.NDArray[np.unsignedinteger]], kept: list[tuple[int, _Piece]]
    ) -> npt.NDArray[np.bool_]:
        """Rows whose hook, worker and rank the engine declared, and whose worker belongs to the ring they stand in."""
        lay, segment = self._layout, self.segment
        worker = columns["worker"]
        declared = worker < lay.workers
        known = np.where(declared, worker, 0)
        exported = np.array([lay.exported >> h & 1 for h in range(256)], np.bool_)
        monitor = np.repeat(np.array([p.monitor for _, p in kept], np.uint64), [p.end - p.begin for _, p in kept])
        good: npt.NDArray[np.bool_] = declared & exported[columns["hook"]]
        good &= segment.rank_of[known] == columns["rank"]
        good &= segment.monitor_of[known] == monitor
        return good

    def _free(self) -> None:
        """Publish the tails. One byte each, so that however the write becomes visible, no tail is ever torn."""
        tails = (self.position // self._layout.block_rows).astype(np.uint8)
        if not np.array_equal(tails, self._tails):
            self.segment.poke(self._layout.tails_offset, tails.tobytes())
            self._tails = tails
