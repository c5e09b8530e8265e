"""What the host engine fires, on every kind of deployment: pairs, order, causes, identities."""

from __future__ import annotations

import numpy as np
import pytest
from host_runs import SHAPES, SMALL, Run, execute, shape, spec_of

from megascope.capture.engines.graph import COMMUNICATION, CONTROL, RECEIVES, SENDS, SHORT_NS, Op
from megascope.capture.engines.host.engine import LINK_NS
from megascope.capture.engines.model import comm_generation
from megascope.capture.engines.serving import Serving
from megascope.store.tables import FLAG_RANGE, HOOK_BY_NAME, PEER_ALL, PEER_NONE, REQUEST_SET_BIT

HOOK = {name: h.id for name, h in HOOK_BY_NAME.items()}


@pytest.fixture(params=list(SHAPES))
def a_run(request: pytest.FixtureRequest) -> Run:
    return shape(request.param)


def by_worker(run: Run) -> list[np.ndarray]:
    return [run.events[run.events["worker"] == w] for w in np.unique(run.events["worker"])]


def test_sequence_numbers_and_times_of_a_worker_only_grow(a_run: Run) -> None:
    assert len(a_run.events) == a_run.result.fired == a_run.result.written
    for mine in by_worker(a_run):
        assert (mine["seq"] == np.arange(1, len(mine) + 1)).all()
        assert (np.diff(mine["t"].astype(np.int64)) >= 0).all()
        assert len(set(mine["rank"])) == len(set(mine["sm"])) == 1
        assert mine["worker"][0] == mine["rank"][0] * a_run.spec.workers + mine["sm"][0]


def test_every_task_of_every_step_is_started_and_completed_once(a_run: Run) -> None:
    start, complete = a_run.by_task("start"), a_run.by_task("complete")
    assert a_run.result.steps == a_run.spec.steps
    assert (start[:, 1:] > 0).all()
    assert (complete[:, 1:] > start[:, 1:]).all()
    assert (a_run.by_task("complete", "aux")[:, 1:] == start[:, 1:]).all()
    assert (a_run.by_task("complete", "worker") == a_run.by_task("start", "worker")).all()
    rank = a_run.by_task("start", "rank")[:, 1:]
    assert (rank == a_run.graph.rank[1:]).all()


def test_no_worker_does_two_things_at_once(a_run: Run) -> None:
    for mine in by_worker(a_run):
        doing = mine[np.isin(mine["hook"], [HOOK["start"], HOOK["complete"], HOOK["wait"], HOOK["resume"]])]
        opens = np.isin(doing["hook"], [HOOK["start"], HOOK["wait"]])
        assert (opens[::2]).all()
        assert (~opens[1::2]).all()
        pairs = min(len(doing[::2]), len(doing[1::2]))
        # A run ends with every worker waiting but the one that ended the last step.
        assert len(doing) - 2 * pairs == (mine["worker"][0] != 0)
        assert (doing["hook"][1::2][:pairs] == doing["hook"][::2][:pairs] + 1).all()
        assert (doing["aux"][1::2][:pairs] == doing["t"][::2][:pairs]).all()
        for field in ("task", "dep", "dep_class", "comm", "peer"):
            assert (doing[field][1::2][:pairs] == doing[field][::2][:pairs]).all()


def test_counters_go_up_one_by_one_to_what_is_wanted(a_run: Run) -> None:
    g, rows = a_run.graph, a_run.of("release")
    local = g.dep_kind != COMMUNICATION
    assert len(rows) == g.wanted[local].sum() * a_run.spec.steps
    order = np.lexsort((rows["aux"], rows["dep"], rows["step"]))
    rows = rows[order]
    after, wanted = rows["aux"] >> np.uint64(32), rows["aux"] & np.uint64(0xFFFFFFFF)
    assert (wanted == g.wanted[rows["dep"]]).all()
    first = np.r_[True, np.diff(rows["dep"].astype(np.int64)) != 0]
    assert (after[first] == 1).all()
    assert (np.diff(after.astype(np.int64))[~first[1:]] == 1).all()
    assert (np.diff(rows["t"].astype(np.int64))[~first[1:]] >= 0).all()
    assert (rows["dep_class"] == g.dep_kind[rows["dep"]]).all()


