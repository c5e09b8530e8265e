"""Programs on a running kernel: requests checked here, changes carried out by the device, exports brought home.

A request is verified and rendered for the device VM in this process; the device is then asked for one change at a time
(HostWord HOST_CHANGE and capture/device/changes.cuh), and the request is answered when every monitor has gone over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import MegascopeError
from ...programs import vmcode
from ...programs.execution import Limits
from ...programs.verdict import Verdict
from ...segment.layout import Layout
from ...segment.program_words import Code, Op, Slot, SlotState
from ...segment.requests import Request
from ...segment.sink import SegmentSink
from ..admission import Unfit, admit
from .exports import Exports
from .memory import HostWords
from .monitors import CELL, CODE_BYTES, ChangeWord, MonitorMemory, MonitorWord
from .parameters import HOST_CHANGE
from .slices import slices

NOWHERE = 32
PATIENCE_S = 2.0
"""How long monitors may take to go over to a change."""
SETTLE_S = 0.005
"""How long they are watched before anything else is done again."""
ROOM_S = 0.001
"""When a change takes longer, it may be that monitors wait for room to export."""
DIGEST_S = 0.002
"""How long a request waits at most for what programs have exported to be put together."""
MOST_WAITING = 1024
"""Buffers of exports that wait for that. When there are more, monitors wait too."""


@dataclass
class Placed:
    """A program on the device. image: its words for the VM. arena: (offset, length) in words."""

    place: int
    slot: int
    program: int
    verdict: Verdict
    image: NDArray[np.uint64]
    limits: Limits
    arena: tuple[int, int]
    exports: Exports
    request: Request


TELL_S = 0.1


@dataclass
class Pending:
    """A change that the device has been asked for."""

    request: Request
    number: int
    comes: Placed | None
    leaves: Placed | None
    asked: int
    """time.monotonic_ns()"""


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
        self._exported, self._workers = layout.exported, layout.workers
        self._epoch_ns, self._slots = layout.epoch_ns, layout.program_slots
        self._placed: dict[int, Placed] = {}
        self._attached: dict[int, Placed] = {}
        self._pending: Pending | None = None
        self._number = 0
        self._next = 2
        self._told = 0.0
        self._buffers: deque[NDArray[np.uint64]] = deque()
        self._queue: deque[tuple[int | None, bytes]] = deque()
        self.took_ns: list[int] = []
        """of each change: from its publication to the last monitor's acknowledgement, as seen here"""

    def poll(self) -> None:
        """A little of everything that waits. A change that is under way is watched all the time, for a while."""
        self._take()
        if not self._pending:
            self._feed()
            self._serve()
        until = time.monotonic() + SETTLE_S
        while self._pending and time.monotonic() < until:
            self._settle(self._pending)
        self._digest(time.monotonic() + DIGEST_S)

    def end(self) -> None:
        """The kernel has ended: what is still on the way goes out."""
        if self._pending:
            number, self._pending = self._pending.request.number, None
            self._sink.answer(number, Code.FAILED, 0, "the kernel has ended", arena_used=self._used)
        self._buffers += self._memory.taken()
        self._digest()
        for placed in list(self._placed.values()):
            self._queue.extend(placed.exports.ready(all_of_it=True))
            self._sink.tell(placed.slot, SlotState.FREE, {})
        self._flush()

    # --- requests ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        request = self._sink.next_request()
        if request is None:
            return
        try:
            if not isinstance(request, Request):
                raise Unfit(Code.DAMAGED, request.why)
            self._ask(request)
        except Unfit as no:
            self._sink.answer(request.number, no.code, 0, no.text, arena_used=self._used)

    @property
    def in_use(self) -> int:
        """Programs that run, or have left and are not wholly told."""
        return len(self._placed)

    @property
    def _used(self) -> int:
        return 8 * sum(p.arena[1] for p in self._placed.values())

    def _ask(self, request: Request) -> None:
        there = self._attached.get(request.slot)
        comes: Placed | None = None
        if request.op == Op.DETACH:
            if there is None:
                raise Unfit(Code.SLOT, f"slot {request.slot} has no program")
        else:
            if (there is not None) != (request.op == Op.REPLACE):
                raise Unfit(Code.SLOT, f"slot {request.slot} is {'taken' if there else 'free'}")
            if there is None and len(self._attached) >= self._slots:
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
        self._pending = Pending(request, self._number, comes, there, time.monotonic_ns())
        change[ChangeWord.NUMBER] = self._number

    def _change(self, leaves: int) -> NDArray[np.uint64]:
        """Words of the next change, its number (which is written last) counted up."""
        self._number = self._number % 0xFFFF_FFFF + 1
        change = self._host.words[HOST_CHANGE : HOST_CHANGE + ChangeWord.LENGTH]
        change[1:] = 0
        change[ChangeWord.LEAVES], change[ChangeWord.PLACE] = leaves, NOWHERE
        return change

    def _feed(self) -> None:
        """Hand on what the drainer has fed back, and wait until it is in force."""
        fed = self._sink.feedback()
        if fed is None:
            return
        commit, cells = fed
        places = {p.program: p.place for p in self._attached.values()}
        known = [(places[p], m, i, 0, value, epoch) for p, m, i, value, epoch in cells if p in places]
        if known:
            self._memory.cells[: len(known)] = np.array(known, CELL)
            change = self._change(NOWHERE)
            change[ChangeWord.CELLS], change[ChangeWord.COUNT] = self._memory.cells.ctypes.data, len(known)
            change[ChangeWord.NUMBER] = self._number
            until = time.monotonic() + PATIENCE_S
            while (self._memory.words[:, MonitorWord.CHANGE] != self._number).any() and time.monotonic() < until:
                self._take()
        self._sink.fed(commit)

    def _prepare(self, request: Request) -> Placed:
        verdict, limits = admit(request, exported=self._exported, epoch_ns=self._epoch_ns, program=self._next)
        try:
            rendered = np.frombuffer(vmcode.render(verdict), np.uint64)
        except MegascopeError as no:
            raise Unfit(Code.FAILED, f"{no.what}: {no.why}") from None
        if rendered.nbytes > CODE_BYTES:
            raise Unfit(Code.FAILED, f"it takes {rendered.nbytes} bytes on the device, which has {CODE_BYTES}")
        words = vmcode.arena(verdict.program.maps).bytes(self._workers) // 8
        try:
            place, arena = self._allocate(words)
        except Unfit:
            self._digest()  # some that have left may be wholly told by that
            place, arena = self._allocate(words)
        limit = self._sink.map_bytes // 4
        exports = Exports(verdict, self._next, self._workers, self._epoch_ns, limit, self._rank)
        return Placed(place, request.slot, self._next, verdict, rendered, limits, arena, exports, request)

    def _allocate(self, words: int) -> tuple[int, tuple[int, int]]:
        """A free place, and the first gap in the arena that is wide enough. Raises Unfit when there is none."""
        place = next((p for p in range(NOWHERE) if p not in self._placed), None)
        if place is None:
            raise Unfit(Code.SLOT, "programs that have left are still telling what they hold; try again")
        at, room = 0, self._memory.arena.nbytes // 8
        for offset, length in sorted(p.arena for p in self._placed.values()):
            if offset - at >= words:
                break
            at = offset + length
        if at + words > room:
            text = f"its maps need {8 * words:,} bytes, of {8 * room:,} in the arena {8 * room - self._used:,} are free"
            raise Unfit(Code.ARENA, text)
        return place, (at, words)

    def _settle(self, pending: Pending) -> None:
        """Answer, if every monitor has gone over, or the device has refused."""
        request, comes, leaves = pending.request, pending.comes, pending.leaves
        if int(self._host.words[HOST_CHANGE + ChangeWord.REFUSED]) == pending.number:
            self._pending = None
            self._sink.answer(request.number, Code.FAILED, 0, "the device refuses its code", arena_used=self._used)
            return
        if (self._memory.words[:, MonitorWord.CHANGE] != pending.number).any():
            waited = time.monotonic_ns() - pending.asked
            if waited > ROOM_S * 1e9:
                self._take()
            if waited > PATIENCE_S * 1e9:
                # It may still come into force: its place and memory are not given to another.
                self._pending = None
                if comes is not None:
                    self._placed[comes.place] = comes
                text = f"monitors did not go over to it in {PATIENCE_S} s"
                self._sink.answer(request.number, Code.FAILED, 0, text, arena_used=self._used)
            return
        self._pending = None
        self.took_ns.append(time.monotonic_ns() - pending.asked)
        t = self._t()
        if leaves is not None:
            del self._attached[leaves.slot]
            self._sink.tell(leaves.slot, SlotState.LEAVING, {Slot.UNTIL: t, Slot.CHANGE: request.number})
        if comes is not None:
            self._next += 1
            self._placed[comes.place] = self._attached[comes.slot] = comes
            self._sink.tell(comes.slot, SlotState.ATTACHED, self._line(comes, t))
        program = comes.program if comes else leaves.program if leaves else 0
        self._sink.answer(request.number, Code.DONE, program, "", arena_used=self._used)

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

    # --- exports -----------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Take the buffers that monitors have handed over."""
        if len(self._buffers) >= MOST_WAITING:
            self._digest(time.monotonic() + DIGEST_S)
        if len(self._buffers) < MOST_WAITING:
            self._buffers += self._memory.taken()

    def _digest(self, until: float | None = None) -> None:
        """Put together what has been taken, and send on what is whole. until: the time (monotonic) to leave off."""
        while self._buffers:
            for s in slices(self._buffers.popleft()):
                placed = self._placed.get(s.place) or (self._pending and self._pending.comes)
                if placed and placed.program == s.program:
                    placed.exports.take(s)
            if until is not None and time.monotonic() > until:
                break
        now = time.monotonic()
        told = now - self._told < TELL_S
        self._told = self._told if told else now
        for place, placed in list(self._placed.items()):
            if not told and self._attached.get(placed.slot) is placed:
                seen = placed.exports.seen
                line = {Slot.OBSERVED: int(seen[1]), Slot.MISSING: int(seen[2:5].sum()), Slot.EMITTED: int(seen[5])}
                self._sink.tell(placed.slot, SlotState.ATTACHED, line)
            self._queue.extend(placed.exports.ready())
            if len(placed.exports.left) > self._workers:  # every worker's, and the shared part
                self._queue.extend(placed.exports.ready(all_of_it=True))
                del self._placed[place]
                if placed.slot not in self._attached:
                    self._sink.tell(placed.slot, SlotState.FREE, {})
        self._flush()

    def _flush(self) -> None:
        while self._queue:
            worker, record = self._queue[0]
            if not self._sink.keep_map(0 if worker is None else worker % self._memory.monitors, record):
                break
            self._queue.popleft()
