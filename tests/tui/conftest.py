"""Traces for the tests of `tui`, each recorded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tui_recordings

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MADE: dict[str, Callable[[Path], Path]] = {
    "host": lambda path: tui_recordings.record(path, tui_recordings.HOST),
    "lossy": lambda path: tui_recordings.record(path, tui_recordings.LOSSY),
    "unsealed": lambda path: tui_recordings.record(path, tui_recordings.HOST, seal=False),
    "empty": tui_recordings.empty,
}


@pytest.fixture(scope="session")
def trace_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A recording by name; `h200` and `h200-experts` are samples."""
    folder = tmp_path_factory.mktemp("recordings")
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name.startswith("h200"):
            path = SAMPLES / f"{name}.mscope"
            if not path.is_dir():
                pytest.skip(f"sample_traces/{name}.mscope is not there")
            return path
        if name not in made:
            made[name] = MADE[name](folder / f"{name}.mscope")
        return made[name]

    return find


@pytest.fixture(scope="session")
def host(trace_of: Callable[[str], Path]) -> Path:
    """A sealed recording of the host engine: 2 ranks of 3 workers, 30 steps."""
    return trace_of("host")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes anybody's own history."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
