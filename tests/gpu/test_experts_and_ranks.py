"""Mixtures of experts and tensor-parallel ranks on a device: right results, and rows that tell what was exchanged."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runs import check_identities, engine, hook_of, kernel, records, rows
from monitors import attacher

from megascope.analyze.lint import lint
from megascope.capture.engines.cuda import ranks as rank_memory
from megascope.capture.engines.cuda.compilation import Hooks
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.reference import Routing, logits
from megascope.capture.engines.graph import COMMUNICATION, RECEIVES, SENDS
from megascope.capture.engines.model import comm_generation
from megascope.capture.programs.standard import load
from megascope.capture.segment import map_ring
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Control, Record, State, Status, Summary
from megascope.capture.session import Session
from megascope.store.tables import FLAG_RANGE, HOOK_BY_NAME, PEER_ALL, PEER_NONE, REQUEST_SET_BIT

HOOK = {name: hook.id for name, hook in HOOK_BY_NAME.items()}
TOLERANCE = 1e-4
TWO = "ranks=2,heads=4,kv_heads=2"
MODELS = {
    "experts": "experts=6,top_k=2",
    "all-experts": "experts=3,top_k=3",
    "ranks": TWO,
    "experts-ranks": f"experts=6,top_k=3,{TWO}",
}
SCHEDULES = pytest.mark.parametrize("schedule", ["dynamic", "static"])
FEW = "steps=3"
"""So few events that the queues hold a good part of them, and a monitor that looks late misses none."""


def worst_error(made: Megakernel, skewed: int = -1) -> float:
    """The largest relative error of the logits of a step and slot, all of them kept; and that all ranks agree."""
    m, plan = made.settings.model, made.plan
    there = plan.request > 0
    routing = None
    if m.experts:
        chosen = [made.ranks.routes(r).transpose(0, 2, 1, 3)[there] for r in range(m.ranks)]
        assert all(np.array_equal(one, chosen[0]) for one in chosen), "each rank decides, and all alike"
        routing = Routing(made.ranks.routes(0), skewed)
    used = [made.ranks.used_tokens(r)[there] for r in range(m.ranks)]
    assert all(np.array_equal(one, used[0]) for one in used), "all ranks take the same token"
    weights = {name: value.get() for name, value in made.weights.items()}
    reference = logits(m, weights, plan.request, plan.position, made.used_tokens(), routing)
    ref, out = np.stack(list(reference)), made.kept_logits().astype(np.float64)
    if routing:
        choices = there.sum() * m.layers
        print(f"{routing.near} of {choices} choices within float32's reach taken otherwise than float64 would")
        assert routing.near <= choices // 100
    difference = np.linalg.norm(out[there] - ref[there], axis=-1) / np.linalg.norm(ref[there], axis=-1)
    return float(difference.max())


@pytest.mark.parametrize("hooks", [Hooks.NONE, Hooks.NATIVE], ids=lambda h: h.name.lower())
@SCHEDULES
def test_logits_agree_with_float64(cuda: Any, schedule: str, hooks: Hooks) -> None:
    made = kernel(cuda, f"schedule={schedule},{MODELS['experts-ranks']}", keep_every=1)
    made.launch(hooks)
    assert made.wait() == "done"
    worst = worst_error(made)
    print(f"{schedule} {hooks.name}: worst step and slot {worst:.2e}")
    assert worst < TOLERANCE


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "schedule", "transport"),
    [
        ("experts", "dynamic", "warp"),
        ("all-experts", "static", "warp"),
        ("ranks", "static", "block"),
        ("ranks", "dynamic", "warp"),
        ("experts-ranks", "dynamic", "block"),
        ("experts-ranks", "static", "warp"),
    ],
)
def test_recording_changes_no_result_and_loses_no_count(
    cuda: Any, segment_path: Path, model: str, schedule: str, transport: str
) -> None:
    spec = f"schedule={schedule},transport={transport},{MODELS[model]}"
    with engine(cuda, segment_path, spec, keep_every=1) as e:
        assert e.run() == "done"
        worst = worst_error(e.kernel)
        print(f"{spec}: worst step and slot {worst:.2e}")
        assert worst < TOLERANCE
        total = check_identities(e.segment)
        assert total["eligible"] == total["written"] + total["lost"]


@SCHEDULES
def test_rows_tell_what_the_graph_says(cuda: Any, segment_path: Path, schedule: str) -> None:
    with engine(cuda, segment_path, f"schedule={schedule},{FEW},{MODELS['experts-ranks']}") as e:
        assert e.run() == "done"
        assert e.counts()["lost"] == 0
        found, g, plan = rows(e.segment), e.kernel.graph, e.kernel.plan
        group, blocks, steps = e.kernel.rank_blocks, e.kernel.blocks, e.kernel.settings.steps
    hook, index, iteration = found["hook"], found["task"].astype(np.int64) & 0xFFFFFFFF, found["step"].astype(np.int64)
    assert (found["rank"] == found["worker"] % blocks // group).all()
    assert (found["rank"][index > 0] == g.rank[index[index > 0]]).all(), "nobody does another rank's work"
    names = ("start", "complete") + (("assign",) if schedule == "dynamic" else ())
    for name in names:
        of = hook == HOOK[name]
        order = np.lexsort((index[of], iteration[of]))
        assert np.array_equal(index[of][order], np.tile(np.arange(1, g.tasks + 1), steps)), (
            f"one {name} a task and step"
        )
        assert np.array_equal(found["task_class"][of], g.task_class[index[of]])
        assert np.array_equal(found["tile"][of], g.tile[index[of]])
        slot = g.slot[index[of]]
        batch = plan.request_set[iteration[of]] | np.uint32(REQUEST_SET_BIT)
        assert np.array_equal(
            found["request"][of], np.where(slot < 0, batch, plan.request[iteration[of], np.maximum(slot, 0)])
        )
        if name == "assign":
            target = (found["aux"][of] >> np.uint64(48)).astype(int)
            assert np.array_equal(target // group, g.rank[index[of]])
    ready = hook == HOOK["ready"]
    assert np.where(found["flags"][ready] & FLAG_RANGE, found["tile"][ready], 1).sum() == steps * g.tasks
    release = hook == HOOK["release"]
    counted = g.release_dep[g.dep_kind[g.release_dep] != COMMUNICATION]
    assert np.array_equal(np.sort(found["dep"][release]), np.sort(np.tile(counted, steps))), (
        "arrivals are not released by anyone here"
    )
    after = found["aux"][release] >> np.uint64(32)
    order = np.lexsort((after, found["dep"][release], iteration[release]))
    wanted = g.wanted[1:][g.dep_kind[1:] != COMMUNICATION]
    assert np.array_equal(after[order], np.tile(np.concatenate([np.arange(1, w + 1) for w in wanted]), steps))
    step = hook == HOOK["step"]
    assert step.sum() == 2 * steps
    assert (found["rank"][step | (hook == HOOK["request"])] == 0).all()


@pytest.mark.heavy
@pytest.mark.parametrize(("ranks", "schedule"), [(2, "dynamic"), (2, "static"), (3, "dynamic")])
def test_rounds_pair_up_over_ranks(cuda: Any, segment_path: Path, ranks: int, schedule: str) -> None:
    size = TWO if ranks == 2 else "ranks=3,heads=6,kv_heads=3,ffn=48,vocab=48"
    with engine(cuda, segment_path, f"schedule={schedule},{FEW},{size}") as e:
        assert e.run() == "done"
        assert e.counts()["lost"] == 0
        found, g = rows(e.segment), e.kernel.graph
        m, steps = e.kernel.settings.model, e.kernel.settings.steps
    hook, index = found["hook"], found["task"].astype(np.int64) & 0xFFFFFFFF
    sends, receives = hook == HOOK["send"], hook == HOOK["receive"]
    assert sends.sum() == receives.sum() == m.rounds * m.ranks * steps
    awaits = np.isin(hook, [HOOK["wait"], HOOK["resume"]]) & (found["dep_class"] == COMMUNICATION)
    about = sends | receives | awaits
    assert (found["comm"][~about] == 0).all()
    assert (found["peer"][~about] == PEER_NONE).all()
    of_round = zip(found["step"][about], g.round[index[about]], strict=True)
    assert [comm_generation(int(s), int(r), m.rounds) for s, r in of_round] == found["comm"][about].tolist()
    peer = 1 - found["rank"][about].astype(int) if ranks == 2 else PEER_ALL
    assert (found["peer"][about] == peer).all()
    assert np.isin(g.op[index[sends]], SENDS).all()
    assert (found["dep"][sends] == 0).all()
    last = g.round[index[sends]] == m.rounds - 1
    each = np.where(last, 8, 4 * m.d_model) * m.slots
    assert np.array_equal(found["aux"][sends], (each * (m.ranks - 1)).astype(np.uint64))
    for of in (receives, awaits):
        assert np.isin(g.op[index[of]], RECEIVES).all()
        assert np.array_equal(found["dep"][of], g.blocking[index[of]])
        assert (found["dep_class"][of] == COMMUNICATION).all()
    seen, wanted = found["aux"] >> np.uint64(32), found["aux"] & np.uint64(0xFFFFFFFF)
    waits = awaits & (hook == HOOK["wait"])
    assert (seen[waits] < wanted[waits]).all()
    assert (wanted[waits] == m.ranks - 1).all()
    sent = {(int(c), int(r)): int(t) for c, r, t in zip(*(found[n][sends] for n in ("comm", "rank", "t")), strict=True)}

    def times(name: str, column: str = "t") -> dict[int, int]:
        return dict(zip(*(found[n][hook == HOOK[name]].tolist() for n in ("task", column)), strict=True))

    said, releaser, began = times("ready"), times("ready", "aux"), times("start")
    waited = dict(zip(found["task"][waits].tolist(), found["t"][waits].tolist(), strict=True))
    for i in np.flatnonzero(receives):
        task, t, rank = int(found["task"][i]), int(found["t"][i]), int(found["rank"][i])
        theirs = {r: sent[int(found["comm"][i]), r] for r in range(m.ranks) if r != rank}
        assert max(theirs.values()) <= t, "nothing is received before it was sent"
        assert int(found["aux"][i]) == waited.get(task, t)
        by = releaser[task]
        assert said[task] == t <= began[task]
        assert by >> 32 == task >> 32
        assert int(g.blocking[task & 0xFFFFFFFF]) in g.releases(by & 0xFFFFFFFF), "the peer's send of this round"


@pytest.mark.parametrize(
    ("model", "schedule"), [("experts", "dynamic"), ("experts-ranks", "dynamic"), ("experts-ranks", "static")]
)
def test_a_recording_of_it_keeps_to_every_rule(
    cuda: Any, segment_path: Path, tmp_path: Path, model: str, schedule: str
) -> None:
    out = tmp_path / "run.mscope"
    with (
        engine(cuda, segment_path, f"schedule={schedule},{FEW},{MODELS[model]}") as e,
        SegmentReader.open(segment_path, write=True) as segment,
    ):
        session, run = Session(segment, out), threading.Thread(target=e.run, daemon=True)
        run.start()
        assert session.run(stopped=lambda: False) == "ended"
        run.join()
    verdict = lint(out)
    assert verdict.findings == []
    assert verdict.not_judged == []


@pytest.mark.heavy
def test_the_standard_monitor_of_communication(cuda: Any, segment_path: Path) -> None:
    """Attached to a kernel that runs, it has what was sent to whom and when; as many as its coverage says."""
    spec = f"{cuda.long},{MODELS['ranks']},arena_mb=32"
    with engine(cuda, segment_path, spec, record=False) as e, attacher(segment_path) as a:
        run = threading.Thread(target=e.run, daemon=True)
        run.start()
        while e.kernel.host.steps_begun < 5:
            time.sleep(0.001)
        program = load("comm")
        number, since = a.attach(program, 1), e.kernel.host.steps_begun
        while e.kernel.host.steps_begun < since + 20:
            time.sleep(0.01)
            a.drain()
        a.detach(1)
        e.segment.control[Control.STOP] = 1
        run.join(60)
        assert not run.is_alive()
        a.drain()
        found, g, m = records(e.segment, Record.COVERAGE), e.kernel.graph, e.kernel.settings.model
    found = found[found[:, Summary.WHAT] >> np.uint64(16) & np.uint64(0xFFFF) == number]
    observed = {h: int(found[hook_of(found) == HOOK[h], Summary.OBSERVED].sum()) for h in ("send", "receive")}
    sends = {int(g.task_class[t]): int(g.round[t]) for t in np.flatnonzero(np.isin(g.op, SENDS))}
    receives = {int(g.task_class[t]) for t in np.flatnonzero(np.isin(g.op, RECEIVES))}
    counted = {"sent": 0, "received": 0}
    for span, n, body in a.records:
        if span.program != number:
            continue
        declared = program.maps[span.map]
        got = map_ring.entries(declared, n, body)
        for i, (peer, cls) in enumerate(got.keys.copy().view("<u2").tolist()):
            assert peer in (0, 1)
            if declared.name == "received":
                assert cls in receives
                counted["received"] += int(got.head[i, 0])
            elif declared.name == "sent":
                count, total = got.values[i].copy().view("<u8").tolist()[:2]
                assert total == count * m.slots * (8 if sends[cls] == m.rounds - 1 else 4 * m.d_model)
                counted["sent"] += count
    assert counted["sent"] == observed["send"] > 0
    assert counted["received"] == observed["receive"] > 0


@pytest.mark.heavy
def test_a_late_round_and_a_crowded_expert(cuda: Any, segment_path: Path) -> None:
    late = 3_000_000
    spec = f"{FEW},experts=6,{TWO},comm=l01.attn_send:{late}@1-2,postpone=logits_arrived:{late},skew=4:1@2-2"
    with engine(cuda, segment_path, spec, keep_every=1) as e:
        assert e.run() == "done"
        assert worst_error(e.kernel, skewed=4) < TOLERANCE
        found, g, m = rows(e.segment), e.kernel.graph, e.kernel.settings.model
        routes, there = e.kernel.ranks.routes(1), e.kernel.plan.request > 0
    assert (routes[2].transpose(1, 0, 2)[there[2]][..., 0] == 4).all()
    assert (routes[:2].transpose(0, 2, 1, 3)[there[:2]][..., 0] != 4).any()
    hook, index = found["hook"], found["task"].astype(np.int64) & 0xFFFFFFFF
    took = {}
    for comm in np.unique(found["comm"][hook == HOOK["receive"]]):
        of = found["comm"] == comm
        sent, got = found["t"][of & (hook == HOOK["send"])], found["t"][of & (hook == HOOK["receive"])]
        round_ = int(g.round[index[of][0]])
        took[int(found["step"][of][0]), round_] = int(got.min()) - int(sent.min())
    for (step, round_), ns in took.items():
        if (round_ == 2 and step >= 1) or round_ == m.rounds - 1:
            assert ns >= late, "the data was sent, but nobody learned of it"


def test_a_rank_that_would_overwrite_a_round_ends_the_run(
    cuda: Any, segment_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that believes it has not taken out the round before sends nothing more, and the run says so."""

    def behind(self: rank_memory.Ranks, stream: Any) -> None:
        reset(self, stream)
        self._memory[1]["received"].data.memset_async(0xFF, 4, stream)

    reset = rank_memory.Ranks.reset
    monkeypatch.setattr(rank_memory.Ranks, "reset", behind)
    with engine(cuda, segment_path, f"{TWO},seconds=60") as e:
        assert e.run() == "overtaken"
        assert e.segment.status[Status.STATE] == State.FAILED
        check_identities(e.segment)
