"""Runs of the megakernel on the device, and what stands in their segments, read raw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.segment.words import Cursor, Record, Summary
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.tables import RECORDER

SMALL = (
    "layers=2,d_model=256,heads=8,kv_heads=2,head_dim=32,ffn=512,vocab=1024,slots=4,context=128,"
    "qkv_tile=16,out_tile=16,ffn_tile=32,vocab_tile=32,"
    "prompt_tokens=12,max_tokens=12,preempt=0.05,cancel=0.02,steps=60,seconds=20"
)


@contextmanager
def engine(cuda: Any, path: Path, spec: str, *, record: bool = True, keep_every: int = 0) -> Iterator[CudaEngine]:
    """An engine on a new segment, given back to the driver whatever happens."""
    made = CudaEngine(Megakernel(cuda, Settings.parse(f"{SMALL},{spec}"), keep_every=keep_every), path, record=record)
    try:
        yield made
    finally:
        made.kernel.host.ask_stop()
        made.kernel.wait()
        made.close()


def rows(segment: SegmentWriter) -> dict[str, NDArray[Any]]:
    """Every published row of rings that have not wrapped, by column, ordered by monitor."""
    heads = segment.cursor[:, Cursor.HEAD].astype(int)
    assert heads.max() <= segment.layout.ring_rows
    return {
        name: np.concatenate([column[m].reshape(-1)[:head] for m, head in enumerate(heads)])
        for name, column in segment.columns.items()
    }


def records(segment: SegmentWriter, kind: Record) -> NDArray[np.uint64]:
    """[n, 16] summary records of one kind, of rings that have not wrapped; `WHAT` and stamps are checked."""
    heads = segment.cursor[:, Cursor.SUMMARY_HEAD].astype(int)
    assert heads.max() <= segment.layout.summary_rows
    for m, head in enumerate(heads):
        assert segment.summary[m, :head, Summary.STAMP].tolist() == list(range(1, head + 1))
    found = np.concatenate([segment.summary[m, :head] for m, head in enumerate(heads)])
    return found[found[:, Summary.WHAT] & np.uint64(0xFF) == kind]


def worker_of(found: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (found[:, Summary.WHAT] >> np.uint64(32)).astype(np.int64)


def hook_of(found: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (found[:, Summary.WHAT] >> np.uint64(8) & np.uint64(0xFF)).astype(np.int64)


def check_identities(segment: SegmentWriter, *, written: bool = True) -> dict[str, int]:
    """Every sequence number is dequeued once or lost once; per interval and hook the coverage adds up.

    Coverage: the recorder's alone. written: also hold the records against the rows in the ring, which must not have
    wrapped.
    """
    intervals, coverage = records(segment, Record.INTERVAL), records(segment, Record.COVERAGE)
    coverage = coverage[coverage[:, Summary.WHAT] >> np.uint64(16) & np.uint64(0xFFFF) == RECORDER]
    intervals, coverage = intervals.astype(np.int64), coverage.astype(np.int64)
    S = Summary  # noqa: N806
    seqs = intervals[:, S.SEQ_TO] - intervals[:, S.SEQ_FROM]
    np.testing.assert_array_equal(seqs, intervals[:, S.DEQUEUED] + intervals[:, S.INTERVAL_LOST])
    assert (intervals[:, S.INTERVAL_LOST] >= 0).all()
    np.testing.assert_array_equal(coverage[:, S.ELIGIBLE], coverage[:, S.OBSERVED] + coverage[:, S.LOST])
    np.testing.assert_array_equal(coverage[:, S.EMITTED], coverage[:, S.WRITTEN] + coverage[:, S.RING_LOST])
    found = rows(segment) if written else None
    who, whose = worker_of(intervals.astype(np.uint64)), worker_of(coverage.astype(np.uint64))
    hooks = hook_of(coverage.astype(np.uint64))
    for worker in range(segment.layout.workers):
        mine, its = intervals[who == worker], coverage[whose == worker]
        assert mine[0, S.SEQ_FROM] == 1
        assert (mine[1:, S.SEQ_FROM] == mine[:-1, S.SEQ_TO]).all()
        unclaimed = mine[:, S.UNCLAIMED].sum()
        assert its[:, S.OBSERVED].sum() + unclaimed == mine[:, S.DEQUEUED].sum()
        if unclaimed:  # fired for nobody: the other half of a task's record, or while a change was under way
            assert its[:, S.LOST].sum() <= mine[:, S.INTERVAL_LOST].sum()
        else:
            assert its[:, S.ELIGIBLE].sum() == mine[-1, S.SEQ_TO] - 1
        if found is not None:
            here = found["worker"] == worker
            seq, hook = found["seq"][here].astype(np.int64), found["hook"][here]
            assert (np.diff(seq) > 0).all(), "in order, none twice"
            for one in mine:
                inside = (seq >= one[S.SEQ_FROM]) & (seq < one[S.SEQ_TO])
                of_it = (its[:, S.SEQ_FROM] == one[S.SEQ_FROM]) & (its[:, S.SEQ_TO] == one[S.SEQ_TO])
                assert inside.sum() == its[of_it, S.WRITTEN].sum()
                for h, n in zip(hooks[whose == worker][of_it], its[of_it, S.WRITTEN], strict=True):
                    assert (hook[inside] == h).sum() == n
    return {
        "eligible": int(coverage[:, S.ELIGIBLE].sum()),
        "lost": int(coverage[:, S.LOST].sum()),
        "written": int(coverage[:, S.WRITTEN].sum()),
        "ring_lost": int(coverage[:, S.RING_LOST].sum()),
    }
