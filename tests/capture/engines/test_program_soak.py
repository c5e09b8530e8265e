"""A long run with programs attached: nothing is lost without being counted, and memory stays where it was."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from host_runs import spec_of

from megascope.capture import attaching
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.engines.host.sinks import MemorySink
from megascope.capture.programs import image
from megascope.capture.segment import map_ring
from megascope.capture.segment.program_words import Code, Op
from megascope.capture.segment.requests import Request
from megascope.capture.segment.words import Record, Summary

EVENTS = 100_000_000
TEXTS = (
    "complete { @lat[task_class] = hist(since_ns); }",
    "start, complete, wait, resume { @n[worker] = count(); }",
    "complete /since_ns > 20us/ { @slow[task_class] = count(); emit(); }",
)


class Counting(MemorySink):
    """Keeps sums, not rows."""

    def __init__(self, requests: list[tuple[int, Request]]) -> None:
        super().__init__(keep_rows=False, requests=requests)
        self.sums: dict[int, np.ndarray] = {}
        self.counted: dict[int, int] = {}
        self.declared = [attaching.load(t, {}, query=True, name=f"p{i}").maps[0] for i, t in enumerate(TEXTS)]

    def keep(self, monitor: int, records: np.ndarray) -> bool:  # noqa: ARG002
        coverage = records[records[:, Summary.WHAT] & 0xFF != Record.INTERVAL]
        own = records[records[:, Summary.WHAT] & 0xFF == Record.INTERVAL]
        given = own[:, Summary.SEQ_TO] - own[:, Summary.SEQ_FROM]
        assert (given == own[:, Summary.DEQUEUED] + own[:, Summary.INTERVAL_LOST]).all()
        for row in coverage:
            p = int(row[Summary.WHAT]) >> 16 & 0xFFFF
            self.sums[p] = self.sums.get(p, np.zeros(9, np.int64)) + row[Summary.ELIGIBLE :]
        return True

    def keep_map(self, monitor: int, record: bytes) -> bool:  # noqa: ARG002
        for span, n, body in map_ring.records(record):
            e = map_ring.entries(self.declared[span.program - 2], n, body)
            values = e.head[:, 0] if len(e.head[0]) else np.ascontiguousarray(e.values).view("<u8")
            self.counted[span.program] = self.counted.get(span.program, 0) + int(values.sum())
        return True


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_hundred_million_events(tmp_path: Path) -> None:
    del tmp_path
    requests = []
    for i, text in enumerate(TEXTS):
        data = image.pack(attaching.load(text, {}, query=True, name=f"p{i}"))
        requests.append((0, Request(i + 1, Op.ATTACH, i + 1, 0, len(data), 0, 0, 0, data)))
    sink = Counting(requests)
    engine = HostEngine(spec_of("steps=0,workers=16,telemetry=0,lose=0.001"))
    peaks: list[int] = []

    def enough() -> bool:
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return int(engine._sim.worker[:, 0].sum()) >= EVENTS

    result = engine.run(sink, enough)
    assert [code for _, code, _, _ in sink.answers] == [Code.DONE] * 3
    assert result.fired >= EVENTS
    assert result.fired == result.dequeued + result.lost
    eligible, observed, throttled, lost, faulted, emitted, written, ring_lost, emit_throttled = range(9)
    for p in (1, 2, 3, 4):
        s = sink.sums[p]
        assert s[eligible] == s[observed] + s[throttled] + s[lost] + s[faulted]
        assert s[emitted] == s[written] + s[ring_lost] + s[emit_throttled]
    assert sink.sums[1][eligible] == result.fired
    assert sink.counted[2] == sink.sums[2][observed]
    assert sink.counted[3] == sink.sums[3][observed]
    assert sink.counted[4] == sink.sums[4][emitted]
    # A tenth in, everything that grows has grown.
    assert peaks[-1] < peaks[len(peaks) // 10] * 1.2 + 50_000
