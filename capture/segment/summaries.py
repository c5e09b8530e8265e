"""Taking interval and coverage records out of the summary rings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...store.errors import Refused
from ...store.tables import HOOKS
from .drain import Loss
from .reader import SegmentReader
from .words import CHUNK, WORD, Cursor, Record, Summary

I64 = npt.NDArray[np.int64]
_TOP_HOOK = max(h.id for h in HOOKS)


class SummaryReader:
    """The drainer's position in every summary ring of a segment."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        lay = self._layout = segment.layout
        self.position, self._tails = segment.freed(self._heads(), CHUNK, lay.tails_offset + lay.monitors)

    def _heads(self) -> I64:
        return self.segment.heads(Cursor.SUMMARY_HEAD, "summary ring")

    def take(self) -> tuple[I64, list[Loss]]:
        """[records, 16] words published since the last pass, and what had to be left out.

        Raises Refused when a head moved backwards or further than its ring.
        """
        lay, losses = self._layout, []
        heads = self._heads()
        out: list[npt.NDArray[np.uint64]] = []
        for monitor in np.nonzero(heads != self.position)[0].tolist():
            begin, end = int(self.position[monitor]), int(heads[monitor])
            if not 0 <= end - begin <= lay.summary_rows:
                why = f"the head of summary ring {monitor} moved from {begin} to {end} in a ring of {lay.summary_rows}"
                raise Refused(self.segment.what, why, "restart the engine")
            records = self._copy(monitor, begin, end)
            good = self._plausible(records, begin)
            if not good.all():
                losses.append(Loss("bad_row", int((~good).sum()), monitor, detail="summary record"))
            out.append(records[good])
            self.position[monitor] = end
        self._free()
        words = np.concatenate(out) if out else np.empty((0, Summary.WORDS), np.uint64)
        return words.astype(np.int64), losses

    def pass_by(self) -> int:
        """Free what is in the rings, unread. How many records, but for those that a drainer cannot have freed."""
        heads = self._heads()
        passed = (heads - self.position) // CHUNK * CHUNK
        self.position = heads
        self._free()
        return int(np.maximum(passed, 0).sum())

    def _copy(self, monitor: int, begin: int, end: int) -> npt.NDArray[np.uint64]:
        lay = self._layout
        base = lay.summary_offset + monitor * lay.summary_rows * Summary.WORDS * WORD
        parts: list[Any] = []
        while begin < end:
            at = begin % lay.summary_rows
            n = min(end - begin, lay.summary_rows - at)
            parts.append(self.segment.words(base + at * Summary.WORDS * WORD, n, Summary.WORDS))
            begin += n
        return np.concatenate(parts)

    def _plausible(self, records: npt.NDArray[np.uint64], begin: int) -> npt.NDArray[np.bool_]:
        lay = self._layout
        stamps = np.arange(begin + 1, begin + 1 + len(records), dtype=np.uint64)
        what = records[:, Summary.WHAT]
        kind, hook = what & np.uint64(0xFF), what >> np.uint64(8) & np.uint64(0xFF)
        worker = what >> np.uint64(32)
        known = np.array([r.value for r in Record], np.uint64)
        sane = (records[:, 1:] < np.uint64(1 << 63)).all(axis=1)
        merged = kind == np.uint64(Record.MERGED)
        ordered = np.where(
            merged,
            (records[:, Summary.SEQ_FROM] <= np.uint64(lay.workers))
            & (records[:, Summary.SEQ_TO] < np.uint64(lay.ranks)),
            records[:, Summary.SEQ_FROM] <= records[:, Summary.SEQ_TO],
        )
        good: npt.NDArray[np.bool_] = (records[:, Summary.STAMP] == stamps) & np.isin(kind, known)
        return good & (hook <= _TOP_HOOK) & (worker < lay.workers) & sane & ordered

    def _free(self) -> None:
        tails = (self.position // CHUNK).astype(np.uint8)
        if not np.array_equal(tails, self._tails):
            self.segment.poke(self._layout.tails_offset + self._layout.monitors, tails.tobytes())
            self._tails = tails
