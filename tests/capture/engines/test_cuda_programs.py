"""Changes that the device is asked for, one at a time: held against monitors that are slow, refuse, or never answer."""

from __future__ import annotations

import zlib
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megascope.capture.engines.cuda import exporting
from megascope.capture.engines.cuda import programs as device_programs
from megascope.capture.engines.cuda.exports import SHARED
from megascope.capture.engines.cuda.monitors import CELL, CELLS, CODE_BYTES, ChangeWord, MonitorWord
from megascope.capture.engines.cuda.parameters import HOST_CHANGE
from megascope.capture.engines.cuda.programs import Programs
from megascope.capture.engines.cuda.slices import HEADER, SliceOf
from megascope.capture.programs import image, vmcode
from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.segment.program_words import Code, Op, SlotState
from megascope.capture.segment.requests import Request

MONITORS, WORKERS = 3, 3
NOTHING = Program("nothing", assemble("mov %r0, 0\nexit"), (Entry("complete", (4,), 0),))
LARGE = Program(
    "large",
    assemble("mov %r0, 0\nexit"),
    (Entry("complete", (4,), 0),),
    (Map("lat", MapKind.HIST, 4, FIXED_VALUE_BYTES[MapKind.HIST], 256, aggregate=True),),
)


class Sink:
    """Takes down what the engine answers and tells."""

    map_bytes = 1 << 16

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.fed_back: deque[tuple[int, list[tuple[int, int, int, int, int]]]] = deque()
        self.answers: list[tuple[int, Code, int, str]] = []
        self.slots: dict[int, SlotState] = {}
        self.in_force: list[int] = []

    def next_request(self) -> Request | None:
        return self.requests.popleft() if self.requests else None

    def answer(self, number: int, code: Code, program: int, text: str, *, arena_used: int) -> None:  # noqa: ARG002
        self.answers.append((number, code, program, text))

    def tell(self, slot: int, state: SlotState, _words: Any) -> None:
        self.slots[slot] = state

    def feedback(self) -> tuple[int, list[tuple[int, int, int, int, int]]] | None:
        return self.fed_back.popleft() if self.fed_back else None

    def fed(self, commit: int) -> None:
        self.in_force.append(commit)

    def keep_map(self, _monitor: int, _record: bytes) -> bool:
        return True


