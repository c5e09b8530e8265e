"""Runs of the megakernel on a device of conftest.py, and what stands in their segments, read raw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megascope.capture.engines.cuda.compilation import Hooks
from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.segment.words import Cursor, Record, Summary
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.tables import HOOK_BY_NAME, RECORDER


def kernel(cuda: Any, spec: str, *, keep_every: int = 0) -> Megakernel:
    """A short run's, unless `spec` says otherwise."""
    settings = Settings.parse(f"{cuda.small},{spec}")
    return Megakernel(cuda.cupy, settings, keep_every=keep_every, compiled=cuda.compiled)


@contextmanager
def engine(cuda: Any, path: Path, spec: str, *, record: bool = True, keep_every: int = 0) -> Iterator[CudaEngine]:
    """An engine on a new segment, given back to the driver whatever happens."""
    made = CudaEngine(kernel(cuda, spec, keep_every=keep_every), path, record=record)
    try:
        yield made
    finally:
        made.kernel.host.ask_stop()
        made.kernel.wait()
        made.close()


KEPT = 8
"""Of so many steps, the logits of one are kept."""
COMPARED = 20_000
"""Of so many steps, at most, what was computed is held against another run."""


def unharmed(engine: CudaEngine) -> None:
    """A kernel that kept logits has computed all of them under hooks, and what it computes without: it runs again.

    Outputs are poisoned before a launch, so that what was not written is seen.
    """
    kernel, steps = engine.kernel, engine.counts()["steps"]

    def computed(steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
        there = kernel.plan.request[: steps : kernel.keep_every] > 0
        return kernel.used_tokens()[:steps].copy(), kernel.kept_logits()[: len(there)][there]

    assert steps > 0
    assert not np.isnan(computed(steps)[1]).any()
    compared = min(steps, COMPARED)
    tokens, kept = computed(compared)
    kernel.launch(Hooks.NONE, steps=compared)
    assert kernel.wait() == "done"
    tokens_alone, kept_alone = computed(compared)
    np.testing.assert_array_equal(kept, kept_alone)
    np.testing.assert_array_equal(tokens, tokens_alone)


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
    """Every sequence number is dequeued once or lost once; what was dequeued was seen by all who watched its hook.

    Sums of the recorder's coverage. written: also hold its records against the rows in the ring, which must not have
    wrapped.
    """
    intervals, coverage = records(segment, Record.INTERVAL), records(segment, Record.COVERAGE)
    who, whose, hooks = worker_of(intervals), worker_of(coverage), hook_of(coverage)
    recorders = coverage[:, Summary.WHAT] >> np.uint64(16) & np.uint64(0xFFFF) == RECORDER
    intervals, coverage = intervals.astype(np.int64), coverage.astype(np.int64)
    S = Summary  # noqa: N806
    seqs = intervals[:, S.SEQ_TO] - intervals[:, S.SEQ_FROM]
    np.testing.assert_array_equal(seqs, intervals[:, S.DEQUEUED] + intervals[:, S.INTERVAL_LOST])
    assert (intervals[:, S.INTERVAL_LOST] >= 0).all()
    dequeued = coverage[:, S.OBSERVED] + coverage[:, S.THROTTLED] + coverage[:, S.FAULTED]
    np.testing.assert_array_equal(coverage[:, S.ELIGIBLE], dequeued + coverage[:, S.LOST])
    exported = coverage[:, S.WRITTEN] + coverage[:, S.RING_LOST] + coverage[:, S.EMIT_THROTTLED]
    np.testing.assert_array_equal(coverage[:, S.EMITTED], exported)
    found = rows(segment) if written else None
    for worker in range(segment.layout.workers):
        mine, its = intervals[who == worker], whose == worker
        assert mine[0, S.SEQ_FROM] == 1
        assert (mine[1:, S.SEQ_FROM] == mine[:-1, S.SEQ_TO]).all()
        here = found["worker"] == worker if found is not None else None
        if found is not None:
            seq, hook = found["seq"][here].astype(np.int64), found["hook"][here]
            assert (np.diff(seq) > 0).all(), "in order, none twice"
        for one in mine:
            of_it = its & (coverage[:, S.T_BEGIN] == one[S.T_BEGIN]) & (coverage[:, S.T_END] == one[S.T_END])
            watched = [h for h in np.unique(hooks[of_it]) if h != HOOK_BY_NAME["epoch"].id]
            claimed = 0
            for h in watched:
                (n,) = np.unique(dequeued[of_it & (hooks == h)])
                claimed += n
            assert claimed + one[S.UNCLAIMED] == one[S.DEQUEUED]
            if found is not None:
                inside = (seq >= one[S.SEQ_FROM]) & (seq < one[S.SEQ_TO])
                told = of_it & recorders
                assert inside.sum() == coverage[told, S.WRITTEN].sum()
                for h, n in zip(hooks[told], coverage[told, S.WRITTEN], strict=True):
                    assert (hook[inside] == h).sum() == n
    return {
        name.lower(): int(coverage[recorders, S[name]].sum()) for name in ("ELIGIBLE", "LOST", "WRITTEN", "RING_LOST")
    }
