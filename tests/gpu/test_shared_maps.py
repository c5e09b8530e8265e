"""Maps that the workers of a rank share: told whole, once an epoch, and when nobody writes them any more."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import build
import driver
import numpy as np
import pytest
from device_runs import check_identities, engine, records
from devices import Device, rig
from monitors import COMPLETE, HIST_TEXT, Attacher, attacher
from test_device_programs import program_of, start, stop
from test_integrate import host  # noqa: F401

from megascope.capture.engines.cuda import exports
from megascope.capture.engines.cuda import programs as device_programs
from megascope.capture.engines.cuda.compilation import Hooks
from megascope.capture.engines.cuda.scope import Scope
from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.segment import map_ring
from megascope.capture.segment.program_words import FEEDBACK_CELL, FEEDBACK_HEAD, Requests
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.segment.words import Cursor, Record, Summary
from megascope.store.tables import HOOK_BY_NAME

EPOCH = HOOK_BY_NAME["epoch"].id
TRANSPORTS = pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])
COUNT_TEXT = (
    HIST_TEXT.replace("map:lat", "map:n")
    .replace("ldxdw %r4, [%r6+24]\nsub %r3, %r4\n", "mov %r3, 1\n")
    .replace("hist_add", "map_add")
)
CELL_TEXT = """
stw [%r10-4], 0
lddw %r1, map:f
mov %r2, %r10
add %r2, -4
call map_lookup_elem
mov %r0, 0
exit
"""


def shared(entries: int = 64) -> Program:
    """How many tasks of each class completed, of all workers together."""
    declared = Map("n", MapKind.HASH, 4, 8, entries, aggregate=True, shared=True)
    return Program("shared", assemble(COUNT_TEXT, {"n": 0}), (Entry("complete", (COMPLETE,), 0),), (declared,))


def epochs() -> Program:
    """How often the epoch hook was fired, by worker."""
    declared = Map("n", MapKind.HASH, 4, 8, 64, aggregate=True)
    text = COUNT_TEXT.replace("+52", "+54")
    return Program("epochs", assemble(text, {"n": 0}), (Entry("epoch", (EPOCH,), 0),), (declared,))


def fed() -> Program:
    """Has a feedback cell."""
    declared = Map("f", MapKind.FEEDBACK, 4, 16, 4, read_only=True)
    return Program("fed", assemble(CELL_TEXT, {"f": 0}), (Entry("complete", (COMPLETE,), 0),), (declared,))


def counted(a: Attacher, program: Program, number: int) -> int:
    """By all that has been told of a program's first map."""
    its = [(span, n, body) for span, n, body in a.records if span.program == number]
    values = [map_ring.entries(program.maps[0], n, body).values.view("<u8").sum() for _, n, body in its]
    return int(sum(values)) + sum(span.refused for span, _, _ in its)


def observed(segment: Any, number: int) -> int:
    found = records(segment, Record.COVERAGE)
    return int(found[program_of(found) == number][:, Summary.OBSERVED].sum())


def attach_and_count(a: Attacher, program: Program) -> int:
    """The number of a program that has been attached and has told of something."""
    number = a.attach(program, 1)
    until(lambda: counted(a, program, number), a)
    return number


def until(true: Any, a: Attacher | None = None, seconds: float = 120) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds
        if a:
            a.drain()
        time.sleep(0.002)


