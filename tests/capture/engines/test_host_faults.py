"""Each fault control is seen in the events where it was injected, and nowhere else; what was injected stays outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_runs import SMALL, Run, execute, spec_of
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.faults import FOREVER, KINDS, Fault, Faults, Injector
from megascope.capture.engines.graph import SHORT_NS, Op
from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.engines.model import Model
from megascope.capture.engines.serving import Serving
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.errors import Usage

BASE = SMALL + ",steps=30"
SCHEDULES = ("dynamic", "static")
INSIDE = np.zeros(30, bool)
INSIDE[10:20] = True


def pair(text: str, fault: str) -> tuple[Run, Run]:
    return execute(text), execute(f"{text},{fault}")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_delay_stretches_the_class_in_its_window_alone(schedule: str) -> None:
    plain, slow = pair(f"{BASE},schedule={schedule}", "delay=l01.attn:3@10-19")
    g = plain.graph
    of = g.task_class == g.class_id("l01.attn")
    ratio = slow.duration()[:, 1:] / plain.duration()[:, 1:]
    assert np.allclose(ratio[INSIDE][:, of[1:]], 3, atol=0.03)
    assert (ratio[INSIDE][:, ~of[1:]] == 1).all()
    assert (ratio[~INSIDE] == 1).all()
    (truth,) = slow.truth
    assert set(truth.tasks) == set(np.flatnonzero(of))
    begins = slow.of("step")["t"][::2]
    assert truth.intervals == ((10, 19, int(begins[10]), truth.intervals[0][3]),)
    assert int(begins[19]) < truth.intervals[0][3] <= int(begins[20])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_skew_sends_every_slot_to_one_expert(schedule: str) -> None:
    plain, skewed = pair(f"{BASE},experts=6,ffn=64,jitter=0,schedule={schedule}", "skew=4:1@10-19")
    g = plain.graph
    hot = (g.op == Op.EXPERT_UP) & (g.expert == 4)
    used = skewed.duration() > SHORT_NS
    assert used[INSIDE][:, hot].all()
    assert not used[~INSIDE][:, hot].all()
    assert (skewed.duration()[~INSIDE] == plain.duration()[~INSIDE]).all()
    everyone = Serving(skewed.spec.load).plan(30).tokens.sum(axis=1)[:, None]
    expected = g.cost_ns[hot] + (np.rint(g.unit_ns[hot] * 1024).astype(np.int64) * everyone >> 10)
    assert (skewed.duration()[INSIDE][:, hot] == expected[INSIDE]).all()
    assert (plain.duration()[INSIDE][:, hot] < expected[INSIDE]).any()
    assert skewed.truth[0].experts == (4,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_postpone_holds_back_one_dependency(schedule: str) -> None:
    late = 40_000
    run = execute(f"{BASE},schedule={schedule},postpone=l01.qkv[2]:{late}@10-19")
    g = run.graph
    released = np.zeros((30, g.deps + 1), np.int64)
    rows = run.of("release")
    np.maximum.at(released, (rows["step"].astype(np.int64), rows["dep"].astype(np.int64)), rows["t"].astype(np.int64))
    gap = run.by_task("ready") - released[:, g.dep]
    (dep,) = run.truth[0].deps
    assert g.dep_name(dep) == "l01.qkv[2]"
    held = g.dep == dep
    waits = g.dep > 0
    assert (gap[INSIDE][:, held] == late).all()
    assert (gap[~INSIDE][:, waits] == 0).all()
    assert (gap[:, waits & ~held] == 0).all()
    assert (run.by_task("start")[INSIDE][:, held] >= released[INSIDE][:, [dep]] + late).all()
    for row in run.of("wait"):
        if row["dep"]:
            assert int(row["aux"]) >> 32 < int(row["aux"]) & 0xFFFFFFFF


def test_oversubscribe_fills_one_queue() -> None:
    plain, crowded = pair(BASE, "oversubscribe=3:0.9@10-19")
    before, after = ((r.by_task("assign", "aux")[:, 1:] >> 48 == 3).mean(axis=1) for r in (plain, crowded))
    assert (after[INSIDE] > 2 * before[INSIDE]).all()
    assert (after[INSIDE] > 0.5).all()
    assert (np.abs(after[~INSIDE] - before[~INSIDE]) < 0.15).all()
    rises = crowded.of("pressure")
    rises = rises[rises["flags"] == 1]
    steps, counts = np.unique(rises["step"], return_counts=True)
    assert counts[np.isin(steps, np.flatnonzero(INSIDE))].sum() > 0
    assert crowded.truth[0].workers == (3,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_comm_delays_one_round(schedule: str) -> None:
    late = 60_000
    plain, slow = pair(f"{BASE},ranks=2,schedule={schedule}", f"comm=l01.mlp_send:{late}@10-19")
    g = plain.graph

    def transit(run: Run) -> np.ndarray:
        """[steps, rounds] from the last send to the last receive of a round."""
        sent, got = (np.zeros((30, g.model.rounds), np.int64) for _ in range(2))
        for rows, out in ((run.of("send"), sent), (run.of("receive"), got)):
            round_ = g.round[rows["task"].astype(np.int64) & 0xFFFFFFFF]
            np.maximum.at(out, (rows["step"].astype(np.int64), round_), rows["t"].astype(np.int64))
        return got - sent

    (round_,) = slow.truth[0].rounds
    assert round_ == 3
    assert (transit(slow)[INSIDE, round_] >= late).all()
    others = [r for r in range(g.model.rounds) if r != round_]
    assert (transit(slow)[:, others] < late).all()
    assert (transit(slow)[~INSIDE, round_] < late).all()
    waits = slow.of("receive")
    waited = waits["t"].astype(np.int64) - waits["aux"].astype(np.int64)
    assert (np.unique(waits["step"][waited > late / 2]) == np.arange(10, 20)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_starve_leaves_one_ready_tile_lying(schedule: str) -> None:
    held = 80_000
    plain, starved = pair(f"{BASE},schedule={schedule}", f"starve=l00.gate_up/1:{held}@10-19")
    g = plain.graph
    (task,) = starved.truth[0].tasks
    assert g.classes[g.task_class[task]].name == "l00.gate_up"
    queued = starved.by_task("start") - starved.by_task("ready")
    assert (queued[INSIDE, task] >= held).all()
    assert (queued[~INSIDE, task] < held).all()
    others = np.delete(queued, [0, task], axis=1)
    if schedule == "dynamic":
        assert (others < held).all()
    assert (starved.duration() == plain.duration()).all()


@pytest.mark.parametrize(
    ("model", "fault", "dynamic", "why"),
    [
        ({}, "skew=0:0.5", True, "a dense model has no routing"),
        ({}, "comm=0:500", True, "a model on one rank has no communication"),
        ({"ranks": 2}, "comm=99:500", True, "there is no 99"),
        ({}, "oversubscribe=0:0.5", False, "a static schedule has no queues"),
        ({}, "oversubscribe=64:0.5", True, "there is no worker 64"),
        ({}, "delay=l01.atn:2", True, "did you mean l01.attn"),
        ({}, "postpone=l01.qvk[0]:2", True, "there is no l01.qvk[0]"),
        ({}, "starve=l00.down/9999:5", True, "has no task 9999"),
        ({"experts": 4}, "skew=4:1", True, "choose 0 to 3"),
    ],
)
def test_a_control_that_cannot_be_applied_is_refused_by_name(
    model: dict[str, int], fault: str, dynamic: bool, why: str
) -> None:
    with pytest.raises(Usage) as caught:
        Injector(Faults.parse(fault), build_graph(Model(**model)), 16, dynamic=dynamic)
    assert why in str(caught.value)
    assert fault.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize("text", ["dely=a:1", "delay=a", "delay=a:x", "delay=:2", "skew=0:2", "delay=a:2@9-3", "delay"])
def test_malformed_controls_are_refused(text: str) -> None:
    with pytest.raises(Usage):
        Faults.parse(text)


@given(
    st.sampled_from(sorted(KINDS)),
    st.floats(0, 1),
    st.integers(0, 1000),
    st.integers(0, 1000) | st.just(FOREVER),
)
def test_controls_are_written_as_they_are_read(kind: str, strength: float, first: int, more: int) -> None:
    strength = float(f"{strength:g}")
    fault = Fault(kind, "l00.attn", strength, first, min(first + more, FOREVER))
    if "-" in f"{strength:g}":
        return
    assert Faults.parse(str(fault)).faults == (fault,)


def test_ground_truth_stands_in_no_table(tmp_path: Path) -> None:
    fault = "delay=l01.attn:3,postpone=l00.qkv[1]:4321,oversubscribe=2:0.7,starve=l00.down/0:987654"
    said = []
    for name, text in (("plain", BASE), ("faulted", f"{BASE},{fault}")):
        spec = spec_of(text)
        engine = HostEngine(spec)
        about = {"kind": "host", "params": spec.params()}
        layout = layout_of(spec)
        path = tmp_path / name
        with SegmentWriter.create(path, layout, side_tables=engine.tables(), engine=about, record=True) as w:
            result = engine.run(SegmentSink(w), lambda: False)
        assert len(result.truth) == (4 if name == "faulted" else 0)
        reader = SegmentReader.open(path)
        said.append((reader.tables, reader.engine))
        data = path.read_bytes()
        for word in (b"delay", b"postpone", b"starve", b"oversubscribe", b"fault"):
            assert word not in data
    assert said[0] == said[1]
