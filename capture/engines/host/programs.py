"""Which programs are attached to the host engine: requests checked and carried out between two batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....store.errors import MegascopeError
from ...programs.maps import MapKind
from ...segment.program_words import Code, Op, Slot, SlotState
from ...segment.requests import Damaged, Request
from ...segment.words import Summary
from ..admission import Unfit, admit
from ..arena import needed
from .account import Account, Moment
from .attached import Attached
from .exports import MapSink, Telemetry

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
_MISSING = [w - Summary.ELIGIBLE for w in (Summary.THROTTLED, Summary.LOST, Summary.FAULTED)]


class ProgramSink(MapSink, Protocol):
    """Where requests come from and what became of them goes."""

    def next_request(self) -> Request | Damaged | None:
        """The request that waits for an answer."""

    def answer(self, number: int, code: Code, program: int, text: str, *, arena_used: int) -> None:
        """What became of it; in force in every monitor."""

    def tell(self, slot: int, state: SlotState, words: dict[Slot, int]) -> None:
        """A slot's line."""


class Programs:
    """All programs but the recorder. slots: how many at once; arena: bytes for their maps."""

    def __init__(
        self,
        account: Account,
        *,
        exported: int,
        slots: int,
        arena: int,
        telemetry: Telemetry,
    ) -> None:
        self._account, self._exported, self._slots, self._arena = account, exported, slots, arena
        self._telemetry = telemetry
        self._attached: dict[int, Attached] = {}
        self._leaving: list[Attached] = []
        self._memory: dict[int, int] = {}
        self._next = account.recorder.program + 1

    def __iter__(self) -> Iterator[Attached]:
        return iter(self._attached.values())

    @property
    def mask(self) -> int:
        """Hooks that at least one of them wants."""
        mask = 0
        for attached in self:
            mask |= attached.hooks
        return mask

    def run(self, rows: U64, rank: int, by: U32) -> None:
        """Let every program see rows [n, 8] of one monitor; they mark in `by` what is to be exported."""
        for attached in self:
            attached.of(rank).run(rows, by, attached.slot)

    def close_epoch(self, now: Moment) -> None:
        """An epoch ends for every worker."""
        for attached in self:
            attached.close(now)

    def end(self, now: Moment, sink: ProgramSink) -> None:
        """The engine ends."""
        for slot in list(self._attached):
            self._remove(slot, now, sink, {})

    def flush(self, now: Moment, sink: ProgramSink) -> bool:
        """Tell what there is room for; True when nothing waits any more."""
        self._telemetry.pass_time(now.t)
        whole = True
        for attached in self:
            attached.exports.flush(sink, self._telemetry)
        for attached in list(self._leaving):
            if attached.exports.flush(sink, None):
                self._leaving.remove(attached)
                if attached.slot not in self._attached:
                    sink.tell(attached.slot, SlotState.FREE, {})
            else:
                whole = False
        return whole

    def show(self, sink: ProgramSink) -> None:
        """What every program has seen so far."""
        for attached in self:
            sums = attached.flow.counts.sum(axis=(0, 1))
            words = {Slot.OBSERVED: int(sums[Summary.OBSERVED - Summary.ELIGIBLE])}
            words[Slot.EMITTED] = int(sums[Summary.EMITTED - Summary.ELIGIBLE])
            words[Slot.MISSING] = int(sums[_MISSING].sum())
            sink.tell(attached.slot, SlotState.ATTACHED, words)

    def feed(self, program: int, index: int, cell: int, value: int, epoch: int) -> None:
        """Write a feedback cell of a program, if there is such a program and cell."""
        for attached in self:
            maps = attached.verdict.program.maps
            if attached.id == program and index < len(maps) and maps[index].kind == MapKind.FEEDBACK:
                for execution in attached.executions:
                    if cell < maps[index].max_entries:
                        execution.feed(index, cell, value, epoch)

    # --- requests ----------------------------------------------------------------------------------------------

    def serve(self, sink: ProgramSink, now: Moment, cut: Callable[[Moment], None]) -> bool:
        """Carry out the request that waits, if one does. cut: close every interval; whether `mask` may differ now."""
        request = sink.next_request()
        if request is None:
            return False
        try:
            if isinstance(request, Damaged):
                raise Unfit(Code.DAMAGED, request.why)
            program = self._carry_out(request, sink, now, cut)
        except Unfit as no:
            sink.answer(request.number, no.code, 0, no.text, arena_used=self._used)
            return False
        sink.answer(request.number, Code.DONE, program, "", arena_used=self._used)
        return True

    @property
    def _used(self) -> int:
        return sum(self._memory.values())

    def _carry_out(self, request: Request, sink: ProgramSink, now: Moment, cut: Callable[[Moment], None]) -> int:
        there = self._attached.get(request.slot)
        leaving = there is None and any(a.slot == request.slot for a in self._leaving)
        if request.op == Op.DETACH:
            if there is None:
                raise Unfit(Code.SLOT, f"slot {request.slot} has no program")
            self._remove(request.slot, now, sink, {Slot.CHANGE: request.number})
            cut(now)
            return there.id
        if (there is not None) != (request.op == Op.REPLACE) or leaving:
            raise Unfit(Code.SLOT, f"slot {request.slot} is {'taken' if there or leaving else 'free'}")
        if there is None and len(self._attached) >= self._slots:
            raise Unfit(Code.SLOT, f"all {self._slots} slots are taken")
        attached, memory = self._check(request, self._memory.get(request.slot, 0))
        if there is not None:
            self._remove(request.slot, now, sink, {})
        cut(now)
        self._next += 1
        attached.install(now)
        self._account.flows.append(attached.flow)
        self._attached[request.slot], self._memory[request.slot] = attached, memory
        words = {
            Slot.CHANGE: request.number,
            Slot.PROGRAM: attached.id,
            Slot.OFFSET: request.offset,
            Slot.LENGTH: request.length,
            Slot.IMAGE_CRC: request.image_crc,
            Slot.HOOKS: attached.hooks,
            Slot.INSTRUCTIONS: attached.limits.instructions,
            Slot.ROWS: attached.limits.rows,
            Slot.SINCE: now.t,
            Slot.UNTIL: 0,
            Slot.MEMORY: memory,
        } | dict.fromkeys((Slot.OBSERVED, Slot.EMITTED, Slot.MISSING), 0)
        sink.tell(request.slot, SlotState.ATTACHED, words)
        return attached.id

    def _check(self, request: Request, reclaimed: int) -> tuple[Attached, int]:
        """A program that can run, and the bytes of its maps. Whatever the bytes hold, this raises Unfit or returns."""
        monitor, rank, epoch_ns = self._account.monitor, self._account.rank, self._account.epoch_ns
        verdict, limits = admit(request, exported=self._exported, epoch_ns=epoch_ns, program=self._next)
        memory = needed(verdict.program, len(monitor), int(rank.max()) + 1)
        free = self._arena - self._used + reclaimed
        if memory > free:
            text = f"its maps need {memory:,} bytes, of {self._arena:,} in the arena {free:,} are free"
            raise Unfit(Code.ARENA, text)
        try:
            return Attached(request.slot, self._next, verdict, limits, monitor, rank, epoch_ns), memory
        except MegascopeError as no:
            raise Unfit(Code.FAILED, f"{no.what}: {no.why}") from None
        except Exception as error:
            raise Unfit(Code.FAILED, f"it cannot be lowered: {type(error).__name__}: {error}") from None

    def _remove(self, slot: int, now: Moment, sink: ProgramSink, words: dict[Slot, int]) -> None:
        attached = self._attached.pop(slot)
        del self._memory[slot]
        attached.end(now, sink.map_bytes // 4)
        self._leaving.append(attached)
        sink.tell(slot, SlotState.LEAVING, words | {Slot.UNTIL: now.t})
