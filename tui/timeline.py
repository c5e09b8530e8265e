"""Timeline: workers × time, drawn from tiles; the cursor picks a stretch of time, and every other screen follows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import pyarrow as pa
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from . import legend, queries
from .cells import cells_of
from .database import Answer, Failure, Question
from .lanes import Drawn, Lanes, Span
from .literals import fill
from .times import duration, moment
from .viewport import Viewport
from .workbench import Workbench

_MOST_SPANS = 500


class Timeline(Workbench):
    """Workers × time."""

    KEY = "timeline"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(-1)", "zoom in", key_display="+"),
        Binding("minus", "zoom(1)", "zoom out", key_display="-"),
        Binding("space", "mark", "mark", tooltip="begin an interval here; a second time: select it, everywhere"),
        Binding("enter", "tasks", "tasks", tooltip="the tasks of this worker in this cell, or in the interval"),
        Binding("f", "fit", "fit", tooltip="show the whole trace"),
        Binding("i", "interval", "interval", show=False, tooltip="show the selected interval"),
        Binding("w", "worker", "worker", show=False, tooltip="select this worker, everywhere; again: all"),
        Binding("escape", "unmark", "no interval", show=False, tooltip="forget where an interval was to begin"),
        Binding("x", "loss", "next loss", show=False, tooltip="go to the next place where something is missing"),
        Binding("left", "move(0, -1)", "left", show=False, tooltip="move the cursor; at the edge the view moves too"),
        Binding("right", "move(0, 1)", "right", show=False),
        Binding("up,k", "move(-1, 0)", "up", show=False),
        Binding("down,j", "move(1, 0)", "down", show=False),
        Binding("h,shift+left", "pan(-1)", "pan left", show=False, tooltip="half a screen to the left"),
        Binding("l,shift+right", "pan(1)", "pan right", show=False, tooltip="half a screen to the right"),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "end(-1)", "begin", show=False, tooltip="the begin of the trace"),
        Binding("end", "end(1)", "end", show=False, tooltip="the end of the trace"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._fitted = True
        self._interval: tuple[int, int] | None = None
        self._from_tasks = False
        self._loss: Span | None = None

    def body(self) -> Iterable[Widget]:
        yield Lanes(id="lanes")
        yield Static(id="cell", classes="line")
        yield Static(legend.line(), id="legend", classes="line")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Lanes).focus()

    @property
    def lanes(self) -> Lanes:
        return self.query_one(Lanes)

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self.call_after_refresh(self._resized)

    def _resized(self) -> None:
        lanes = self.lanes
        if lanes.view is not None and lanes.view.width != lanes.lane_width:
            if self._fitted:
                self.action_fit()
            else:
                self._see(lanes.view.resized(lanes.lane_width))

    def ask_all(self) -> None:
        """Look at what is selected, and ask for it."""
        bench, lanes = self.bench, self.lanes
        lanes.ids, lanes.roles, lanes.ranks = bench.worker_ids, bench.roles, bench.ranks
        selection = bench.selection
        lanes.interval, lanes.t_zero = selection.interval, bench.t_zero
        if selection.worker in lanes.ids:
            lanes.row = lanes.ids.index(selection.worker)
        if self._whole() is None:
            lanes.empty = "no events were recorded, so there is no timeline"
            lanes.refresh()
            return
        if selection.interval is not None and selection.interval != self._interval:
            begin, end = selection.interval
            margin = (end - begin) // 2
            self._fitted = False
            self._see(Viewport.fit(max(begin - margin, 0), end + margin, lanes.lane_width), begin)
        elif lanes.view is None or self._fitted:
            self.action_fit()
        else:
            self._fetch()
        self._interval = selection.interval

    def show(self, answer: Answer) -> None:
        lanes = self.lanes
        if answer.question.key == "timeline.loss":
            lanes.lost = answer.value
        elif answer.question.key == "timeline.marks":
            lanes.notes = answer.value
        elif not answer.table.num_rows and not self._from_tasks and answer.value.view.level is not None:
            # A trace whose tiles are not built yet may still have tasks to draw from.
            self._from_tasks = True
            self._fetch()
            return
        else:
            lanes.drawn = answer.value
            self._tell_standing()
        lanes.refresh()
        self._tell_cell()

    def fail(self, failure: Failure) -> None:
        self.lanes.drawn = None
        self.lanes.empty = ""
        self.lanes.refresh()
        super().fail(failure)

    def action_zoom(self, steps: int) -> None:
        """Zoom at the cursor."""
        lanes = self.lanes
        if lanes.view is not None:
            self._fitted = False
            self._see(lanes.view.zoom(steps, lanes.column))

    def action_fit(self) -> None:
        """Show the whole trace."""
        whole = self._whole()
        if whole is not None:
            self._fitted = True
            self._see(Viewport.fit(*whole, self.lanes.lane_width))

    def action_interval(self) -> None:
        """Show the selected interval."""
        interval = self.bench.selection.interval
        if interval is None:
            self.say("no interval is selected: mark its begin and its end with space")
            return
        self._fitted = False
        self._see(Viewport.fit(*interval, self.lanes.lane_width), interval[0])

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor."""
        lanes = self.lanes
        if lanes.view is None:
            return
        lanes.row = min(max(lanes.row + rows, 0), max(len(lanes.ids) - 1, 0))
        column = lanes.column + columns
        if not 0 <= column < lanes.view.width:
            self._fitted = False
            self._see(lanes.view.pan(columns))
        else:
            lanes.column = column
        self._settle()

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful of workers."""
        self.action_move(by * self.lanes.lane_count, 0)

    def action_pan(self, by: int) -> None:
        """Move by half a screen."""
        lanes = self.lanes
        if lanes.view is not None:
            self._fitted = False
            self._see(lanes.view.pan(by * max(lanes.view.width // 2, 1)))

    def action_end(self, by: int) -> None:
        """Go to the begin or the end of the trace."""
        lanes, whole = self.lanes, self._whole()
        if lanes.view is not None and whole is not None:
            t = whole[0] if by < 0 else whole[1] - 1
            lanes.column = 0 if by < 0 else lanes.view.width - 1
            self._see(lanes.view.pan(lanes.view.column_of(t) - lanes.column))

    def action_mark(self) -> None:
        """Begin an interval at the cursor, or end it there and select it."""
        lanes = self.lanes
        if lanes.view is None:
            return
        t = lanes.view.time_of(lanes.column)
        if lanes.mark is None:
            lanes.mark = t
            self._tell_standing()
            lanes.refresh()
            return
        begin, end = min(lanes.mark, t), max(lanes.mark, t) + lanes.view.cell_ns
        lanes.mark = None
        self._tell_standing()
        self._interval = (begin, end)
        self.bench.select(self.bench.selection.with_(interval=(begin, end)))
        self.say(f"{duration(end - begin)} selected: every screen follows")

    def action_unmark(self) -> None:
        """Begin no interval."""
        self.lanes.mark = None
        self.lanes.refresh()
        self._tell_standing()

    def action_worker(self) -> None:
        """Select the worker under the cursor, or all."""
        worker = self.lanes.worker
        selection = self.bench.selection
        self.bench.select(selection.with_(worker=None if selection.worker == worker else worker))

    def action_tasks(self) -> None:
        """The tasks of the worker under the cursor: in the interval if the cursor is in it, else in its cell."""
        lanes = self.lanes
        if lanes.view is None or lanes.worker is None:
            return
        begin = lanes.view.time_of(lanes.column)
        end = begin + lanes.view.cell_ns
        chosen = self.bench.selection.interval
        inside = chosen is not None and chosen[0] < end and begin < chosen[1]
        interval = chosen if inside else (begin, end)
        self._interval = interval
        self.bench.show_tasks(self.bench.selection.with_(worker=lanes.worker, interval=interval))

    def action_loss(self) -> None:
        """Go to the next loss in order of time, and round again."""
        lanes = self.lanes
        if lanes.view is None or not lanes.lost:
            self.say("no loss is known here")
            return
        order = sorted(lanes.lost, key=lambda s: (s.begin, -1 if s.worker is None else s.worker))
        span = order[(order.index(self._loss) + 1) % len(order) if self._loss in order else 0]
        self._loss = span
        if span.worker in lanes.ids:
            lanes.row = lanes.ids.index(span.worker)
        self._fitted = False
        self._see(lanes.view.pan(lanes.view.column_of(span.begin) - lanes.column))
        self.say(span.told)

    def _whole(self) -> tuple[int, int] | None:
        info = self.bench.info
        if info is None or info.t_begin is None or info.t_end is None:
            return None
        return info.t_begin, info.t_end + 1

    def _see(self, view: Viewport, cursor: int | None = None) -> None:
        """Show another stretch of time: what is known of it at once, the rest when it has been asked."""
        whole = self._whole()
        if whole is None:
            return
        lanes = self.lanes
        lanes.view = view.within(*whole)
        lanes.column = min(max(lanes.view.column_of(cursor) if cursor is not None else lanes.column, 0), view.width - 1)
        self._settle()

    def _settle(self) -> None:
        """Keep the cursor on the screen, and ask for what is not known."""
        lanes = self.lanes
        lanes.top = min(max(lanes.top, lanes.row - lanes.lane_count + 1), lanes.row)
        lanes.refresh()
        self._tell_cell()
        if not self._is_known():
            self._fetch()

    def _is_known(self) -> bool:
        drawn, view = self.lanes.drawn, self.lanes.view
        if drawn is None or view is None or drawn.view.bits != view.bits:
            return False
        inside = drawn.view.first <= view.first and view.last <= drawn.view.last
        return inside and all(worker in drawn.cells.row_of for worker in self.lanes.shown)

    def _fetch(self) -> None:
        """Ask for the visible workers, and half a screen more of time on either side."""
        lanes = self.lanes
        view, workers, whole = lanes.view, tuple(lanes.shown), self._whole()
        if view is None or not workers or whole is None:
            return
        wide = Viewport(view.bits, max(view.first - view.width // 2, 0), view.width * 2)
        sql = queries.timeline(wide, workers, until=whole[1], tasks=self._from_tasks)

        operators = self.bench.operators

        def shape(table: pa.Table) -> Drawn:
            return Drawn(wide, cells_of(table, workers, wide.width, wide.cell_ns, operators))

        window, rows = (wide.begin, wide.end), len(workers) * wide.width
        self.ask(Question("timeline.cells", sql, rows=rows, window=window, shape=shape))
        sql = fill(queries.LOST_WHERE, begin=wide.begin, end=wide.end)
        self.ask(Question("timeline.loss", sql, rows=_MOST_SPANS, shape=partial(legend.spans, window=window)))
        sql = fill(queries.MARKS, begin=wide.begin, end=wide.end)
        self.ask(Question("timeline.marks", sql, rows=_MOST_SPANS, shape=legend.notes))

    def _tell_standing(self) -> None:
        """What is under way, or why there is nothing to see."""
        lanes = self.lanes
        if lanes.mark is not None:
            self.standing("interval begins here: move, and press space at its end; esc: no")
        elif lanes.drawn is not None and not lanes.drawn.cells.known.any():
            self.standing("nothing is known of these workers at this time")
        else:
            self.standing("")

    def _tell_cell(self) -> None:
        """What is under the cursor, in one line."""
        lanes = self.lanes
        if lanes.view is None or lanes.worker is None:
            return
        t = lanes.view.time_of(lanes.column)
        told = Text(no_wrap=True, overflow="ellipsis")
        cell_ns = lanes.view.cell_ns
        told.append(f"worker {lanes.worker} at {moment(t - lanes.t_zero, cell_ns)} + {duration(cell_ns)}: ", "bold")
        cell = lanes.drawn.at(lanes.worker, t) if lanes.drawn is not None else None
        told.append_text(legend.describe(cell, lanes.drawn.view.cell_ns if lanes.drawn else 1, self.bench.class_names))
        for note in (n for n in lanes.notes if t <= n.begin < t + cell_ns):
            told.append(f" · ◆ {note.told}", "bold")
        self.query_one("#cell", Static).update(told)
