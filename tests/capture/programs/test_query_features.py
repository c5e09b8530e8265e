"""Every part of the language, one small query each, against the oracle on random events."""

from __future__ import annotations

import numpy as np
import pytest
from query_runs import at_hook, checked, events

SEEN = events(np.random.default_rng(1), 700)

FEATURES = {
    "several hooks": "start, complete { @n[hook] = count(); }",
    "several clauses": "start { @a = count(); } complete { @a = count(); } start { @b = count(); emit(); }",
    "predicate": "complete /exec_ns > 20us/ { @n = count(); }",
    "division in a predicate": "complete /exec_ns / 2 / 3 > 1us / 1/ { @n = count(); }",
    "unnamed map": "ready { @[task_class] = count(); }",
    "four keys": "wait { @m[worker, dep, dep_class, task] = count(); }",
    "sum": "send { @b[peer] = sum(bytes); }",
    "sum below zero": "complete { @d[class] = sum(exec_ns - 30us); }",
    "min and max": "resume { @low[class] = min(wait_ns); @high[class] = max(wait_ns); }",
    "min of what may be below zero": "complete { @low = min(exec_ns - 30us); }",
    "avg and stats": "resume { @a = avg(wait_ns); @s[dep_class] = stats(wait_ns); }",
    "hist": "complete { @lat[class] = hist(exec_ns); }",
    "hist of a constant": "complete { @lat = hist(7); @l = min(-3); }",
    "lhist": "complete { @l[worker] = lhist(exec_ns, 0, 40us, 5us); }",
    "lhist from below zero": "complete { @l = lhist(exec_ns - 20us, -10us, 10us, 4us); }",
    "state": "start { @s[task] = t; } complete /@s[task]/ { @d = hist(t - @s[task]); delete(@s[task]); }",
    "state counted up": "complete { @n[class]++; @m += exec_ns; @k[worker] -= 3; @k[worker]--; }",
    "state with other operators": "complete { @m |= 1 << worker; @x ^= task; @y[dep] = @y[dep] * 3 + 1; @z <<= 1; }",
    "the first few": "complete /@n < 5/ { @n++; emit(); }",
    "locals": "start { $d = depth_of; @x = sum($d); }".replace("depth_of", "queue_ns / 1000"),
    "local changed": "complete { $a = 1; if (exec_ns > 10us) { $a += 5; } $a++; @s[$a] = count(); }",
    "local of one branch": "complete { if (worker > 0) { $a = exec_ns; } @h = hist($a); if ($a > 5) { emit(); } }",
    "else if": "pressure { if (rises) { @up++; } else if (falls) { @down++; } else { @no++; } }",
    "choice": "complete { @c[exec_ns > 20us ? 1 : worker == 1 ? 2 : 3] = count(); }",
    "choice on what is missing": "start { @c[queue_ns > 1us ? 1 : 0] = count(); }",
    "bits": "complete { @c[(task & 7) | (t >> 3 ^ seq) % 8] = count(); @d[~worker & 3] = count(); }",
    "shifts": "complete { @x[1 << (worker + 60) >> 61] = count(); @y[-1 >> worker] = count(); @z[t << 64] = count(); }",
    "division": "complete { @x[(exec_ns - 20us) / 7us] = count(); @y[(exec_ns - 20us) % (worker - 1)] = count(); }",
    "division by zero": "complete { @x[exec_ns / (worker - 1)] = count(); @y[5 / 0, 5 % 0] = count(); }",
    "logic": "complete /!(worker == 1 || exec_ns > 30us) && (class || dep)/ { @n = count(); }",
    "logic as a number": "start { @n[worker == 0 && class > 3, !dep, (queue_ns > 5) + 1] = count(); }",
    "precedence of bits": "pressure /flags & 1 == 1/ { @n = count(); }",
    "signed comparison": "complete { @neg[exec_ns - 20us < 0, -1 < worker, task >= 0, 3 > worker] = count(); }",
    "signed comparison that jumps": "complete { @n[exec_ns - 20us < 0 || 5 < class] = count(); "
    "@m[0 < exec_ns - 20us || class <= 5] = count(); @k[0 >= exec_ns - 20us || 3 > class] = count(); "
    "@e[2 >= worker + 1 || dep > 5] = count(); @g[2 <= worker + 1 || dep >= 5] = count(); }",
    "comparison of constants": "complete { @n[0 <= exec_ns - 20us || 1 == class || 2 != dep, 5 <= class] = count(); }",
    "large numbers": "complete { @x[task * 0x123456789abcdef, t + 0xffffffffffffffff, t - 5G] = count(); }",
    "large comparison": "complete /task < 8589934592 && 4294967296 <= task/ { @n = count(); }",
    "constants": "const limit = 20us; const twice = limit * 2; complete /exec_ns > twice/ { @n[limit] = count(); }",
    "class by name": 'complete /class == "l00.attn"/ { @n = count(); }',
    "class by pattern": 'complete /class == "l0*.expert_*"/ { @n[class] = count(); }',
    "not that class": 'complete /"embed" != class/ { @n[class] = count(); }',
    "operator": 'complete /operator == "expert_up"/ { @n[class] = count(); }',
    "operator of many classes": 'complete /operator == "attn"/ { @n[class] = count(); }',
    "not that operator": 'complete /operator != "attn"/ { @n[class] = count(); }',
    "operator in a value": 'complete { @n[operator == "attn"] = count(); @k[operator != "attn"] = count(); }',
    "kind of dependency": 'wait /dep_class == "communication"/ { @n = count(); }',
    "dependency by name": 'wait /dep == "attn[3]" || dep == "attn[1*"/ { @n[dep] = count(); }',
    "state of a request": 'request /state == "first_token"/ { @n[slot] = count(); }',
    "hook by name": 'start,complete { @n[hook == "start"] = count(); }',
    "peer by name": 'send /peer == "all"/ { @n = count(); }',
    "request by number": "complete /request == 2/ { emit(); }",
    "request by external id": 'complete /request == "req-001"/ { emit(); }',
    "request and its batches": 'start,complete /belongs_to("req-000")/ { emit(); }',
    "request by number and its batches": "start,complete /belongs_to(2)/ { emit(); }",
    "request in no batch": "start,complete /belongs_to(7)/ { emit(); }",
    "layer": "complete { @n[layer] = count(); }",
    "producer": "resume { @n[producer] = count(); }",
    "coordinates": "complete { @n[expert, tile.tile] = count(); @h[head] = count(); }",
    "coordinate of a range": "ready { @n[expert] = count(); @all[range] = count(); }",
    "assign": "assign { @n[target, depth, capacity] = count(); }",
    "pressure": "pressure { @n[depth, threshold, rises, falls] = count(); }",
    "depth at both": "assign,pressure { @n[depth] = count(); }",
    "wait and release": "wait { @w[seen, wanted] = count(); } release { @r[counter, wanted] = count(); }",
    "wanted at both": "wait,release { @w[wanted] = count(); }",
    "task": "ready { @n[iteration, index] = count(); @by[released_by] = count(); }",
    "step": "step { @n[begins, ends] = count(); @h = hist(step_ns); @s = stats(since_ns); }",
    "epoch": "epoch { @n = count(); @h = hist(epoch_ns); }",
    "missing in one statement": "start { @h = hist(queue_ns); @n = count(); @m = min(queue_ns); }",
    "missing behind or": "start /worker == 1 || queue_ns > 1us/ { @n = count(); }",
    "missing under not": "start /!(queue_ns > 1us)/ { @n = count(); }",
    "printf": 'complete /exec_ns > 30us/ { printf("%s: %d ns\\n", class, exec_ns); }',
    "printf at two hooks": 'start,complete { printf("%d %x", hook, task); } wait { printf("%d", dep_class); }',
    "printf of what is missing": 'start { printf("%d", queue_ns); }',
    "sample": "start,complete /sample(1/4)/ { emit(); @n[task] = count(); }",
    "sample in a value": "complete { @n[sample(1/3), !sample(1/2)] = count(); }",
    "one in one": "complete /sample(1/1)/ { emit(); }",
    "keys of many widths": "complete { @n[rank, task, class, step] = count(); }",
    "map read in a key": "complete { @last[worker] = class; @pairs[@last[worker], class] = count(); }",
    "map read in a map read": "complete { @a[worker] = class % 3; @b[@a[worker]] = @b[@a[@a[worker]]] + 1; }",
    "deep arithmetic": "complete { @x[((t - aux) * (seq + 1)) ^ ((task - 1) * (t - seq)) + "
    "((step + 1) * (sm + 1)) * (dep + 1 * (comm - 1))] = count(); }",
    "condition always true": "complete { if (1) { @a = count(); } if (0) { @a = count(); } else { @b = count(); } }",
    "empty block": "start { } complete { if (worker) { } @n = count(); }",
}  # fmt: skip


