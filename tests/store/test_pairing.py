"""Pairing against the oracle: any cut into parts, disorder between workers, loss, prelaunch, ranges, reuse."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import oracle_pairing as oracle
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megascope.store.errors import Refused
from megascope.store.pairing import Context, Derived, Pairer
from megascope.store.pairing_rows import columns_of
from megascope.store.tables import EVENTS, FLAG_RANGE, HOOK_BY_NAME, REQUEST_SET_BIT, SINCE_MAX, TASKS, WAITS

Row = dict[str, Any]
READY, ASSIGN, START, COMPLETE, WAIT, RESUME, RELEASE = range(1, 8)
CARRIES_TIME = {h.id for h in HOOK_BY_NAME.values() if h.since}
WORKERS = 4
LAG = 50_000


def row(hook: int, t: int, worker: int, task: int = 0, **given: Any) -> Row:
    """An event; `since`: the time that it carries."""
    since = given.pop("since", None)
    out = dict.fromkeys(EVENTS.names, 0) | {"hook": hook, "t": t, "worker": worker, "task": task, "by": 1} | given
    timed = hook in CARRIES_TIME
    out["since_ns"] = t - since if timed and since is not None else None
    out["aux"] = None if timed else out["aux"]
    return out


def numbered(rows: list[Row]) -> list[Row]:
    """Rows with each worker's seq, in order of time."""
    seq: dict[int, int] = {}
    out = []
    for r in sorted(rows, key=lambda r: r["t"]):
        seq[r["worker"]] = seq.get(r["worker"], 0) + 1
        out.append(r | {"seq": seq[r["worker"]]})
    return out


