"""What a recording sees of its engine beside rows: whether it goes on, and its clock."""

from __future__ import annotations

import time

from ..store.trace import TraceWriter
from .segment.reader import ClockFit, SegmentReader
from .segment.words import Clock

STALL_S = 2.0
OVER = ("ended", "failed", "died")


class EngineWatch:
    """Looks at a segment's status now and then, and writes into the trace what is to be told of it."""

    def __init__(self, segment: SegmentReader, writer: TraceWriter) -> None:
        self._segment, self._writer = segment, writer
        self._fits: list[ClockFit] = []
        self._stalled = False

    def look(self) -> str:
        """The reason to end that the engine gives, if any; on the way, its clock and its silence."""
        status = self._segment.status()
        self.remember_clock()
        silent = (time.time_ns() - status.heartbeat_ns) / 1e9
        if silent > STALL_S and status.alive and not self._stalled:
            self._stalled = True
            self._writer.lose("engine_stalled", 1, detail=f"no heartbeat for {silent:.1f} s")
        elif silent < STALL_S:
            self._stalled = False
        return status.text if status.text in OVER else ""

    def device_now(self, at_least: int) -> int:
        """Device time, ns: as the engine said last, and on a clock that runs by itself what has passed since."""
        status = self._segment.status()
        since = 0 if self._segment.layout.clock == Clock.VIRTUAL else max(0, time.time_ns() - status.heartbeat_ns)
        return min(max(status.t_now + since, at_least), 1 << 62)

    def remember_clock(self) -> None:
        """Put the fits of the two clocks that are new into the manifest."""
        fits = self._segment.clock_fits()
        if fits != self._fits:
            known = {f.host_ns: f for f in self._fits} | {f.host_ns: f for f in fits}
            self._fits = [known[k] for k in sorted(known)]
            rows = [{"host_ns": f.host_ns, "device_ns": f.device_ns, "error_ns": f.error_ns} for f in self._fits]
            self._writer.update(clock={"fits": rows})
