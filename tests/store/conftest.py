from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import made_traces
import pytest


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small spool files and parts."""
    made_traces.make_small(monkeypatch)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory, where there is one: thousands of fsyncs on a disk would be all that a test does."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as path:
        yield Path(path)
