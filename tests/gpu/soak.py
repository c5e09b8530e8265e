"""Programs swapped on a running megakernel for as long as wanted; all that is told, written down to be held together.

Two processes without CUDA beside the engine's:

    python tests/gpu/soak.py swap SEGMENT OUT SECONDS PERIOD_MS N EVENTS
        replaces a program every PERIOD_MS for so long, N times at least, and until so many events have been fired; then
        stops the engine
    python tests/gpu/soak.py rows SEGMENT OUT
        takes the rows and the records, until the engine ends
"""

from __future__ import annotations

import fcntl
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monitors import COMPLETE, Attacher, attacher, histogram
from numpy.typing import NDArray

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.histogram import LOWER
from megascope.capture.programs.program import Entry, Program
from megascope.capture.segment import map_ring, slots
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.program_words import Code, SlotState
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.segment.words import Control, Record, State, Summary, Worker

I64 = NDArray[np.int64]
SWAPPED, RAW = 1, 2
"""Slots."""
EVERY = 4
"""Of so many task classes, one is recorded raw."""


def raw_rows() -> Program:
    """Emits every completion of a task whose class is a multiple of EVERY."""
    text = f"ldxh %r2, [%r1+52]\nand %r2, {EVERY - 1}\njne %r2, 0, out\ncall emit\nout:\nmov %r0, 0\nexit\n"
    return Program("raw", assemble(text), (Entry("complete", (COMPLETE,), 0),))


def _ended(segment: SegmentReader) -> bool:
    return segment.status().state in (State.ENDED, State.FAILED)


def _fired(segment: SegmentReader) -> int:
    return int(segment.workers()[:, Worker.FIRED].sum())


