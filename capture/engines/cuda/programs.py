"""Programs on a running kernel: requests checked here, changes carried out by the device.

A request is verified and rendered for the device VM in this process; the device is then asked for one change at a time
(HostWord HOST_CHANGE and capture/device/changes.cuh), and the request is answered when every monitor has gone over.
Nothing else is asked for before that: monitors that are behind still read the change that they go over to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import MegascopeError
from ...programs import vmcode
from ...segment.layout import Layout
from ...segment.program_words import Code, Op, Slot, SlotState
from ...segment.requests import Damaged, Request
from ...segment.sink import SegmentSink
from ..admission import Unfit, admit
from .exporting import DIGEST_S, Exporting, Placed
from .exports import Exports
from .memory import HostWords
from .monitors import CELL, CODE_BYTES, ChangeWord, MonitorMemory
from .parameters import HOST_CHANGE

NOWHERE = 32
PATIENCE_S = 2.0
"""How long who asks for a change waits for monitors to go over to it."""
LEAVING_S = 1.0
"""How long a request waits for room while programs that have left still tell what they hold."""
SETTLE_S = 0.005
"""How long a change that is under way is watched before anything else is done again."""
ROOM_S = 0.001
"""When it takes longer, it may be that monitors wait for room to export."""


class Full(Unfit):
    """There is no room for a program now."""


@dataclass
class Pending:
    """A change that the device has been asked for: of programs (request), or of feedback cells (commit)."""

    number: int
    asked: int
    """time.monotonic_ns()"""
    request: Request | None = None
    comes: Placed | None = None
    leaves: Placed | None = None
    commit: int = 0
    told: bool = False
    """Whoever asked has been told that it takes too long."""


class Programs:
    """All programs but the recorder. Not for several threads."""

    def __init__(
        self,
        sink: SegmentSink,
        memory: MonitorMemory,
        host: HostWords,
        now: Callable[[], int],
        layout: Layout,
        rank: NDArray[Any],
    ) -> None:
        """rank: of each worker."""
        self._sink, self._memory, self._host, self._t, self._rank = sink, memory, host, now, rank
        self._exported, self._workers, self._ranks = layout.exported, layout.workers, layout.ranks
        self._epoch_ns, self._slots = layout.epoch_ns, layout.program_slots
        self._exporting = Exporting(sink, memory)
        self._placed = self._exporting.placed
        self._pending: Pending | None = None
        self._waiting: Request | Damaged | None = None
        self._full_since = 0.0
        self._number = 0
        self._next = 2
        self.took_ns: list[int] = []
        """of each program that came or left: from publication to the last monitor's acknowledgement, as seen here"""

    def poll(self) -> None:
        """A little of everything that waits. A change that is under way is watched all the time, for a while."""
        self._exporting.take()
        if not self._pending:
            self._feed()
        if not self._pending:
            self._serve()
        elif self._pending.told:
            self._decline()
        until = time.monotonic() + SETTLE_S
        while self._pending:
            self._settle(self._pending)
            if time.monotonic() > until or (self._pending and self._pending.told):
                break
        self._exporting.digest(time.monotonic() + DIGEST_S)

    def end(self) -> None:
        """The kernel has ended: what is still on the way goes out."""
        pending, waiting = self._pending, self._waiting
        self._pending = self._waiting = None
        for request in (pending.request if pending and not pending.told else None, waiting):
            if request:
                self._refuse(request, Unfit(Code.FAILED, "the kernel has ended"))
        self._exporting.end()

    # --- requests ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        request, self._waiting = self._waiting or self._sink.next_request(), None
        if request is None:
            return
        try:
            if not isinstance(request, Request):
                raise Unfit(Code.DAMAGED, request.why)
            self._ask(request)
        except Full as no:
            self._full_since = self._full_since or time.monotonic()
            leaving = any(not p.attached for p in self._placed.values())
            if leaving and time.monotonic() - self._full_since < LEAVING_S:
                self._waiting = request  # what has left makes room soon
                return
            self._refuse(request, no)
        except Unfit as no:
            self._refuse(request, no)
        self._full_since = 0.0

    def _decline(self) -> None:
        request = self._sink.next_request()
        if request is not None:
            text = "the change before it is not in force yet: a worker has not come to the end of its task"
            self._refuse(request, Unfit(Code.FAILED, text))

    def _refuse(self, request: Request | Damaged, no: Unfit) -> None:
        self._sink.answer(request.number, no.code, 0, no.text, arena_used=self._used)

    @property
    def in_use(self) -> int:
        """Programs that run, or have left and are not wholly told."""
        return len(self._placed)

    @property
    def _used(self) -> int:
        return 8 * sum(p.arena[1] for p in self._placed.values())

    def _ask(self, request: Request) -> None:
        there = self._exporting.attached(request.slot)
        comes: Placed | None = None
        if request.op == Op.DETACH:
            if there is None:
                raise Unfit(Code.SLOT, f"slot {request.slot} has no program")
        else:
            if (there is not None) != (request.op == Op.REPLACE):
                raise Unfit(Code.SLOT, f"slot {request.slot} is {'taken' if there else 'free'}")
            if there is None and sum(p.attached for p in self._placed.values()) >= self._slots:
                raise Unfit(Code.SLOT, f"all {self._slots} slots are taken")
            comes = self._prepare(request)
        change = self._change(there.place if there else NOWHERE)
        if comes is not None:
            image = comes.image
            self._memory.image[: len(image)] = image
            code = int(self._memory.code.data.ptr) + comes.place * CODE_BYTES
            arena = int(self._memory.arena.data.ptr) + 8 * comes.arena[0]
            limits = comes.limits
            for word, value in {
                ChangeWord.PLACE: comes.place,
                ChangeWord.BIT: 1 << comes.slot,
                ChangeWord.FROM: self._memory.image.ctypes.data,
                ChangeWord.WORDS: len(image),
                ChangeWord.CODE: code,
                ChangeWord.ARENA: arena,
                ChangeWord.ARENA_WORDS: comes.arena[1],
                ChangeWord.INSTRUCTIONS: limits.instructions,
                ChangeWord.ROWS: limits.rows,
                ChangeWord.HOOKS: comes.verdict.program.mask,
                ChangeWord.PROGRAM: comes.program,
            }.items():
                change[word] = value
            self._placed[comes.place] = comes
        self._pending = Pending(self._number, time.monotonic_ns(), request, comes, there)
        change[ChangeWord.NUMBER] = self._number

    def _change(self, leaves: int) -> NDArray[np.uint64]:
        """Words of the next change, its number (which is written last) counted up."""
        self._number = self._number % 0xFFFF_FFFF + 1
        change = self._host.words[HOST_CHANGE : HOST_CHANGE + ChangeWord.LENGTH]
        change[1:] = 0
        change[ChangeWord.LEAVES], change[ChangeWord.PLACE] = leaves, NOWHERE
        return change

    def _feed(self) -> None:
        """Hand on what the drainer has fed back; it is told when that is in force."""
        fed = self._sink.feedback()
        if fed is None:
            return
        commit, cells = fed
        places = {p.program: p.place for p in self._placed.values() if p.attached}
        known = [(places[p], m, i, 0, value, epoch) for p, m, i, value, epoch in cells if p in places]
        if not known:
            self._sink.fed(commit)
            return
        self._memory.cells[: len(known)] = np.array(known, CELL)
        change = self._change(NOWHERE)
        change[ChangeWord.CELLS], change[ChangeWord.COUNT] = self._memory.cells.ctypes.data, len(known)
        self._pending = Pending(self._number, time.monotonic_ns(), commit=commit)
        change[ChangeWord.NUMBER] = self._number

    def _prepare(self, request: Request) -> Placed:
        verdict, limits = admit(request, exported=self._exported, epoch_ns=self._epoch_ns, program=self._next)
        try:
            rendered = np.frombuffer(vmcode.render(verdict), np.uint64)
        except MegascopeError as no:
            raise Unfit(Code.FAILED, f"{no.what}: {no.why}") from None
        if rendered.nbytes > CODE_BYTES:
            raise Unfit(Code.FAILED, f"it takes {rendered.nbytes} bytes on the device, which has {CODE_BYTES}")
        words = vmcode.arena(verdict.program.maps).bytes(self._workers, self._ranks) // 8
        try:
            place, arena = self._allocate(words)
        except Full:
            self._exporting.digest()  # some that have left may be wholly told by that
            place, arena = self._allocate(words)
        limit = self._sink.map_bytes // 4
        exports = Exports(verdict, self._next, self._workers, self._epoch_ns, limit, self._rank)
        return Placed(place, request.slot, self._next, verdict, rendered, limits, arena, exports, request)

    def _allocate(self, words: int) -> tuple[int, tuple[int, int]]:
        """A free place, and the first gap in the arena that is wide enough. Raises Full when there is none."""
        place = next((p for p in range(NOWHERE) if p not in self._placed), None)
        if place is None:
            raise Full(Code.SLOT, "programs that have left are still telling what they hold; try again")
        at, room = 0, self._memory.arena.nbytes // 8
        for offset, length in sorted(p.arena for p in self._placed.values()):
            if offset - at >= words:
                break
            at = offset + length
        if at + words > room:
            text = f"its maps need {8 * words:,} bytes, of {8 * room:,} in the arena {8 * room - self._used:,} are free"
            raise Full(Code.ARENA, text)
        return place, (at, words)

    def _settle(self, pending: Pending) -> None:
        """If every monitor has gone over, or the device has refused, that is told."""
        request, comes, leaves = pending.request, pending.comes, pending.leaves
        if int(self._host.words[HOST_CHANGE + ChangeWord.REFUSED]) == pending.number:
            self._pending = None
            if comes is not None:
                del self._placed[comes.place]
            self._answer(pending, Code.FAILED, 0, "the device refuses its code")
            return
        before = self._memory.over(pending.number)
        if before is None:
            waited = time.monotonic_ns() - pending.asked
            if waited > ROOM_S * 1e9:
                self._exporting.take_few()
            if waited > PATIENCE_S * 1e9 and not pending.told:
                text = f"a worker has not come to the end of its task in {PATIENCE_S} s; it is in force when it has"
                self._answer(pending, Code.FAILED, 0, text)
                pending.told = True
            return
        self._pending = None
        if request is None:
            self._sink.fed(pending.commit)
            return
        self.took_ns.append(time.monotonic_ns() - pending.asked)
        t = self._t()
        if leaves is not None:
            leaves.attached = False
            self._sink.tell(leaves.slot, SlotState.LEAVING, {Slot.UNTIL: t, Slot.CHANGE: request.number})
        if comes is not None:
            self._next += 1
            comes.attached = True
            comes.exports.absent.update(before)
            self._sink.tell(comes.slot, SlotState.ATTACHED, self._line(comes, t))
        program = comes.program if comes else leaves.program if leaves else 0
        self._answer(pending, Code.DONE, program, "")

    def _answer(self, pending: Pending, code: Code, program: int, text: str) -> None:
        if pending.request and not pending.told:
            self._sink.answer(pending.request.number, code, program, text, arena_used=self._used)

    def _line(self, p: Placed, t: int) -> dict[Slot, int]:
        r = p.request
        return {
            Slot.CHANGE: r.number,
            Slot.PROGRAM: p.program,
            Slot.OFFSET: r.offset,
            Slot.LENGTH: r.length,
            Slot.IMAGE_CRC: r.image_crc,
            Slot.HOOKS: p.verdict.program.mask,
            Slot.INSTRUCTIONS: p.limits.instructions,
            Slot.ROWS: p.limits.rows,
            Slot.SINCE: t,
            Slot.UNTIL: 0,
            Slot.MEMORY: 8 * p.arena[1],
        } | dict.fromkeys((Slot.OBSERVED, Slot.EMITTED, Slot.MISSING), 0)