def part(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(sorted(rows, key=lambda r: (r["rank"], r["worker"], r["seq"])), schema=EVENTS.schema)


def pair(parts: list[list[Row]], hooks: frozenset[int] = oracle.ALL, **limits: int) -> list[Derived]:
    limits = {"lag_ns": LAG} | limits
    pairer = Pairer(Context(np.arange(WORKERS), hooks), **limits)
    out = [pairer.feed(part(p)) for p in parts] + [pairer.finish()]
    for derived in out:
        assert derived.tasks.schema.equals(TASKS.schema)
        assert derived.waits.schema.equals(WAITS.schema)
        derived.tasks.validate(full=True)
        derived.waits.validate(full=True)
    return out


def all_tasks(out: list[Derived]) -> list[Row]:
    return [r for d in out for r in d.tasks.to_pylist()]


def all_waits(out: list[Derived]) -> list[Row]:
    return [r for d in out for r in d.waits.to_pylist()]


def same(found: list[Row], expected: list[Row]) -> None:
    """The same rows, whatever part they came out with."""
    one, other = (sorted(json.dumps(r, sort_keys=True) for r in rows) for rows in (found, expected))
    assert one == other


@st.composite
def recordings(draw: st.DrawFn) -> list[Row]:
    """Events of a run in which anything may be prelaunched, moved, repeated, lost or there twice; in order of time."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    carried = draw(st.booleans())
    reuse = draw(st.booleans())
    lost = draw(st.sampled_from([0.0, 0.05, 0.4]))
    twice = draw(st.sampled_from([0.0, 0.05]))
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 30))):
        worker, scheduler = rng.randrange(WORKERS), rng.randrange(WORKERS)
        iteration, index = rng.randrange(2 if reuse else 6), rng.randrange(1, 6 if reuse else 40)
        if rng.random() < 0.05:
            iteration = 1 << rng.randrange(30)
        task = iteration << 32 | index
        rank = rng.randrange(2)
        t = rng.randrange(100_000)
        ready = t + rng.randrange(300)
        assign = ready + rng.randrange(-200, 300)
        start = max(ready, assign) + rng.randrange(200)
        complete = start + rng.choice([0, 32, 900, 30_000])
        ids = {"rank": rank, "step": iteration, "task_class": rng.randrange(5), "tile": index}
        ids["request"] = rng.choice([0, 3, REQUEST_SET_BIT | 2, 0xFFFF_FFFF])
        count = rng.choice([0, 1, 1, 3, 7])
        if count:
            rows.append(
                row(READY, ready, scheduler, task, **ids | {"tile": count}, flags=FLAG_RANGE, aux=index - 1, dep=4)
            )
        else:
            rows.append(row(READY, ready, scheduler, task, **ids, aux=index - 1, dep=4, dep_class=1))
        target = worker if rng.random() < 0.8 else scheduler
        rows.append(row(ASSIGN, assign, scheduler, task, **ids, aux=target << 48 | 1 << 24 | 64))
        rows.append(row(START, start, worker, task, **ids, since=ready if carried else None))
        if rng.random() < 0.9:
            rows.append(row(COMPLETE, complete, worker, task, **ids, since=start if carried else None))
        began = max(0, ready - rng.randrange(500))
        wait = ids | {"dep": rng.randrange(3), "dep_class": rng.randrange(5)}
        rows.append(row(WAIT, began, worker, task, **wait, aux=1 << 32 | 2))
        if rng.random() < 0.9:
            far = rng.random() < 0.05
            rows.append(row(RESUME, start, worker, task, **wait, since=start - SINCE_MAX if far else began))
        rows.append(row(RELEASE, complete, worker, task, **ids))
    rows = numbered(rows)
    rows = [r for r in rows if rng.random() >= lost]
    return [r for r in rows for _ in range(2 if rng.random() < twice else 1)]


def arrived(rows: list[Row], rng: random.Random) -> list[Row]:
    """The order in which a drain may take them: each worker's in order, no worker more than LAG behind."""
    queues: dict[int, list[Row]] = {}
    for r in rows:
        queues.setdefault(r["worker"], []).append(r)
    out: list[Row] = []
    newest = -(1 << 60)
    while queues:
        oldest = min(q[0]["t"] for q in queues.values())
        late = [w for w, q in queues.items() if q[0]["t"] <= max(newest - LAG, oldest)]
        free = [w for w, q in queues.items() if q[0]["t"] < oldest + LAG]
        worker = rng.choice(late if rng.random() < 0.3 else free)
        for _ in range(min(rng.randrange(1, 6), len(queues[worker]))):
            if queues[worker][0]["t"] >= oldest + LAG:
                break
            newest = max(newest, queues[worker][0]["t"])
            out.append(queues[worker].pop(0))
        if not queues[worker]:
            del queues[worker]
    return out


def cut(rows: list[Row], rng: random.Random, pieces: int) -> list[list[Row]]:
    at = sorted(rng.randrange(len(rows) + 1) for _ in range(pieces - 1))
    return [rows[a:b] for a, b in zip([0, *at], [*at, len(rows)], strict=True)]


@given(recordings(), st.integers(0, 1 << 32))
@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_agrees_with_the_oracle_for_any_cut(rows: list[Row], seed: int) -> None:
    rng = random.Random(seed)
    arrival = arrived(rows, rng)
    whole = pair([arrival])
    same(all_tasks(whole), oracle.tasks(rows))
    same(all_waits(whole), oracle.waits(rows))
    for pieces in (3, 20):
        parts = pair(cut(arrival, rng, pieces))
        same(all_tasks(parts), oracle.tasks(rows))
        same(all_waits(parts), oracle.waits(rows))


@given(recordings(), st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_table_is_in_order(rows: list[Row], seed: int) -> None:
    rng = random.Random(seed)
    for derived in pair(cut(arrived(rows, rng), rng, 3)):
        found = derived.tasks.to_pylist()
        assert found == sorted(found, key=oracle.task_order)
        begins = [oracle.LATE if r["t_begin"] is None else r["t_begin"] for r in derived.waits.to_pylist()]
        assert begins == sorted(begins)


@given(recordings())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_at_the_end_all_in_the_order_of_the_oracle(rows: list[Row]) -> None:
    pairer = Pairer(Context(np.arange(WORKERS + 1)), lag_ns=1 << 40)  # a worker never heard of holds all up
    assert pairer.feed(part(rows)).tasks.num_rows == 0
    derived = pairer.finish()
    assert derived.tasks.to_pylist() == oracle.tasks(rows)


@given(recordings(), st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_goes_on_from_its_state(rows: list[Row], seed: int) -> None:
    rng = random.Random(seed)
    parts = cut(arrived(rows, rng), rng, 5)
    expected = pair(parts)
    context = Context(np.arange(WORKERS))
    state = Pairer(context, lag_ns=LAG).state()
    counts = None
    for rows_of_part, whole in zip(parts, expected, strict=False):
        pairer = Pairer(context, lag_ns=LAG)
        pairer.restore(state)
        assert counts is None or pairer.counts == counts
        derived = pairer.feed(part(rows_of_part))
        assert derived == whole
        state, counts = pairer.state(), pairer.counts
    pairer = Pairer(context, lag_ns=LAG)
    pairer.restore(state)
    assert pairer.finish() == expected[-1]


@given(recordings(), st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_kept_of_the_columns_that_are_fed(rows: list[Row], seed: int) -> None:
    """Columns in memory that is overwritten after every part, from batches of any size, give what a table gives."""
    rng = random.Random(seed)
    parts = cut(arrived(rows, rng), rng, 5)
    pairer, scratch, out = Pairer(Context(np.arange(WORKERS)), lag_ns=LAG), dict[str, Any](), list[Derived]()
    for given_rows in parts:
        batches = part(given_rows).combine_chunks().to_batches(max_chunksize=rng.randrange(1, 9))
        out.append(pairer.feed(columns_of(batches, len(given_rows), scratch)))
        for column in scratch.values():
            column.fill(-7)
    assert [*out, pairer.finish()] == pair(parts)


@given(recordings())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hooks_that_are_not_recorded_are_not_missed(rows: list[Row]) -> None:
    hooks = frozenset({START, COMPLETE, RESUME})
    rows = [r for r in rows if r["hook"] in hooks]
    out = pair([rows], hooks)
    same(all_tasks(out), oracle.tasks(rows, hooks))
    same(all_waits(out), oracle.waits(rows, hooks))


def test_a_task_waits_for_its_late_ready() -> None:
    """Worker 3 found it ready and is drained late; until then the task is not decided."""
    ready, assign = row(READY, 1_000, 3, 5), row(ASSIGN, 1_100, 3, 5)
    rows = numbered([ready, assign, row(START, 1_200, 0, 5), row(COMPLETE, 2_000, 0, 5, since=1_200)])
    others = numbered([row(RELEASE, 40_000, w) for w in range(WORKERS)])
    late = [r for r in rows if r["worker"] == 3]
    early = [r for r in rows if r["worker"] != 3]
    first, second, third, end = pair([early, [r for r in others if r["worker"] != 3], late + others[3:]])
    assert first.tasks.num_rows == second.tasks.num_rows == end.tasks.num_rows == 0
    assert third.tasks.to_pylist() == oracle.tasks(rows)
    assert third.tasks["missing"].to_pylist() == [0]


def test_a_silent_worker_does_not_hold_up_for_ever() -> None:
    rows = numbered([row(START, 1_200, 0, 5), row(COMPLETE, 2_000, 0, 5, since=1_200)])
    first, second, _ = pair([rows, numbered([row(RELEASE, 2_000 + LAG + 20_000, 0) | {"seq": 9}])])
    assert first.tasks.num_rows == 0
    assert second.tasks.num_rows == 1


def test_identities_that_repeat_stay_apart() -> None:
    """An engine whose iteration stays 0: every execution is a row of its own."""
    rows = []
    for n in range(50):
        t = 1_000 * n
        rows += [row(READY, t, 1, 7), row(ASSIGN, t + 10, 1, 7), row(START, t + 20, 0, 7, since=t)]
        rows += [row(COMPLETE, t + 500, 0, 7, since=t + 20)]
    out = pair([numbered(rows)])
    assert [r["exec_ns"] for r in all_tasks(out)] == [480] * 50
    assert all(r["missing"] == 0 for r in all_tasks(out))


def test_too_many_open_tasks_are_given_up_and_counted() -> None:
    rows = numbered([row(START, 1_000 + n, 0, n) for n in range(100)])
    later = numbered([row(COMPLETE, 5_000 + n, 0, n, since=1_000 + n) for n in range(100)])
    later = [r | {"seq": r["seq"] + 100} for r in later]
    pairer = Pairer(Context(np.arange(1)), lag_ns=LAG, open_most=30)
    parts = [rows[i : i + 10] for i in range(0, 100, 10)] + [later]
    out = [pairer.feed(part(p)) for p in parts] + [pairer.finish()]
    tasks, _ = pairer.counts
    assert tasks.given_up == 70
    given_up = [r for r in all_tasks(out) if r["flags"] & 8]
    assert [r["task"] for r in given_up] == list(range(70))
    assert all(r["complete"] is None for r in given_up)
    # Their complete events are not lost either: rows of their own, with the start that they carry.
    again = [r for r in all_tasks(out) if r["task"] < 70 and not r["flags"] & 8]
    assert [(r["task"], r["start"], r["exec_ns"]) for r in again] == [(n, 1_000 + n, 4_000) for n in range(70)]


def test_waiting_for_the_frontier_is_bounded() -> None:
    """A worker that is declared and silent would keep every task waiting for LAG."""
    rows = []
    for n in range(200):
        rows += [row(START, 100 * n, 0, n), row(COMPLETE, 100 * n + 90, 0, n, since=100 * n)]
    rows = numbered(rows)
    out = pair([rows[i : i + 20] for i in range(0, 400, 20)], lag_ns=1 << 40, held_most=20)
    same(all_tasks(out), oracle.tasks(rows))
    assert sum(d.tasks.num_rows for d in out[:-1]) >= 180


def test_impossible_ranges_are_counted_and_cost_nothing() -> None:
    rows = numbered(
        [
            row(READY, 1_000, 0, 5, tile=0xFFFF_FFFF, flags=FLAG_RANGE),
            row(READY, 1_000, 0, 0xFFFF_FFFE, tile=3, flags=FLAG_RANGE),
            row(READY, 1_000, 0, 9, tile=2, flags=FLAG_RANGE),
        ]
    )
    pairer = Pairer(Context(np.arange(1)))
    pairer.feed(part(rows))
    assert pairer.finish().tasks["task"].to_pylist() == [9, 10]
    assert pairer.counts[0].impossible_ranges == 2


@given(
    st.lists(st.tuples(*[st.sampled_from([0, 1, -1, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63)])] * 5), max_size=12)
)
@settings(max_examples=100, deadline=None)
def test_no_values_crash_it(values: list[tuple[int, ...]]) -> None:
    rows = []
    for i, (t, task, aux, since, small) in enumerate(values):
        rows.append(
            row(1 + i % 6, t, small % 100_000, task, aux=aux, seq=i, dep=aux, tile=small, rank=small % 300)
            | {"since_ns": since if i % 2 else None}
        )
    pairer = Pairer(Context(np.array([-5, 1 << 40, 0])))
    out = [pairer.feed(part(rows[:6])), pairer.feed(part(rows[6:])), pairer.finish()]
    rows_of_tasks = sum(r["hook"] <= COMPLETE for r in rows)
    assert sum(d.tasks.num_rows for d in out) <= rows_of_tasks
    assert (sum(d.tasks.num_rows for d in out) == 0) == (rows_of_tasks == 0)


def test_refuses_other_schemas_and_damaged_state() -> None:
    pairer = Pairer(Context(np.arange(1)))
    with pytest.raises(ValueError, match="schema"):
        pairer.feed(pa.table({"t": [1]}))
    pairer.feed(part(numbered([row(START, 1_000, 0, 5), row(WAIT, 2_000, 0, 5)])))
    state = pairer.state()
    Pairer(Context(np.arange(1))).restore(state)
    for damaged in (b"", state[:-1], state[:40], bytes([state[0] ^ 1]) + state[1:], state[:60] + b"\0" + state[61:]):
        if damaged != state:
            with pytest.raises(Refused):
                Pairer(Context(np.arange(1))).restore(damaged)
