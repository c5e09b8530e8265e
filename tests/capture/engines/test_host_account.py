"""Every sequence number is dequeued once or lost once, and the records say which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_runs import SMALL, execute, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.words import Cursor, Record, Summary, Worker
from megascope.capture.segment.writer import SegmentWriter

I64 = np.ndarray


def split(records: I64) -> tuple[I64, I64, I64, I64]:
    """(intervals, their workers, coverage, their workers)."""
    kind, worker = records[:, Summary.WHAT] & 0xFF, records[:, Summary.WHAT] >> 32
    of = kind == Record.INTERVAL
    return records[of], worker[of], records[~of], worker[~of]


@settings(deadline=None, max_examples=10)
@given(
    lose=st.sampled_from((0.0, 0.01, 0.3, 0.9)),
    epoch=st.sampled_from((0.05, 0.3, 100.0)),
    workers=st.integers(1, 5),
    monitors=st.integers(0, 1),
    schedule=st.sampled_from(("static", "dynamic")),
    seed=st.integers(0, 99),
)
def test_sequence_numbers_are_dequeued_or_lost(
    lose: float, epoch: float, workers: int, monitors: int, schedule: str, seed: int
) -> None:
    run = execute(
        f"{SMALL},steps=8,workers={workers},monitors={monitors},schedule={schedule},"
        f"lose={lose},epoch_ms={epoch},seed={seed}"
    )
    events, result = run.events, run.result
    intervals, of, coverage, covered = split(run.sink.records)
    assert result.fired == result.dequeued + result.lost
    assert result.dequeued == len(events) == result.written
    assert (result.lost > 0) == (lose > 0) or lose == 0.01
    for w in range(workers):
        mine = intervals[of == w]
        assert mine[0, Summary.SEQ_FROM] == 1
        assert (mine[1:, Summary.SEQ_FROM] == mine[:-1, Summary.SEQ_TO]).all()
        assert (mine[1:, Summary.T_BEGIN] == mine[:-1, Summary.T_END]).all()
        rows = events[events["worker"] == w]
        assert len(set(rows["seq"])) == len(rows)
        for one in mine:
            low, high = one[Summary.SEQ_FROM], one[Summary.SEQ_TO]
            inside = rows[(rows["seq"] >= low) & (rows["seq"] < high)]
            assert high - low == one[Summary.DEQUEUED] + one[Summary.INTERVAL_LOST]
            assert one[Summary.DEQUEUED] == len(inside)
            assert one[Summary.UNCLAIMED] == 0
            if len(inside):
                assert inside["t"].min() >= one[Summary.T_BEGIN]
                assert inside["t"].max() < one[Summary.T_END]
            hooks = coverage[(covered == w) & (coverage[:, Summary.SEQ_FROM] == low)]
            for record in hooks:
                hook = record[Summary.WHAT] >> 8 & 0xFF
                seen = (inside["hook"] == hook).sum()
                assert record[Summary.OBSERVED] == record[Summary.EMITTED] == record[Summary.WRITTEN] == seen
                assert record[Summary.ELIGIBLE] == record[Summary.OBSERVED] + record[Summary.LOST]
            assert hooks[:, Summary.ELIGIBLE].sum() == high - low
        assert len(rows) == mine[:, Summary.DEQUEUED].sum()


def test_losses_do_not_change_the_run() -> None:
    whole, lossy = execute(SMALL + ",steps=20"), execute(SMALL + ",steps=20,lose=0.3")
    kept = np.isin(
        whole.events["worker"].astype(np.int64) << 32 | whole.events["seq"].astype(np.int64),
        lossy.events["worker"].astype(np.int64) << 32 | lossy.events["seq"].astype(np.int64),
    )
    assert whole.events[kept].tobytes() == lossy.events.tobytes()
    assert 0.15 < lossy.result.lost / lossy.result.fired < 0.45


def test_epochs_are_those_of_the_rows() -> None:
    run = execute(SMALL + ",steps=40,epoch_ms=0.25")
    intervals, _, _, _ = split(run.sink.records)
    first, count = intervals[:, Summary.EPOCH] & (1 << 48) - 1, intervals[:, Summary.EPOCH] >> 48
    assert (first == intervals[:, Summary.T_BEGIN] // 250_000).all()
    assert (first + count - 1 == (intervals[:, Summary.T_END] - 1) // 250_000).all()
    assert len(set(first)) > 5


@pytest.mark.parametrize("policy", ["drop", "overwrite"])
def test_a_ring_that_nobody_drains(tmp_path: Path, policy: str) -> None:
    spec = spec_of(SMALL + f",steps=60,ring_mb=0.25,policy={policy},epoch_ms=2")
    engine, layout = HostEngine(spec), layout_of(spec)
    with SegmentWriter.create(tmp_path / "s", layout, side_tables=engine.tables(), record=True) as w:
        result = engine.run(SegmentSink(w))
        head, lost = int(w.cursor[0, Cursor.HEAD]), int(w.cursor[0, Cursor.RING_LOST])
        assert result.fired == result.dequeued == result.written + result.ring_lost
        assert (head, lost) == (result.written, result.ring_lost)
        assert result.fired > layout.ring_rows
        assert head == (layout.ring_rows if policy == "drop" else result.fired)
        assert int(w.worker[:, Worker.DEQUEUED].sum()) == result.dequeued
        assert (
            w.generation[0] == 2 * ((head // layout.block_rows - 1 - np.arange(layout.blocks)) // layout.blocks) + 2
        ).any()
        kept = w.summary[0, : int(w.cursor[0, Cursor.SUMMARY_HEAD])].astype(np.int64)
        intervals, of, coverage, _ = split(kept)
        for worker in range(spec.workers):
            mine = intervals[of == worker]
            gave = mine[:, Summary.SEQ_TO] - mine[:, Summary.SEQ_FROM]
            assert (gave == mine[:, Summary.DEQUEUED] + mine[:, Summary.INTERVAL_LOST]).all()
            assert (mine[1:, Summary.SEQ_FROM] == mine[:-1, Summary.SEQ_TO]).all()
        emitted = coverage[:, Summary.WRITTEN] + coverage[:, Summary.RING_LOST]
        assert (coverage[:, Summary.EMITTED] == emitted).all()


def test_intervals_stay_open_while_the_summary_ring_is_full(tmp_path: Path) -> None:
    spec = spec_of(SMALL + ",steps=400,policy=drop,epoch_ms=0.2")
    engine, layout = HostEngine(spec), layout_of(spec)
    with SegmentWriter.create(tmp_path / "s", layout, side_tables=engine.tables(), record=True) as w:
        engine.run(SegmentSink(w))
        n = int(w.cursor[0, Cursor.SUMMARY_HEAD])
        assert layout.summary_rows - 100 < n <= layout.summary_rows
        assert (w.summary[0, :n, Summary.STAMP] == np.arange(1, n + 1)).all()
        # Room for the rest: the next cut spans all epochs that found none.
        w.summary_tail[0] = n // 16
        before = engine._account.records(0, engine._monitors._now(engine.t + 1))
        assert int(before[0, Summary.EPOCH] >> 48) > 10
