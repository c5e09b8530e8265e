"""Ranks and experts before any device is asked: shards, the rule of the exchange, the reference's routing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.cuda import weights
from megascope.capture.engines.cuda.reference import (
    ROUTING_MARGIN,
    Misrouted,
    Routing,
    best_experts,
    expert_weights,
    logits,
)
from megascope.capture.engines.graph import RECEIVES, SENDS, Graph, Op
from megascope.capture.engines.model import Model

DENSE = Model(layers=2, d_model=16, heads=4, kv_heads=4, head_dim=16, ffn=32, vocab=32, slots=3, context=16)
EXPERTS = replace(DENSE, experts=4, top_k=2)
STEPS = 5
REQUEST = np.tile([1, 2, 0], (STEPS, 1))
POSITION = np.arange(STEPS)[:, None] * np.ones((1, 3), int)
TOKEN = np.random.default_rng(1).integers(0, 32, (STEPS, 3))


def run(model: Model, drawn: dict[str, NDArray[np.float32]], routing: Routing | None = None) -> NDArray[np.float64]:
    return np.stack(list(logits(model, drawn, REQUEST, POSITION, TOKEN, routing)))


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_are_the_whole_and_their_sums_its_products(model: Model, ranks: int) -> None:
    m = replace(model, ranks=ranks)
    whole = weights.draw(m, 1, np.random)
    parts = [{n: weights.shard(m, n, whole[n], r, np) for n in weights.SHARDED} for r in range(ranks)]
    for name in weights.SHARDED:
        assert sum(p[name].size for p in parts) == whole[name].size
        assert sorted(np.concatenate([p[name].ravel() for p in parts]).tolist()) == sorted(whole[name].ravel().tolist())
        assert all(p[name].flags.c_contiguous for p in parts)
    x = np.random.default_rng(2).standard_normal((3, m.d_model))
    np.testing.assert_array_equal(np.concatenate([p["w_head"] for p in parts]), whole["w_head"])
    hd, qkv = m.head_dim, x @ whole["w_qkv"][1].T
    heads = qkv[:, : m.heads * hd]
    np.testing.assert_allclose(
        sum((x @ p["w_qkv"][1].T)[:, : m.local_heads * hd] @ p["w_o"][1].T for p in parts),
        heads @ whole["w_o"][1].T,
        rtol=1e-6,
        atol=1e-6,
    )
    for r, p in enumerate(parts):  # queries, keys and values of the rank's heads, in this order
        mine = x @ p["w_qkv"][0].T
        full = (x @ whole["w_qkv"][0].T).reshape(3, -1, hd)
        q, k = m.local_heads, m.local_kv_heads
        rows = [*range(r * q, r * q + q), *(m.heads + i for i in range(r * k, r * k + k))]
        rows += [m.heads + m.kv_heads + i for i in range(r * k, r * k + k)]
        np.testing.assert_allclose(mine.reshape(3, -1, hd), full[:, rows])
    if model.experts:
        np.testing.assert_array_equal(np.concatenate([p["w_up"] for p in parts], axis=1), whole["w_up"])
        return
    np.testing.assert_allclose(
        sum((x @ p["w_up"][0].T) @ p["w_down"][0].T for p in parts),
        (x @ whole["w_up"][0].T) @ whole["w_down"][0].T,
        rtol=1e-5,
        atol=1e-5,
    )


def precede(graph: Graph) -> NDArray[np.bool_]:
    """[task, task] whether the first is complete before the second can start."""
    before = np.zeros((graph.tasks + 1, graph.tasks + 1), bool)
    by: list[list[int]] = [[] for _ in range(graph.deps + 1)]
    for task in range(1, graph.tasks + 1):
        for dep in graph.releases(task):
            by[dep].append(task)
    order = np.lexsort((np.arange(1, graph.tasks + 1), graph.rank[1:], graph.phase[1:])) + 1
    for task in order:
        for dep in {int(graph.dep[task]), int(graph.blocking[task])} - {0}:
            for one in by[dep]:
                before[:, task] |= before[:, one]
                before[one, task] = True
    return before


@pytest.mark.parametrize("model", [replace(DENSE, ranks=2), replace(EXPERTS, ranks=4)], ids=["dense", "experts"])
def test_no_round_overwrites_one_that_a_peer_has_not_taken_out(model: Model) -> None:
    """What exchange.cuh relies on. An inbox holds two rounds, so generation g takes the place of g - 2: of every rank,
    g - 2's receive must be over before any peer sends g. Over the end of an iteration too."""
    graph = build_graph(model)
    before = precede(graph)
    send, receive = {}, {}
    for task in np.flatnonzero(np.isin(graph.op, SENDS + RECEIVES)):
        (send if graph.op[task] in SENDS else receive)[int(graph.rank[task]), int(graph.round[task])] = int(task)
    ranks, rounds = range(model.ranks), model.rounds
    for r in ranks:
        for g in range(rounds):
            if g >= 1:
                assert before[receive[r, g - 1], send[r, g]], "the rule that is checked before each send"
            for peer in ranks:
                if g >= 2:
                    assert before[receive[peer, g - 2], send[r, g]]
    # The next iteration begins when `end` is satisfied; what it sends may take the place of this one's last two rounds.
    samples = np.flatnonzero(graph.op == Op.SAMPLE)
    assert len(samples) == graph.wanted[graph.end] == model.slots * model.ranks
    assert all(graph.releases(int(t)).tolist() == [graph.end] for t in samples)
    for r in ranks:
        mine = samples[graph.rank[samples] == r]
        assert before[receive[r, rounds - 1], mine].all()