def swap(path: Path, out: Path, seconds: float, period: float, least: int, events: int) -> None:
    """Writes the programs' numbers [n] in turn, took_ms [n], and cells [k, 4]: number, class, bucket, count."""
    with attacher(path) as a:
        raw = a.attach(raw_rows(), RAW)
        took = len(a.took_ms)
        programs = [histogram(f"swapped{i}", entries) for i, entries in enumerate((40, 48))]
        numbers = [a.attach(programs[0], SWAPPED)]
        begin = due = time.monotonic()
        while time.monotonic() - begin < seconds or len(numbers) < least or _fired(a.segment) < events:
            due = max(due + period, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                a.drain()
                time.sleep(min(left, 0.002))
            numbers.append(_replace(a, programs[len(numbers) % 2]))
        a.detach(SWAPPED)
        a.detach(RAW)
        _until(a, lambda: all(line.state == SlotState.FREE for line in slots.lines(a.segment)))
        a.segment.poke(a.segment.layout.control_offset + Control.STOP, b"\1")
        _until(a, lambda: _ended(a.segment))
        a.drain()
        cells, refused = _cells(a, programs, numbers)
        np.savez(out, raw=raw, numbers=numbers, took_ms=a.took_ms[took:], cells=cells, refused=refused)


def _replace(a: Attacher, program: Program) -> int:
    """Once there is room: what has left keeps its memory until all of it is told."""
    begin = time.monotonic()
    while True:
        said = a.ask(program, SWAPPED, replace=True)
        if said.code == Code.DONE:
            return int(said.program)
        assert said.code == Code.ARENA, said
        assert time.monotonic() - begin < 60
        a.drain()
        time.sleep(0.001)


def _until(a: Attacher, over: Any) -> None:
    begin = time.monotonic()
    while not over():
        assert time.monotonic() - begin < 60
        a.drain()
        time.sleep(0.002)


def _cells(a: Attacher, programs: list[Program], numbers: list[int]) -> tuple[I64, int]:
    declared = {number: programs[i % 2].maps[0] for i, number in enumerate(numbers)}
    out, refused = [], 0
    for span, n, body in a.records:
        if span.program not in declared:
            continue
        got = map_ring.entries(declared[span.program], n, body)
        refused += span.refused
        which = np.repeat(np.arange(n), got.buckets.astype(np.int64))
        key = got.keys.view("<u4").reshape(n, -1)[:, 0]
        row = np.empty((len(which), 4), np.int64)
        row[:, 0], row[:, 1], row[:, 2], row[:, 3] = span.program, key[which], got.bucket, got.count
        out.append(row)
    return (np.concatenate(out) if out else np.zeros((0, 4), np.int64)), refused


def rows(path: Path, out: Path) -> None:
    """Writes records [n, 16] of the summary rings, and key (see _key), class and ns of every row that was emitted."""
    records: list[Any] = []
    found: dict[str, list[Any]] = {"key": [], "task_class": [], "ns": []}
    with SegmentReader.open(path, write=True) as segment:
        fcntl.flock(segment.fd, fcntl.LOCK_SH)  # rings are read: the engine leaves them alone
        summaries, rings = SummaryReader(segment), RingReader(segment)
        last = False
        while True:
            got, losses = summaries.take()
            assert not losses, losses
            batch = rings.take()
            assert not batch.losses, batch.losses
            records.append(got)
            r = batch.rows
            if r.num_rows:
                of = {n: r.column(n).to_numpy() for n in ("worker", "seq", "task_class", "t", "aux")}
                found["key"].append(_key(of["worker"].astype(np.int64), of["seq"].astype(np.int64)))
                found["task_class"].append(of["task_class"])
                found["ns"].append(of["t"].astype(np.int64) - of["aux"].astype(np.int64))
            elif last and not len(got):
                break
            else:
                last = _ended(segment)
                time.sleep(0.0005)
    whole = {name: np.concatenate(its) if its else np.zeros(0, np.int64) for name, its in found.items()}
    np.savez(out, records=np.concatenate(records), **whole)


def judge(swapped: Any, told: Any, workers: int, fired: I64, lost: I64, dequeued: I64) -> dict[str, int]:
    """Hold everything together. fired, lost, dequeued: [workers] as the engine's words say at the end."""
    records, S = told["records"], Summary  # noqa: N806
    kind, worker = records[:, S.WHAT] & 0xFF, records[:, S.WHAT] >> 32
    program = records[:, S.WHAT] >> 16 & 0xFFFF
    intervals = records[kind == Record.INTERVAL]
    its = worker[kind == Record.INTERVAL]
    for w in range(workers):
        mine = intervals[its == w]
        assert mine[0, S.SEQ_FROM] == 1
        assert (mine[1:, S.SEQ_FROM] == mine[:-1, S.SEQ_TO]).all(), "no gap between intervals"
        assert mine[-1, S.SEQ_TO] - 1 == fired[w]
    seqs = intervals[:, S.SEQ_TO] - intervals[:, S.SEQ_FROM]
    np.testing.assert_array_equal(seqs, intervals[:, S.DEQUEUED] + intervals[:, S.INTERVAL_LOST])
    assert intervals[:, S.DEQUEUED].sum() == dequeued.sum()
    assert intervals[:, S.INTERVAL_LOST].sum() == lost.sum()
    c = records[kind == Record.COVERAGE]
    np.testing.assert_array_equal(
        c[:, S.ELIGIBLE], c[:, S.OBSERVED] + c[:, S.THROTTLED] + c[:, S.LOST] + c[:, S.FAULTED]
    )
    np.testing.assert_array_equal(c[:, S.EMITTED], c[:, S.WRITTEN] + c[:, S.RING_LOST] + c[:, S.EMIT_THROTTLED])
    who, whose = program[kind == Record.COVERAGE], worker[kind == Record.COVERAGE]
    assert not swapped["refused"]
    raw = who == int(swapped["raw"])
    whole = _Intervals(whose[raw], c[raw])
    of = np.isin(who, swapped["numbers"])
    mine, theirs, number = c[of], whose[of], who[of]
    *cell, count = swapped["cells"].T
    said = _merged(cell, count)
    np.testing.assert_array_equal(
        np.bincount(said[:, 0], said[:, 3], number.max() + 1),
        np.bincount(number, mine[:, S.OBSERVED], number.max() + 1),
        "a program has counted what it has observed",
    )
    # Of a program that saw no interval of which raw rows are missing, the raw rows tell what it must have counted.
    known = np.setdiff1d(number, number[~whole.have(theirs, mine)])
    expected = _of_raw_rows(told, theirs, mine, number)
    said = said[said[:, 1] % EVERY == 0]
    np.testing.assert_array_equal(said[np.isin(said[:, 0], known)], expected[np.isin(expected[:, 0], known)])
    compared = len(np.intersect1d(known, expected[:, 0]))
    return {
        "events": int(fired.sum()),
        "lost": int(lost.sum()),
        "programs": len(swapped["numbers"]),
        "observed": int(c[:, S.OBSERVED].sum()),
        "raw rows": len(told["key"]),
        "programs equal to raw rows": compared,
    }


def _merged(columns: Sequence[Any], count: Any = None) -> I64:
    """[n, columns + 1] the different cells, sorted, each with its counts added up. columns: none negative, and together
    of few values. count: of each cell, None: 1.
    """
    radix = [int(c.max(initial=0)) + 1 for c in columns]
    assert math.prod(radix) < 1 << 28
    flat = np.zeros(len(columns[0]), np.int64)
    for column, most in zip(columns, radix, strict=True):
        flat *= most
        flat += column
    total = np.bincount(flat, count).astype(np.int64)
    found = np.flatnonzero(total)
    return np.column_stack([*np.unravel_index(found, radix), total[found]])


def _key(worker: I64, seq: I64) -> I64:
    return worker << 44 | seq


class _Intervals:
    """Those of which every row that was emitted has been written."""

    def __init__(self, worker: I64, coverage: I64) -> None:
        S = Summary  # noqa: N806
        whole = (coverage[:, S.EMITTED] == coverage[:, S.WRITTEN]) & (coverage[:, S.FAULTED] == 0)
        whole &= coverage[:, S.THROTTLED] == 0
        begin = _key(worker, coverage[:, S.SEQ_FROM])[whole]
        order = np.argsort(begin)
        self._begin, self._end = begin[order], coverage[whole, S.SEQ_TO][order]

    def have(self, worker: I64, coverage: I64) -> NDArray[np.bool_]:
        """Which of the records [n, 16] are of such an interval; one without events counts too."""
        begin, end = _key(worker, coverage[:, Summary.SEQ_FROM]), coverage[:, Summary.SEQ_TO]
        at = np.minimum(np.searchsorted(self._begin, begin), len(self._begin) - 1)
        return (self._begin[at] == begin) & (self._end[at] == end) | (coverage[:, Summary.SEQ_FROM] == end)


def _of_raw_rows(rows: Any, worker: I64, coverage: I64, number: I64) -> I64:
    """[n, 4] program, class, bucket and count of raw rows (key, task_class, ns) by the interval that they lie in."""
    begin, end = _key(worker, coverage[:, Summary.SEQ_FROM]), _key(worker, coverage[:, Summary.SEQ_TO])
    order = np.lexsort((end, begin))
    begin, end, number = begin[order], end[order], number[order]
    key = rows["key"]
    at = np.searchsorted(begin, key, "right") - 1
    inside = (at >= 0) & (key < end[at])
    bucket = np.searchsorted(LOWER, rows["ns"][inside].astype(np.uint64), "right") - 1
    return _merged((number[at[inside]], rows["task_class"][inside], bucket))


if __name__ == "__main__":
    if sys.argv[1] == "swap":
        _, _, segment, out, seconds, period_ms, least, events = sys.argv
        swap(Path(segment), Path(out), float(seconds), float(period_ms) / 1e3, int(least), int(events))
    else:
        rows(Path(sys.argv[2]), Path(sys.argv[3]))