@pytest.mark.parametrize("text", FEATURES.values(), ids=FEATURES.keys())
def test_a_feature_means_what_the_oracle_says(text: str) -> None:
    run = checked(text, SEEN)
    values = [v for w in run.oracle.workers.values() for v in w.maps.values() if v]
    assert values or any(run.expected) or text == FEATURES["request in no batch"]


def test_feedback_is_missing_until_it_is_fed() -> None:
    text = "complete { @lat = hist(exec_ns); if (p99(@lat) > 20us) { emit(); } else { @below = count(); } }"
    assert not any(checked(text, SEEN).emitted)
    assert not any(checked(text, SEEN, feedback={("p99", "lat", None): 20_000}).emitted)
    fed = checked(text, SEEN, feedback={("p99", "lat", None): 20_001})
    assert fed.emitted == [e in at_hook(SEEN, "complete") for e in SEEN]


def test_feedback_by_key() -> None:
    text = "complete { @lat[class] = hist(exec_ns); @n = count(); if (exec_ns > p50(@lat[class], 5s)) { emit(); } }"
    fed = checked(text, SEEN, feedback={("p50", "lat", 2): 20_000, ("p50", "lat", 3): 0})
    assert {e["task_class"] for e, sent in zip(SEEN, fed.emitted, strict=True) if sent} == {2, 3}
    assert fed.query.feedback[0].window_ns == 5 * 10**9


def test_total_is_fed_too() -> None:
    text = "complete { @n = count(); } start /total(@n) > 10 && total(@n) < 20/ { emit(); }"
    assert any(checked(text, SEEN, feedback={("total", "n", None): 15}).emitted)
    assert not any(checked(text, SEEN, feedback={("total", "n", None): 20}).emitted)


@pytest.mark.parametrize(("limit", "some"), [(1, True), (1 << 40, False)])
def test_constants_are_set(limit: int, some: bool) -> None:
    run = checked("const limit = 5us; complete /exec_ns > limit/ { emit(); }", SEEN, constants={"limit": limit})
    assert any(run.emitted) == some


def test_without_tables_numbers_serve() -> None:
    checked("complete /class == 2 && request == 1/ { @n[class, worker] = count(); }", SEEN, tables={})
