"""Programs on a running kernel, and what they should have said, from the raw rows."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megascope.capture.programs import image
from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.segment.exports import MapRingReader, Record
from megascope.capture.segment.mailbox import Mailbox
from megascope.capture.segment.program_words import Code
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.slots import Answer
from megascope.store.tables import HOOK_BY_NAME

PATIENCE_S = 60.0
COMPLETE = HOOK_BY_NAME["complete"].id
HIST_TEXT = """
mov %r6, %r1
ldxh %r2, [%r6+52]
stxw [%r10-8], %r2
lddw %r1, map:lat
mov %r2, %r10
add %r2, -8
ldxdw %r3, [%r6+0]
ldxdw %r4, [%r6+24]
sub %r3, %r4
call hist_add
mov %r0, 0
exit
"""


def histogram(name: str = "latency", entries: int = 64) -> Program:
    """Execution time of tasks by class."""
    declared = Map("lat", MapKind.HIST, 4, FIXED_VALUE_BYTES[MapKind.HIST], entries, aggregate=True)
    return Program(name, assemble(HIST_TEXT, {"lat": 0}), (Entry("complete", (COMPLETE,), 0),), (declared,))


def counting(name: str = "counting") -> Program:
    """How many tasks of each class completed: a map of few words."""
    text = HIST_TEXT.replace("map:lat", "map:n").replace("ldxdw %r4, [%r6+24]\nsub %r3, %r4\n", "mov %r3, 1\n")
    declared = Map("n", MapKind.HASH, 4, 8, 64, aggregate=True)
    text = text.replace("hist_add", "map_add")
    return Program(name, assemble(text, {"n": 0}), (Entry("complete", (COMPLETE,), 0),), (declared,))


def long_tasks(ns: int, emit_limit: int | None = None) -> Program:
    """The rows of tasks that took longer."""
    text = f"""
ldxdw %r3, [%r1+0]
ldxdw %r4, [%r1+24]
sub %r3, %r4
jlt %r3, {ns}, out
call emit
out:
mov %r0, 0
exit
"""
    return Program("long", assemble(text), (Entry("complete", (COMPLETE,), 0),), emit_limit=emit_limit)


class Attacher:
    """A process that attaches, without CUDA: here in the same process, through the segment's file alone."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = segment
        self.maps = MapRingReader(segment)
        self.records: list[Record] = []
        self.took_ms: list[float] = []

    def drain(self) -> None:
        found, losses = self.maps.take()
        assert not losses, losses
        self.records += found

    def ask(self, program: Program, slot: int, limits: Limits | None = None, *, replace: bool = False) -> Answer:
        """The engine's answer; how long it took is kept of those that were attached."""
        with Mailbox(self.segment, "test", PATIENCE_S) as box:
            begin = time.perf_counter()
            said = box.attach(slot, image.pack(program), limits or Limits(), replace=replace)
            took = 1e3 * (time.perf_counter() - begin)
        if said.code == Code.DONE:
            self.took_ms.append(took)
        return said

    def attach(self, program: Program, slot: int, limits: Limits | None = None, *, replace: bool = False) -> int:
        said = self.ask(program, slot, limits, replace=replace)
        assert said.code == Code.DONE, said
        return said.program

    def detach(self, slot: int) -> None:
        with Mailbox(self.segment, "test", PATIENCE_S) as box:
            said = box.detach(slot)
        assert said.code == 0, said


@contextmanager
def attacher(path: Path) -> Iterator[Attacher]:
    with SegmentReader.open(path, write=True) as segment:
        fcntl.flock(segment.fd, fcntl.LOCK_SH)  # rings are read: the engine leaves them alone
        yield Attacher(segment)


def true_histograms(found: dict[str, NDArray[Any]], intervals: NDArray[np.int64]) -> dict[int, NDArray[np.uint64]]:
    """By class, of the rows whose (worker, seq) lies in one of [n, 3] intervals (worker, from, to)."""
    from megascope.capture.programs.histogram import WORDS, add

    done = found["hook"] == COMPLETE
    worker, seq = found["worker"][done].astype(np.int64), found["seq"][done].astype(np.int64)
    took = found["t"][done] - found["aux"][done]
    inside = np.zeros(len(seq), np.bool_)
    for who in np.unique(intervals[:, 0]):
        mine = worker == who
        for _, begin, end in intervals[intervals[:, 0] == who]:
            inside[mine] |= (seq[mine] >= begin) & (seq[mine] < end)
    out: dict[int, NDArray[np.uint64]] = {}
    for cls, ns in zip(found["task_class"][done][inside].tolist(), took[inside].tolist(), strict=True):
        add(out.setdefault(cls, np.zeros(WORDS, np.uint64)), ns)
    return out
