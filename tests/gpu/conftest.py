"""Where the tests of the device code run: on a GPU, and in every ordinary run on a CPU (tests/simt)."""

from __future__ import annotations

import sys
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from megascope.capture.engines.cuda import programs

sys.path.insert(0, str(Path(__file__).resolve().parent))
from devices import Device, build, rig, the_gpu


@pytest.fixture(
    params=[
        pytest.param("gpu", marks=pytest.mark.gpu),
        pytest.param("simt", marks=pytest.mark.skipif(build.COMPILER is None, reason=build.MISSING)),
    ]
)
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Each test has its own interleavings, and in each run the same."""
    if request.param == "gpu":
        return the_gpu()
    monkeypatch.setattr(programs, "PATIENCE_S", 60.0)
    return rig(zlib.crc32(request.node.name.encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("heavy") and not item.get_closest_marker("gpu"):
            item.add_marker("slow")


@pytest.fixture
def gpu() -> Device:
    return the_gpu()


@pytest.fixture
def segment_path() -> Iterator[Path]:
    """In shared memory: a file of a disk may not be registered."""
    path = Path(f"/dev/shm/megascope-test-{uuid.uuid4().hex[:12]}.seg")
    yield path
    path.unlink(missing_ok=True)
