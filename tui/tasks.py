"""Tasks: filter, sort, and follow one from its dependency to the task that released it and the worker that ran that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from . import queries
from .database import WHOLE, Answer, Question
from .dialogs import Prompt
from .filters import conditions
from .literals import Clause, fill, where
from .page import Column, Page, page_of, text
from .rows import Rows
from .task_detail import detail
from .times import duration, moment, request, task
from .workbench import MOVING, Workbench

PAGE = 200
"""Rows fetched at once."""

_MISSING = ((1, "ready"), (2, "assign"), (4, "start"), (8, "complete"))


def missing(bits: int | None) -> str:
    """Which of a task's events were not recorded."""
    return " ".join(name for bit, name in _MISSING if (bits or 0) & bit)


def columns(t_zero: int, *, ranked: bool) -> tuple[Column, ...]:
    """The list's columns; times since `t_zero`. ranked: tasks are of several ranks."""
    return (
        Column("task", "task", task, right=False),
        Column("class", "class", lambda v: "(unknown)" if v is None else text(v), right=False),
        Column("start", "start", lambda v: "–" if v is None else moment(v - t_zero, 10)),
        Column("exec_ns", "exec", duration),
        Column("queue_ns", "queue", duration),
        *((Column("rank", "rank", str),) if ranked else ()),
        Column("worker", "worker", lambda v: "–" if v is None else str(v)),
        Column("request", "request", request),
        Column("missing", "not seen", missing, right=False),
    )


@dataclass(frozen=True)
class Asked:
    """What the list shows: a filter, or the producers of a dependency in one iteration."""

    filter: str = ""
    offset: int = 0
    task: int | None = None
    """Put the cursor on this one"""
    producers: tuple[int, int, str] | None = None
    """(iteration, dependency, its name)"""


