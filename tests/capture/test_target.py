"""The engine's process of a capture: seen off in order, or at once when nobody will record it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from megascope.__main__ import run
from megascope.capture import attaching, target
from megascope.store.errors import Refused, Usage

ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM, 0)
"""By the signal, or in order once the engine listens for it: -SIGKILL is that of patience at its end."""
HELD = [sys.executable, "-m", "megascope.capture.engines.host", "--hold"]


@pytest.fixture(autouse=True)
def segments_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "directory", lambda: tmp_path)


def started(monkeypatch: pytest.MonkeyPatch) -> list[target.Target]:
    """Whatever a capture starts."""
    engines: list[target.Target] = []
    start = target.start

    def noting(*args: object) -> target.Target:
        engines.append(start(*args))  # type: ignore[arg-type]
        return engines[-1]

    monkeypatch.setattr(target, "start", noting)
    return engines


def test_an_engine_that_nobody_will_record_is_ended(tmp_path: Path) -> None:
    engine = target._spawn("demo", list(HELD), spec="steps=0", hold=True)
    engine.wait_for_segment(60.0, lambda: False, print)
    engine.abandon()
    engine.end(60.0)
    assert engine.process is not None
    assert engine.process.returncode in ENDED
    assert not list(tmp_path.glob("*.mseg"))


def test_a_command_is_left_to_its_own_end() -> None:
    engine = target._spawn("cmd", [sys.executable, "-c", "import time; time.sleep(0.3)"], hold=False)
    engine.abandon()
    engine.end(60.0)
    assert engine.process is not None
    assert engine.process.returncode == 0


def test_a_capture_that_cannot_begin_ends_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = started(monkeypatch)
    with pytest.raises(Usage, match="cannot load nix"):
        run(["capture", "demo:steps=0", "-o", str(tmp_path / "a.mscope"), "--program", "nix"])
    (engine,) = engines
    assert engine.process is not None
    assert engine.process.returncode in ENDED
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_taken_starts_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = started(monkeypatch)
    out = tmp_path / "a.mscope"
    out.mkdir()
    for force, why in (([], "it exists; use --force to replace a trace"), (["--force"], "it exists and is no trace")):
        with pytest.raises(Refused, match=why):
            run(["capture", "demo:steps=0", "-o", str(out), *force])
    assert engines == []
    assert out.is_dir()


@pytest.mark.parametrize("name", ["a/b", "a b", "", "../x", "ü", "a\nb", "x" * 65, "1st"])
def test_a_name_that_no_table_could_have_is_refused(name: str) -> None:
    with pytest.raises(Usage, match="is no name for a program"):
        attaching.load("complete { @n = count(); }", {}, name=name, query=True)
