from __future__ import annotations

import made_traces
import pytest


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small spool files and parts."""
    made_traces.make_small(monkeypatch)
