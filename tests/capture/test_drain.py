"""Every row is taken once or counted lost once, whatever the interleaving, the policy and the losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedEngine

from megascope.capture.accounts import Accounts
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.segment.words import Cursor, Policy
from megascope.store.errors import Refused
from megascope.store.tables import RING_ROW

MONITOR_OF = [0, 0, 1]

act = st.one_of(
    st.tuples(st.just("fire"), st.integers(0, 2), st.sampled_from([3, 4, 7]), st.integers(1, 90), st.booleans()),
    st.tuples(st.just("take")),
    st.tuples(st.just("cut"), st.integers(0, 2)),
)


class Run:
    """A scripted engine and a drainer beside it."""

    def __init__(self, path: Path, policy: Policy) -> None:
        self.engine = ScriptedEngine(path, MONITOR_OF, policy=policy)
        self.segment = SegmentReader.open(path, write=True)
        self.rings, self.summaries = RingReader(self.segment), SummaryReader(self.segment)
        self.accounts = Accounts(self.segment)
        self.rows: list[tuple[int, int]] = []
        self.overwritten = 0
        self.intervals: list[dict[str, int]] = []
        self.coverage: list[dict[str, int]] = []
        self.booked_lost = 0

    def take(self) -> int:
        words, losses = self.summaries.take()
        assert not losses
        intervals, coverage, counted = self.accounts.book(words)
        self.intervals += intervals.to_pylist()
        self.coverage += coverage.to_pylist()
        self.booked_lost += sum(x.count for x in counted)
        batch = self.rings.take()
        assert batch.rows.schema == RING_ROW.schema
        self.rows += list(zip(batch.rows["worker"].to_pylist(), batch.rows["seq"].to_pylist(), strict=True))
        assert {x.kind for x in batch.losses} <= {"overwritten", "torn_block"}
        self.overwritten += sum(x.count for x in batch.losses)
        return batch.rows.num_rows + len(words)

    def finish(self) -> None:
        for worker in range(3):
            while not self.engine.cut(worker):
                self.take()
        while self.take():
            pass
        self.segment.close()


@settings(max_examples=150)
@given(script=st.lists(act, max_size=40), policy=st.sampled_from([Policy.DROP, Policy.OVERWRITE]))
def test_rows_and_losses_add_up(tmp_path_factory: pytest.TempPathFactory, script: list[tuple], policy: Policy) -> None:  # type: ignore[type-arg]
    run = Run(tmp_path_factory.mktemp("drain") / "a.mseg", policy)
    for step in script:
        if step[0] == "fire":
            for _ in range(step[3]):
                run.engine.fire(step[1], step[2], lose=step[4])
        elif step[0] == "take":
            run.take()
        else:
            run.engine.cut(step[1])
    run.finish()
    engine = run.engine

    # None twice; all in order of each worker; nothing that was not written.
    assert len(set(run.rows)) == len(run.rows)
    for worker in range(3):
        seqs = [s for w, s in run.rows if w == worker]
        assert seqs == sorted(seqs)
    missing = set(engine.truth) - set(run.rows)
    assert set(run.rows) <= set(engine.truth)
    assert len(missing) == run.overwritten
    assert policy == Policy.OVERWRITE or not missing

    # Δseq = dequeued + lost, per row and in total.
    for row in run.intervals:
        assert row["seqs"] == row["dequeued"] + row["lost"]
        assert row["worker"] is None or row["seqs"] == row["seq_to"] - row["seq_from"]
    # A row stands for workers, however many intervals of an epoch each has closed.
    assert all(
        1 <= row["workers"] <= (1 if row["worker"] is not None else 3) for row in [*run.intervals, *run.coverage]
    )
    assert sum(r["seqs"] for r in run.intervals) == sum(engine.seq)
    assert sum(r["lost"] for r in run.intervals) == len(engine.lost)
    for row in run.coverage:
        assert row["eligible"] == row["observed"] + row["throttled"] + row["lost"] + row["faulted"]
        assert row["emitted"] == row["written"] + row["ring_lost"] + row["emit_throttled"]
    assert sum(r["eligible"] for r in run.coverage) == sum(engine.seq)
    assert sum(r["written"] for r in run.coverage) == len(engine.truth)
    assert sum(r["ring_lost"] for r in run.coverage) == len(engine.ring_lost)
    assert run.booked_lost == len(engine.lost) + len(engine.ring_lost)
    # A loss has a place: a row with one is never merged over workers.
    assert all(r["worker"] is not None for r in run.coverage if r["lost"] or r["ring_lost"])


def test_ten_rows_are_seen_at_once_and_a_block_is_freed_only_whole(tmp_path: Path) -> None:
    run = Run(tmp_path / "a.mseg", Policy.DROP)
    for n in range(1, 130):
        run.engine.fire(0)
        run.take()
        assert len(run.rows) == n
        assert int(run.engine.writer.tail[0]) == n // 64


def test_the_tail_wraps_and_the_next_drainer_finds_its_place(tmp_path: Path) -> None:
    run = Run(tmp_path / "a.mseg", Policy.DROP)
    for _ in range(300):
        for _ in range(64):
            run.engine.fire(0)
        run.take()
    assert int(run.engine.writer.tail[0]) == 300 % 256
    for _ in range(70):
        run.engine.fire(0)
    after = RingReader(run.segment)
    assert after.position[0] == 300 * 64
    assert after.take().rows.num_rows == 70
    assert not run.engine.ring_lost


def test_a_full_ring_drops_the_newest_and_counts_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "a.mseg", Policy.DROP)
    for _ in range(3 * 64 + 50):
        run.engine.fire(0)
    run.finish()
    assert run.rows == [(0, s) for s in range(1, 3 * 64 + 1)]
    assert run.booked_lost == 50


def test_memory_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0], block_rows=65536, blocks=8)
    engine.writer.columns["hook"][:] = 3
    engine.writer.cursor[0, Cursor.HEAD] = 8 * 65536
    with SegmentReader.open(tmp_path / "a.mseg", write=True) as segment:
        ring = RingReader(segment)
        sizes = []
        while ring.backlog or not sizes:
            sizes.append(ring.take().rows.num_rows)
        assert sum(sizes) == 8 * 65536
        assert max(sizes) * RING_ROW.dtype.itemsize <= 16 << 20


@pytest.mark.parametrize(
    ("head", "says"),
    [(1 << 63, "the head of ring 0 is"), (3 * 64 + 1, "193 rows ahead in a ring of 192"), (5, None)],
)
def test_a_head_that_cannot_be_is_refused(tmp_path: Path, head: int, says: str | None) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    with SegmentReader.open(tmp_path / "a.mseg", write=True) as segment:
        ring = RingReader(segment)
        engine.writer.cursor[0, Cursor.HEAD] = head
        if says is None:
            engine.writer.columns["hook"][:] = 3
            assert ring.take().rows.num_rows == 5
            engine.writer.cursor[0, Cursor.HEAD] = 4
            says = "went back from 5 to 4"
        with pytest.raises(Refused, match=says):
            ring.take()


def test_a_row_that_the_engine_did_not_declare_is_counted_not_kept(tmp_path: Path) -> None:
    run = Run(tmp_path / "a.mseg", Policy.DROP)
    for worker, hook in ((0, 3), (0, 99), (0, 13), (0, 0), (2, 3)):
        run.engine.fire(worker, hook)
    run.engine._write(0, {"seq": 1, "worker": 2, "hook": 3})  # worker 2 belongs to ring 1
    run.engine._write(0, {"seq": 1, "worker": 700, "hook": 3})
    run.engine._write(0, {"seq": 1, "worker": 0, "hook": 3, "rank": 4})
    batch = run.rings.take()
    assert batch.rows["hook"].to_pylist() == [3, 3]
    assert [(x.kind, x.count) for x in batch.losses] == [("bad_row", 6)]


def test_a_block_rewritten_during_the_copy_is_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "a.mseg", Policy.OVERWRITE)
    for _ in range(70):
        run.engine.fire(0)
    run.engine.writer.generation[0, 0] = 3  # the pen has come round to the block of rows 0 to 63
    batch = run.rings.take()
    assert batch.rows["seq"].to_pylist() == list(range(65, 71))
    assert [(x.kind, x.count) for x in batch.losses] == [("torn_block", 64)]
