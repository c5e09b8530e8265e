"""Slices of the device's export buffers become records of the map ring: merged where nothing was lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.engines.cuda.exports import Exports
from megascope.capture.engines.cuda.slices import HEADER, SliceOf, slices
from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.histogram import HEAD, WORDS, add, merge
from megascope.capture.programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.verifier import verify
from megascope.capture.segment import map_ring

EPOCH = 1_000_000
LAT = Map("lat", MapKind.HIST, 4, FIXED_VALUE_BYTES[MapKind.HIST], 16, aggregate=True)
TEXT = """
ldxh %r2, [%r1+52]
stxw [%r10-8], %r2
ldxdw %r3, [%r1+24]
lddw %r1, map:lat
mov %r2, %r10
add %r2, -8
call hist_add
mov %r0, 0
exit
"""
VERDICT = verify(Program("p", assemble(TEXT, {"lat": 0}), (Entry("e", (4,), 0),), (LAT,)))
Values = Mapping[int, list[int]]


def histogram(values: list[int]) -> np.ndarray:
    words = np.zeros(WORDS, np.uint64)
    for value in values:
        add(words, value)
    return words


def buffer(
    worker: int, values: Values, *, lost: int = 0, refused: int = 0, what: int = SliceOf.EPOCH_ENDS
) -> np.ndarray:
    """A slice as a monitor writes it: of epoch 7."""
    records: list[int] = []
    for key, its in values.items():
        words = histogram(its)
        some = np.nonzero(words[HEAD:])[0]
        body = [key, *words[:HEAD].tolist(), *(int(i) << 48 | int(words[HEAD + i]) for i in some)]
        records += [1 | (len(body) + 1) << 32, *body]
    records += [2 | 3 << 32, refused, 1]
    seen = sum(map(len, values.values()))
    head = [
        HEADER + len(records) | what << 40,
        5 | worker << 32,
        7 * EPOCH,
        8 * EPOCH,
        seen + lost,
        seen,
        0,
        lost,
        0,
        0,
    ]
    return np.array(head + records, np.uint64)


def told(records: list[tuple[int | None, bytes]]) -> dict[int | None, tuple[map_ring.Span, dict[int, np.ndarray]]]:
    """By worker (None: merged): what for, and the histograms by key."""
    out = {}
    for worker, record in records:
        for span, n, body in map_ring.records(record):
            got = map_ring.entries(LAT, n, body)
            rows = np.zeros((n, WORDS), np.uint64)
            rows[:, :HEAD] = got.head
            rows[np.repeat(np.arange(n), got.buckets.astype(int)), HEAD + got.bucket] = got.count
            assert span.worker == worker
            out[worker] = span, {int(k.view("<u4")[0]): row for k, row in zip(got.keys, rows, strict=True)}
    return out


counts = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), max_size=5)


@given(st.lists(counts, min_size=3, max_size=3))
def test_workers_that_lost_nothing_are_told_as_one(of: list[Values]) -> None:
    exports = Exports(VERDICT, 5, 3, EPOCH, 1 << 16)
    for worker, values in enumerate(of):
        assert exports.ready() == []
        for s in slices(buffer(worker, values)):
            exports.take(s)
    got = told(exports.ready())
    truth: dict[int, list[int]] = {}
    for values in of:
        for key, its in values.items():
            truth.setdefault(key, []).extend(its)
    if not truth:
        assert got == {}
        return
    span, histograms = got[None]
    assert list(got) == [None]
    assert (span.workers, span.epoch, span.epochs, span.program) == (3, 7, 1, 5)
    assert span.coverage[0] == span.coverage[1] == sum(map(len, truth.values()))
    assert histograms.keys() == truth.keys()
    for key, its in truth.items():
        np.testing.assert_array_equal(histograms[key], merge(histogram(its)[None]))
    assert exports.ready() == []


def test_a_worker_that_lost_something_is_told_by_itself() -> None:
    exports = Exports(VERDICT, 5, 3, EPOCH, 1 << 16)
    for part in (buffer(0, {1: [4]}), buffer(1, {1: [5]}, lost=2), buffer(2, {1: [6]}, refused=3)):
        for s in slices(part):
            exports.take(s)
    got = told(exports.ready())
    assert {w: s.coverage for w, (s, _) in got.items()} == {
        0: (1, 1, 0, 0, 0),
        1: (3, 1, 0, 2, 0),
        2: (1, 1, 0, 0, 0),
    }
    assert got[2][0].refused == 3
    assert exports.seen.tolist() == [5, 3, 0, 2, 0, 0]


def test_slices_come_in_pieces_and_several_to_a_buffer() -> None:
    whole = np.concatenate(
        [buffer(0, {1: [4]}, what=SliceOf.EPOCH), buffer(0, {2: [5, 6]}), buffer(0, {}, what=SliceOf.LEFT)]
    )
    exports = Exports(VERDICT, 5, 1, EPOCH, 1 << 16)
    for s in slices(whole):
        exports.take(s)
    (_, histograms) = told(exports.ready())[None]
    assert sorted(histograms) == [1, 2]
    assert exports.left == {0}


@pytest.mark.parametrize("words", [[0] * 20, [5, 0, 0], [1 << 31] + [0] * 20])
def test_what_no_monitor_writes_is_refused(words: list[int]) -> None:
    with pytest.raises(ValueError, match="no slice at word 0"):
        list(slices(np.array(words, np.uint64)))


def test_workers_are_told_as_one_by_rank() -> None:
    exports = Exports(VERDICT, 5, 4, EPOCH, 1 << 16, np.array([0, 0, 1, 1]))
    for worker in range(4):
        for s in slices(buffer(worker, {1: [worker]}, lost=2 * (worker == 3))):
            exports.take(s)
    spans = [next(iter(map_ring.records(record)))[0] for _, record in exports.ready()]
    assert [(s.rank, s.worker, s.workers, s.coverage[0]) for s in spans] == [
        (1, 3, 1, 3),
        (0, None, 2, 2),
        (1, 2, 1, 1),
    ]
