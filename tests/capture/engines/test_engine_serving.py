"""The serving plan: one request per slot, positions that move on, states in order, and tables that say the same."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.engines.serving import STATE, Load, Plan, Serving, Teller, Told
from megascope.store.errors import Usage
from megascope.store.tables import REQUEST_SETS, REQUESTS, STEP_REQUESTS

STEPS = 150

loads = st.builds(
    Load,
    slots=st.integers(1, 6),
    context=st.sampled_from((8, 64, 512)),
    seed=st.integers(0, 1000),
    occupancy=st.sampled_from((0.05, 0.8, 3.0)),
    prompt_tokens=st.sampled_from((1, 20, 100)),
    max_tokens=st.sampled_from((1, 10, 60)),
    chunk=st.sampled_from((1, 16, 64)),
    preempt=st.sampled_from((0.0, 0.2)),
    cancel=st.sampled_from((0.0, 0.1)),
)


def states(plan: Plan) -> dict[int, list[tuple[int, int, str]]]:
    """By request: (step, slot, state)."""
    names = {v: k for k, v in STATE.items()}
    out: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for i in range(plan.steps):
        for r in range(plan.row_ptr[i], plan.row_ptr[i + 1]):
            row = (plan.first + i, int(plan.row_slot[r]), names[int(plan.row_state[r])])
            out[int(plan.row_request[r])].append(row)
    return out


@settings(deadline=None, max_examples=25)
@given(loads)
def test_batches_are_never_empty_and_requests_sit_in_one_slot(load: Load) -> None:
    plan = Serving(load).plan(STEPS)
    assert (plan.request > 0).any(axis=1).all()
    for row in plan.request:
        taken = row[row > 0]
        assert len(set(taken)) == len(taken)
    empty = plan.request == 0
    assert ((plan.tokens == 0) == empty).all()
    assert (plan.position + plan.tokens <= load.context).all()
    assert (plan.tokens <= load.chunk).all()
    assert (plan.attended()[~empty] > 0).all()


@settings(deadline=None, max_examples=25)
@given(loads)
def test_positions_move_on_by_the_tokens_processed(load: Load) -> None:
    plan = Serving(load).plan(STEPS)
    reached: dict[int, int] = {}
    for i in range(plan.steps):
        for slot in np.flatnonzero(plan.request[i]):
            request = int(plan.request[i, slot])
            assert plan.position[i, slot] == reached.get(request, 0)
            reached[request] = int(plan.position[i, slot] + plan.tokens[i, slot])


@settings(deadline=None, max_examples=25)
@given(loads)
def test_states_follow_each_other(load: Load) -> None:
    plan = Serving(load).plan(STEPS)
    for request, rows in states(plan).items():
        names = [name for _, _, name in rows]
        assert names[0] == "admitted"
        assert names.count("admitted") == 1
        assert [s for s, _, _ in rows] == sorted(s for s, _, _ in rows)
        for before, after in pairwise(names):
            assert (
                after
                in {
                    "admitted": ("prefill_chunk",),
                    "prefill_chunk": ("prefill_chunk", "first_token", "cancelled"),
                    "first_token": ("token", "finished", "cancelled", "preempted"),
                    "token": ("token", "finished", "cancelled", "preempted"),
                    "preempted": ("resumed",),
                    "resumed": ("token",),
                }[before]
            ), (request, before, after)


@settings(deadline=None, max_examples=25)
@given(loads, st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_the_plan_does_not_depend_on_its_pieces(load: Load, pieces: list[int]) -> None:
    whole, parts = Serving(load).plan(sum(pieces)), Serving(load)
    at = 0
    for n in pieces:
        part = parts.plan(n)
        assert part.first == at
        for name in ("request", "position", "tokens", "request_set"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[at : at + n])
        assert part.told == [t for t in whole.told if at <= t.step < at + n]
        assert [t for s in range(at, at + n) for t in part.told_at(s)] == part.told
        at += n


@settings(deadline=None, max_examples=25)
@given(loads)
def test_tables_say_what_the_arrays_say(load: Load) -> None:
    plan = Serving(load).plan(STEPS)
    told: dict[str, list[tuple[int | str, ...]]] = defaultdict(list)
    teller = Teller(lambda table, rows: told[table].extend(rows))
    for step in range(STEPS):
        teller.begin(step, 1000 + step, plan.told_at(step))
    teller.end(STEPS - 1)
    sets: dict[int, set[int]] = defaultdict(set)
    for number, request in told[REQUEST_SETS.name]:
        sets[int(number)].add(int(request))
    for i in range(STEPS):
        assert sets[int(plan.request_set[i])] == set(plan.request[i][plan.request[i] > 0])
    by_key = {(r[0], r[2]): r for r in told[STEP_REQUESTS.name]}
    seen = np.zeros_like(plan.request)
    for first, last, request, slot, position in by_key.values():
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert last >= first
        assert not seen[first : last + 1, slot].any()
        seen[first : last + 1, slot] = request
        assert plan.position[first, slot] == position
        if plan.tokens[first, slot] == 1 and load.chunk > 1 and position:
            decoded = plan.position[first : last + 1, slot]
            assert (np.diff(decoded) == 1).all()
    assert np.array_equal(seen, plan.request)
    requests = [r[0] for r in told[REQUESTS.name]]
    assert requests == list(range(1, len(requests) + 1))
    admitted = {r: rows[0][0] for r, rows in states(plan).items()}
    for r in told[REQUESTS.name]:
        arrival = r[REQUESTS.names.index("arrival")]
        assert isinstance(arrival, int)
        assert 1000 <= arrival <= 1000 + admitted[int(r[0])]


def test_arrival_is_the_begin_of_the_step_in_which_it_came() -> None:
    told: list[tuple[int | str, ...]] = []
    teller = Teller(lambda _, rows: told.extend(rows))
    teller.begin(0, 500, [])
    teller.begin(1, 900, [Told(1, REQUESTS.name, (1, 0, "x", "m", "t", 0, 4, 4), arrival_step=0)])
    assert told == [(1, 0, "x", "m", "t", 500, 4, 4)]


def test_a_run_that_stops_closes_open_memberships() -> None:
    told: list[tuple[int | str, ...]] = []
    teller = Teller(lambda _, rows: told.extend(rows))
    teller.begin(3, 1, [Told(3, STEP_REQUESTS.name, (3, -1, 7, 0, 12))])
    teller.end(9)
    assert told == [(3, -1, 7, 0, 12), (3, 9, 7, 0, 12)]


def test_preempted_requests_come_back_with_their_generation() -> None:
    plan = Serving(Load(4, 512, preempt=0.3, cancel=0, occupancy=1.5)).plan(2000)
    moved = 0
    for rows in states(plan).values():
        slots = {slot for _, slot, _ in rows}
        moved += len(slots) > 1
    assert moved > 0


def test_impossible_loads_are_refused() -> None:
    with pytest.raises(Usage, match="chunk=0"):
        Load(4, 64, chunk=0)
