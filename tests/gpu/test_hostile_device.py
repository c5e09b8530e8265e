"""What nobody verified, and whoever scribbles over the segment: reported or ignored, and never felt by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runs import KEPT, check_identities, engine, unharmed
from monitors import Attacher, attacher, histogram
from test_device_programs import TRANSPORTS, start, stop

from megascope.capture.engines.cuda import programs as device_programs
from megascope.capture.programs import vmcode
from megascope.capture.segment.program_words import Code
from megascope.capture.segment.reader import Truncated
from megascope.capture.segment.words import Control, Cursor, Worker

SCRIBBLER = """
import os, sys, time
import numpy as np
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import PAGE, Control
from pathlib import Path
random = np.random.default_rng(int(sys.argv[3]))
with SegmentReader.open(Path(sys.argv[1]), write=True) as segment:
    lay, until = segment.layout, time.monotonic() + float(sys.argv[2])
    stop = lay.control_offset + Control.STOP
    areas = [(lay.control_offset, PAGE), (lay.tails_offset, 3 * lay.monitors), (lay.requests_offset, PAGE),
             (lay.map_tails_offset, lay.monitors), (lay.slots_offset, 4096), (lay.images_offset, 8192)]
    n = 0
    while time.monotonic() < until:
        offset, length = areas[n % len(areas)]
        at = offset + int(random.integers(length))
        data = random.bytes(int(random.integers(1, 64)))
        if not at <= stop < at + len(data):
            segment.poke(at, data)
        n += 1
    print(n)
"""


def scribbled(words: Any, random: np.random.Generator) -> Any:
    """A rendered program with something changed: a byte of its code, a word anywhere, all of it.

    Mostly with the checksum of what it has become.
    """
    out = words.copy()
    kind = random.integers(4)
    code = (vmcode.HEADER.itemsize + vmcode.MAP.itemsize) // 8
    if kind < 2:
        for _ in range(int(random.integers(1, 4))):
            out[code:].view(np.uint8)[random.integers(8 * (len(out) - code))] = random.integers(20)
    elif kind == 2:
        out[random.integers(2, len(out))] = random.choice(np.array([0, 1, 0xFFFFFFFF, 1 << 63], np.uint64))
    else:
        out[2:] = random.integers(1 << 63, size=len(out) - 2, dtype=np.uint64)
    if random.integers(8):
        out[1] = vmcode.checksum(out)
    return out


@pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])
def test_code_that_nobody_verified(
    cuda: Any, segment_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """Rendered programs with words changed at random: refused by the device, or run without touching anything else."""
    random = np.random.default_rng(5)
    render = device_programs.vmcode.render
    tries = 24 if cuda.simulated else 100
    spec = f"{cuda.long},transport={transport},epoch_ms=200"
    with engine(cuda, segment_path, spec, record=False, keep_every=KEPT) as e:
        run = start(e)
        refused = taken = 0
        with attacher(segment_path) as a:
            monkeypatch.setattr(
                device_programs.vmcode,
                "render",
                lambda verdict: scribbled(np.frombuffer(render(verdict), np.uint64), random).tobytes(),
            )
            for _ in range(tries):
                said = a.ask(histogram(entries=16), 1)
                assert run.is_alive()
                a.drain()
                if said.code == Code.DONE:
                    taken += 1
                    a.detach(1)
                else:
                    assert said.code in (Code.FAILED, Code.ARENA), said
                    refused += 1
            monkeypatch.setattr(device_programs.vmcode, "render", render)
            _one_that_is_right(a)
            stop(e, run)
            a.drain()
        print(f"{transport}: {refused} refused, {taken} ran")
        assert refused > 0
        assert taken > 0
        unharmed(e)


def _one_that_is_right(a: Attacher) -> None:
    """After all that, a good program is taken."""
    a.attach(histogram(entries=16), 2)
    a.detach(2)


def test_a_process_that_scribbles_over_the_segment(cuda: Any, segment_path: Path) -> None:
    """Control, tails, requests, slots, images: whatever stands there, the engine goes on and its accounts are exact."""
    spec = f"{cuda.long},epoch_ms=200"
    with engine(cuda, segment_path, spec, record=True, keep_every=KEPT) as e:
        run = start(e)
        command = [sys.executable, "-c", SCRIBBLER, str(segment_path), "2", "9"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 100
        assert run.is_alive()
        # A drainer that comes to it now is heard again.
        e.segment.control[Control.MASK : Control.MASK + 8].view("<u8")[0] = 1 << 4
        commit = (int(e.segment.control[Control.COMMIT]) + 1) & 0xFF
        e.segment.control[Control.COMMIT] = commit
        waited = threading.Event()
        for _ in range(2000):
            if (e.segment.cursor[:, Cursor.ACK] == commit).all():
                break
            waited.wait(0.01)
        assert (e.segment.cursor[:, Cursor.ACK] == commit).all()
        assert (e.segment.cursor[:, Cursor.MASK] == 1 << 4).all()
        stop(e, run)
        check_identities(e.segment, written=False)
        words = e.segment.worker.astype(np.int64)
        assert (words[:, Worker.FIRED] == words[:, Worker.DEQUEUED] + words[:, Worker.LOST]).all()
        unharmed(e)


@pytest.mark.parametrize("left", [0.0, pytest.param(0.5, marks=pytest.mark.heavy)])
@TRANSPORTS
def test_a_process_that_truncates_the_segment(cuda: Any, segment_path: Path, transport: str, left: float) -> None:
    """A recorder's rows and a program's maps are under way: the kernel computes on, unseen, and ends in order."""
    spec = f"{cuda.long},transport={transport},epoch_ms=50"
    with engine(cuda, segment_path, spec, record=True, keep_every=KEPT) as e:
        run = start(e)
        with attacher(segment_path) as a:
            a.attach(histogram(), 1)
            a.drain()
            os.truncate(segment_path, int(segment_path.stat().st_size * left))
            with pytest.raises(Truncated):
                a.segment.status()
        step = e.kernel.host.steps_begun
        until = time.monotonic() + 60
        while e.kernel.host.steps_begun < step + 20 and time.monotonic() < until:
            time.sleep(0.01)
        assert run.is_alive()
        assert e.segment.cut
        e.stop.set()
        run.join(60)
        assert not run.is_alive()
        assert set(e.counts()) == {"steps"}
        assert e.counts()["steps"] >= step + 20
        unharmed(e)
