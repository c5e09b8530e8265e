"""Ring rows become stored events: every value against plain integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.store import parquet, stored
from megascope.store.tables import EVENTS, HOOKS, RING_ROW, SINCE_MAX

SINCE = {h.id for h in HOOKS if h.since}


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def expected(row: dict[str, int]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for column in RING_ROW:
        value = row[column.name]
        out[column.name] = signed(value, 64) if column.bits == 64 else value
    aux = out["aux"]
    out["since_ns"] = None
    if row["hook"] in SINCE:
        out["aux"] = None
        if aux != 0:
            difference = signed((row["t"] - row["aux"]) % (1 << 64), 64)
            out["since_ns"] = max(-SINCE_MAX, min(SINCE_MAX, difference))
    return {name: out[name] for name in EVENTS.names}


def ring_row(draw: st.DrawFn) -> dict[str, int]:
    row = {c.name: draw(st.integers(0, (1 << c.bits) - 1)) for c in RING_ROW}
    row["hook"] = draw(st.sampled_from([h.id for h in HOOKS] + [0, 255]))
    if draw(st.booleans()):
        row["t"] = draw(st.integers(1 << 33, 1 << 62))
        near = st.sampled_from([0, 1, SINCE_MAX, SINCE_MAX + 1, -5, -SINCE_MAX - 1])
        row["aux"] = draw(st.one_of(st.just(0), near.map(lambda d: row["t"] - d)))
    return row


rows_of_the_ring = st.lists(st.composite(ring_row)(), max_size=40)


@given(rows_of_the_ring)
def test_every_value(rows: list[dict[str, int]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=RING_ROW.schema)
    got = parquet.stored_table(EVENTS, [batch]).to_pylist()
    want = [expected(r) for r in rows]

    def order(r: dict[str, Any]) -> tuple[int, int, int]:
        return r["rank"], r["worker"], r["seq"] % (1 << 64)

    assert [order(r) for r in got] == sorted(order(r) for r in want)
    assert sorted(map(repr, got)) == sorted(map(repr, want))


@given(rows_of_the_ring)
def test_saturated_rows_are_counted(rows: list[dict[str, int]]) -> None:
    columns = stored.ring_columns([pa.RecordBatch.from_pylist(rows, schema=RING_ROW.schema)], len(rows))
    counted = sum(n for _, n in stored.stored_events(columns, None))
    want = 0
    for r in rows:
        difference = signed((r["t"] - r["aux"]) % (1 << 64), 64)
        want += r["hook"] in SINCE and r["aux"] != 0 and not -SINCE_MAX <= difference <= SINCE_MAX
    assert counted == want


@pytest.mark.parametrize("disorder", ["none", "between workers", "within a worker", "ranks"])
def test_order(disorder: str) -> None:
    rng = np.random.default_rng(3)
    n = 5000
    columns = {c.name: np.zeros(n, RING_ROW.dtype[c.name]) for c in RING_ROW}
    columns["worker"][:] = np.sort(rng.integers(0, 7, n))
    columns["seq"][:] = np.arange(n) + 1
    if disorder != "none":
        columns["worker"][:] = rng.integers(0, 7, n)
    if disorder == "within a worker":
        columns["seq"][:] = rng.permutation(n)
    if disorder == "ranks":
        columns["rank"][:] = rng.integers(0, 3, n)
    order = stored.arrival_to_order(columns)
    assert (order is None) == (disorder == "none")
    want = np.lexsort((columns["seq"], columns["worker"], columns["rank"]))
    assert (np.arange(n) if order is None else order).tolist() == want.tolist()


def test_scratch_memory_is_reused_and_never_too_small() -> None:
    scratch: stored.Columns = {}
    for n in (10, 5, 20, 0):
        values = np.arange(n)
        batch = pa.RecordBatch.from_pylist(
            [{c.name: int(v) % 100 for c in RING_ROW} for v in values], schema=RING_ROW.schema
        )
        columns = stored.ring_columns([batch] if n else [], n, scratch)
        assert {len(c) for c in columns.values()} == {n}
        assert columns["t"].tolist() == [v % 100 for v in range(n)]
