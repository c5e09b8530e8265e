"""Random queries on random events: the verified program and the oracle agree on every map and every emission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from query_runs import Run, events
from query_texts import queries

from megascope.capture.programs.language import QueryRefused

SEEN = [events(np.random.default_rng(seed), 40) for seed in range(8)]


def _agree(text: str, seen: int) -> None:
    try:
        run = Run(text, SEEN[seen])
    except QueryRefused as e:
        # The generator does not count bytes: what it makes may be too much for a frame.
        assert "frame" in e.why or "row of it" in e.why, (text, str(e))
        return
    run.check()


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(text=queries(), seen=st.integers(0, len(SEEN) - 1))
def test_random_queries_mean_what_the_oracle_says(text: str, seen: int) -> None:
    _agree(text, seen)


@pytest.mark.slow
@settings(max_examples=5_000, suppress_health_check=list(HealthCheck))
@given(text=queries(), seen=st.integers(0, len(SEEN) - 1))
def test_many_random_queries_mean_what_the_oracle_says(text: str, seen: int) -> None:
    _agree(text, seen)
