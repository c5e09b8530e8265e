"""Scratch folders: gone when they are not needed, and when who needed them was killed; nobody else's are touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from megascope.store import durable, scratch
from megascope.store.errors import MegascopeError
from megascope.store.scratch import Scratch, sweep

HOLD = (
    "import sys\nfrom megascope.store.scratch import Scratch\nprint(Scratch('sql').path, flush=True)\nsys.stdin.read()"
)
GONE = (1 << 22) + 1
"""No process: above the greatest that Linux gives."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(scratch, "_swept", False)
    return tmp_path


def left(name: str, place: Path) -> Path:
    folder = place / name
    folder.mkdir(mode=0o700)
    (folder / "spill").write_bytes(b"x")
    return folder


def test_it_lasts_as_long_as_it_is_needed(place: Path) -> None:
    with Scratch("replay") as path:
        assert path.parent == place
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "a").mkdir()
        (path / "a" / "b").write_text("c")
        assert sweep() == []
        assert path.exists()
    assert list(place.iterdir()) == []
    other = Scratch("sql")
    other.remove()
    other.remove()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    assert folder.parent == place
    (folder / "spill").write_bytes(bytes(100))
    assert sweep() == []
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert (folder / "spill").exists()
    with Scratch("sql"):
        assert not folder.exists()


def test_only_what_is_surely_ours_is_removed(place: Path) -> None:
    """Another's name, form, mode or lock, a link, a process that lives: all stay."""
    ours = left(f"megascope-sql-{GONE}-5-abc_1", place)
    kept = [
        left("megascope-ab12cd", place),
        left("megascope-replay-ab12cd", place),
        left(f"megascope-sql-{GONE}-5-abc.mscope", place),
        left(f"megascope-sql-{os.getpid()}-{durable.process_start(os.getpid())}-abc", place),
    ]
    shared = left(f"megascope-sql-{GONE}-5-shared", place)
    shared.chmod(0o755)
    (link := place / f"megascope-sql-{GONE}-5-link").symlink_to(kept[0])
    (file := place / f"megascope-sql-{GONE}-5-file").write_text("x")
    # As of a process of another container, which cannot be seen.
    locked = left(f"megascope-sql-{GONE}-5-locked", place)
    lock = durable.lock_directory(locked)
    assert lock is not None
    assert sweep() == [ours]
    for path in (*kept, shared, locked):
        assert (path / "spill").exists()
    assert link.is_symlink()
    assert file.exists()
    os.close(lock)
    assert sweep() == [locked]


def test_a_number_that_another_process_has_now(place: Path) -> None:
    """The process is known by its start too."""
    ours = left(f"megascope-maps-{os.getpid()}-1-abc", place)
    assert sweep() == [ours]


def test_another_users_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left(f"megascope-sql-{GONE}-5-abc", place)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert sweep() == []
    assert folder.exists()


def test_no_place_for_one_is_one_line(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "absent"))
    with pytest.raises(MegascopeError, match=r"cannot make a temporary folder: No such file.*let TMPDIR name a place"):
        Scratch("sql")
