"""Device time to UTC: the bound that a trace states holds, in Python and in SQL."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.analyze.clock import Clock, clock_from_fits
from megascope.analyze.session import Session
from megascope.store.errors import Refused


def host_time(clock: Clock, t: int) -> tuple[int, int]:
    """What the view computes for device time t: host time, and the error stated for it."""
    inside = min(max(t, clock.begin), clock.end) - clock.begin
    cell = min(inside // clock.width, len(clock.errors) - 1)
    left, right = clock.offsets[cell], clock.offsets[cell + 1]
    return t + clock.base + left + round((right - left) * ((inside - cell * clock.width) / clock.width)), clock.errors[
        cell
    ]


@st.composite
def drifts(draw: st.DrawFn) -> list[dict[str, int]]:
    """Fits of a clock, at irregular times, of any drift."""
    gaps = draw(st.lists(st.integers(1, 10**10), min_size=1, max_size=40))
    moves = draw(st.lists(st.integers(-5000, 5000), min_size=len(gaps), max_size=len(gaps)))
    device = draw(st.integers(0, 10**15)) + np.cumsum([0, *gaps])
    host = device + draw(st.integers(-(10**18), 10**18)) + np.cumsum([0, *moves])
    error = draw(st.integers(0, 100))
    return [{"device_ns": int(d), "host_ns": int(h), "error_ns": error} for d, h in zip(device, host, strict=True)]


@given(drifts(), st.randoms(use_true_random=False))
def test_stated_error_bounds_every_monotonic_drift(fits: list[dict[str, int]], random: Any) -> None:
    """Between two fits the true offset may be anything from one to the other: the stated interval holds both.

    At the very time of a fit it is that fit's.
    """
    clock = clock_from_fits(fits)
    assert clock is not None
    for before, after in pairwise(fits):
        t = random.randint(before["device_ns"], after["device_ns"])
        found, error = host_time(clock, t)
        for fit in (before, after):
            if t in (before["device_ns"], after["device_ns"]) and t != fit["device_ns"]:
                continue
            true = t + fit["host_ns"] - fit["device_ns"]
            assert abs(found - true) <= error


def test_many_fits_become_few_cells() -> None:
    """An hour of fits a second costs SQL a list of about a thousand, and less than a fit's own drift of precision."""
    fits = [
        {"device_ns": i * 10**9, "host_ns": i * 10**9 + 10**18 + round(500 * np.sin(i / 60)), "error_ns": 100}
        for i in range(3600)
    ]
    clock = clock_from_fits(fits)
    assert clock is not None
    assert len(clock.errors) <= 1024
    assert max(clock.errors) < 150


def test_sql_agrees(tmp_path: Path) -> None:
    """The view's arithmetic is the one above; outside the fits the time is given and its error is not."""
    path = recordings.sealed(tmp_path / "x.mscope", n=1200, fits=recordings.FITS[1:])
    clock = clock_from_fits(recordings.FITS[1:])
    assert clock is not None
    with Session.open(path, threads=1) as session:
        found = session.run("SELECT t, epoch_ns(time) AS time, time_error_ns FROM events").read_all()
    assert found.num_rows == 1200
    for row in found.to_pylist():
        time, error = host_time(clock, row["t"])
        assert row["time"] == time
        assert row["time_error_ns"] == (error if 1000 <= row["t"] <= 8000 else None)


@settings(max_examples=20)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 5))
def test_one_fit_or_nonsense(device: int, host: int, error: int) -> None:
    """A lone fit is an offset; what no clock says is refused in one line."""
    try:
        clock = clock_from_fits([{"device_ns": device, "host_ns": host, "error_ns": error}])
    except Refused as refused:
        assert error < 0 or max(abs(device), abs(host)) > 1 << 61
        assert "\n" not in str(refused)
    else:
        assert clock is not None
        assert host_time(clock, device) == (host, error)


def test_without_fits() -> None:
    """No fit, no time; half a fit is refused."""
    assert clock_from_fits([]) is None
    with pytest.raises(Refused, match="malformed"):
        clock_from_fits([{"device_ns": 1}])
