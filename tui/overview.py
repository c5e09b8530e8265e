"""Overview: what the trace is and whether to trust it, its epochs, and its slowest classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from . import queries, trust
from .cells import BLOCKS
from .database import Answer, Question
from .literals import fill
from .page import Page, text
from .rows import Rows
from .times import count, duration
from .workbench import MOVING, Workbench

COLUMNS = ("class", "tasks", "total", "p50", "p99", "max")


def _tasks(row: dict[str, Any]) -> str:
    """Between how many and how many; `+` where it is not known how many are missing."""
    low, high = row["tasks"]["low"], row["tasks"]["high"]
    if high is None:
        return f"{count(low)}+"
    return count(low) if high == low else f"{count(low)} – {count(high)}"


def _quantile(row: dict[str, Any], bounds: dict[str, Any]) -> str:
    """Between which times the quantile lies; `~` of what was observed, where it is not known how much is missing."""
    if row["selection"] != "all":
        return "–"
    if bounds["refused"]:
        return "too few"
    low, high = duration(round(bounds["low"])), duration(round(bounds["high"]))
    if bounds["low_open"] and bounds["high_open"]:
        return "unknown"
    if bounds["high_open"]:
        return f"≥ {low}"
    if bounds["low_open"]:
        return f"≤ {high}"
    return ("" if row["known"] else "~") + (low if low == high else f"{low} – {high}")


def _least(row: dict[str, Any], name: str) -> str:
    """A sum or the greatest of what was observed: no more than a lower bound, where something may be missing."""
    told = duration(row[name])
    return told if row[name] is None or row["tasks"]["high"] == row["tasks"]["low"] else f"≥ {told}"


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """A class's row of `queries.SLOWEST` as it is shown, with bounds where something is missing."""
    return (
        f"class {row['task_class']}" if row["class"] is None else text(row["class"]),
        _tasks(row),
        _least(row, "total_ns"),
        _quantile(row, row["p50"]),
        _quantile(row, row["p99"]),
        _least(row, "max_ns"),
    )


def page(table: pa.Table) -> Page:
    """The classes' page."""
    rows = table.to_pylist()
    return Page(COLUMNS, (False, *[True] * (len(COLUMNS) - 1)), tuple(cells_of(row) for row in rows), tuple(rows))


def about(rows: Sequence[dict[str, Any]]) -> str:
    """What the signs in the page stand for that need words."""
    told = ""
    if any(row["selection"] == "all" and not row["known"] for row in rows):
        told = "; + ~: observed only: how much is missing is unknown"
    partial = next((row["selection"] for row in rows if row["selection"] != "all"), "all")
    if partial != "all":
        told += f"; –: rows {text(partial) or 'of unknown selection'} are no population"
    return told


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
        what = f"{info.name}: {count(info.events)} events in {duration(length)} of the {info.clock} clock"
        if info.engine != info.name:
            what += f" of {info.engine}"
        if info.end_reason:
            what += "; it ended" if info.end_reason == "ended" else f"; ended: {info.end_reason}"
        elif not info.recording:
            what += "; its end was not recorded"
        if info.t_begin is not None:
            what += f"; 0 is {info.t_begin} ns"
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
            sql = fill(queries.EPOCHS, first=first, epochs=epochs, bars=bars)
            self.ask(Question("overview.epochs", sql, rows=bars, shape=lambda t: _bars(t.to_pylist(), bars)))
        else:
            self.query_one("#epochs", Static).update(Text("no events", "dim"))
        sql = queries.slowest(self.bench.selection, self._by)
        self.ask(Question("overview.classes", sql, window=self.window, shape=page))

    def show(self, answer: Answer) -> None:
        if answer.question.key == "overview.epochs":
            bars, heading = answer.value
            self.query_one("#epochs", Static).update(bars)
            self.query_one("#epochs-heading", Static).update(heading)
        else:
            self.query_one("#classes", Rows).show(answer.value, empty=self._nothing())
            heading = f"slowest classes, by {self._by}{about(answer.value.rows)}"
            self.query_one("#classes-heading", Static).update(Text(heading, no_wrap=True, overflow="ellipsis"))

    def action_order(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(queries.CLASS_ORDERS)
        self.follow(again=True)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter: the tasks of the class, slowest first."""
        if event.row["class"] is not None:
            self.bench.show_tasks(self.bench.selection.with_(task_class=event.row["class"]), order="exec_ns DESC")

    @property
    def _by(self) -> str:
        """What the classes are sorted by, for people."""
        return list(queries.CLASS_ORDERS)[self._order]

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
    heading = f"events by epoch: {count(highest)} at most in one of {bars:,} bars" if bars > 1 else "events: one epoch"
    if lossy:
        heading += f"; red: {lossy:,} with losses"
    return out, heading
