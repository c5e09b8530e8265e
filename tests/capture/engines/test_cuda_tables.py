"""What the CUDA engine makes of the graph, the plan and the faults before any device is asked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.cuda import parameters, tables, weights
from megascope.capture.engines.cuda.reference import logits
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.engines.faults import Injector
from megascope.capture.engines.graph import COMMUNICATION, RECEIVES, SENDS, Op
from megascope.capture.engines.model import Model
from megascope.capture.engines.serving import Serving
from megascope.store.errors import MegascopeError, Usage

TINY = (
    "layers=1,d_model=16,heads=2,kv_heads=1,head_dim=16,ffn=32,vocab=32,slots=3,context=32,prompt_tokens=4,max_tokens=6"
)


@pytest.mark.parametrize("spec", ["", "experts=8", "ranks=2", "experts=8,ranks=4,top_k=3"])
def test_tasks_and_dependencies_are_the_graph(spec: str) -> None:
    model = Settings.parse(spec).model
    graph = build_graph(model)
    task, deps = tables.task_table(graph), tables.dependency_table(graph)
    released = tables.release_table(graph, deps)
    arrivals = graph.dep_kind == COMMUNICATION
    for t in range(1, graph.tasks + 1):
        row, op = task[t], graph.op[t]
        mine = released[row["release"] : row["release"] + row["releases"]]
        assert mine["dep"].tolist() == [d for d in graph.releases(t).tolist() if not arrivals[d]]
        assert (mine["wanted"] == graph.wanted[mine["dep"]]).all()
        if op == Op.ATTN:
            assert row["n0"] == graph.head[t] - graph.rank[t] * model.local_heads
        elif op in RECEIVES:
            assert row["n0"] == graph.blocking[t]
            assert graph.dep[t] in graph.releases(t - 1), "the task before a receive is its round's send"
        elif op in SENDS:
            each = 8 if op == Op.LOGITS_SEND else 4 * model.d_model
            assert row["n1"] == each * model.slots * (model.ranks - 1)
        else:
            assert (row["n0"], row["n1"]) == (max(graph.n0[t], 0), max(graph.n1[t], 0))
        if op in SENDS or op in RECEIVES:
            assert row["tile"] == graph.round[t], "the round is where CommRow's reader looks for it"
    for d in range(graph.deps + 1):
        first, word = int(deps["first"][d]), int(deps["waiters"][d])
        waiters = list(range(first, first + (word & ~parameters.RECEIVES)))
        if d == 0:
            apart = graph.tasks // model.ranks
            assert sorted(graph.waiters(0).tolist()) == [w + r * apart for r in range(model.ranks) for w in waiters]
        elif not arrivals[d]:
            assert graph.waiters(d).tolist() == waiters
            assert bool(word & parameters.RECEIVES) == bool(waiters and graph.op[first] in RECEIVES)


def test_ranks_have_the_same_tasks_one_after_the_other() -> None:
    """What lets a rank name a peer's task, and the first of its own, by an offset."""
    graph = build_graph(Settings.parse("experts=8,ranks=4").model)
    apart = graph.tasks // 4
    for rank in range(4):
        mine = slice(1 + rank * apart, 1 + (rank + 1) * apart)
        assert (graph.rank[mine] == rank).all()
        for column in ("op", "task_class", "slot", "layer", "n0", "n1", "round"):
            np.testing.assert_array_equal(getattr(graph, column)[mine], getattr(graph, column)[1 : 1 + apart])


@given(st.integers(0, 1000), st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_request_keeps_its_cache_row_and_shares_it_with_nobody(seed: int, preempt: float, cancel: float) -> None:
    settings = Settings.parse(f"{TINY},seed={seed},preempt={preempt},cancel={cancel}")
    request = Serving(settings.load).plan(120).request
    rows, count = tables.cache_rows(request)
    there = request > 0
    assert rows.max() < count
    for generation in np.unique(request[there]):
        steps, slots = np.nonzero(request == generation)
        row = np.unique(rows[steps, slots])
        assert len(row) == 1
        during = slice(steps.min(), steps.max() + 1)
        others = there[during] & (request[during] != generation)
        assert (rows[during][others] != row[0]).all()


def test_prompts_are_forced_and_the_rest_is_sampled() -> None:
    settings = Settings.parse(f"{TINY},preempt=0.2,seed=5")
    plan = Serving(settings.load).plan(100)
    forced = tables.serving_tables(plan, settings.model).arrays["forced_token"]
    prompt = {int(t.row[0]): int(t.row[6]) for t in plan.told if t.table == "requests"}
    for step, slot in zip(*np.nonzero(plan.request), strict=True):
        inside = plan.position[step, slot] < prompt[int(plan.request[step, slot])]
        assert (forced[step, slot] != tables.SAMPLED) == inside
        assert not inside or forced[step, slot] < settings.model.vocab


def test_faults_come_by_phase() -> None:
    settings = Settings.parse(f"{TINY},delay=l00.attn:3@5-9,postpone=l00.qkv[1]:500@8-,oversubscribe=2:0.25@8-8")
    graph = build_graph(settings.model)
    injector = Injector(settings.faults, graph, 8, dynamic=True, engine="cuda")
    got = tables.fault_tables(injector, 12)
    attn, dep = graph.class_id("l00.attn"), next(d for d in range(1, graph.deps) if graph.dep_name(d) == "l00.qkv[1]")
    for step, phase in enumerate(got["fault_phase"]):
        assert got["fault_factor"][phase, attn] == (3 if 5 <= step <= 9 else 1)
        assert got["fault_postpone"][phase, dep] == (500 if step >= 8 else 0)
        worker, share = got["fault_crowd"][phase]
        assert (worker == 2) == (step == 8)
        assert share == (int(0.25 * 0xFFFFFFFF) if step == 8 else 0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("experts=64,top_k=33", "top_k=33 is above 32"),
        ("experts=50000", "shared memory"),
        ("ranks=4,ffn=1000", "ffn=1000, 250 on each of 4 ranks"),
        ("ranks=64,heads=64,kv_heads=64,slots=4096,d_model=4224", "4 GiB"),
        ("head_dim=24", "head_dim=24"),
        ("d_model=1022", "d_model=1022"),
        ("ffn=40000", "shared memory"),
    ],
)
def test_models_that_it_does_not_compute_are_refused_by_name(spec: str, says: str) -> None:
    with pytest.raises(Usage, match=says):
        tables.refuse(Settings.parse(spec).model)


