"""The attacher's side: one request at a time, from whichever process holds the lock of the area of programs."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from types import TracebackType

from ...store.errors import Exit, MegascopeError, Refused
from ..programs.execution import UNLIMITED, Limits
from . import file_lock, slots
from .process import alive, named
from .program_words import REQUEST, SLOTS, HostReply, Op, Requests, SlotState
from .reader import SegmentReader
from .standing import standing
from .words import WORD, Cursor

NAP_S = 0.0002
PATIENCE_S = 5.0
"""How long an engine, another attacher or a drainer may take before a request is given up."""
GRACE_S = 4.0
"""How long an answer is waited for beyond that once the engine has taken the request: longer than it may take to say
that a change is not in force yet (`engines.cuda.programs`)."""
_STATE = "megascope ls shows its state"


class Unanswered(MegascopeError):
    """The engine has taken a request and does not say what became of it: it may be carried out still."""

    def __init__(self, segment: SegmentReader, what: str, why: str, code: Exit = Exit.FAILED) -> None:
        why = f"{why}; it has taken the request, which may still be carried out"
        super().__init__(what, why, f"megascope programs {segment.path} shows whether it was", code=code)


class Mailbox:
    """The right to make requests of an engine, from construction to `close`; use it in a with-statement.

    A request is answered, or withdrawn when it is given up, also by a Ctrl-C: then it is never carried out. Only of one
    that the engine has taken and does not answer nobody can say (`Unanswered`).

    patience_s: PATIENCE_S if it is None. idle: what to do while waiting; who drains the engine goes on draining, or it
    would never answer. Raises Refused for an engine that runs no programs, MegascopeError for one that is gone and
    when somebody else does not let go of it.
    """

    def __init__(
        self,
        segment: SegmentReader,
        what: str,
        patience_s: float | None = None,
        idle: Callable[[], object] = lambda: time.sleep(NAP_S),
    ) -> None:
        self.segment, self.what, self._idle = segment, what, idle
        self._patience = PATIENCE_S if patience_s is None else patience_s
        if not slots.can_attach(segment):
            raise Refused(what, f"engine {segment.layout.name} runs no programs", "restart it with room for them")
        if self._gone():
            raise self._ended()
        self._until = time.monotonic() + self._patience
        while not file_lock.take(segment.fd, segment.layout.requests_offset):
            self._nap("another process is attaching or detaching and does not end")

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        file_lock.release(self.segment.fd, self.segment.layout.requests_offset)

    def attach(self, slot: int, image: bytes, limits: Limits, *, replace: bool = False) -> slots.Answer:
        """Ask for a program in a slot; what the engine says to it.

        Raises Refused when there is no room for its image, Unanswered when the engine has taken it and says nothing,
        MegascopeError when it is withdrawn as nobody answers.
        """
        self._until = time.monotonic() + self._patience
        self._settle()
        offset = self._room(len(image))
        self._poke(self.segment.layout.images_offset + offset, image)
        op = Op.REPLACE if replace else Op.ATTACH
        return self._ask(op, slot, offset, len(image), zlib.crc32(image), limits)

    def detach(self, slot: int) -> slots.Answer:
        """Ask for a slot's program to go. Raises as `attach`."""
        self._until = time.monotonic() + self._patience
        self._settle()
        return self._ask(Op.DETACH, slot, 0, 0, 0, Limits())

    def free_slot(self) -> int | None:
        """The free slot that has been so for longest; None when all are taken."""
        last = {line.slot: line for line in slots.lines(self.segment)}
        free = [s for s in range(1, SLOTS) if s not in last or last[s].state == SlotState.FREE]
        used = sum(line.state != SlotState.FREE for line in last.values())
        if used >= self.segment.layout.program_slots or not free:
            return None
        return min(free, key=lambda s: last[s].change if s in last else 0)

    def _settle(self) -> None:
        """Until the last request has been answered, is in force everywhere, and a live drainer has read it."""
        at = self.segment.layout.requests_offset
        while True:
            commit = self.segment.read(at + Requests.COMMIT, 1)[0]
            last = slots.answer(self.segment)
            if commit == last.number & 0xFF and self._in_force(last.number):
                pid, start = self.segment.lease()
                seen = self.segment.read(at + Requests.SEEN, 1)[0]
                if seen == commit or not alive(pid, start):
                    self._last = last.number
                    return
                self._nap(f"{named(pid)}, which records it, has not read the last change")
            else:
                self._nap()

    def _ask(self, op: Op, slot: int, offset: int, length: int, crc: int, limits: Limits) -> slots.Answer:
        lay, number = self.segment.layout, self._last + 1
        numbers = min(limits.instructions, UNLIMITED), min(limits.rows, UNLIMITED)
        body = REQUEST.pack(number, op, slot, offset, length, crc, 0, *numbers, 0)[:-4]
        self._poke(lay.requests_offset + Requests.REQUEST, body + struct.pack("<I", zlib.crc32(body)))
        try:
            self._poke(lay.requests_offset + Requests.COMMIT, bytes([number & 0xFF]))
            while not self._answered(number):
                self._nap()
        except BaseException as e:
            return self._give_up(number, e)
        return slots.answer(self.segment)

    def _give_up(self, number: int, because: BaseException) -> slots.Answer:
        """Withdraw a request; what the engine says to it after all, if it has taken it. Raises otherwise."""
        patient = isinstance(because, MegascopeError)
        until = time.monotonic() + GRACE_S * patient
        while not self._withdrawn(number):
            if patient and self._answered(number):
                return slots.answer(self.segment)
            if self._gone():
                raise because
            if time.monotonic() > until:
                why = because.why if isinstance(because, MegascopeError) else "it was given up"
                code = Exit.INTERRUPTED if isinstance(because, KeyboardInterrupt) else Exit.FAILED
                raise Unanswered(self.segment, self.what, why, code) from because
            self._idle()
        if isinstance(because, MegascopeError) and not self._gone():
            todo = because.todo if because.todo != _STATE else "try again later"
            raise MegascopeError(because.what, f"{because.why}; the request is withdrawn", todo, code=because.code)
        raise because

    def _withdrawn(self, number: int) -> bool:
        """Withdraw request `number`, unless the engine has taken it or is about to."""
        lay = self.segment.layout
        at = lay.requests_offset + Requests.COMMIT
        if not file_lock.take(self.segment.fd, at):
            return False
        try:
            if int(self.segment.words(lay.reply_offset + HostReply.TAKEN * WORD, 1)[0]) == number:
                return False
            self._poke(at, bytes([(number - 1) & 0xFF]))
            return True
        finally:
            file_lock.release(self.segment.fd, at)

    def _answered(self, number: int) -> bool:
        return slots.answer(self.segment).number == number and self._in_force(number)

    def _room(self, length: int) -> int:
        """Where an image can stand: before, between or behind those in use. Raises Refused without such a place."""
        room = self.segment.layout.image_bytes
        used = sorted(
            (line.offset, line.offset + line.length)
            for line in slots.lines(self.segment)
            if line.state != SlotState.FREE
        )
        at = 0
        for begin, end in used:
            if at + length <= begin:
                break
            at = max(at, -(-end // 8) * 8)
        if at + length > room:
            free = room - sum(end - begin for begin, end in used)
            raise Refused(
                self.what, f"its image has {length:,} bytes, of {room:,} {free:,} are free", "detach another program"
            )
        return at

    def _in_force(self, number: int) -> bool:
        return bool((self.segment.cursors()[:, Cursor.PROGRAMS] >= number).all())

    def _gone(self) -> bool:
        return not self.segment.status().live

    def _ended(self) -> MegascopeError:
        return MegascopeError(self.what, f"the engine has {self.segment.status().text}", _STATE)

    def _nap(self, why: str = "") -> None:
        """Wait a little. why: for what; without it, for the engine. Raises MegascopeError after too long."""
        if not why and self._gone():
            raise self._ended()
        if time.monotonic() > self._until:
            if why:
                raise MegascopeError(self.what, why, _STATE)
            found = standing(self.segment)
            why = found.why or "it serves no requests, or it is overloaded"
            raise MegascopeError(self.what, f"the engine does not answer: {why}", found.todo or _STATE)
        self._idle()

    def _poke(self, offset: int, data: bytes) -> None:
        self.segment.whole()
        os.pwrite(self.segment.fd, data, offset)
