"""Memory whose file somebody cuts short: the process goes on, and knows."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from megascope.capture.segment import guard
from megascope.capture.segment.guard import MOST, Guard
from megascope.store.errors import MegascopeError

LENGTH = 64 * mmap.PAGESIZE


def mapped(path: Path, length: int = LENGTH) -> mmap.mmap:
    with path.open("w+b") as f:
        f.truncate(length)
        return mmap.mmap(f.fileno(), length)


@pytest.mark.parametrize("left", [0, 1, mmap.PAGESIZE, LENGTH - mmap.PAGESIZE])
def test_a_cut_mapping_is_private_memory(tmp_path: Path, left: int) -> None:
    path = tmp_path / "a"
    memory = mapped(path)
    its = Guard(memory)
    words = np.frombuffer(memory, np.uint64)
    words[:] = 7
    assert not its.cut
    os.truncate(path, left)
    assert its.cut, "before anybody meets the end"
    words[-1] = 8
    assert set(words[:-1]) == {0}, "all of it is new"
    words[:] = 8
    assert (words == 8).all()
    assert path.stat().st_size == left
    assert its.cut


def test_cut_and_grown_again_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a"
    memory = mapped(path)
    its = Guard(memory)
    words = np.frombuffer(memory, np.uint64)
    os.truncate(path, 0)
    words[-1] = 1
    os.truncate(path, LENGTH)
    assert its.cut
    words[:] = 9
    assert set(path.read_bytes()) == {0}


def test_threads_that_meet_the_end_at_once(tmp_path: Path) -> None:
    """All of them go on, and what they write after the memory is this process's own stays."""
    for i in range(50):
        path = tmp_path / str(i)
        memory = mapped(path)
        its = Guard(memory)
        words = np.frombuffer(memory, np.uint64).reshape(8, -1)
        go = threading.Barrier(9)

        def write(row: int, words: np.ndarray = words, go: threading.Barrier = go) -> None:
            go.wait()
            words[row] = row + 1
            go.wait()
            words[row] = row + 2

        threads = [threading.Thread(target=write, args=(row,)) for row in range(8)]
        for thread in threads:
            thread.start()
        os.truncate(path, 0)
        go.wait()
        go.wait()
        for thread in threads:
            thread.join()
        assert its.cut
        assert (words == np.arange(2, 10)[:, None]).all()


def test_others_mappings_are_not_touched(tmp_path: Path) -> None:
    one, other = mapped(tmp_path / "one"), mapped(tmp_path / "other")
    cut, whole = Guard(one), Guard(other)
    np.frombuffer(other, np.uint8)[:] = 3
    os.truncate(tmp_path / "one", 0)
    np.frombuffer(one, np.uint8)[:] = 4
    assert (cut.cut, whole.cut) == (True, False)
    assert set((tmp_path / "other").read_bytes()) == {3}


def test_a_mapping_that_is_gone_is_not_guarded(tmp_path: Path) -> None:
    gc.collect()
    taken = sum(bool(r.length) for r in guard._guards().ranges)
    its = Guard(mapped(tmp_path / "a"))
    gc.collect()
    assert sum(bool(r.length) for r in guard._guards().ranges) == taken
    assert not its.cut


def test_more_than_there_is_room_for(tmp_path: Path) -> None:
    kept: list[mmap.mmap] = []

    def guard_many() -> None:
        for _ in range(MOST + 1):
            kept.append(mapped(tmp_path / "a", mmap.PAGESIZE))
            Guard(kept[-1])

    with pytest.raises(MegascopeError, match=f"this process has {MOST} already"):
        guard_many()


ELSEWHERE = """
import faulthandler, mmap, os, sys
import numpy as np
from megascope.capture.segment.guard import Guard
if sys.argv[2] == "told":
    faulthandler.enable()
def mapped(path):
    with open(path, "w+b") as f:
        f.truncate(1 << 16)
        return mmap.mmap(f.fileno(), 1 << 16)
guarded, not_guarded = mapped(sys.argv[1] + "/a"), mapped(sys.argv[1] + "/b")
its = Guard(guarded)
for name in "ab":
    os.truncate(sys.argv[1] + "/" + name, 0)
np.frombuffer(guarded, np.uint8)[0] = 1
print("here", flush=True)
np.frombuffer(not_guarded, np.uint8)[0] = 1
print("never")
"""


@pytest.mark.parametrize("how", ["told", "untold"])
def test_a_fault_elsewhere_is_what_it_was_before(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "here\n")
    assert ("Fatal Python error: Bus error" in done.stderr) == (how == "told")