def test_blocks_are_divided_among_ranks() -> None:
    model = Settings.parse("ranks=4").model
    assert tables.rank_blocks(model, 132) == 33
    assert tables.rank_blocks(model, 7) == 1
    with pytest.raises(Usage, match="ranks=4 need a multiprocessor each, and there are 3"):
        tables.rank_blocks(model, 3)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("layer=3", "did you mean layers"),
        ("steps=many", "steps=many is no int"),
        ("policy=wait", "cannot wait for a reader"),
        ("schedule=sometimes", "schedule=sometimes"),
        ("steps=0", "steps=0"),
        ("steps", "no setting 'steps'"),
        ("delay=l00.attn", "it is not CLASS:FACTOR"),
    ],
)
def test_specs_are_refused_in_one_line(spec: str, says: str) -> None:
    with pytest.raises(Usage, match=says) as e:
        Settings.parse(spec)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("fault", "says"), [("skew=0:0.5", "no routing"), ("comm=0:100", "no communication")])
def test_faults_that_it_cannot_apply_are_refused_by_name(fault: str, says: str) -> None:
    settings = Settings.parse(fault)
    with pytest.raises(Usage, match=says):
        Injector(settings.faults, build_graph(settings.model), 132, dynamic=True, engine="cuda")


def test_faults_of_routing_and_communication_come_by_phase() -> None:
    settings = Settings.parse(f"{TINY},experts=4,ranks=1,skew=2:0.5@3-4")
    injector = Injector(settings.faults, build_graph(settings.model), 8, dynamic=True, engine="cuda")
    got = tables.fault_tables(injector, 8)
    assert [tuple(got["fault_skew"][p]) for p in got["fault_phase"]] == [
        (2, int(0.5 * 0xFFFFFFFF)) if step in (3, 4) else (0, 0) for step in range(8)
    ]
    settings = Settings.parse(f"{TINY},kv_heads=2,ranks=2,comm=l00.mlp_send:700@2-,postpone=l00.attn_arrived:300")
    graph = build_graph(settings.model)
    got = tables.fault_tables(Injector(settings.faults, graph, 8, dynamic=True, engine="cuda"), 4)
    arrival = next(d for d in range(1, graph.deps) if graph.dep_name(d) == "l00.attn_arrived@1")
    for step, phase in enumerate(got["fault_phase"]):
        assert got["fault_comm"][phase].tolist() == [0, 700 if step >= 2 else 0, 0]
        assert got["fault_postpone"][phase, arrival] == 300


def test_a_fault_longer_than_the_kernel_counts_is_refused() -> None:
    settings = Settings.parse(f"{TINY},postpone=embed[0]:9e9")
    injector = Injector(settings.faults, build_graph(settings.model), 8, dynamic=True, engine="cuda")
    with pytest.raises(Usage, match="above 4294967295"):
        tables.fault_tables(injector, 4)


def test_the_reference_attends_only_to_its_own_past() -> None:
    """Two requests served together give what each gives alone, and a changed past changes the logits."""
    model = Model(layers=2, d_model=16, heads=4, kv_heads=2, head_dim=16, ffn=32, vocab=32, slots=2, context=16)
    drawn = weights.draw(model, 3, np.random)
    position = np.arange(5)[:, None] * np.ones((1, 2), int)
    token = np.random.default_rng(1).integers(0, 32, (5, 2))
    both = np.stack(list(logits(model, drawn, np.array([[1, 2]] * 5), position, token)))
    alone = np.stack(list(logits(model, drawn, np.array([[1, 0]] * 5), position, token)))
    np.testing.assert_allclose(both[:, 0], alone[:, 0], rtol=1e-12)
    assert np.isnan(alone[:, 1]).all()
    token[0, 0] = (token[0, 0] + 1) % 32
    changed = np.stack(list(logits(model, drawn, np.array([[1, 2]] * 5), position, token)))
    assert not np.allclose(changed[4, 0], both[4, 0])
    np.testing.assert_array_equal(changed[:, 1], both[:, 1])


def test_without_cupy_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "from megascope.capture.engines.cuda.__main__ import main\n"
        "sys.exit(main(['--segment', '/nowhere/x.seg']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "it needs cupy" in done.stderr.replace("the cuda engine needs", "it needs")
    assert "pip install 'megascope[gpu]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_importing_it_imports_no_cuda_library() -> None:
    code = (
        "import sys, pkgutil, importlib, megascope.capture.engines.cuda as c\n"
        "[importlib.import_module(f'{c.__name__}.{m.name}') for m in pkgutil.iter_modules(c.__path__)]\n"
        "print(sorted(set(sys.modules) & {'cupy', 'pycuda', 'cuda'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_device_libraries_are_a_megascope_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from megascope.capture.engines.cuda.libraries import library

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MegascopeError, match="needs cupy"):
        library()