class Rig:
    """The engine's side of the programs, and monitors that go over when they are told to."""

    def __init__(self, arena: int = 1 << 24) -> None:
        self.sink = Sink()
        self.memory = SimpleNamespace(
            monitors=MONITORS,
            words=np.zeros((MONITORS, MonitorWord.WORDS), np.uint64),
            image=np.zeros(CODE_BYTES // 8, np.uint64),
            cells=np.zeros(CELLS, CELL),
            code=SimpleNamespace(data=SimpleNamespace(ptr=1 << 30)),
            arena=SimpleNamespace(data=SimpleNamespace(ptr=1 << 31), nbytes=arena),
            taken=self.taken,
            over=lambda number: None if (self.memory.words[:, MonitorWord.CHANGE] != number).any() else [],
        )
        self.exports: list[np.ndarray] = []
        self.host = SimpleNamespace(words=np.zeros(HOST_CHANGE + 32, np.uint64))
        layout = SimpleNamespace(exported=0x1FFE, workers=WORKERS, ranks=1, epoch_ns=10**6, program_slots=4)
        memory: Any = self.memory
        host: Any = self.host
        sink: Any = self.sink
        its: Any = layout
        self.programs = Programs(sink, memory, host, lambda: 1, its, np.zeros(WORKERS, np.int64))
        self._number = 0

    def ask(self, op: Op, slot: int, program: Program = NOTHING) -> int:
        self._number += 1
        packed = b"" if op == Op.DETACH else image.pack(program)
        self.sink.requests.append(
            Request(self._number, op, slot, 0, len(packed), zlib.crc32(packed), 10**6, 10**6, packed)
        )
        return self._number

    @property
    def asked(self) -> int:
        """Number of the change that the device is asked for."""
        return int(self.host.words[HOST_CHANGE + ChangeWord.NUMBER])

    def go_over(self, monitors: int = MONITORS) -> None:
        self.memory.words[:monitors, MonitorWord.CHANGE] = self.asked

    def taken(self, most: int | None = None) -> list[np.ndarray]:
        out = self.exports[:most]
        del self.exports[: len(out)]
        return out

    def leave(self, place: int, program: int) -> None:
        """All workers, and the shared part, tell that nothing more comes of it."""
        who = (*range(WORKERS), SHARED)
        one = [[HEADER | place << 32 | SliceOf.LEFT << 40, program | w << 32, *[0] * (HEADER - 2)] for w in who]
        self.exports.append(np.array(one, np.uint64).reshape(-1))


def test_a_change_is_answered_when_the_last_monitor_has_gone_over() -> None:
    rig = Rig()
    number = rig.ask(Op.ATTACH, 1)
    rig.programs.poll()
    rig.go_over(MONITORS - 1)
    rig.programs.poll()
    assert rig.sink.answers == []
    rig.go_over()
    rig.programs.poll()
    assert rig.sink.answers == [(number, Code.DONE, 2, "")]
    assert rig.sink.slots == {1: SlotState.ATTACHED}


def test_nothing_is_asked_for_while_a_worker_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors that are behind still read the change, which must not become another under their hands."""
    rig = Rig()
    first = rig.ask(Op.ATTACH, 1)
    with monkeypatch.context() as patched:
        patched.setattr(device_programs, "PATIENCE_S", 0.0)
        rig.programs.poll()
    ((number, code, _, text),) = rig.sink.answers
    assert (number, code) == (first, Code.FAILED)
    assert "in force when it has" in text
    published = rig.asked
    second = rig.ask(Op.ATTACH, 2)
    rig.sink.fed_back.append((7, [(2, 0, 0, 1, 1)]))
    rig.programs.poll()
    assert rig.sink.answers[1][:2] == (second, Code.FAILED)
    assert "not in force yet" in rig.sink.answers[1][3]
    assert rig.asked == published
    # The worker comes to the end of its task after all.
    rig.go_over()
    rig.programs.poll()
    assert rig.sink.slots == {1: SlotState.ATTACHED}
    assert len(rig.sink.answers) == 2
    rig.programs.poll()
    assert rig.asked != published
    rig.go_over()
    third = rig.ask(Op.DETACH, 1)
    rig.programs.poll()
    assert rig.sink.in_force == [7]
    rig.programs.poll()
    rig.go_over()
    rig.programs.poll()
    assert rig.sink.answers[-1][:2] == (third, Code.DONE)


@pytest.mark.parametrize("backlog", [0, exporting.MOST_WAITING], ids=["none", "full"])
def test_a_change_under_way_is_looked_at_between_buffers(monkeypatch: pytest.MonkeyPatch, backlog: int) -> None:
    """Else its answer waits for exports to be put together, which takes longer than all monitors to go over."""
    rig = Rig()
    there = rig.programs._exporting
    rig.exports = [np.zeros(0, np.uint64)] * 2 * exporting.MOST_WAITING
    there._buffers.extend(rig.taken(backlog))
    rig.ask(Op.ATTACH, 1)
    left: list[tuple[int, int]] = []

    def look(_number: int) -> list[int] | None:
        left.append((len(rig.exports), len(rig.exports) + len(there._buffers)))
        return [] if len(left) == 20 else None

    rig.memory.over = look
    monkeypatch.setattr(there, "take", lambda: None)
    monkeypatch.setattr(device_programs, "ROOM_S", 0.0)
    monkeypatch.setattr(device_programs, "SETTLE_S", 60.0)
    rig.programs.poll()
    assert len(left) == 20
    taken, put_together = -np.diff(left, axis=0).T
    assert taken.max() == exporting.FEW, "monitors get buffers back"
    assert put_together.max() <= 1


def test_a_program_that_does_not_fit_waits_for_what_has_left() -> None:
    rig = Rig(arena=vmcode.arena(LARGE.maps).bytes(WORKERS) * 3 // 2)
    for op in (Op.ATTACH, Op.DETACH):
        request = rig.ask(op, 1, LARGE)
        rig.programs.poll()
        rig.go_over()
        rig.programs.poll()
        assert rig.sink.answers[-1][:2] == (request, Code.DONE)
    late = rig.ask(Op.ATTACH, 2, LARGE)
    rig.programs.poll()
    assert rig.sink.answers[-1][0] != late, "it waits"
    rig.leave(0, 2)
    rig.programs.poll()
    rig.programs.poll()
    rig.go_over()
    rig.programs.poll()
    assert rig.sink.answers[-1][:2] == (late, Code.DONE)
    full = rig.ask(Op.ATTACH, 3, LARGE)
    rig.programs.poll()
    assert rig.sink.answers[-1][:2] == (full, Code.ARENA), "nothing leaves: it is refused at once"


def test_code_that_the_device_refuses_leaves_no_trace() -> None:
    rig = Rig()
    number = rig.ask(Op.ATTACH, 1)
    rig.programs.poll()
    rig.host.words[HOST_CHANGE + ChangeWord.REFUSED] = rig.asked
    rig.programs.poll()
    assert rig.sink.answers == [(number, Code.FAILED, 0, "the device refuses its code")]
    assert not rig.programs.in_use


def test_the_kernel_ends_under_a_change() -> None:
    rig = Rig()
    number = rig.ask(Op.ATTACH, 1)
    rig.programs.poll()
    rig.programs.end()
    assert rig.sink.answers == [(number, Code.FAILED, 0, "the kernel has ended")]
    assert rig.sink.slots == {1: SlotState.FREE}
