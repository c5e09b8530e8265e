"""Taking what the engine's host side told out of the host ring."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ...store.errors import Refused
from . import host_ring
from .drain import Loss
from .reader import SegmentReader
from .words import WORD, Status


class HostRingReader:
    """The drainer's position in the host ring; it begins with the oldest record that still stands."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        self.position, _ = self._bounds()

    def _bounds(self) -> tuple[int, int]:
        """(oldest whole byte, bytes told)."""
        lay = self.segment.layout
        base, _, head = self.segment.growing(lay.status_offset + Status.HOST_BASE * WORD, 3).tolist()
        if not (base <= head < 1 << 62 and head - base <= lay.host_bytes and base % 8 == 0 and head % 8 == 0):
            why = f"its host ring goes from byte {base} to {head} in {lay.host_bytes}"
            raise Refused(self.segment.what, why, "restart the engine")
        return base, head

    def take(self) -> tuple[dict[str, list[tuple[Any, ...]]], list[Loss]]:
        """Rows told since the last pass, by table, and what was overwritten or unreadable before they could be read."""
        base, head = self._bounds()
        losses: list[Loss] = []
        position = self.position
        if position < base:
            losses.append(Loss("host_ring_overwritten", base - position))
            position = base
        if position > head:
            raise Refused(
                self.segment.what, f"its host ring went back from byte {position} to {head}", "restart the engine"
            )
        data = self._copy(position, head)
        base, _ = self._bounds()
        if base > position:
            # The writer came round while we copied: what stands before the new base may be torn.
            losses.append(Loss("host_ring_overwritten", min(base, head) - position))
            data = data[base - position :]
        rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        try:
            for table, row in host_ring.decode(data):
                rows[table].append(row)
        except ValueError as e:
            losses.append(Loss("host_ring_overwritten", len(data), detail=str(e)))
        self.position = head
        return rows, losses

    def _copy(self, begin: int, end: int) -> bytes:
        lay, out = self.segment.layout, b""
        while begin < end:
            at = begin % lay.host_bytes
            n = min(end - begin, lay.host_bytes - at)
            out += self.segment.read(lay.host_offset + at, n)
            begin += n
        return out
