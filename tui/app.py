"""The terminal workbench: seven screens over one trace or live segment, one selection, and no query on this thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from textual import work
from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.message import Message
from textual.widgets import Input, TextArea

from ..analyze.session import Session
from . import queries
from .database import Answer, Database, Posted, Question
from .literals import fill
from .model import Selection, Source, TraceInfo
from .trust import Trust, trust_of
from .workbench import SCREENS, Workbench

MEMORY = "1GB"
"""What DuckDB may hold for the screens, and again for the SQL screen; beyond it spills to disk."""
LOAD_AFTER_S = 1.5
"""When the screens that nobody has looked at yet are loaded: the first one comes before."""
FOLLOW_S = 1.0
_PATIENCE = 4
"""A trace that is recorded is opened anew when at least so many times the time has passed that it took to ask it."""


def screen_of(name: str) -> Workbench:
    """A new screen of that name. Its module is loaded now: what attaches programs takes longer to load than to show."""
    made: Workbench = getattr(import_module(f".{name}", __package__), name.capitalize())()
    return made


class Arrived(Message):
    """A database has posted an answer or a failure."""

    def __init__(self, database: Database, posted: Posted) -> None:
        super().__init__()
        self.database, self.posted = database, posted


class Megascope(App[None]):
    """The app. `source`: what to browse; `clock`: seconds, for when to look again at what is live."""

    TITLE = "megascope"
    CSS_PATH = "megascope.tcss"
    ENABLE_COMMAND_PALETTE = False
    MODES: ClassVar[dict[str, str | Callable[[], Any]]] = {name: partial(screen_of, name) for name in SCREENS}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "keys", "keys", tooltip="show the keys of this screen"),
        *(Binding(str(i), f"go('{name}')", name, show=False) for i, name in enumerate(SCREENS, 1)),
        Binding("s", "behind", "SQL", tooltip="show the SQL behind this screen"),
        Binding(
            "c", "clear", "clear", show=False, tooltip="look at everything again: no interval, worker, class, request"
        ),
        Binding("ctrl+r", "again", "refresh", show=False, tooltip="ask everything on this screen again"),
        Binding("q", "quit", "quit", tooltip="quit; a query that runs is ended"),
    ]

    def __init__(self, source: Source, *, threads: int | None = None, history: Path | None = None) -> None:
        """history: where the SQL screen keeps what was asked; None: nowhere."""
        super().__init__()
        self.source, self.history = source, history
        self.selection = Selection()
        self.info: TraceInfo | None = None
        self.trust = Trust()
        self.worker_ids: tuple[int, ...] = ()
        self.roles: dict[int, str] = {}
        self.ranks: dict[int, int] = {}
        self.class_names: dict[int, str] = {}
        self.operators: dict[int, str] = {}
        self.screens_by_key: dict[str, Workbench] = {}
        self.problems: dict[str, str] = {}
        """Why what every screen needs is not known, by the question's key"""
        self.order_wanted: str | None = None
        self.at_end: list[Callable[[], object]] = []
        """What is to be done when no screen is shown any more, as it may take a while"""
        self._session = 0
        self._hooks: list[dict[str, Any]] = []
        self._asked_at = 0.0
        self._took = 0.0
        self._catching_up = False
        self.database = self._database(threads, "screens")
        self.sql_database = self._database(threads, "sql")

    @property
    def t_zero(self) -> int:
        """Device time from which the screens count."""
        return self.info.t_zero if self.info is not None else 0

    @property
    def version(self) -> object:
        """Changes when what the screens show has changed."""
        return self.selection, self._session

    def on_mount(self) -> None:
        self.theme = "textual-dark"
        self.database.start()
        self.sql_database.start()
        self.switch_mode("overview" if self.source.trace else "now")
        if self.source.trace is not None:
            self._look()
            self.set_interval(FOLLOW_S, self._follow)
        self.set_timer(LOAD_AFTER_S, self._load_screens)

    def on_unmount(self) -> None:
        self.database.close()
        self.sql_database.close()
        for end in self.at_end:
            end()

    def select(self, selection: Selection, go: str | None = None) -> None:
        """Look at something else, here or on another screen."""
        self.selection = selection
        if go is not None and go != self.current_mode:
            self.switch_mode(go)
        else:
            self._told()

    def show_tasks(self, selection: Selection, *, order: str | None = None) -> None:
        """Look at something else on the Tasks screen; order: one of `queries.TASK_ORDERS`."""
        self.order_wanted = order
        if (screen := self.screens_by_key.get("tasks")) is not None:
            screen.renew()
        self.select(selection, "tasks")

    def open_sql(self, sql: str) -> None:
        """Take a query to the SQL screen."""
        self.switch_mode("sql")
        self.call_after_refresh(self._edit, sql)

    def follow_trace(self, trace: Path) -> None:
        """Browse the recording that has just begun of the engine that is looked at."""
        self.source = Source(trace, self.source.segment)
        self._look()
        self.set_interval(FOLLOW_S, self._follow)

    def on_arrived(self, message: Arrived) -> None:
        """Hand an answer to the screen that asked, unless that has asked for something else since."""
        posted = message.posted
        # When the app ends, answers may come after the last screen has gone.
        if not self.screen_stack or not message.database.is_current(posted):
            return
        if not isinstance(posted, Answer) and posted.defect is not None:
            raise posted.defect
        if message.database is self.database and self._catching_up:
            # All that is asked of a new opening counts: of a trace that grows, tasks may have to be put together first.
            self._took = time.monotonic() - self._asked_at
            self._catching_up = self.database.busy
        who = posted.question.key.partition(".")[0]
        if who == "app":
            self._know(posted)
        elif (screen := self.screens_by_key.get(who)) is not None:
            if isinstance(posted, Answer):
                screen.take(posted)
            else:
                screen.fail(posted)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """What a key does; what the screen says of the key before goes, except while text is typed."""
        typing = isinstance(default_namespace, Input | TextArea)
        if self.screen_stack and isinstance(self.screen, Workbench) and not typing:
            self.screen.hush()
        return await super().run_action(action, default_namespace, namespaces)

    def action_go(self, name: str) -> None:
        """Switch to a screen."""
        if name != self.current_mode:
            self.switch_mode(name)

    def action_clear(self) -> None:
        """Look at everything again."""
        self.select(Selection())

    def action_again(self) -> None:
        """Ask the current screen's questions again."""
        if isinstance(self.screen, Workbench):
            self.screen.follow(again=True)

    def action_keys(self) -> None:
        """Show the keys of the current screen."""
        if isinstance(self.screen, Workbench):
            self.screen.action_keys()

    def action_behind(self) -> None:
        """Show the SQL behind the current screen."""
        if isinstance(self.screen, Workbench):
            self.screen.action_behind()

    @work(thread=True, group="load")
    def _load_screens(self) -> None:
        """Load the other screens' modules, before a key asks for one."""
        for name in SCREENS:
            import_module(f".{name}", __package__)

    def _database(self, threads: int | None, name: str) -> Database:
        def opened() -> Session:
            assert self.source.trace is not None
            return Session.open(self.source.trace, threads=threads, memory_limit=MEMORY)

        def post(posted: Posted) -> None:
            self.post_message(Arrived(database, posted))

        database = Database(opened, post, name)
        return database

    def _look(self) -> None:
        """Ask what the trace is and what its answers stand for; the screens follow when it is known."""
        self._asked_at, self._catching_up = time.monotonic(), True
        self.database.ask(Question("app.info", queries.TRACE, work=_look_at))

    def _follow(self) -> None:
        """Open a trace anew that is being recorded, not more often than it can be asked."""
        idle = time.monotonic() - self._asked_at > _PATIENCE * self._took
        if self.info is not None and self.info.recording and idle and not self.database.busy:
            self.database.reopen()
            self._look()

    @property
    def ranked(self) -> bool:
        """The recording is of several ranks, so that which one a worker or a task is of says something."""
        return len(set(self.ranks.values())) > 1

    def _know(self, posted: Posted) -> None:
        self.problems.pop(posted.question.key, None)
        if not isinstance(posted, Answer):
            self.problems[posted.question.key] = posted.error
        for screen in self.screens_by_key.values():
            screen.tell_status()
        if not isinstance(posted, Answer):
            return
        match posted.question.key:
            case "app.info":
                self.info, workers, classes = posted.value
                self.worker_ids = tuple(workers["worker"].to_pylist())
                self.roles = dict(zip(self.worker_ids, workers["role"].to_pylist(), strict=True))
                self.ranks = dict(zip(self.worker_ids, workers["rank"].to_pylist(), strict=True))
                ids = classes["id"].to_pylist()
                self.class_names = dict(zip(ids, classes["name"].to_pylist(), strict=True))
                self.operators = dict(zip(ids, classes["operator"].to_pylist(), strict=True))
                self._session = posted.session
                self.database.ask(Question("app.trust", fill(queries.TRUST)))
                self.database.ask(Question("app.losses", fill(queries.LOSSES)))
            case "app.trust":
                self._hooks = posted.table.to_pylist()
                self.trust = trust_of(self._hooks, self.trust.losses)
            case "app.losses":
                self.trust = trust_of(self._hooks, posted.table.to_pylist())
        self._told()

    def _told(self) -> None:
        if isinstance(self.screen, Workbench):
            self.screen.tell()
            self.screen.follow()

    def _edit(self, sql: str) -> None:
        from .sql import Sql

        screen = self.screens_by_key.get("sql")
        if isinstance(screen, Sql):
            screen.edit(sql)


def _look_at(session: Session) -> tuple[TraceInfo, pa.Table, pa.Table]:
    """What the app knows of a trace: its row of view `trace`, its workers and its classes."""
    with session.run(fill(queries.TRACE)) as result:
        row = result.read_all().to_pylist()[0]
    info = TraceInfo(
        name=row["name"] or "",
        state=row["state"],
        engine=row["engine"] or "",
        clock=row["clock_kind"] or "",
        epoch_ns=row["epoch_ns"] or 0,
        t_begin=row["t_begin"],
        t_end=row["t_end"],
        events=row["event_rows"] or 0,
        end_reason=row["end_reason"],
        pid=session.trace.manifest["engine"].get("pid", 0),
        notes=tuple(row["notes"] or ()),
    )
    return info, _by_role(session.trace.table("workers")), session.trace.table("task_classes")


def _by_role(workers: pa.Table) -> pa.Table:
    """Workers by rank, those of one role together: between two ranks' workers should be no lanes of schedulers."""
    workers = workers.sort_by([("rank", "ascending"), ("worker", "ascending")])
    roles = workers["role"].to_pylist()
    order = list(dict.fromkeys(roles))
    return workers.take(sorted(range(len(roles)), key=lambda i: order.index(roles[i])))
