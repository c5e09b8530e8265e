"""Machine code against the oracle: the same maps, counters and exports for random programs and events."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_comparison import same, same_exports
from random_programs import NAMES, batches, limits, programs

from megascope.capture.programs.execution import U64, Limits
from megascope.capture.programs.native import Native
from megascope.capture.programs.native_context import columns_read
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Verdict
from megascope.store.tables import EVENT_ROW

WORKERS = 3


def as_columns(batch: U64, names: frozenset[str], *, signed: bool) -> dict[str, np.ndarray[Any, Any]]:
    """A batch as replay has it: narrow as in the row, or signed and wider as a trace keeps it."""
    rows = batch.reshape(-1).view(EVENT_ROW.dtype)
    out: dict[str, np.ndarray[Any, Any]] = {}
    for name in names:
        column = np.ascontiguousarray(rows[name])
        stored = {1: np.int16, 2: np.int32, 4: np.int64, 8: np.int64}[column.itemsize]
        out[name] = column.astype(stored) if signed else column
    return out


def agree(
    verdict: Verdict, given_batches: list[U64], limit: Limits, closes: list[list[int]], form: str, settled: int
) -> None:
    """Run both, batch by batch, with epochs ending in between."""
    reference, native = (
        Reference(verdict, WORKERS, limit, instrumented=True),
        Native(verdict, WORKERS, limit, settled=settled),
    )
    for i, batch in enumerate(given_batches):
        by, native_by = np.full(len(batch), 0x80, np.uint32), np.full(len(batch), 0x80, np.uint32)
        reference.run(batch, by, i)
        if form == "rows":
            native.run(batch, native_by, i)
        else:
            columns = as_columns(batch, columns_read(verdict), signed=form == "stored")
            native.run_columns(columns, native_by, i)
        np.testing.assert_array_equal(native_by, by)
        same(native, reference)
        ends = np.array(closes[i % len(closes)], np.int64)
        same_exports(native.close(ends), reference.close(ends))
        for execution in (reference, native):
            execution.feed(NAMES["cells"], i % 3, 1000 * i, i)
    same(native, reference)


closing = st.lists(st.sampled_from(([], [0], [2, 1], [0, 1, 2], [1])), min_size=1, max_size=3)
FORMS = st.sampled_from(("rows", "columns", "stored"))
SETTLED = st.sampled_from((1 << 20, 20, 0))


@given(programs(), batches(WORKERS), limits, closing, FORMS, SETTLED)
@settings(max_examples=40)
def test_random_programs(
    verdict: Verdict, given_batches: list[U64], limit: Limits, closes: list[list[int]], form: str, settled: int
) -> None:
    agree(verdict, given_batches, limit, closes, form, settled)


@given(programs(simt=True, entries=2048), batches(WORKERS), st.randoms())
@settings(max_examples=12)
def test_what_is_called_simt_does_not_depend_on_order(verdict: Verdict, given_batches: list[U64], rng: Random) -> None:
    assert verdict.simt
    one, other = Native(verdict, WORKERS), Native(verdict, WORKERS)
    for batch in given_batches:
        order = list(range(len(batch)))
        rng.shuffle(order)
        by, shuffled = np.zeros((2, len(batch)), np.uint32)
        one.run(batch, by, 0)
        other.run(np.ascontiguousarray(batch[order]), shuffled, 0)
        np.testing.assert_array_equal(by[order], shuffled)
        same(one, other)
        same_exports(one.close(np.array([1])), other.close(np.array([1])))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(programs(), batches(WORKERS), limits, closing, FORMS, SETTLED)
@settings(max_examples=2000)
def test_many_random_programs(
    verdict: Verdict, given_batches: list[U64], limit: Limits, closes: list[list[int]], form: str, settled: int
) -> None:
    agree(verdict, given_batches, limit, closes, form, settled)