def satisfied_at(run: Run) -> np.ndarray:
    """[steps, deps + 1] t at which each local dep had all its releases."""
    rows, out = run.of("release"), np.zeros((run.spec.steps, run.graph.deps + 1), np.int64)
    np.maximum.at(out, (rows["step"].astype(np.int64), rows["dep"].astype(np.int64)), rows["t"].astype(np.int64))
    return out


def test_nothing_starts_before_what_it_waits_on(a_run: Run) -> None:
    g, ready, start = a_run.graph, a_run.by_task("ready"), a_run.by_task("start")
    assert (ready[:, 1:] > 0).all()
    assert (start >= ready).all()
    assert (a_run.by_task("start", "aux")[:, 1:] == ready[:, 1:]).all()
    waits = g.dep > 0
    satisfied = satisfied_at(a_run)[:, g.dep]
    assert (start[:, waits] >= satisfied[:, waits]).all()
    plain = waits & (g.blocking == 0)
    assert (ready[:, plain] == satisfied[:, plain]).all()


def test_ready_names_the_task_that_released_the_last_dependency(a_run: Run) -> None:
    g = a_run.graph
    for row in a_run.of("ready"):
        task, by = int(row["task"]) & 0xFFFFFFFF, int(row["aux"])
        if g.dep[task] == 0:
            assert by == 0
            continue
        assert by >> 32 == row["step"] == int(row["task"]) >> 32
        assert int(row["dep"]) in g.releases(by & 0xFFFFFFFF)
        assert int(row["dep"]) in (g.dep[task], g.blocking[task])
        if row["flags"] & FLAG_RANGE:
            members = np.arange(task, task + int(row["tile"]))
            assert (g.dep[members] == row["dep"]).all()
            assert (g.task_class[members] == row["task_class"]).all()


def test_every_task_is_assigned_to_the_worker_that_runs_it(a_run: Run) -> None:
    if not a_run.spec.dynamic:
        assert not len(a_run.of("assign"))
        assert not len(a_run.of("pressure"))
        return
    aux = a_run.by_task("assign", "aux")[:, 1:]
    assert (aux > 0).all()
    assert (aux >> 48 == a_run.by_task("start", "worker")[:, 1:]).all()
    depth, capacity = aux >> 24 & 0xFFFFFF, aux & 0xFFFFFF
    assert (capacity == a_run.spec.queue).all()
    assert ((depth >= 1) & (depth <= capacity)).all()
    assert (a_run.by_task("start") >= a_run.by_task("assign")).all()


def test_a_static_schedule_runs_each_list_in_its_order() -> None:
    run = shape("static")
    for mine in by_worker(run):
        started = mine[mine["hook"] == HOOK["start"]]["task"].astype(np.int64)
        lists = [list(started[started >> 32 == step] & 0xFFFFFFFF) for step in range(run.spec.steps)]
        assert all(one == lists[0] for one in lists)
    waits = run.of("wait")
    waits = waits[(waits["task"] > 0)]
    seen, wanted = waits["aux"] >> np.uint64(32), waits["aux"] & np.uint64(0xFFFFFFFF)
    assert len(waits)
    assert (seen < wanted).all()
    assert (run.graph.dep[waits["task"].astype(np.int64) & 0xFFFFFFFF] == waits["dep"]).all()


def test_idle_workers_wait_for_work_not_for_a_dep() -> None:
    run = shape("dynamic")
    waits = run.of("wait")
    assert len(waits)
    assert (waits["dep"] == 0).all()
    assert (waits["task"] == 0).all()
    assert (waits["dep_class"] == CONTROL).all()


