"""What several tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "megascope", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("megascope")


@pytest.fixture(autouse=True)
def _segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees, or leaves, a segment in the machine's own directory."""
    monkeypatch.setenv("MEGASCOPE_DIR", str(tmp_path))
