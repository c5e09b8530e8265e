"""Taking exports of maps out of the map rings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...store.errors import Refused
from ..programs import histogram
from ..programs.execution import Export
from ..programs.maps import Map, MapKind
from . import map_ring
from .drain import Loss
from .map_ring import Span
from .program_words import MAP_CHUNKS
from .reader import SegmentReader
from .words import Cursor

I64 = NDArray[np.int64]
Record = tuple[Span, int, bytes]
"""What for, how many entries, their bytes."""
MERGED = -1
"""Worker of an export that was merged over several."""


def exports_of(maps: Sequence[Map], records: Iterable[Record]) -> list[Export]:
    """Records of one program as its execution gave them, but for what was merged; parts of one export are one again.

    Raises ValueError where bytes are no such entries, IndexError for a map that there is not.
    """
    parts: dict[Span, list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]] = {}
    for span, n, body in records:
        declared = maps[span.map]
        e = map_ring.entries(declared, n, body)
        values = e.values
        if declared.kind == MapKind.HIST:
            words = np.zeros((n, histogram.WORDS), "<u8")
            words[:, : histogram.HEAD] = e.head
            words[np.repeat(np.arange(n), e.buckets.astype(np.int64)), histogram.HEAD + e.bucket] = e.count
            values = words.view(np.uint8)
        parts.setdefault(span, []).append((e.keys, values))
    return [
        Export(
            span.map,
            MERGED if span.worker is None else span.worker,
            np.concatenate([keys for keys, _ in of]),
            np.concatenate([values for _, values in of]),
            span.refused,
        )
        for span, of in parts.items()
    ]


class MapRingReader:
    """The drainer's position in every map ring of a segment that has them."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        lay = self._layout = segment.layout
        self._chunk = lay.map_bytes // MAP_CHUNKS
        if lay.program_slots:
            # The last drainer may have stopped inside a chunk, and only whole ones are told: where a record begins is
            # known of the head alone. What was exported before now belongs to no recording.
            self.position = self._heads()
            self._tails = np.frombuffer(segment.read(lay.map_tails_offset, lay.monitors), np.uint8)

    def _heads(self) -> I64:
        return self.segment.heads(Cursor.MAP_HEAD, "map ring")

    def take(self) -> tuple[list[Record], list[Loss]]:
        """Records published since the last pass, and what could not be read.

        Raises Refused when a head moved backwards or further than its ring.
        """
        if not self._layout.program_slots:
            return [], []
        lay, out, losses = self._layout, [], []
        heads = self._heads()
        for monitor in np.nonzero(heads != self.position)[0].tolist():
            begin, end = int(self.position[monitor]), int(heads[monitor])
            if not 0 <= end - begin <= lay.map_bytes or end % 8:
                why = f"the head of map ring {monitor} moved from {begin} to {end} in a ring of {lay.map_bytes} bytes"
                raise Refused(self.segment.what, why, "restart the engine")
            try:
                for data in self._copy(monitor, begin, end):
                    for record in map_ring.records(data):
                        self._check(record[0], monitor)
                        out.append(record)
            except ValueError as e:
                losses.append(Loss("bad_row", 1, monitor, detail=f"map record: {e}"))
            self.position[monitor] = end
        self._free()
        return out, losses

    def pass_by(self) -> None:
        """Free what is in the rings, unread."""
        if self._layout.program_slots:
            self.position = self._heads()
            self._free()

    def _copy(self, monitor: int, begin: int, end: int) -> Iterator[bytes]:
        lay = self._layout
        base = lay.map_offset + monitor * lay.map_bytes
        while begin < end:
            at = begin % lay.map_bytes
            n = min(end - begin, lay.map_bytes - at)
            yield self.segment.read(base + at, n)
            begin += n

    def _check(self, span: Span, monitor: int) -> None:
        lay, worker = self._layout, span.worker
        if worker is not None and (worker >= lay.workers or self.segment.monitor_of[worker] != monitor):
            raise ValueError(f"a record of worker {worker}, which is not its monitor's")
        if span.rank >= lay.ranks or not 0 < span.workers <= lay.workers:
            raise ValueError(f"a record of {span.workers} workers of rank {span.rank}")

    def _free(self) -> None:
        tails = (self.position // max(1, self._chunk)).astype(np.uint8)
        if not np.array_equal(tails, self._tails):
            self.segment.poke(self._layout.map_tails_offset, tails.tobytes())
            self._tails = tails
