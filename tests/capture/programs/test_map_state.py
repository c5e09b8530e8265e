"""Map semantics against models of a few lines: dicts of numbers, and lists of what was counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hand_made import a_map
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from megascope.capture.programs import histogram
from megascope.capture.programs.execution import Export
from megascope.capture.programs.helpers import ANY, E_2BIG, E_EXIST, E_INVAL, E_NOENT, NEW, OLD
from megascope.capture.programs.map_state import MapState
from megascope.capture.programs.maps import MapKind

U64 = (1 << 64) - 1
ENTRIES = 5
words = st.one_of(st.integers(0, U64), st.integers(0, 40))
ids = st.integers(0, 7)


def key(i: int, size: int = 4) -> bytes:
    return i.to_bytes(size, "little")


def word(n: int) -> bytes:
    return n.to_bytes(8, "little")


def numbers(e: Export) -> dict[int, tuple[int, ...]]:
    """Keys and words of an export, in its order."""
    values = e.values.view(np.uint64)
    return {int.from_bytes(k.tobytes(), "little"): tuple(map(int, v)) for k, v in zip(e.keys, values, strict=True)}


class Keyed(RuleBasedStateMachine):
    """A hash or array map of u64, against a dict. Array: `there` always has every index."""

    kind = MapKind.HASH
    aggregate = False

    def __init__(self) -> None:
        super().__init__()
        self.map = MapState(a_map(self.kind, entries=ENTRIES, aggregate=self.aggregate))
        self.model = self.empty()
        self.closed: dict[int, int] | None = None
        self.refused = 0

    def empty(self) -> dict[int, int]:
        return {}

    def room(self, i: int) -> bool:
        if i in self.model or len(self.model) < ENTRIES:
            return True
        self.refused += 1
        return False

    @rule(i=ids, n=words, flags=st.sampled_from([ANY, NEW, OLD, 3, 1 << 32]))
    def update(self, i: int, n: int, flags: int) -> None:
        got = self.map.update(key(i), word(n), flags)
        indexed = self.map.declared.indexed
        if flags not in (ANY, NEW, OLD):
            assert got == E_INVAL
        elif flags == NEW and i in self.model:
            assert got == E_EXIST
        elif flags == OLD and i not in self.model and not indexed:
            assert got == E_NOENT
        elif not self.room(i):
            assert got == E_2BIG
        else:
            assert got == 0
            self.model[i] = n

    @rule(i=ids, n=words)
    def add(self, i: int, n: int) -> None:
        self.map.add(key(i), n)
        if self.room(i):
            self.model[i] = self.model.get(i, 0) + n & U64

    @rule(i=ids, n=words)
    def max(self, i: int, n: int) -> None:
        self.map.max(key(i), n)
        if self.room(i):
            self.model[i] = max(self.model.get(i, 0), n)

    @rule(i=ids, n=words)
    def write_through_the_pointer(self, i: int, n: int) -> None:
        value = self.map.lookup(key(i))
        assert (value is not None) == (i in self.model)
        if value is not None:
            value[:] = word(n)
            self.model[i] = n

    @precondition(lambda self: self.aggregate)
    @rule()
    def close(self) -> None:
        e = self.map.close(7, 2)
        live = {i: n for i, n in self.model.items() if n or not self.map.declared.indexed}
        assert (e.map, e.worker, e.refused) == (7, 2, self.refused)
        assert list(numbers(e).items()) == [(i, (n,)) for i, n in sorted(live.items())]
        self.closed, self.model, self.refused = self.model, self.empty(), 0

    @rule(i=ids)
    def look_at_what_closed(self, i: int) -> None:
        value = self.map.lookup_closed(key(i))
        there = (self.closed or {}).get(i)
        assert (None if value is None else bytes(value)) == (None if there is None else word(there))

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        e = self.map.entries(0, 3)
        assert list(numbers(e).items()) == [(i, (n,)) for i, n in sorted(self.model.items())]
        assert e.refused == self.refused


class Hash(Keyed):
    @rule(i=ids, n=words)
    def min(self, i: int, n: int) -> None:
        self.map.min(key(i), n)
        if self.room(i):
            self.model[i] = min(self.model.get(i, n), n)

    @rule(i=ids)
    def delete(self, i: int) -> None:
        assert self.map.delete(key(i)) == (0 if i in self.model else E_NOENT)
        self.model.pop(i, None)


class HashAggregate(Hash):
    aggregate = True


class Array(Keyed):
    kind = MapKind.ARRAY

    def empty(self) -> dict[int, int]:
        return dict.fromkeys(range(ENTRIES), 0)


class ArrayAggregate(Array):
    aggregate = True


TestHash, TestHashAggregate = Hash.TestCase, HashAggregate.TestCase
TestArray, TestArrayAggregate = Array.TestCase, ArrayAggregate.TestCase
for machine in (TestHash, TestHashAggregate, TestArray, TestArrayAggregate):
    machine.settings = settings(max_examples=50)

counted = st.lists(st.tuples(ids, words), max_size=30)


def taken(counts: list[tuple[int, int]]) -> tuple[dict[int, list[int]], int]:
    """What each key of a map of ENTRIES counts, and how many found no room."""
    out: dict[int, list[int]] = {}
    refused = 0
    for i, n in counts:
        if i in out or len(out) < ENTRIES:
            out.setdefault(i, []).append(n)
        else:
            refused += 1
    return out, refused


def histogram_of(values: list[int]) -> tuple[int, ...]:
    words = np.zeros(histogram.WORDS, np.uint64)
    for v in values:
        histogram.add(words, v)
    return tuple(map(int, words))


def stats_of(values: list[int]) -> tuple[int, ...]:
    return len(values), sum(values) & U64, min(values), max(values)


@pytest.mark.parametrize(
    ("kind", "count", "of"),
    [(MapKind.HIST, MapState.hist_add, histogram_of), (MapKind.STATS, MapState.stats_add, stats_of)],
)
@given(epochs=st.lists(counted, min_size=1, max_size=3))
def test_counting_kinds(
    kind: MapKind,
    count: Callable[[MapState, bytes, int], None],
    of: Callable[[list[int]], tuple[int, ...]],
    epochs: list[list[tuple[int, int]]],
) -> None:
    state = MapState(a_map(kind, key=3, entries=ENTRIES))
    assert state.aggregates
    for counts in epochs:
        for i, n in counts:
            count(state, key(i, 3), n)
        values, refused = taken(counts)
        e = state.close(0, 0)
        assert numbers(e) == {i: of(v) for i, v in values.items()}
        assert e.refused == refused
        for i in range(8):
            closed = state.lookup_closed(key(i, 3))
            assert (closed is not None) == (i in values)
            assert state.lookup(key(i, 3)) is None
    assert len(state.close(0, 0).keys) == 0


@given(st.integers(1, 9), st.sets(st.binary(min_size=9, max_size=9), max_size=12))
def test_exports_are_sorted_as_numbers(size: int, keys: set[bytes]) -> None:
    state = MapState(a_map(MapKind.HASH, key=size, entries=100))
    for k in keys:
        state.add(k[:size], 1)
    got = [int.from_bytes(k.tobytes(), "little") for k in state.entries(0, 0).keys]
    assert got == sorted({int.from_bytes(k[:size], "little") for k in keys})


def test_values_are_wider_than_a_word_and_keep_their_place() -> None:
    state = MapState(a_map(MapKind.HASH, key=2, value=12))
    assert state.update(b"ab", b"0123456789ab", ANY) == 0
    held = state.lookup(b"ab")
    assert state.update(b"ab", b"ba9876543210", OLD) == 0
    assert state.lookup(b"ab") is held
    assert held == b"ba9876543210"
    assert state.entries(0, 0).values.tobytes() == b"ba9876543210"


def test_globals_begin_with_their_contents() -> None:
    state = MapState(a_map(MapKind.ARRAY, ".data", value=3, entries=1, initial=b"\1\2\3"))
    assert state.entries(0, 0).values.tolist() == [[1, 2, 3]]
    value = state.lookup(key(0))
    assert value == b"\1\2\3"
    value[1] = 9
    assert state.entries(0, 0).values.tolist() == [[1, 9, 3]]


def test_feedback_cells() -> None:
    state = MapState(a_map(MapKind.FEEDBACK, value=16, entries=2))
    state.feed(1, U64, 7)
    assert numbers(state.entries(0, -1)) == {0: (0, 0), 1: (U64, 7)}
    with pytest.raises(ValueError, match="no feedback cell 2"):
        state.feed(2, 0, 0)
    with pytest.raises(ValueError, match="no feedback cell 0"):
        MapState(a_map(MapKind.ARRAY)).feed(0, 0, 0)
