"""Tiles against a slow count of every slice: conserved at every level, whatever the parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.store.tables import DEP_CLASSES, INTERVALS, TASKS, TILES, WAITS
from megascope.store.tiles import LEVELS, TileBuilder

Row = dict[str, Any]
WAIT_NAMES = [f"wait_{c}" for c in DEP_CLASSES]
SUMS = ["busy", *WAIT_NAMES, "tasks"]
END = 1 << 30


def table(declared: Any, rows: list[Row]) -> pa.Table:
    empty = {c.name: None if c.nullable else False if c.type == "bool" else 0 for c in declared}
    return pa.Table.from_pylist([empty | r for r in rows], schema=declared.schema)


def a_task(worker: int, start: int, ns: int | None, task_class: int = 1, rank: int = 0) -> Row:
    complete = None if ns is None else start + ns
    ids = {"rank": rank, "worker": worker, "task_class": task_class}
    return ids | {"start": start, "complete": complete, "exec_ns": ns}


def a_wait(worker: int, begin: int, ns: int | None, dep_class: int, task: int = 7) -> Row:
    end = None if ns is None else begin + ns
    return {"worker": worker, "task": task, "dep_class": dep_class, "t_begin": begin, "t_end": end, "ns": ns}


def slow(tasks: list[Row], waits: list[Row]) -> Counter[tuple[Any, ...]]:
    """(level, rank, worker, slice, what) to ns or tasks, slice by slice."""
    out: Counter[tuple[Any, ...]] = Counter()
    for level in LEVELS:
        for rows, begin, end in ((tasks, "start", "complete"), (waits, "t_begin", "t_end")):
            for r in rows:
                where = (level, r.get("rank", 0), r["worker"])
                if rows is tasks:
                    out[*where, r["start"] >> level, "tasks"] += 1
                if r[end] is None:
                    continue
                what = "busy" if rows is tasks else WAIT_NAMES[r["dep_class"] if r["task"] else 0]
                for n in range(r[begin] >> level, (r[end] >> level) + 1):
                    ns = min(r[end], (n + 1) << level) - max(r[begin], n << level)
                    if ns > 0:
                        out[*where, n, what] += ns
    return out


def spread(tiles: list[pa.Table]) -> Counter[tuple[Any, ...]]:
    """The same from tiles: a run of slices holds its time in equal parts."""
    out: Counter[tuple[Any, ...]] = Counter()
    for r in (r for t in tiles for r in t.to_pylist()):
        for name in SUMS:
            if r[name]:
                assert r[name] % r["span"] == 0
                for n in range(r["tile"], r["tile"] + r["span"]):
                    out[r["level"], r["rank"], r["worker"], n, name] += r[name] // r["span"]
    return out


times = st.integers(0, END)
lengths = st.one_of(st.none(), st.integers(0, 1 << 17), st.integers(0, 1 << 23), st.sampled_from([1 << 16, 3 << 18]))
some_tasks = st.lists(st.builds(a_task, st.integers(0, 2), times, lengths, st.integers(0, 3), st.integers(0, 1)))
some_waits = st.lists(st.builds(a_wait, st.integers(0, 2), times, lengths, st.integers(0, 4), st.sampled_from((0, 7))))


def build(tasks: list[Row], waits: list[Row], cuts: list[int], **limits: int) -> list[pa.Table]:
    """Tiles from parts that end at the cuts; what ends after a cut is decided with a later part."""
    builder = TileBuilder(**limits)
    out, low = [], -1
    for cut in [*sorted(cuts), 1 << 62]:
        mine = [
            [r for r in rows if low < (r[end] if r[end] is not None else r[begin]) <= cut]
            for rows, begin, end in ((tasks, "start", "complete"), (waits, "t_begin", "t_end"))
        ]
        out.append(builder.feed(table(TASKS, mine[0]), table(WAITS, mine[1]), min(cut, 2 * END)))
        low = cut
    return [*out, builder.finish()]


@given(some_tasks, some_waits, st.lists(times, max_size=4), st.sampled_from([0, 2, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_every_slice_holds_what_was_done_in_it(
    tasks: list[Row], waits: list[Row], cuts: list[int], pending_most: int
) -> None:
    tiles = build(tasks, waits, cuts, pending_most=pending_most)
    assert spread(tiles) == slow(tasks, waits)
    whole = pa.concat_tables(tiles)
    assert whole.schema.equals(TILES.schema)
    whole.validate(full=True)
    busy = sum(r["exec_ns"] or 0 for r in tasks)
    for level in LEVELS:
        of_level = [r for r in whole.to_pylist() if r["level"] == level]
        assert sum(r["busy"] for r in of_level) == busy
        assert sum(r["tasks"] for r in of_level) == len(tasks)


@given(some_tasks, some_waits, st.lists(times, max_size=3))
@settings(max_examples=30, deadline=None)
def test_rows_are_in_order_and_not_empty(tasks: list[Row], waits: list[Row], cuts: list[int]) -> None:
    for part in build(tasks, waits, cuts):
        rows = part.to_pylist()
        keys = [(r["level"], r["rank"], r["worker"], r["tile"], r["span"]) for r in rows]
        assert keys == sorted(keys)
        assert all(any(r[n] for n in SUMS) for r in rows)
        assert all((r["top_class"] is None) == (r["busy"] == 0) for r in rows)


@given(some_tasks, some_waits, st.lists(times, max_size=4), st.sampled_from([0, 2, 1 << 20]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_another_builder_goes_on(
    tasks: list[Row], waits: list[Row], cuts: list[int], pending: int, sparing: bool
) -> None:
    """At every cut: what was written and what a new builder makes of the decided rows is all there is, once."""
    builder = TileBuilder(pending_most=pending)
    written, decided, low = [], ([], []), -1
    for cut in sorted(cuts):
        for kept, rows, begin, end in (
            (decided[0], tasks, "start", "complete"),
            (decided[1], waits, "t_begin", "t_end"),
        ):
            kept.append([r for r in rows if low < (r[end] if r[end] is not None else r[begin]) <= cut])
        written.append(builder.feed(table(TASKS, decided[0][-1]), table(WAITS, decided[1][-1]), cut))
        low = cut
        so_far = [r for rows in decided[0] for r in rows], [r for rows in decided[1] for r in rows]
        again = TileBuilder()
        # Who ends before what is written may be left out.
        given_tasks, given_waits = (
            [r for r in rows if not sparing or max(r[begin], r[end] or 0) >= builder.until]
            for rows, begin, end in ((so_far[0], "start", "complete"), (so_far[1], "t_begin", "t_end"))
        )
        again.resume(builder.until, table(TASKS, given_tasks), table(WAITS, given_waits))
        assert spread([*written, again.finish()]) == slow(*so_far)


def test_the_top_class_is_the_one_with_the_most_time_at_each_level() -> None:
    """Three short tasks of class 5 outweigh one of class 3 in the coarser slice, not in the finer one."""
    tasks = [a_task(0, 0, 40_000, 3), a_task(0, 45_000, 15_000, 5)]
    tasks += [a_task(0, 70_000, 20_000, 5), a_task(0, 140_000, 20_000, 5)]
    rows = pa.concat_tables(build(tasks, [], [])).to_pylist()
    tops = {(r["level"], r["tile"]): (r["top_class"], r["top_ns"]) for r in rows}
    assert tops[16, 0] == (3, 40_000)
    assert tops[16, 1] == tops[16, 2] == (5, 20_000)
    assert tops[18, 0] == tops[26, 0] == (5, 55_000)


def test_a_long_wait_takes_few_rows() -> None:
    """An hour of waiting is not 55 million slices."""
    hour = 3_600 * 10**9
    builder = TileBuilder()
    tiles = [builder.feed(table(TASKS, []), table(WAITS, [a_wait(3, 1_000, hour, 2)]), 2 * hour), builder.finish()]
    rows = pa.concat_tables(tiles).to_pylist()
    assert len(rows) <= 5 * len(LEVELS)
    for level in LEVELS:
        assert sum(r["wait_communication"] for r in rows if r["level"] == level) == hour
    assert max(r["span"] for r in rows if r["level"] == 16) > 50_000_000


def test_slices_are_written_once_they_are_over() -> None:
    builder = TileBuilder()
    early = [a_task(0, n * 30_000, 20_000) for n in range(6_000)]
    first = builder.feed(table(TASKS, early), table(WAITS, []), 180_000_000)
    assert first.num_rows
    reached = max((r["tile"] + r["span"]) << r["level"] for r in first.to_pylist())
    assert reached <= 180_000_000
    assert reached % (1 << LEVELS[-1]) == 0
    second = builder.feed(table(TASKS, []), table(WAITS, []), 400_000_000).to_pylist()
    keys = {(r["level"], r["tile"]) for r in first.to_pylist()} & {(r["level"], r["tile"]) for r in second}
    assert keys == set()


def test_losses_lie_where_they_are_known_to_be() -> None:
    begin, end = 100_000_000, 200_000_000
    row = {"rank": 0, "worker": 7, "t_begin": begin, "t_end": end, "lost": 9, "closed": True}
    losses = table(INTERVALS, [row, row | {"worker": None, "lost": 4}, row | {"lost": 0}])
    rows = TileBuilder().feed(table(TASKS, []), table(WAITS, []), 0, losses).to_pylist()
    for level in LEVELS:
        found = {r["worker"]: r for r in rows if r["level"] == level}
        assert {w: r["lost"] for w, r in found.items()} == {None: 4, 7: 9}
        for r in found.values():
            assert r["tile"] << level <= begin
            assert (r["tile"] + r["span"]) << level >= end


@given(
    st.lists(st.tuples(*[st.sampled_from([0, 1, 5, -1, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63)])] * 2), max_size=9)
)
@settings(max_examples=60, deadline=None)
def test_impossible_times_are_counted_and_cost_nothing(times: list[tuple[int, int]]) -> None:
    rows = [{"worker": 1, "start": a, "complete": b, "exec_ns": 1, "task_class": 1} for a, b in times]
    builder = TileBuilder()
    tiles = [builder.feed(table(TASKS, rows), table(WAITS, []), 1 << 50), builder.finish()]
    possible = [(a, b) for a, b in times if abs(a) < 1 << 61 and abs(b) < 1 << 61 and 0 <= b - a < 1 << 52]
    assert builder.left_out == len(times) - len(possible)
    for level in LEVELS:
        busy = [r["busy"] for t in tiles for r in t.to_pylist() if r["level"] == level]
        assert sum(busy) == sum(b - a for a, b in possible)
    assert sum(t.num_rows for t in tiles) <= 6 * len(LEVELS) * max(1, len(times))


def test_many_classes_and_workers() -> None:
    """More kinds than fit a dense table."""
    rng = np.random.default_rng(3)
    tasks = [
        a_task(int(w), int(t), int(n), int(c))
        for w, t, n, c in zip(
            rng.integers(0, 30_000, 400), rng.integers(0, 1 << 40, 400), rng.integers(1, 99_999, 400),
            rng.integers(0, 60_000, 400), strict=True,
        )
    ]  # fmt: skip
    assert spread(build(tasks, [], [1 << 39])) == slow(tasks, [])