def test_one_expert_is_a_dense_model() -> None:
    dense = weights.draw(DENSE, 3, np.random)
    one = replace(DENSE, experts=1, top_k=1)
    drawn = dense | {n: dense[n][:, None] for n in ("w_gate", "w_up", "w_down")}
    drawn |= {"w_router": np.ones((2, 1, 16), np.float32)}
    np.testing.assert_allclose(run(one, drawn), run(DENSE, dense), rtol=1e-12)


def test_the_order_of_experts_makes_no_difference() -> None:
    drawn, order = weights.draw(EXPERTS, 3, np.random), [2, 0, 3, 1]
    moved = drawn | {n: drawn[n][:, order] for n in ("w_router", "w_gate", "w_up", "w_down")}
    np.testing.assert_allclose(run(EXPERTS, moved), run(EXPERTS, drawn), rtol=1e-10)
    assert not np.allclose(run(EXPERTS, drawn | {"w_gate": moved["w_gate"]})[0], run(EXPERTS, drawn)[0], equal_nan=True)


def test_of_equal_experts_the_lower_wins_and_the_chosen_share_all() -> None:
    score = np.array([[1.0, 3.0, 3.0, 2.0, 3.0]])
    assert best_experts(score, 2).tolist() == [[1, 2]]
    assert expert_weights(score, np.array([[1, 2]])).tolist() == [[0.5, 0.5]]
    soft = np.exp(score) / np.exp(score).sum()
    picked = soft[:, [1, 3]]
    np.testing.assert_allclose(expert_weights(score, np.array([[1, 3]])), picked / picked.sum())


def test_the_device_may_break_near_ties_and_nothing_else() -> None:
    score = np.array([[0.5, 0.1, 0.5 - ROUTING_MARGIN / 2, 0.5 - 3 * ROUTING_MARGIN]])

    def take(*experts: int, skewed: int = -1) -> int:
        routing = Routing(np.array([[[experts]]], np.uint32), skewed)
        assert routing.take(0, 0, np.array([0]), score).tolist() == [list(experts)]
        return routing.near

    assert take(0) == 0
    assert take(2) == 1, "within the margin: gone along with, and counted"
    assert take(0, 2) == take(2, 0) == 0
    for wrong in ((3,), (1,), (0, 3), (0, 1), (0, 0), (0, 7)):
        with pytest.raises(Misrouted, match="step 0, layer 0, slot 0"):
            take(*wrong)
    assert take(1, 0, skewed=1) == 0
    assert take(1, skewed=1) == 0
    with pytest.raises(Misrouted):
        take(1, 3, skewed=1)


def test_a_near_tie_taken_the_other_way_is_followed() -> None:
    """The reference goes on with the device's choice: what follows is what that choice gives."""
    drawn = weights.draw(EXPERTS, 3, np.random)
    drawn["w_router"][1] = 0  # all tied in layer 1
    own = run(EXPERTS, drawn)
    chosen = np.zeros((STEPS, 2, 3, 2), np.uint32)
    keep: list[NDArray[np.int64]] = []

    class Watching(Routing):
        def take(
            self, step: int, layer: int, slots: NDArray[np.int64], score: NDArray[np.float64]
        ) -> NDArray[np.int64]:
            keep.append(best_experts(score, 2) if layer == 0 else np.tile([2, 3], (len(slots), 1)))
            self.chosen[step, layer, slots] = keep[-1]
            return super().take(step, layer, slots, score)

    routing = Watching(chosen)
    other = run(EXPERTS, drawn, routing)
    assert routing.near == 0, "a tie in float64 is no difference"
    assert not np.allclose(own[0, :2], other[0, :2])
    np.testing.assert_array_equal(np.isnan(own), np.isnan(other))
