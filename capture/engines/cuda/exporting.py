"""What programs on the device export, on its way from the monitors' buffers to the segment's map rings.

Buffers are copied as soon as they are handed over, so that no monitor waits, and put together between requests.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...programs.execution import Limits
from ...programs.verdict import Verdict
from ...segment.program_words import Slot, SlotState
from ...segment.requests import Request
from ...segment.sink import SegmentSink
from .exports import Exports
from .monitors import MonitorMemory
from .slices import slices

DIGEST_S = 0.002
"""How long a request waits at most for what programs have exported to be put together."""
MOST_WAITING = 1024
"""Buffers of exports that wait for that. When there are more, monitors wait too."""
FEW = 4
"""Buffers that are taken between two looks at a change that is under way."""
TELL_S = 0.1


@dataclass
class Placed:
    """A program on the device. image: its words for the VM. arena: (offset, length) in words."""

    place: int
    slot: int
    program: int
    verdict: Verdict
    image: NDArray[np.uint64]
    limits: Limits
    arena: tuple[int, int]
    exports: Exports
    request: Request
    attached: bool = False
    """It runs: in force everywhere, and not replaced or detached."""


class Exporting:
    """placed: the programs that run, come, or have left and are not wholly told, by place."""

    def __init__(self, sink: SegmentSink, memory: MonitorMemory) -> None:
        self._sink, self._memory = sink, memory
        self.placed: dict[int, Placed] = {}
        self._told = 0.0
        self._buffers: deque[NDArray[np.uint64]] = deque()
        self._queue: deque[tuple[int | None, bytes]] = deque()

    def attached(self, slot: int) -> Placed | None:
        """What runs in a slot of the segment."""
        return next((p for p in self.placed.values() if p.slot == slot and p.attached), None)

    def take(self) -> None:
        """Take the buffers that monitors have handed over."""
        if len(self._buffers) >= MOST_WAITING:
            self.digest(time.monotonic() + DIGEST_S)
        if len(self._buffers) < MOST_WAITING:
            self._buffers += self._memory.taken()

    def take_few(self) -> None:
        """A few of them, or one put together: for who has something else to look at meanwhile."""
        if len(self._buffers) >= MOST_WAITING:
            self._put_together(self._buffers.popleft())
        else:
            self._buffers += self._memory.taken(FEW)

    def digest(self, until: float | None = None) -> None:
        """Put together what has been taken, and send on what is whole. until: the time (monotonic) to leave off."""
        while self._buffers:
            self._put_together(self._buffers.popleft())
            if until is not None and time.monotonic() > until:
                break
        for place, placed in list(self.placed.items()):
            self._queue.extend(placed.exports.ready())
            if placed.exports.over:
                self._queue.extend(placed.exports.ready(all_of_it=True))
                del self.placed[place]
                if not self.attached(placed.slot):
                    self._sink.tell(placed.slot, SlotState.FREE, {})
        self._tell()
        self._flush()

    def end(self) -> None:
        """The kernel has ended: what is still on the way goes out."""
        self._buffers += self._memory.taken()
        self.digest()
        for placed in self.placed.values():
            self._queue.extend(placed.exports.ready(all_of_it=True))
            self._sink.tell(placed.slot, SlotState.FREE, {})
        self._flush()

    def _put_together(self, buffer: NDArray[np.uint64]) -> None:
        for s in slices(buffer):
            placed = self.placed.get(s.place)
            if placed and placed.program == s.program:
                placed.exports.take(s)

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        for placed in self.placed.values():
            if placed.attached:
                seen = placed.exports.seen
                line = {Slot.OBSERVED: int(seen[1]), Slot.MISSING: int(seen[2:5].sum()), Slot.EMITTED: int(seen[5])}
                self._sink.tell(placed.slot, SlotState.ATTACHED, line)

    def _flush(self) -> None:
        while self._queue:
            worker, record = self._queue[0]
            if not self._sink.keep_map(0 if worker is None else worker % self._memory.monitors, record):
                break
            self._queue.popleft()
