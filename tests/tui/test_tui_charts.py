"""Bars, sparklines and histograms: nothing is lost, the axis is logarithmic, and all of it fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs import histogram as buckets
from megascope.tui.charts import bar, edges, histogram, octave, scaled, sparkline
from megascope.tui.query_line import one_line

HELD = st.dictionaries(st.integers(0, buckets.BUCKETS - 1), st.integers(1, 1 << 40), min_size=1, max_size=40)


@given(HELD, st.integers(40, 200), st.integers(1, 60))
def test_a_histogram_counts_every_value_once_and_fits(held: dict[int, int], width: int, height: int) -> None:
    lower, counts = [buckets.lower(i) for i in sorted(held)], [held[i] for i in sorted(held)]
    lines = histogram(lower, counts, "", width, height).plain.split("\n")
    assert len(lines) <= height
    small = [n for n in counts if n < 1_000_000]
    if len(small) == len(counts) and sum(counts) < 1_000_000:
        told = [int(re.search(r"–\s+\S+(?: [MGT])?\s+([\d,]+) ", line)[1].replace(",", "")) for line in lines]  # type: ignore[index]
        assert sum(told) == sum(counts)


@given(st.integers(0, 63), st.integers(0, 63), st.integers(1, 100))
def test_edges_ascend_from_the_first_octave_to_the_last(one: int, other: int, most: int) -> None:
    first, last = sorted((one, other))
    found = edges(first, last, most)
    assert found == sorted(set(found))
    assert len(found) - 1 <= most
    assert octave(found[0]) == first
    assert found[-1] == 1 << last
    # Every edge is one of the histogram's own: no bucket is cut in two.
    assert all(buckets.lower(buckets.bucket(e)) == e for e in found if e < 1 << 63)


@pytest.mark.parametrize(
    ("value", "most", "width", "told"),
    [(8, 8, 2, "██"), (4, 8, 1, "▌"), (1, 10**9, 4, "▏"), (0, 8, 4, ""), (5, 0, 4, ""), (9, 8, 1, "█")],
)
def test_bars(value: int, most: int, width: int, told: str) -> None:
    assert bar(value, most, width) == told


def test_a_sparkline_has_a_cell_for_each_octave_or_for_several() -> None:
    assert sparkline([4, 16], [1, 8], 3, 5, 8) == "▁ █"
    assert sparkline([0, 1, 1 << 40], [1, 1, 2], 0, 41, 6) == "█    █"
    assert sparkline([], [], 0, 3, 8) == ""


def test_values_in_their_units() -> None:
    assert [scaled(1500, u) for u in ("ns", "bytes", "")] == ["1.50 µs", "1,500 B", "1,500"]
    assert [scaled(2_500_000, u) for u in ("ns", "bytes", "")] == ["2.50 ms", "2.50 MB", "2.50 M"]
    assert scaled(None, "bytes") == "–"


def test_a_query_of_several_lines_becomes_one() -> None:
    assert one_line("complete {\n  @n = count();\n}\n") == "complete { @n = count(); }"
    assert one_line("complete { @n = count(); } // all\nstart { @s = count(); }") is None
