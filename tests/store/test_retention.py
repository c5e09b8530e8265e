"""What a rolling recording retires: whatever parts, pins and budgets come, pins hold and the counts add up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.store import derived, retention
from megascope.store.ledger import Ledger
from megascope.store.manifest import fresh
from megascope.store.manifest_rules import Bad, check_content
from megascope.store.retention import Pins, Step
from megascope.store.retiring import Retirer

KEEP = 1000
SPAN = st.tuples(st.integers(0, 6000), st.integers(0, 800)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(SPAN), st.none() | st.integers(0, 7000), SPAN)
def test_pins_are_the_union_of_what_was_pinned(
    spans: list[tuple[int, int]], cut: int | None, asked: tuple[int, int]
) -> None:
    pins, inside = Pins(spans), np.zeros(8000, bool)
    for begin, end in spans:
        inside[begin : end + 1] = True
    if cut is not None:
        pins.cut(cut)
        inside[cut + 1 :] = False
    held = np.zeros(8000, bool)
    before = -1
    for begin, end in pins:
        assert before + 1 < begin or before < 0
        assert begin <= end
        held[begin : end + 1], before = True, end
    assert np.array_equal(held, inside)
    assert pins.touches(*asked) == inside[asked[0] : asked[1] + 1].any()


STEPS = st.lists(st.tuples(SPAN, st.integers(1, 500)), max_size=12)


@given(STEPS, STEPS, st.lists(SPAN, max_size=3), st.integers(0, 4000), st.integers(-100, 4000))
def test_what_is_not_sealed_yet_goes_after_all_that_is(
    old: list[tuple[tuple[int, int], int]],
    new: list[tuple[tuple[int, int], int]],
    pinned: list[tuple[int, int]],
    window: int,
    excess: int,
) -> None:
    pins, after = Pins(pinned), 7000
    steps = [Step(n, *span, 1, size) for n, (span, size) in enumerate(old)]
    coming = [Step(n, span[0] + after, span[1] + after, 1, size) for n, (span, size) in enumerate(new)]
    alone = retention.plan(steps, pins, window, 0, excess)
    plan = retention.plan(steps, pins, window, 0, excess, coming)
    assert (plan.retire, plan.early, plan.pinned_bytes) == (alone.retire, alone.early, alone.pinned_bytes)
    over = [s for s in coming if s.high < plan.horizon and not pins.touches(s.low, s.high)]
    freed = sum(s.bytes for s in steps if s.number in plan.retire)
    if excess <= freed:
        assert plan == alone
    else:
        assert {s.number for s in steps if not pins.touches(s.low, s.high)} == set(plan.retire)
        free = sum(s.bytes for s in coming if not pins.touches(s.low, s.high))
        assert freed + sum(s.bytes for s in over) >= min(excess, freed + free)


class Book:
    """A manifest in memory that is checked like one on disk. `failing`: the next commits find no room."""

    def __init__(self) -> None:
        self.content = fresh(
            name="a", trace_id="0" * 32, created_utc="", writer={"pid": 1, "start": 1}, max_bytes=None
        ) | {retention.KEY: retention.fresh(KEEP), derived.KEY: derived.fresh()}
        self.failing = 0

    def commit(self, change: Callable[[dict[str, Any]], None]) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError(28, "No space left on device")
        content = copy.deepcopy(self.content)
        change(content)
        check_content(content)
        self.content = content

    def snapshot(self) -> dict[str, Any]:
        return copy.deepcopy(self.content)


@dataclass
class Run:
    """A recording: what was written, and what has been promised to be kept."""

    budget: int | None
    book: Book = field(default_factory=Book)
    rows: dict[int, list[int]] = field(default_factory=dict)
    promised: list[tuple[int, int]] = field(default_factory=list)
    newest: int = 0

    def __post_init__(self) -> None:
        ledger = Ledger(0)
        self.retirer = Retirer(Path("/nowhere"), self.book, ledger, KEEP, self.budget, lambda: self.bytes)  # type: ignore[arg-type]

    @property
    def bytes(self) -> int:
        parts = self.book.content["streams"]["events"]["parts"]
        return sum(p["bytes"] for p in parts) + sum(
            p["bytes"] for n in derived.NAMES for p in self.book.content[derived.KEY][n]["parts"]
        )

    def part(self, times: list[int], late: int) -> None:
        """A part of events of these times, and tasks of it that began `late` ns before."""
        self.retirer.saw(np.array(times, np.int64))
        self.newest = max(self.newest, *times)
        number = len(self.rows) + 1
        self.rows[number] = times
        size = 100 * len(times)

        def change(m: dict[str, Any]) -> None:
            entry = {"file": f"events-{number:06d}.parquet", "rows": len(times), "bytes": size, "crc32": 0}
            m["streams"]["events"]["parts"].append(entry | {"t_min": min(times), "t_max": max(times)})
            tasks = entry | {"file": f"tasks-{number:06d}.parquet", "t_min": min(times) - late, "t_max": max(times)}
            m[derived.KEY]["tasks"]["parts"].append(tasks)
            m[derived.KEY]["upto"] = number

        failing, self.book.failing = self.book.failing, 0
        self.book.commit(change)
        self.book.failing = failing

    def pin(self, begin: int, end: int) -> None:
        horizon = self.retirer._horizon
        told = self.retirer.pin(begin, end)
        if told is not None:
            assert told[1] == end
            assert told[0] == max(begin, horizon)
            self.promised.append(told)

    def step(self) -> None:
        try:
            self.retirer.step()
        except OSError:
            assert self.book.failing >= 0
        if (to := self.retirer.pinned_to) is not None:
            self.promised = [(b, min(e, to)) for b, e in self.promised if b <= to]

    def check(self) -> None:
        m = self.book.content
        kept = {derived.number_of(p["file"]) for p in m["streams"]["events"]["parts"]}
        assert {derived.number_of(p["file"]) for p in m[derived.KEY]["tasks"]["parts"]} == kept
        gone = {n for n in self.rows if n not in kept}
        assert {n for n in range(1, len(self.rows) + 2) if retention.is_retired(m, n)} == gone
        assert retention.last_retired(m) == max(gone, default=0)
        counted = retention.losses(m).to_pylist()
        assert sum(r["count"] for r in counted) == sum(len(self.rows[n]) for n in gone)
        for n in gone:
            low, high = min(self.rows[n]), max(self.rows[n])
            assert not any(b <= high and e >= low for b, e in self.promised), "a pinned part was retired"
            assert high < m[retention.KEY]["horizon"], "a part of the window was retired"
            assert any(r["t_begin"] <= low and high <= r["t_end"] for r in counted), "a loss has no place"
        if not any(r["kind"] == "retired_early" for r in counted) and gone:
            assert m[retention.KEY]["horizon"] <= self.newest - KEEP
            assert retention.note(m)


PART = st.tuples(
    st.just("part"), st.integers(0, 400), st.lists(st.integers(-100, 100), min_size=1, max_size=8), st.integers(0, 600)
)
PIN = st.tuples(st.just("pin"), st.integers(-600, 100), st.integers(0, 500))
STEP, FULL = st.tuples(st.just("step")), st.tuples(st.just("full"))


@settings(max_examples=80, deadline=None)
@given(st.none() | st.integers(500, 20_000), st.lists(st.one_of(PART, PART, PIN, STEP, FULL), max_size=40))
def test_whatever_comes_what_is_pinned_stays(budget: int | None, acts: list[tuple[Any, ...]]) -> None:
    run, t = Run(budget), 5000
    for act in acts:
        match act:
            case ("part", on, times, late):
                t += on
                run.part([t + d for d in times], late)
            case ("pin", at, length):
                run.pin(t + at, t + at + length)
            case ("step",):
                run.step()
            case ("full",):
                run.book.failing = 1
                run.step()
        run.check()
    run.book.failing = 0
    run.step()
    if budget is not None:
        pinned = sum(s.bytes for s in retention.steps_of(run.book.content) if run.retirer._pins.touches(s.low, s.high))
        assert run.bytes <= max(budget * 5 // 8, pinned), "the budget was not kept, and not for pins"
    run.retirer.finish()
    run.check()
    assert [tuple(p) for p in run.book.content[retention.KEY]["pins"]] == list(run.retirer._pins) or not run.rows


def test_a_row_from_the_far_future_moves_no_window_and_is_not_kept_for_ever() -> None:
    run = Run(None)
    for n in range(100):
        run.part([5000 + 100 * n, 5001 + 100 * n, 5002 + 100 * n, 1 << 60 if n == 3 else 5003 + 100 * n], 0)
        run.step()
    kept = [p["t_min"] for p in run.book.content["streams"]["events"]["parts"]]
    assert min(kept) in range(5000 + 9900 - KEEP - 200, 5000 + 9900 - KEEP + 1)
    assert len(kept) == len([t for t in range(5000, 15_000, 100) if t >= min(kept)])


def test_the_budget_of_pinned_bytes_ends_pinning() -> None:
    run = Run(8000)
    run.part([5000] * 10, 0)
    run.pin(4000, 1 << 40)
    for n in range(100):
        run.part([5000 + 100 * n] * 10, 0)
        run.step()
        run.check()
    assert run.retirer.pinned_to is not None
    assert run.retirer.pin(1 << 41, 1 << 42) is None
    assert run.bytes <= 6000
    kinds = {r["kind"] for r in retention.losses(run.book.content).to_pylist()}
    assert kinds <= {"retired", "retired_early"}
    assert len(run.book.content[retention.KEY]["retired"]) == 1


def test_too_many_stretches_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PINS_MOST", 3)
    run = Run(None)
    assert [run.retirer.pin(n, n) is not None for n in (10, 20, 30, 40)] == [True, True, True, False]
    assert run.retirer.pin(25, 35) == (25, 35)


def test_what_derivation_is_not_done_with_stays_unless_it_has_failed() -> None:
    run = Run(None)
    for n in range(10):
        run.part([5000 + 1000 * n], 0)
    run.book.content[derived.KEY]["upto"] = 2
    run.step()
    assert len(run.book.content["streams"]["events"]["parts"]) == 8
    run.retirer.underived = True
    run.step()
    assert len(run.book.content["streams"]["events"]["parts"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"keep_ns": 0},
        {"horizon": "now"},
        {"horizon": 1 << 64},
        {"pins": [[2, 1]]},
        {"pins": [[1, 2, 3]]},
        {"pins": [1]},
        {"pins": None},
        {"retired": [1]},
        {"retired": [{"first": 0, "last": 1, "rows": 1, "early": 0, "t_begin": 0, "t_end": 1}]},
        {"retired": [{"first": 2, "last": 1, "rows": 1, "early": 0, "t_begin": 0, "t_end": 1}]},
        {"retired": [{"first": 1, "last": 1, "rows": 1, "early": 2, "t_begin": 0, "t_end": 1}]},
        {"retired": [{"first": 1, "last": 1, "rows": 1, "early": 0, "t_begin": 2, "t_end": 1}]},
        {"retired": [{"first": 1, "last": 2, "rows": 1, "early": 0, "t_begin": 0, "t_end": 1}] * 2},
    ],
)
def test_an_impossible_retention_is_refused(change: dict[str, Any]) -> None:
    content = Book().content
    check_content(content)
    content[retention.KEY] |= change
    with pytest.raises(Bad):
        check_content(content)