def test_queues_that_overflow_press_and_keep_the_rest() -> None:
    run = shape("short-queues")
    pressure = run.of("pressure")
    rises, falls = (pressure["flags"] == 1).sum(), (pressure["flags"] == 2).sum()
    assert rises > 0
    assert abs(int(rises) - int(falls)) <= run.spec.workers
    threshold = max(1, 3 * run.spec.queue // 4)
    assert (pressure["aux"] & np.uint64(0xFFFFFFFF) == threshold).all()
    assert (pressure["aux"][pressure["flags"] == 1] >> np.uint64(32) == threshold).all()
    assert (pressure["aux"][pressure["flags"] == 2] >> np.uint64(32) == threshold - 1).all()
    late = run.by_task("assign") - run.by_task("ready")
    assert (late >= 0).all()
    assert (late > 0).any(), "some tasks were ready before a queue had room"
    assert len(shape("dynamic").of("pressure")) < len(pressure)


def test_rounds_pair_up_over_ranks() -> None:
    for name in ("dynamic-2-ranks", "static-2-ranks", "static-experts-3-ranks", "one-worker"):
        run = shape(name)
        g, m = run.graph, run.spec.model
        sends, receives = run.of("send"), run.of("receive")
        assert len(sends) == len(receives) == m.rounds * m.ranks * run.spec.steps
        for rows, ops in ((sends, SENDS), (receives, RECEIVES)):
            task = rows["task"].astype(np.int64) & 0xFFFFFFFF
            assert np.isin(g.op[task], ops).all()
            expected = [
                comm_generation(int(s), int(r), m.rounds) for s, r in zip(rows["step"], g.round[task], strict=True)
            ]
            assert list(rows["comm"]) == expected
            peer = PEER_ALL if m.ranks > 2 else 1 - rows["rank"].astype(np.int64)
            assert (rows["peer"] == peer).all()
        assert (sends["aux"] == g.bytes[sends["task"].astype(np.int64) & 0xFFFFFFFF] * (m.ranks - 1)).all()
        for row in receives:
            of_round = sends[sends["comm"] == row["comm"]]
            theirs = of_round[of_round["rank"] != row["rank"]]
            assert len(of_round) == m.ranks
            assert row["t"] >= theirs["t"].max() + np.uint64(LINK_NS)
            assert row["aux"] <= row["t"]


def test_a_receive_is_prelaunched_and_waits_in_the_communication_class() -> None:
    run = shape("dynamic-2-ranks")
    g = run.graph
    waits = run.of("wait")
    comm = waits[waits["dep_class"] == COMMUNICATION]
    assert len(comm)
    task = comm["task"].astype(np.int64) & 0xFFFFFFFF
    assert np.isin(g.op[task], RECEIVES).all()
    assert (g.blocking[task] == comm["dep"]).all()
    receiving = np.isin(g.op, RECEIVES)
    assigned, ready = run.by_task("assign")[:, receiving], run.by_task("ready")[:, receiving]
    assert (assigned <= ready).all()
    assert (assigned < ready).any()
    assert (comm["comm"] > 0).all()


def test_only_communication_names_a_peer(a_run: Run) -> None:
    rows = a_run.events
    about = np.isin(rows["hook"], [HOOK["send"], HOOK["receive"]])
    about |= np.isin(rows["hook"], [HOOK["wait"], HOOK["resume"]]) & (rows["dep_class"] == COMMUNICATION)
    assert (rows["peer"][~about] == PEER_NONE).all()
    assert (rows["comm"][~about] == 0).all()
    assert (rows["comm"][about] > 0).all()


def test_rows_name_the_request_of_their_slot(a_run: Run) -> None:
    g = a_run.graph
    plan = Serving(a_run.spec.load).plan(a_run.spec.steps)
    request = a_run.by_task("start", "request")
    for step in range(a_run.spec.steps):
        slots = g.slot[1:]
        shared = plan.request_set[step] | np.uint32(REQUEST_SET_BIT)
        expected = np.where(slots >= 0, plan.request[step][np.maximum(slots, 0)], shared)
        assert (request[step, 1:] == expected).all()
    assert (a_run.by_task("start", "tile")[:, 1:] == g.tile[1:]).all()
    assert (a_run.by_task("complete", "task_class")[:, 1:] == g.task_class[1:]).all()


def test_steps_and_request_states_are_fired_as_planned(a_run: Run) -> None:
    plan = Serving(a_run.spec.load).plan(a_run.spec.steps)
    steps = a_run.of("step")
    assert list(steps["flags"]) == [1, 2] * a_run.spec.steps
    assert list(steps["step"]) == [s for s in range(a_run.spec.steps) for _ in range(2)]
    assert (steps["aux"][::2] == steps["t"][::2]).all()
    assert (steps["aux"][1::2] == steps["t"][::2]).all()
    rows = a_run.of("request")
    assert list(rows["step"]) == list(np.repeat(np.arange(plan.steps), np.diff(plan.row_ptr)))
    assert (rows["request"] == plan.row_request).all()
    assert (rows["aux"] >> np.uint64(32) == plan.row_slot).all()
    assert (rows["aux"] & np.uint64(0xFFFFFFFF) == plan.row_state).all()
    assert set(rows["worker"]) | set(steps["worker"]) == {0}
    begin, end = steps["t"][::2].astype(np.int64), steps["t"][1::2].astype(np.int64)
    start, complete = a_run.by_task("start")[:, 1:], a_run.by_task("complete")[:, 1:]
    assert (start.min(axis=1) >= begin).all()
    assert (complete.max(axis=1) <= end).all()


def test_attention_grows_with_the_position_and_empty_slots_are_short() -> None:
    run = execute(SMALL + ",steps=200,jitter=0,context=4096,max_tokens=400,prompt_tokens=1,preempt=0,cancel=0")
    plan, g, took = Serving(run.spec.load).plan(200), run.graph, run.duration()
    attended = plan.attended()
    for task in np.flatnonzero((g.op == Op.ATTN) & (g.layer == 0)):
        units = attended[:, g.slot[task]]
        assert (took[units == 0, task] == SHORT_NS).all()
        busy = took[units > 0, task]
        assert (np.argsort(units[units > 0], kind="stable") == np.argsort(busy, kind="stable")).all()
    assert (attended == 0).any()


def test_an_expert_without_a_token_is_short_and_top_k_are_chosen() -> None:
    run = execute(SMALL + ",steps=80,experts=6,ffn=64,top_k=2,jitter=0,occupancy=0.3")
    g, took = run.graph, run.duration()
    plan = Serving(run.spec.load).plan(80)
    up = np.flatnonzero((g.op == Op.EXPERT_UP) & (g.layer == 0) & (g.n0 == 0))
    used = (took[:, up] != SHORT_NS).sum(axis=1)
    active = (plan.request > 0).sum(axis=1)
    assert (used >= 2).all()
    assert (used <= 2 * active).all()
    assert (used < len(up)).any()
    assert len({tuple(row) for row in took[:, up] != SHORT_NS}) > 10


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    text = SHAPES["dynamic-2-ranks"]
    again, other = execute(text), execute(text + ",seed=5")
    assert again.events.tobytes() == shape("dynamic-2-ranks").events.tobytes()
    assert again.sink.told == shape("dynamic-2-ranks").sink.told
    assert again.sink.records.tobytes() == shape("dynamic-2-ranks").sink.records.tobytes()
    assert other.events.tobytes() != again.events.tobytes()


def test_monitors_do_not_change_what_workers_do() -> None:
    many = execute(SHAPES["dynamic"] + ",monitors=5,epoch_ms=0.5")
    assert many.events.tobytes() == shape("dynamic").events.tobytes()


def test_more_workers_finish_sooner() -> None:
    times = [execute(SMALL + f",steps=20,workers={w}").result.t for w in (1, 2, 8)]
    assert times == sorted(times, reverse=True)


def test_a_mask_leaves_the_schedule_alone() -> None:
    from megascope.capture.engines.host import run
    from megascope.capture.engines.host.sinks import MemorySink

    sink = MemorySink(mask=1 << HOOK["complete"])
    result = run(spec_of(SHAPES["dynamic"]), sink)
    everything = shape("dynamic").of("complete")
    masked = sink.events[np.argsort(sink.events["task"])]
    everything = everything[np.argsort(everything["task"])]
    assert result.t == shape("dynamic").result.t
    for field in ("t", "task", "aux", "worker"):
        assert (masked[field] == everything[field]).all()
