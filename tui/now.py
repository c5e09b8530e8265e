"""Now: what every worker of a live engine does or waits for, and deadlocks; else its last word in the trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from ..capture import control
from ..store.errors import MegascopeError
from . import queries, trust
from .database import Answer, Question
from .literals import fill
from .page import Column, Page, page_of, text
from .rows import Rows
from .times import count, duration
from .workbench import MOVING, Workbench

LOOK_S = 0.5
SILENT_S = 2

_RANK = Column("rank", "rank", str)
_DOES = Column("what", "does", right=False)
COLUMNS = (
    Column("worker", "worker", str),
    Column("role", "role", right=False),
    _DOES,
    Column("counts", "seen/wanted"),
    Column("waited_ns", "since", lambda v: "" if v is None else duration(v)),
    Column("task", "with task", right=False),
    Column("fired", "events", count),
)

_RECORDED = (
    Column("worker", "worker", str),
    Column("dep_name", "waits for", lambda v: "work" if v is None else text(v), right=False),
    Column("waiting", "waiting", lambda v: "yes" if v else "no", right=False),
    Column("seen", "seen", count),
    Column("wanted", "wanted", count),
    Column("waited_ns", "since", duration),
    Column("fired", "events", count),
)


def _with_rank(columns: tuple[Column, ...], *, ranked: bool) -> tuple[Column, ...]:
    """And which rank a worker is of, where there are several."""
    return (_RANK, *columns) if ranked else columns


class Looked(Message):
    """A look at the segment is done."""

    def __init__(self, look: control.Look | None, error: str) -> None:
        super().__init__()
        self.look, self.error = look, error


class Now(Workbench):
    """What the workers do at this moment."""

    KEY = "now"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "freeze", "freeze", tooltip="stop looking, or go on"),
        Binding("o", "order", "sort", tooltip="longest waits first, or by worker"),
        Binding("enter", "", "timeline", show=False, tooltip="this worker on the timeline"),
    ]
    MORE_KEYS = MOVING

    def __init__(self) -> None:
        super().__init__()
        self._frozen = False
        self._by_worker = False
        self._look: control.Look | None = None

    def body(self) -> Iterable[Widget]:
        yield Static(id="engine", classes="line")
        yield Static(id="told", classes="block")
        yield Rows(id="now", empty="…")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Rows).focus()
        self.set_interval(LOOK_S, self._again)

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self._again()

    def ask_all(self) -> None:
        if self.bench.source.segment is None:
            if self.bench.info is not None and self.bench.info.recording:
                self._find()
            shape = page_of(_with_rank(_RECORDED, ranked=self.bench.ranked))
            self.ask(Question("now.trace", fill(queries.NOW), shape=shape))

    def show(self, answer: Answer) -> None:
        if self.bench.source.segment is not None:
            return
        told = "no live engine"
        if answer.value.rows:
            told += ": this is each worker's last word when the recording ended"
        self.query_one("#engine", Static).update(Text(told, trust.WARN))
        self.query_one(Rows).show(answer.value, empty="the trace does not say what its workers did last")

    def on_looked(self, message: Looked) -> None:
        """Show what a look found."""
        if message.look is None:
            self.query_one("#engine", Static).update(Text(text(message.error), trust.BAD, no_wrap=True))
            return
        self._look = message.look
        self._tell_look()

    def action_freeze(self) -> None:
        """Stop looking, or go on."""
        self._frozen = not self._frozen
        self.standing("frozen; space goes on" if self._frozen else "")

    def action_order(self) -> None:
        """Longest waits first, or by worker."""
        self._by_worker = not self._by_worker
        self._tell_look()

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter: the worker on the timeline."""
        self.bench.select(self.bench.selection.with_(worker=event.row["worker"]), "timeline")

    def _again(self) -> None:
        if self.bench.source.segment is not None and self.is_current and not self._frozen:
            self._peek()

    @work(thread=True, exclusive=True, group="look")
    def _peek(self) -> None:
        """Look at the segment, off the screen's thread."""
        assert self.bench.source.segment is not None
        try:
            self.post_message(Looked(control.now(self.bench.source.segment), ""))
        except MegascopeError as error:
            self.post_message(Looked(None, str(error)))

    @work(thread=True, exclusive=True, group="find")
    def _find(self) -> None:
        """The segment of the engine that this trace is being recorded from."""
        info = self.bench.info
        found = control.segment_of(info.pid) if info is not None and info.pid else None
        if found is not None:
            self.bench.source = self.bench.source.live(found)

    def _tell_look(self) -> None:
        look = self._look
        if look is None:
            return
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(f"{text(look.name)} ", "bold")
        head.append(look.standing.text, trust.GOOD if look.live and not look.standing.why else trust.BAD)
        head.append(f" · step {look.step:,} · ")
        head.append(f"{look.waiting:,} of {len(look.workers):,} workers {'wait' if look.live else 'waited'}")
        if look.silent_s > SILENT_S:
            head.append(f" · silent for {look.silent_s:.0f} s", trust.BAD)
        if not look.live:
            head.append(" · this is what they did last", trust.WARN)
        self.query_one("#engine", Static).update(head)
        told = [Text(text(look.standing.told), trust.BAD)] if look.standing.told else []
        told += [
            Text.assemble(("deadlock: ", trust.BAD), " → ".join(f"worker {w}" for w in [*cycle, cycle[0]]))
            for cycle in look.cycles[:3]
        ]
        if len(look.cycles) > 3:
            told.append(Text(f"and {len(look.cycles) - 3} more cycles", trust.BAD))
        self.query_one("#told", Static).update(Text("\n").join(told))
        workers = list(look.workers)
        if not self._by_worker:
            workers.sort(key=lambda w: (w["waited_ns"] is None, -(w["waited_ns"] or 0), w["worker"]))
        columns = COLUMNS if look.live else tuple(replace(c, title="did last") if c is _DOES else c for c in COLUMNS)
        columns = _with_rank(columns, ranked=len({w["rank"] for w in workers}) > 1)
        cells = tuple(tuple(c.form(w[c.name]) for c in columns) for w in workers)
        titles, right = tuple(c.title for c in columns), tuple(c.right for c in columns)
        self.query_one(Rows).show(Page(titles, right, cells, tuple(workers)), empty="the engine has no workers")