@TRANSPORTS
def test_when_the_program_leaves_and_when_the_kernel_ends(cuda: Any, segment_path: Path, transport: str) -> None:
    program = shared()
    with engine(cuda, segment_path, f"{cuda.long},transport={transport},epoch_ms=50", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            one = attach_and_count(a, program)
            a.detach(1)
            until(lambda: not e.programs.in_use, a)
            two = attach_and_count(a, program)
            stop(e, run)
            a.drain()
        check_identities(e.segment, written=False)
        for number in (one, two):
            assert counted(a, program, number) == observed(e.segment, number) > 0


@pytest.mark.skipif(build.COMPILER is None, reason=build.MISSING)
def test_the_kernel_ends_and_one_monitor_is_slow(segment_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The elected monitor tells what is shared after the last of the others has taken its last records."""
    monkeypatch.setattr(device_programs, "PATIENCE_S", 60.0)
    like = rig(1)
    slow = driver.cupy(3, seed=2, slow=driver.Slow("megakernel", 5, 20))
    cuda = Device(slow, build.compiled, like.small, like.long, 50, 30, 1_000_000, simulated=True)
    program = shared()
    with engine(cuda, segment_path, f"{cuda.long},steps=30000", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            number = attach_and_count(a, program)
            stop(e, run)
            a.drain()
        assert counted(a, program, number) == observed(e.segment, number) > 0


@TRANSPORTS
def test_attached_late_it_is_closed_once_an_epoch(
    cuda: Any, segment_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[tuple[int, int]] = []
    take = exports.Exports.take

    def noting(self: exports.Exports, s: Any) -> None:
        if s.what == exports.SliceOf.EPOCH_ENDS:
            closed.append((s.worker, s.t_begin))
        take(self, s)

    monkeypatch.setattr(exports.Exports, "take", noting)
    with engine(cuda, segment_path, f"{cuda.long},transport={transport},epoch_ms=5", record=False) as e:
        run = start(e)
        time.sleep(0.5)
        with attacher(segment_path) as a:
            a.attach(shared(), 1)
            until(lambda: sum(w == 0 for w, _ in closed) > 10, a)
            stop(e, run)
            a.drain()
    its = [t for w, t in closed if w == exports.SHARED]
    assert len(its) <= sum(w == 0 for w, _ in closed) + 2
    assert all(its), "since when it is open is known"


@TRANSPORTS
def test_fed_while_a_program_leaves(cuda: Any, segment_path: Path, transport: str) -> None:
    """A feedback is a change too: who waits for all to have gone over to the leave must not wait for another."""
    program = shared(1 << 12)
    with engine(cuda, segment_path, f"{cuda.long},transport={transport},epoch_ms=50", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            number = a.attach(fed(), 2)
            requests = e.segment.requests
            for commit in range(1, 5):
                a.attach(program, 1)
                a.detach(1)
                cell = FEEDBACK_CELL.pack(number, 0, 0, 0, 5, 5)
                raw = FEEDBACK_HEAD.pack(1, zlib.crc32(struct.pack("<I", 1) + cell)) + cell
                requests[Requests.FEEDBACK : Requests.FEEDBACK + len(raw)] = np.frombuffer(raw, np.uint8)
                requests[Requests.FEEDBACK_COMMIT] = commit
                force = e.segment.cursor[:, Cursor.FEEDBACK]
                until(lambda force=force, commit=commit: (force == commit).all(), a)
                until(lambda: e.programs.in_use == 1, a)
            stop(e, run)


def test_the_epoch_hook_is_fired_once_an_epoch(cuda: Any, segment_path: Path) -> None:
    """Also while a cut is put off, since its records find no room."""
    with engine(cuda, segment_path, f"{cuda.long},epoch_ms=20,summary_rows=32", record=False) as e:
        run = start(e)
        program = epochs()
        with attacher(segment_path) as a:
            summaries, there = SummaryReader(a.segment), threading.Event()

            def make_room() -> None:
                while not there.wait(0.002):
                    summaries.pass_by()

            beside = threading.Thread(target=make_room)
            beside.start()
            number = a.attach(program, 1)
            there.set()
            beside.join()
            begin = e.segment.cursor[:, Cursor.HEARTBEAT].astype(np.int64).min()
            until(lambda: (e.segment.cursor[:, Cursor.HEARTBEAT].astype(np.int64) > begin + 600_000_000).all(), a)
            until(lambda: summaries.pass_by() >= 0 and counted(a, program, number), a)
            stop(e, run)
            a.drain()
        passed = (int(e.segment.cursor[:, Cursor.HEARTBEAT].max()) - int(begin)) // 20_000_000 + 2
        assert 0 < counted(a, program, number) <= passed * e.segment.layout.workers


@TRANSPORTS
@pytest.mark.parametrize("early", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_block_leaves_before_the_others(
    cuda: Any,
    segment_path: Path,
    host: Any,  # noqa: F811
    transport: str,
    early: int,
) -> None:
    """Programs come and go after that, also when it is the block whose monitor takes in changes."""
    tables = {
        "task_classes": [host.class_row(1, "a", "x[t]", [])],
        "static_tasks": [host.task_row(1, 1, 0, 0), host.task_row(2, 1, 1, 0)],
    }
    cp, program = cuda.cupy, shared()
    hooks = Hooks.QUEUE if transport == "warp" else Hooks.DEVICE
    architecture = f"sm_{cp.cuda.Device(0).compute_capability}"
    module = cp.RawModule(path=str(cuda.compiled(Path(__file__).with_name("uneven.cu"), architecture, hooks)))
    stream = cp.cuda.Stream(non_blocking=True)
    told: list[tuple[int, int]] = []
    with Scope(
        cp, module, segment_path, tables, blocks=3, hooks=host.HOOKS, transport=transport, ring_mb=4, arena_mb=4,
        seconds=60, compiled=cuda.compiled,
    ) as scope:  # fmt: skip
        ended = threading.Event()

        def outside() -> None:
            with attacher(segment_path) as a:
                time.sleep(0.5)  # longer than the block is there
                numbers = []
                for _ in range(2):
                    numbers.append(attach_and_count(a, program))
                    if len(numbers) == 1:
                        a.detach(1)
                while not ended.wait(0.01):
                    a.drain()
                a.drain()
                told.extend((number, counted(a, program, number)) for number in numbers)

        beside = threading.Thread(target=outside)
        beside.start()
        scope.begin(stream)
        with stream:
            module.get_function("uneven")((3,), (32 + scope.threads,), (np.uint32(early), np.uint32(2500)))
        scope.follow(stream)
        ended.set()
        beside.join()
        assert len(told) == 2
        assert all(n == observed(scope._its.segment, number) > 0 for number, n in told)


@TRANSPORTS
def test_a_row_emitted_at_an_epochs_end_is_no_event_of_the_trace(cuda: Any, segment_path: Path, transport: str) -> None:
    """It is counted as over the limit, as on the host, and not as written."""
    text = "call emit\nmov %r0, 0\nexit\n"
    program = Program("emits", assemble(text), (Entry("epoch", (EPOCH,), 0),), ())
    with engine(cuda, segment_path, f"{cuda.long},transport={transport},epoch_ms=5", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            number = a.attach(program, 1)
            until(lambda: (program_of(records(e.segment, Record.COVERAGE)) == number).any(), a)
            stop(e, run)
            a.drain()
        check_identities(e.segment, written=False)
        found = records(e.segment, Record.COVERAGE)
        its = found[program_of(found) == number].astype(np.int64)
        emitted, throttled = its[:, Summary.EMITTED].sum(), its[:, Summary.EMIT_THROTTLED].sum()
        assert emitted == throttled == its[:, Summary.OBSERVED].sum() > 0
        assert its[:, Summary.WRITTEN].sum() == 0
        assert e.counts()["written"] == 0
