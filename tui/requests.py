"""Requests: how long each took, where its time went, and its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from . import queries
from .cells import WAITS
from .database import Answer, Question
from .literals import Clause, fill, where
from .page import Column, page_of, text
from .rows import Rows
from .times import count, duration, moment, share
from .workbench import MOVING, Workbench

PAGE = 200

COLUMNS = (
    Column("request", "request", str),
    Column("external_id", "id", right=False),
    Column("state", "state", lambda v: "–" if v is None else text(v), right=False),
    Column("queued_ns", "queued", duration),
    Column("ttft_ns", "1st token", duration),
    Column("per_token_ns", "a token", duration),
    Column("total_ns", "total", duration),
    Column("tokens", "tokens", count),
)

_PARTS = (
    ("running its tasks", "exec_ns", "shared_exec_ns", "#5aa9e6"),
    ("tasks in a queue", "queue_ns", "shared_queue_ns", "#b28dff"),
    *(
        (f"waiting for {name}", f"wait_{name}_ns", f"shared_wait_{name}_ns", colour)
        for name, _, colour in WAITS
        if name != "none"
    ),
)


class Requests(Workbench):
    """A list of requests, and where the time of the one under the cursor went."""

    KEY = "requests"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "order", "sort", tooltip="sort by the next of arrival, 1st token, a token, total, queued, tokens"),
        Binding("enter", "", "tasks", show=False, tooltip="its tasks: its own and those of batches with it in"),
        Binding("x", "request", "select", tooltip="select this request, everywhere; again: all"),
        Binding("w", "timeline", "timeline", tooltip="its time on the timeline"),
        Binding("right_square_bracket", "turn(1)", "next page", show=False, tooltip="the next rows"),
        Binding("left_square_bracket", "turn(-1)", "previous page", show=False, tooltip="the rows before"),
    ]
    MORE_KEYS = MOVING

    def __init__(self) -> None:
        super().__init__()
        self._order = queries.REQUEST_ORDERS[0]
        self._offset = 0

    def body(self) -> Iterable[Widget]:
        yield Static(id="requests-heading", classes="line")
        yield Rows(id="requests", empty="…")
        yield Static(id="detail")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Rows).focus()

    def ask_all(self) -> None:
        sql = fill(
            queries.REQUESTS,
            where=where(*queries.of_requests(self.bench.selection)),
            order=Clause(self._order),
            limit=PAGE + 1,
            offset=self._offset,
        )
        self.ask(Question("requests.list", sql, rows=PAGE, window=self.window, shape=page_of(COLUMNS)))

    def show(self, answer: Answer) -> None:
        rows = self.query_one(Rows)
        rows.show(answer.value, empty="no request is known here; the engine tells of requests through its host ring")
        shown = answer.table.num_rows
        told = Text(no_wrap=True, overflow="ellipsis")
        if shown:
            last = self._offset + shown
            told.append(f"requests {self._offset + 1:,} to {last:,} of {'>' if answer.more else ''}{last:,}", "bold")
            told.append(f", by {self._order.removesuffix(' DESC').removesuffix('_ns')}")
            told.append(", most first" if self._order.endswith("DESC") else "")
            told.append("  ] next" if answer.more else "", "dim")
        self.query_one("#requests-heading", Static).update(told)
        chosen = self.bench.selection.request
        if chosen is not None:
            rows.find("request", chosen)
        self._tell_detail()

    def on_rows_moved(self, _: Rows.Moved) -> None:
        """Tell of the request under the cursor."""
        self._tell_detail()

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter: its tasks."""
        self.bench.show_tasks(self.bench.selection.with_(request=event.row["request"]), order="exec_ns DESC")

    def action_order(self) -> None:
        """Sort by the next column."""
        at = queries.REQUEST_ORDERS.index(self._order)
        self._order = queries.REQUEST_ORDERS[(at + 1) % len(queries.REQUEST_ORDERS)]
        self._offset = 0
        self.query_one(Rows).cursor = 0
        self.follow(again=True)

    def action_turn(self, by: int) -> None:
        """The next or the previous page."""
        offset = self._offset + by * PAGE
        if offset >= 0 and (by < 0 or len(self.query_one(Rows).page.cells) == PAGE):
            self._offset = offset
            self.query_one(Rows).cursor = 0
            self.follow(again=True)

    def action_request(self) -> None:
        """Select this request, or all."""
        row, selection = self.query_one(Rows).row, self.bench.selection
        if row is not None:
            self.bench.select(selection.with_(request=None if selection.request == row["request"] else row["request"]))

    def action_timeline(self) -> None:
        """Its time on the timeline."""
        row, info = self.query_one(Rows).row, self.bench.info
        if row is None or info is None or info.t_end is None:
            return
        begin = row["arrival"] if row["admitted"] is None else min(row["arrival"], row["admitted"])
        end = row["ended"] if row["ended"] is not None else info.t_end
        self.bench.select(
            self.bench.selection.with_(interval=(begin, max(end, begin) + 1), request=row["request"]), "timeline"
        )

    def _tell_detail(self) -> None:
        row = self.query_one(Rows).row
        detail = self.query_one("#detail", Static)
        if row is None:
            detail.update("")
            return
        told = Text(no_wrap=True, overflow="ellipsis")
        told.append(f"request {row['request']} {text(row['external_id'])}", "bold")
        told.append(f"  {text(row['tenant'])}  slot {row['slot']}  prompt {count(row['prompt_tokens'])}")
        told.append(f"  arrived {moment(row['arrival'] - self.bench.t_zero, 1_000)}")
        told.append(f"\n{'covered ' + share(row['covered']):<28}", "" if row["covered"] == 1 else "#f9c74f")
        told.append(f"{'alone':>12}{'with a batch':>16}\n", "dim")
        told.append_text(self._parts(row))
        detail.update(told)

    def _parts(self, row: dict[str, Any]) -> Text:
        """Time spent by all workers together, alone and with a batch; a batch's time is every member's."""
        told = Text()
        lines = [part for part in _PARTS if row[part[1]] or row[part[2]] or part[1] == "exec_ns"]
        most = max((row[name] or 0 for _, one, other, _ in lines for name in (one, other)), default=0)
        for title, alone, shared, colour in lines:
            told.append(f"{title:<28}{duration(row[alone]):>12}{duration(row[shared]):>16}  ")
            length = round(20 * ((row[alone] or 0) + (row[shared] or 0)) / (2 * most)) if most else 0
            told.append("█" * length + "\n", colour)
        told.rstrip()
        return told
