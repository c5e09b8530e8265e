"""Traces and sessions for the tests of `analyze`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import recordings

from megascope.analyze.session import Session


@pytest.fixture(scope="session")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed recording that no test changes."""
    return recordings.sealed(tmp_path_factory.mktemp("sealed") / "night.mscope", fits=recordings.FITS)


@pytest.fixture(scope="module")
def session(trace_path: Path) -> Iterator[Session]:
    """A session over it, shared by a module's tests."""
    with Session.open(trace_path, threads=1) as opened:
        yield opened