class Tasks(Workbench):
    """A list of tasks, and what is known of the one under the cursor."""

    KEY = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", tooltip="e.g. attn worker=3 exec>20us missing"),
        Binding("o", "order(1)", "sort", tooltip="sort by the next of start, exec, queue, complete, class, worker"),
        Binding("d", "producer", "producer", tooltip="go to the task that released its last dependency"),
        Binding("p", "producers", "producers", show=False, tooltip="all tasks that release that dependency"),
        Binding("w", "worker", "worker", tooltip="its worker on the timeline, at its time"),
        Binding("b,backspace", "back", "back", tooltip="back to where the last jump began"),
        Binding("x", "class_", "class", show=False, tooltip="select its class, everywhere; again: all"),
        Binding("right_square_bracket", "turn(1)", "next page", show=False, tooltip="the next rows"),
        Binding("left_square_bracket", "turn(-1)", "previous page", show=False, tooltip="the rows before"),
        Binding("enter", "interval", "interval", show=False, tooltip="select its interval of time, everywhere"),
    ]
    MORE_KEYS = MOVING

    def __init__(self) -> None:
        super().__init__()
        self._order = queries.TASK_ORDERS[0]
        self._asks = Asked()
        self._past: list[Asked] = []
        self._detail: dict[str, Any] | None = None
        self._releaser: Answer | None = None

    def body(self) -> Iterable[Widget]:
        yield Static(id="tasks-heading", classes="line")
        yield Rows(id="tasks", empty="…")
        yield Static(id="detail")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Rows).focus()

    def renew(self) -> None:
        """Show what is selected, from its first row and without a filter."""
        super().renew()
        self._asks, self._past = Asked(), []
        self.query_one(Rows).cursor = 0

    def ask_all(self) -> None:
        self._order, self.bench.order_wanted = self.bench.order_wanted or self._order, None
        asked, selection = self._asks, self.bench.selection
        if asked.producers is not None:
            iteration, dep, _ = asked.producers
            sql = fill(queries.PRODUCERS, iteration=iteration, dep=dep)
            self.ask(Question("tasks.list", sql, rows=PAGE, shape=self._shape))
            return
        filtered = conditions(asked.filter)
        jumped = asked.task is not None
        sql = fill(
            queries.TASKS,
            where=where(*([] if jumped else queries.of_tasks(selection)), *filtered),
            order=Clause(self._order),
            limit=PAGE + 1,
            offset=asked.offset,
        )
        window = WHOLE if jumped else self.window
        self.ask(Question("tasks.list", sql, rows=PAGE, window=window, shape=self._shape))

    def show(self, answer: Answer) -> None:
        rows = self.query_one(Rows)
        if answer.question.key == "tasks.detail":
            found = answer.table.to_pylist()
            self._detail, self._releaser = (found[0] if found else None), None
            if found and found[0]["released_by"]:
                # A second question finds it by its number; joined to the first, it would be looked for everywhere.
                sql = fill(queries.RELEASER, task=found[0]["released_by"])
                self.ask(Question("tasks.releaser", sql, rows=1))
            self._tell_detail()
            return
        if answer.question.key == "tasks.releaser":
            self._releaser = answer
            self._tell_detail()
            return
        self._detail = None
        self.query_one("#detail", Static).update("")
        rows.show(answer.value, empty=self._nothing())
        if self._asks.task is not None:
            rows.find("task", self._asks.task)
        self._tell_heading(answer)
        if rows.row is not None:
            self._look(rows.row)

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Look at the task under the cursor."""
        self._look(event.row)

    def on_rows_chosen(self, _: Rows.Chosen) -> None:
        """Enter."""
        self.action_interval()

    def action_filter(self) -> None:
        """Ask for a filter."""
        hint = "class  worker=3  request=7  exec>20us  queue>1ms  missing"
        self.app.push_screen(Prompt("filter tasks", hint, self._asks.filter, conditions), self._filter)

    def action_order(self, by: int) -> None:
        """Sort by the next column."""
        at = queries.TASK_ORDERS.index(self._order)
        self._order = queries.TASK_ORDERS[(at + by) % len(queries.TASK_ORDERS)]
        self._go(Asked(self._asks.filter))

    def action_turn(self, by: int) -> None:
        """The next or the previous page."""
        offset = self._asks.offset + by * PAGE
        if offset >= 0 and (by < 0 or len(self.query_one(Rows).page.cells) == PAGE):
            self._go(Asked(self._asks.filter, offset))

    def action_producer(self) -> None:
        """Go to the task that released the last dependency of this one."""
        found = self._detail
        if found is None or not found["released_by"]:
            self.say("it is not known which task released its last dependency")
            return
        to = found["released_by"]
        self._jump(Asked(f"task={task(to)}", task=to))

    def action_producers(self) -> None:
        """All tasks that release its dependency."""
        found = self._detail
        if found is None or not found["dep"]:
            self.say("it waited for no dependency, or that is not known")
            return
        self._jump(Asked(producers=(found["task"] >> 32, found["dep"], text(found["dep_name"]))))

    def action_back(self) -> None:
        """Back to where the last jump began."""
        if self._past:
            self._go(self._past.pop())
        else:
            self.say("there is nothing to go back to")

    def action_worker(self) -> None:
        """Its worker on the timeline."""
        row = self.query_one(Rows).row
        if row is None or row["worker"] is None or row["start"] is None:
            self.say("it is not known which worker ran it, or when")
            return
        self.bench.select(self.bench.selection.with_(worker=row["worker"], interval=_interval(row)), "timeline")

    def action_class_(self) -> None:
        """Select its class, or all."""
        row, selection = self.query_one(Rows).row, self.bench.selection
        if row is not None and row["class"] is not None:
            self.bench.select(
                selection.with_(task_class=None if selection.task_class == row["class"] else row["class"])
            )

    def action_interval(self) -> None:
        """Select its interval of time."""
        row = self.query_one(Rows).row
        if row is not None and row["start"] is not None:
            self.bench.select(self.bench.selection.with_(interval=_interval(row)))

    def _filter(self, value: str | None) -> None:
        if value is not None:
            self._go(Asked(value))

    def _jump(self, to: Asked) -> None:
        row = self.query_one(Rows).row
        here = self._asks
        self._past = [*self._past[-49:], Asked(here.filter, here.offset, row["task"] if row else None, here.producers)]
        self._go(to)

    def _go(self, to: Asked) -> None:
        self._asks = to
        self.query_one(Rows).cursor = 0
        self.follow(again=True)

    def _look(self, row: dict[str, Any]) -> None:
        self.ask(Question("tasks.detail", fill(queries.TASK, task=row["task"], rank=row["rank"]), rows=1))

    @property
    def _shape(self) -> Callable[[pa.Table], Page]:
        return page_of(columns(self.bench.t_zero, ranked=self.bench.ranked))

    def _nothing(self) -> str:
        if self._asks.producers is not None:
            return "no producer of it is in the trace (task_deps names none, or their events were lost)"
        if self._asks.task is not None:
            return f"task {task(self._asks.task)} is not in the trace: its events were lost or are not recorded"
        if self._asks.filter or not self.bench.selection.is_all:
            return "no task is so; / changes the filter, c looks at everything again"
        return "the trace has no tasks"

    def _tell_heading(self, answer: Answer) -> None:
        shown = answer.table.num_rows
        asked = self._asks
        told = Text(no_wrap=True, overflow="ellipsis")
        if asked.producers is not None:
            iteration, dep, name = asked.producers
            told.append(f"producers of {name or dep} in iteration {iteration}: {shown:,}; b goes back")
        elif shown:
            first = asked.offset + 1
            more = ">" if answer.more else ""
            told.append(f"tasks {first:,} to {asked.offset + shown:,} of {more}{asked.offset + shown:,}", "bold")
            told.append(f", by {self._order.removesuffix(' DESC').removesuffix('_ns')}")
            told.append(", most first" if self._order.endswith("DESC") else "")
        if asked.filter:
            told.append("  filter ", "dim")
            told.append(asked.filter, "bold #7fd8ff")
        if answer.more:
            told.append("  ] next", "dim")
        self.query_one("#tasks-heading", Static).update(told)

    def _tell_detail(self) -> None:
        told = Text()
        if self._detail is not None:
            releaser = None if self._releaser is None else self._releaser.table.to_pylist()
            told = detail(self._detail, releaser, self.bench.t_zero)
        self.query_one("#detail", Static).update(told)


def _interval(row: dict[str, Any]) -> tuple[int, int]:
    begin = row["start"]
    return begin, max(row["complete"] or begin, begin) + 1
