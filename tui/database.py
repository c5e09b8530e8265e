"""One thread that owns a session: questions in, immutable answers out.

The screen asks by key ("tasks.list"). Of one key only the newest question counts: one that has not begun is replaced,
one that runs is interrupted, and an answer that comes too late is dropped. So a burst of keys costs one query, and
nothing that DuckDB does can hold up the screen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..analyze.session import Session
from ..store.errors import MegascopeError

ROWS = 500
"""Rows of an answer, unless the question says otherwise; one more is read to know whether there are more."""
NO_ROWS = pa.table({})
_AGAIN_S = 0.02

Window = tuple[int | None, int | None]
WHOLE: Window = (None, None)


@dataclass(frozen=True)
class Question:
    """`sql`, asked through `window` (device time, ns) of the trace; `key` says who asks.

    shape: makes what is shown of the rows, on the database's thread. work: is done instead of running `sql`. notes:
    ask what the answer stands for, too; of tasks and waits that may take longer than the answer.
    """

    key: str
    sql: str
    rows: int = ROWS
    window: Window = WHOLE
    shape: Callable[[pa.Table], Any] | None = None
    work: Callable[[Session], Any] | None = None
    notes: bool = False


@dataclass(frozen=True)
class Answer:
    """At most `question.rows` rows; `more`: there were others. `notes`: what they stand for, a line per view, if asked.

    value: what `question.shape` made of the rows, or what `question.work` returned.
    session: number of the opening of the trace that answered; it grows as a trace that is being recorded is followed.
    """

    question: Question
    number: int
    table: pa.Table
    more: bool
    notes: tuple[str, ...]
    seconds: float
    session: int
    value: Any = None


@dataclass(frozen=True)
class Failure:
    """Why there is no answer, in one line."""

    question: Question
    number: int
    error: str
    defect: BaseException | None = None
    """An error of ours, which is to end the program with its traceback"""


Posted = Answer | Failure


class Database:
    """Asks a trace on a thread of its own. `open_session` is called on that thread, `post` from it."""

    def __init__(self, open_session: Callable[[], Session], post: Callable[[Posted], None], name: str) -> None:
        """Nothing runs until `start`."""
        self._open, self._post = open_session, post
        self._changed = threading.Condition()
        self._pending: dict[str, tuple[int, Question]] = {}
        self._newest: dict[str, int] = {}
        self._running: tuple[int, str] | None = None
        self._stale = False
        self._closing = False
        self._count = 0
        self._sessions = 0
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._work, name=f"{name}-database", daemon=True)
        self._breaker = threading.Thread(target=self._interrupt, name=f"{name}-interrupt", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        self._breaker.start()

    def ask(self, question: Question) -> int:
        """Ask; returns the question's number. Whatever was asked before under the same key is forgotten."""
        with self._changed:
            self._count += 1
            self._newest[question.key] = self._count
            # Taken out first: a question that is asked anew waits behind the others.
            self._pending.pop(question.key, None)
            self._pending[question.key] = (self._count, question)
            self._changed.notify_all()
            return self._count

    def forget(self, key: str) -> None:
        """Let nothing more come of what was asked under this key."""
        with self._changed:
            self._count += 1
            self._newest[key] = self._count
            self._pending.pop(key, None)
            self._changed.notify_all()

    def is_current(self, posted: Posted) -> bool:
        """Whether nothing was asked since under the same key."""
        with self._changed:
            return self._newest.get(posted.question.key) == posted.number

    @property
    def busy(self) -> bool:
        """Whether something runs or waits."""
        with self._changed:
            return bool(self._running or self._pending)

    def reopen(self) -> None:
        """Open the trace anew before the next question: one that is being recorded has grown."""
        with self._changed:
            self._stale = True

    def close(self, seconds: float = 5.0) -> bool:
        """End the query that runs and the threads; returns whether they ended within that time."""
        with self._changed:
            self._closing = True
            self._pending.clear()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            number, question = taken
            posted = self._answer(number, question)
            with self._changed:
                self._running = None
                current = self._newest.get(question.key) == number and not self._closing
                self._changed.notify_all()
            if current:
                self._post(posted)
        if self._session is not None:
            self._session.close()
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> tuple[int, Question] | None:
        with self._changed:
            while not self._pending and not self._closing:
                self._changed.wait()
            if self._closing:
                return None
            key = next(iter(self._pending))
            number, question = self._pending.pop(key)
            self._running = (number, key)
            return number, question

    def _answer(self, number: int, question: Question) -> Posted:
        begun = time.monotonic()
        try:
            session = self._fresh()
            session.window(*question.window)
            if question.work is not None:
                value = question.work(session)
                return Answer(question, number, NO_ROWS, False, (), time.monotonic() - begun, self._sessions, value)
            with session.run(question.sql) as result:
                table, more = _first(result, result.schema, question.rows)
                views = result.views
            notes = tuple(session.coverage_lines(views)) if question.notes else ()
            value = None if question.shape is None else question.shape(table)
        except MegascopeError as error:
            return Failure(question, number, str(error))
        except Exception as error:
            return Failure(question, number, f"defect: {error!r}", error)
        return Answer(question, number, table, more, notes, time.monotonic() - begun, self._sessions, value)

    def _fresh(self) -> Session:
        """The session; a new one where the trace is to be opened anew."""
        with self._changed:
            stale, self._stale = self._stale or self._session is None, False
        if stale:
            opened = self._open()
            with self._changed:
                before, self._session = self._session, opened
                self._sessions += 1
            if before is not None:
                before.close()
        assert self._session is not None
        return self._session

    def _interrupt(self) -> None:
        """Interrupt, again and again, a query whose answer nobody waits for."""
        while True:
            with self._changed:
                while not self._unwanted():
                    if self._closing and self._running is None:
                        return
                    self._changed.wait()
                if self._session is not None:
                    self._session.interrupt()
                self._changed.wait(_AGAIN_S)

    def _unwanted(self) -> bool:
        if self._running is None:
            return False
        number, key = self._running
        return self._closing or self._newest.get(key) != number


def _first(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> tuple[pa.Table, bool]:
    """The first `rows` rows, and whether there are more; reads no further."""
    taken: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows > rows - count:
            taken.append(batch.slice(0, rows - count))
            return pa.Table.from_batches(taken, schema), True
        taken.append(batch)
        count += batch.num_rows
    return pa.Table.from_batches(taken, schema), False
