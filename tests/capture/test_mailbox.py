"""A request is carried out and answered, or withdrawn; both sides know which it is, whoever gives up or dies."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megascope.capture.programs.execution import Limits
from megascope.capture.segment import file_lock, mailbox, slots
from megascope.capture.segment.layout import MAP_LEAST, Layout
from megascope.capture.segment.mailbox import Mailbox, Unanswered
from megascope.capture.segment.program_words import Code, Requests
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.requests import Request, RequestReader
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.errors import Exit, MegascopeError

NEVER = Limits()


@dataclass
class Engine:
    """The engine's side of the area of programs, at work only when a test says so."""

    writer: SegmentWriter
    requests: RequestReader
    taken: list[int] = field(default_factory=list)
    """slots of the requests that were carried out"""

    def take(self) -> Request | None:
        found = self.requests.next()
        assert found is None or isinstance(found, Request)
        if found is not None:
            self.taken.append(found.slot)
        return found

    def answer(self, request: Request) -> None:
        self.requests.answer(request.number, Code.DONE, 7, arena_used=0)

    def serve(self) -> None:
        if (found := self.take()) is not None:
            self.answer(found)

    @property
    def commit_at(self) -> int:
        return self.writer.layout.requests_offset + Requests.COMMIT


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    layout = Layout(workers=1, monitors=1, host_bytes=4096, program_slots=4, image_bytes=4096, map_bytes=MAP_LEAST)
    with SegmentWriter.create(tmp_path / "a.mseg", layout) as writer:
        writer.beat(1, 0)
        yield Engine(writer, RequestReader(writer))


@pytest.fixture
def segment(engine: Engine) -> Iterator[SegmentReader]:
    with SegmentReader.open(engine.writer.path, write=True) as found:
        yield found


def detach(segment: SegmentReader, slot: int = 1, patience_s: float = 0.02, idle: Callable[[], object] | None = None):
    options = {} if idle is None else {"idle": idle}
    with Mailbox(segment, "cannot detach x", patience_s, **options) as box:
        return box.detach(slot)


def test_what_was_given_up_is_never_carried_out(engine: Engine, segment: SegmentReader) -> None:
    with pytest.raises(MegascopeError, match=r"does not answer.*the request is withdrawn; try again later"):
        detach(segment)
    with (
        Mailbox(segment, "cannot attach x", 0.02) as box,
        pytest.raises(MegascopeError, match="the request is withdrawn"),
    ):
        box.attach(1, b"x", NEVER)
    engine.serve()
    assert engine.taken == []
    # The next one is answered, though nobody has answered those.
    assert detach(segment, 3, 30.0, engine.serve).code == Code.DONE
    assert engine.taken == [3]
    assert slots.answer(segment).number == 1


def test_a_request_is_taken_or_withdrawn_and_both_sides_know_which(engine: Engine, segment: SegmentReader) -> None:
    over, dice = threading.Event(), random.Random(3)

    def run() -> None:
        while not over.is_set():
            engine.serve()
            time.sleep(dice.random() * 0.002)

    thread = threading.Thread(target=run)
    thread.start()
    done: list[int] = []
    withdrawn = 0
    try:
        for i in range(300):
            try:
                detach(segment, 1 + i % 31, (i % 20) * 1e-4)
            except Unanswered:
                raise
            except MegascopeError as e:
                assert e.why.endswith("the request is withdrawn")
                withdrawn += 1
            else:
                done.append(1 + i % 31)
    finally:
        over.set()
        thread.join()
    engine.serve()
    assert engine.taken == done
    assert done
    assert withdrawn


def test_what_the_engine_has_taken_is_waited_for_beyond_patience(engine: Engine, segment: SegmentReader) -> None:
    held: list[Request] = []

    def late() -> None:
        if (found := engine.take()) is not None:
            held.append(found)
        elif held and time.monotonic() > until:
            engine.answer(held.pop())

    until = time.monotonic() + 0.05
    assert detach(segment, 2, 0.01, late).code == Code.DONE


def test_what_is_taken_and_not_answered_may_be_carried_out_and_that_is_said(
    engine: Engine, segment: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "GRACE_S", 0.03)
    held: list[Request] = []

    def take() -> None:
        if (found := engine.take()) is not None:
            held.append(found)

    with pytest.raises(Unanswered, match="it has taken the request, which may still be carried out; megascope progra"):
        detach(segment, 2, 0.01, take)
    # Nobody asks for anything before that is answered, and then anybody may.
    with pytest.raises(MegascopeError, match="does not answer") as e:
        detach(segment, 3, 0.01)
    assert "withdrawn" not in str(e.value)
    engine.answer(held.pop())
    assert detach(segment, 4, 30.0, engine.serve).code == Code.DONE
    assert engine.taken == [2, 4]


def test_an_engine_that_stands_still_while_it_takes_is_not_waited_for(
    engine: Engine, segment: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "GRACE_S", 0.03)
    assert file_lock.take(engine.writer.fd, engine.commit_at)
    with pytest.raises(Unanswered):
        detach(segment, 1, 0.01)
    file_lock.release(engine.writer.fd, engine.commit_at)
    engine.serve()
    assert engine.taken == [1]


def test_an_engine_does_not_wait_for_who_withdraws_and_dies_of_no_lock(engine: Engine, segment: SegmentReader) -> None:
    def look() -> None:
        if not engine.taken:
            assert file_lock.take(segment.fd, engine.commit_at)
            assert engine.take() is None
            file_lock.release(segment.fd, engine.commit_at)
        engine.serve()

    assert detach(segment, 1, 30.0, look).code == Code.DONE
    engine.writer.close()
    segment.poke(engine.commit_at, b"\2")
    assert engine.take() is None


def test_ctrl_c_withdraws(engine: Engine, segment: SegmentReader) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detach(segment, 1, 30.0, interrupt)
    engine.serve()
    assert engine.taken == []

    def too_late() -> None:
        engine.take()
        raise KeyboardInterrupt

    with pytest.raises(Unanswered, match="may still be carried out") as e:
        detach(segment, 1, 30.0, too_late)
    assert e.value.code == Exit.INTERRUPTED


def test_a_request_whose_maker_died_stands_and_the_next_one_waits(engine: Engine, segment: SegmentReader) -> None:
    class Died(BaseException):
        """As a SIGKILL: nothing is done after it."""

    def die() -> None:
        raise Died

    box = Mailbox(segment, "cannot detach x", 30.0, die)
    box._give_up = lambda *_: (_ for _ in ()).throw(Died())  # type: ignore[method-assign]
    with pytest.raises(Died):
        box.detach(5)
    box.close()
    with pytest.raises(MegascopeError, match="does not answer"):
        detach(segment, 6)
    engine.serve()
    assert detach(segment, 6, 30.0, engine.serve).code == Code.DONE
    assert engine.taken == [5, 6]
