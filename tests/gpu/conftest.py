from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cuda() -> Any:
    from megascope.capture.engines.cuda.libraries import library

    return library()


@pytest.fixture
def segment_path() -> Iterator[Path]:
    """In shared memory: a file of a disk may not be registered."""
    path = Path(f"/dev/shm/megascope-test-{uuid.uuid4().hex[:12]}.seg")
    yield path
    path.unlink(missing_ok=True)
