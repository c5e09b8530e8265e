"""Overview: what the trace is and whether to trust it, its epochs, and its slowest classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from . import queries, trust
from .cells import BLOCKS
from .database import Answer, Question
from .page import Column, page_of, text
from .rows import Rows
from .times import count, duration
from .workbench import MOVING, Workbench

CLASSES = (
    Column("class", "class", lambda v: "(unknown)" if v is None else text(v), right=False),
    Column("tasks", "tasks", count),
    Column("total_ns", "total", duration),
    Column("p50_ns", "p50", duration),
    Column("p99_ns", "p99", duration),
    Column("max_ns", "max", duration),
    Column("incomplete", "no end", count),
)


class Overview(Workbench):
    """Selection, coverage and loss first; then epochs; then the classes that took longest."""

    KEY = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "order", "sort", tooltip="sort by the next of total, p99, p50, max, tasks"),
        Binding("enter", "", "tasks", show=False, tooltip="the tasks of this class, slowest first"),
    ]
    MORE_KEYS = MOVING

    def __init__(self) -> None:
        super().__init__()
        self._order = 0

    def body(self) -> Iterable[Widget]:
        yield Static(id="what", classes="line")
        yield Static("can it be trusted?", classes="heading")
        yield Static(id="losses", classes="block")
        yield Static("events by epoch", id="epochs-heading", classes="heading")
        yield Static(id="epochs", classes="line")
        yield Static(id="classes-heading", classes="heading")
        yield Rows(id="classes", empty="…")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Rows).focus()

    def tell(self) -> None:
        super().tell()
        info = self.bench.info
        if info is None or not self.is_mounted:
            return
        length = None if info.t_begin is None or info.t_end is None else info.t_end - info.t_begin
        what = (
            f"{info.name}: {count(info.events)} events in {duration(length)} of the {info.clock} clock of {info.engine}"
        )
        if info.end_reason:
            what += f"; ended: {info.end_reason}"
        self.query_one("#what", Static).update(Text(text(what), no_wrap=True, overflow="ellipsis"))
        room = max(self.size.height // 5, 2)
        told = trust.block(self.bench.trust, info, self.size.width, room)
        self.query_one("#losses", Static).update(told if told.plain else Text("nothing was recorded", "dim"))

    def ask_all(self) -> None:
        info = self.bench.info
        assert info is not None
        if info.t_begin is not None and info.t_end is not None and info.epoch_ns > 0:
            first = info.t_begin // info.epoch_ns
            epochs = info.t_end // info.epoch_ns - first + 1
            bars = min(epochs, max(self.size.width - 2, 10))
            sql = queries.fill(queries.EPOCHS, first=first, epochs=epochs, bars=bars)
            self.ask(Question("overview.epochs", sql, rows=bars, shape=lambda t: _bars(t.to_pylist(), bars)))
        else:
            self.query_one("#epochs", Static).update(Text("no events", "dim"))
        order = queries.CLASS_ORDERS[self._order]
        sql = queries.fill(
            queries.SLOWEST,
            where=queries.where(*queries.of_tasks(self.bench.selection)),
            order=queries.Clause(order),
        )
        self.query_one("#classes-heading", Static).update(f"slowest classes, by {order.removesuffix('_ns')}")
        self.ask(Question("overview.classes", sql, window=self.window, shape=page_of(CLASSES)))

    def show(self, answer: Answer) -> None:
        if answer.question.key == "overview.epochs":
            bars, heading = answer.value
            self.query_one("#epochs", Static).update(bars)
            self.query_one("#epochs-heading", Static).update(heading)
        else:
            self.query_one("#classes", Rows).show(answer.value, empty=self._nothing())

    def action_order(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(queries.CLASS_ORDERS)
        self.follow(again=True)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter: the tasks of the class, slowest first."""
        if event.row["class"] is not None:
            self.bench.show_tasks(self.bench.selection.with_(task_class=event.row["class"]), order="exec_ns DESC")

    def _nothing(self) -> str:
        info = self.bench.info
        if info is None or not info.events:
            return "no events were recorded, so there are no tasks"
        return "no tasks here; c looks at everything again"


def _bars(rows: Sequence[dict[str, Any]], bars: int) -> tuple[Text, str]:
    """A bar per group of epochs, as high as its events; in red where some of them are missing."""
    out = Text(no_wrap=True)
    by_bar = {row["bar"]: row for row in rows}
    highest = max((row["observed"] or 0 for row in rows), default=0)
    lossy = 0
    for i in range(bars):
        row = by_bar.get(i)
        observed = (row["observed"] or 0) if row else 0
        if row is None or (not observed and not row["eligible"]):
            out.append(" ")
            continue
        missing = bool(row["missing"])
        lossy += missing
        height = round(observed * (len(BLOCKS) - 1) / max(highest, 1))
        out.append(BLOCKS[height], trust.BAD if missing else trust.GOOD if row["closed"] else trust.WARN)
    heading = f"events by epoch: {count(highest)} at most in one of {bars:,} bars"
    if lossy:
        heading += f"; red: {lossy:,} with losses"
    return out, heading
