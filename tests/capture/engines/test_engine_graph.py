"""The task graph: complete, acyclic, and what it says in its side tables; the static schedule cannot deadlock."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.graph import COMMUNICATION, RECEIVES, SENDS, TILE_FIELDS, Graph, Op
from megascope.capture.engines.model import Model, comm_generation, tiles
from megascope.capture.engines.schedule import static_schedule
from megascope.capture.engines.side_tables import compiler_tables
from megascope.store.errors import Usage
from megascope.store.tables import COMPILER_TABLES


@st.composite
def models(draw: st.DrawFn) -> Model:
    size = st.integers(1, 3)
    ranks, kv, group = draw(size), draw(size), draw(size)
    experts = draw(st.sampled_from((0, 0, 2, 3))) * ranks
    return Model(
        layers=draw(size),
        d_model=draw(st.sampled_from((24, 64, 100))),
        heads=ranks * kv * group,
        kv_heads=ranks * kv,
        head_dim=draw(st.sampled_from((4, 6, 16))),
        ffn=ranks * draw(st.sampled_from((20, 48))),
        experts=experts,
        top_k=min(2, experts or 2),
        vocab=ranks * draw(st.sampled_from((30, 64))),
        slots=draw(st.integers(1, 5)),
        context=64,
        ranks=ranks,
        qkv_tile=draw(st.sampled_from((5, 8, 16, 64))),
        out_tile=draw(st.sampled_from((7, 16, 128))),
        ffn_tile=draw(st.sampled_from((8, 13))),
        vocab_tile=draw(st.sampled_from((10, 64))),
    )


def execute(g: Graph) -> list[int]:
    """Run the graph by its counters alone: the order in which tasks could run."""
    counter = np.zeros(g.deps + 1, np.int64)
    satisfied = {0}
    pending = {t: {int(g.dep[t]), int(g.blocking[t])} for t in range(1, g.tasks + 1)}
    order: list[int] = []
    ready = [t for t in pending if pending[t] <= satisfied]
    while ready:
        task = ready.pop()
        order.append(task)
        for dep in g.releases(task):
            counter[dep] += 1
            if counter[dep] == g.wanted[dep]:
                satisfied.add(int(dep))
                ready += [int(t) for t in g.waiters(int(dep)) if pending[int(t)] <= satisfied]
    assert (counter[1:] == g.wanted[1:]).all()
    return order


@settings(deadline=None, max_examples=30)
@given(models())
def test_every_task_runs_exactly_once(model: Model) -> None:
    g = build_graph(model)
    order = execute(g)
    assert sorted(order) == list(range(1, g.tasks + 1))
    last = np.flatnonzero(g.op == Op.SAMPLE)
    assert g.wanted[g.end] == len(last) == model.slots * model.ranks
    assert {int(t) for t in last} == {t for t in range(1, g.tasks + 1) if g.end in g.releases(t)}


@settings(deadline=None, max_examples=30)
@given(models())
def test_wanted_counts_are_what_the_operators_need(model: Model) -> None:
    g, m = build_graph(model), model
    by_tensor = {(t.name.split(".")[-1], t.rank): t for t in g.tensors}
    expected = {
        "embed": 1,
        "norm1": m.slots,
        "attn": m.slots * m.local_heads,
        "oproj": tiles(m.d_model, m.out_tile),
        "final_norm": m.slots,
        "logits": tiles(m.vocab // m.ranks, m.vocab_tile),
        "arrived": m.ranks - 1,
        "sent": 1,
        "reduced": 1,
        "routed": m.slots,
        "expert_up": tiles(m.local_ffn, m.ffn_tile),
        "expert_down": m.experts // m.ranks * tiles(m.d_model, m.out_tile),
        "combined": 1 if m.ranks == 1 else m.slots,
        "gate_up": tiles(m.local_ffn, m.ffn_tile),
        "down": tiles(m.d_model, m.out_tile),
        "norm2": 1 if m.experts else m.slots,
        "end": m.slots * m.ranks,
    }
    for (name, _), tensor in by_tensor.items():
        kind = name if name in expected else name.rpartition("_")[2]
        if kind != "qkv":
            assert g.wanted[tensor.first] == expected[kind], name


@settings(deadline=None, max_examples=30)
@given(models())
def test_a_qkv_tile_releases_exactly_the_heads_that_need_its_columns(model: Model) -> None:
    g, m = build_graph(model), model
    group = m.heads // m.kv_heads
    for task in np.flatnonzero((g.op == Op.QKV) & (g.layer == 0) & (g.rank == 0)):
        columns = set(range(g.n0[task], g.n1[task]))
        released = {g.coordinate(int(d))[0] for d in g.releases(task)}
        for head in range(m.local_heads):
            kv = head // group
            keys = m.local_heads + kv
            values = keys + m.local_kv_heads
            needed = {u * m.head_dim + i for u in (head, keys, values) for i in range(m.head_dim)}
            assert (head in released) == bool(columns & needed)


@settings(deadline=None, max_examples=30)
@given(models())
def test_waiters_of_a_dep_are_consecutive_and_of_one_class(model: Model) -> None:
    g = build_graph(model)
    for dep in range(1, g.deps + 1):
        waiters = g.waiters(dep)
        assert len(waiters) or dep == g.end
        assert (np.diff(waiters) == 1).all()
        assert len(set(g.task_class[waiters])) <= 1
        assert all(dep in (g.dep[t], g.blocking[t]) for t in waiters)


@settings(deadline=None, max_examples=20)
@given(models())
def test_matrix_tiles_cover_their_columns_once(model: Model) -> None:
    g, m = build_graph(model), model
    widths = {Op.QKV: m.qkv_columns, Op.OPROJ: m.d_model, Op.LM_HEAD: m.vocab // m.ranks}
    widths |= {Op.EXPERT_UP: m.local_ffn, Op.EXPERT_DOWN: m.d_model} if m.experts else {Op.GATE_UP: m.local_ffn}
    for op, width in widths.items():
        of = np.flatnonzero(g.op == op)
        for key in {(g.layer[t], g.rank[t], g.expert[t]) for t in of}:
            mine = [t for t in of if (g.layer[t], g.rank[t], g.expert[t]) == key]
            covered = [c for t in mine for c in range(g.n0[t], g.n1[t])]
            assert covered == list(range(width))


@settings(deadline=None, max_examples=20)
@given(models())
def test_tile_packs_the_coordinates(model: Model) -> None:
    g = build_graph(model)
    source = {"slot": g.slot, "head": g.head, "expert": g.expert, "round": g.round}
    for task in range(1, g.tasks + 1):
        for name, shift, bits in TILE_FIELDS[Op(g.op[task])]:
            value = int(g.tile[task]) >> shift & (1 << bits) - 1
            if name == "tile":
                peers = np.flatnonzero((g.task_class == g.task_class[task]) & (g.rank == g.rank[task]))
                width = g.n1[peers[0]] - g.n0[peers[0]]
                assert value == g.n0[task] // width
            else:
                assert value == source[name][task]


@settings(deadline=None, max_examples=20)
@given(models(), st.integers(1, 6))
def test_a_static_schedule_cannot_deadlock(model: Model, workers: int) -> None:
    g = build_graph(model)
    s = static_schedule(g, workers)
    lists = [list(s.list_task[s.list_ptr[w] : s.list_ptr[w + 1]]) for w in range(workers * model.ranks)]
    for w, tasks in enumerate(lists):
        assert [int(s.order[t]) for t in tasks] == list(range(len(tasks)))
        assert all(s.worker[t] == w and g.rank[t] == w // workers for t in tasks)
    assert sum(map(len, lists)) == g.tasks
    counter, at, ran = np.zeros(g.deps + 1, np.int64), [0] * len(lists), True
    while ran:
        ran = False
        for w, tasks in enumerate(lists):
            while at[w] < len(tasks) and all(
                counter[d] == g.wanted[d] for d in (g.dep[tasks[at[w]]], g.blocking[tasks[at[w]]]) if d
            ):
                np.add.at(counter, g.releases(tasks[at[w]]), 1)
                at[w] += 1
                ran = True
    assert at == [len(tasks) for tasks in lists]


@settings(deadline=None, max_examples=30)
@given(models(), st.booleans())
def test_side_tables_agree_with_the_graph(model: Model, dynamic: bool) -> None:
    g = build_graph(model)
    schedule = None if dynamic else static_schedule(g, 3)
    tables = compiler_tables(g, 3, schedule, np.zeros(3 * model.ranks, np.int64))
    assert set(tables) == {t.name for t in COMPILER_TABLES}
    for declared in COMPILER_TABLES:
        got = tables[declared.name]
        assert got.schema == declared.schema
        keys = Counter(zip(*(got[k].to_pylist() for k in declared.key), strict=True))
        assert max(keys.values()) == 1, declared.name
    tasks, deps = tables["static_tasks"].to_pylist(), tables["dependencies"].to_pylist()
    edges = tables["task_deps"].to_pylist()
    assert len(tasks) == g.tasks
    assert len(deps) == g.deps
    assert len({d["name"] for d in deps}) == g.deps
    assert all((t["worker"] == -1) == dynamic for t in tasks)
    released = Counter(e["dep"] for e in edges if e["releases"])
    assert {d["id"]: d["wanted"] for d in deps} == dict(released)
    assert {(e["index"], e["dep"]) for e in edges if not e["releases"]} >= {(t["index"], t["dep"]) for t in tasks} - {
        (t["index"], 0) for t in tasks
    }
    classes = {c["id"]: c for c in tables["task_classes"].to_pylist()}
    for e in edges:
        if not e["releases"]:
            kind = deps[e["dep"] - 1]["kind"]
            assert kind in classes[tasks[e["index"] - 1]["task_class"]]["expected_dep_classes"]
    for d in deps:
        producers = {tasks[e["index"] - 1]["task_class"] for e in edges if e["releases"] and e["dep"] == d["id"]}
        assert d["producer_class"] == (producers.pop() if len(producers) == 1 else -1)


def test_ranks_are_joined_by_rounds_alone() -> None:
    g = build_graph(Model(layers=2, heads=4, kv_heads=2, ranks=2))
    for task in range(1, g.tasks + 1):
        for dep in g.releases(task):
            if g.dep_rank[dep] != g.rank[task]:
                assert g.dep_kind[dep] == COMMUNICATION or dep == g.end
    for r in range(g.model.rounds):
        members = np.flatnonzero(g.round == r)
        assert sorted(Op(o) in SENDS for o in g.op[members]) == [False, False, True, True]
        assert all(g.blocking[t] for t in members if g.op[t] in RECEIVES)


def test_comm_generations_wrap_and_are_never_zero() -> None:
    assert comm_generation(0, 0, 9) == 1
    assert comm_generation(7, 3, 9) == 67
    assert comm_generation(0xFFFF_FFFF, 0, 1) == 1
    assert comm_generation(0xFFFF_FFFE, 0, 1) == 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"heads": 6, "kv_heads": 4}, "heads=6 is no multiple of kv_heads=4"),
        ({"ranks": 3}, "cannot be shared by ranks=3"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"experts": 2, "top_k": 3}, "top_k=3 is above experts=2"),
        ({"slots": 5000}, "slots=5000 is above 4096"),
        ({"vocab": 1 << 20, "vocab_tile": 1}, "65535 tiles"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(sizes: dict[str, int], why: str) -> None:
    with pytest.raises(Usage, match="cannot build the model") as caught:
        Model(**sizes)
    assert why in str(caught.value)


def test_a_graph_too_large_is_refused() -> None:
    with pytest.raises(Usage, match="more than"):
        build_graph(Model(layers=900, heads=256, kv_heads=256, slots=256))
