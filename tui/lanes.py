"""The timeline's drawing: a lane per worker, a ruler, and a lane that says where something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from .cells import LOST, NOTHING, Cell, Look, Looks, runs
from .times import duration, moment
from .viewport import Viewport

LABEL = 13
"""Cells before the lanes, for the worker's number and role."""
HEAD = 2
"""Lines above them: the ruler and the marks."""
_TICK = 18


@dataclass(frozen=True)
class Drawn:
    """What is known of a stretch of time: cells of each worker, in the cells of `view`."""

    view: Viewport
    cells: dict[int, list[Cell | None]] = field(default_factory=dict)

    def at(self, worker: int, t: int) -> Cell | None:
        """The cell of a worker at a time; None where nothing is known."""
        lane = self.cells.get(worker)
        column = self.view.column_of(t)
        return lane[column] if lane is not None and 0 <= column < len(lane) else None


@dataclass(frozen=True)
class Span:
    """Something is missing between two times of a worker (None: of any)."""

    begin: int
    end: int
    worker: int | None
    told: str


class Lanes(Widget, can_focus=True):
    """Draws; the screen decides what. All times in ns of device time."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lanes--label", "lanes--cursor"}

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view: Viewport | None = None
        self.drawn: Drawn | None = None
        self.ids: Sequence[int] = ()
        self.roles: dict[int, str] = {}
        self.looks = Looks({})
        self.t_zero = 0
        self.top = 0
        self.row = 0
        self.column = 0
        self.mark: int | None = None
        self.interval: tuple[int, int] | None = None
        self.lost: Sequence[Span] = ()
        self.empty = "…"

    @property
    def lane_width(self) -> int:
        """Cells of time that fit."""
        return max(self.size.width - LABEL, 1)

    @property
    def lane_count(self) -> int:
        """Workers that fit."""
        return max(self.size.height - HEAD, 1)

    @property
    def shown(self) -> Sequence[int]:
        """The workers that are on the screen."""
        return self.ids[self.top : self.top + self.lane_count]

    @property
    def worker(self) -> int | None:
        """The worker under the cursor."""
        return self.ids[self.row] if self.row < len(self.ids) else None

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return container.width

    def render_line(self, y: int) -> Strip:
        """The ruler, the marks, or a lane."""
        width = self.size.width
        return Strip(self._line(y)).adjust_cell_length(width).apply_style(self.rich_style)

    def _line(self, y: int) -> list[Segment]:
        if self.view is None:
            return [Segment(self.empty if y == 0 else "", Style(dim=True))]
        if y == 0:
            return self._ruler(self.view)
        if y == 1:
            return self._marks(self.view)
        number = self.top + y - HEAD
        return self._lane(self.view, number) if number < len(self.ids) else []

    def _ruler(self, view: Viewport) -> list[Segment]:
        text = f"{'1 = ' + duration(view.cell_ns):<{LABEL}}"
        for column in range(0, view.width, _TICK):
            label = "│" + moment(view.time_of(column) - self.t_zero, view.cell_ns)
            if column + len(label) <= view.width:
                text += f"{label:<{_TICK}}"
        return [Segment(text, Style(dim=True))]

    def _marks(self, view: Viewport) -> list[Segment]:
        """Where something is missing, the selected interval, the mark and the cursor."""
        line: list[Look] = [NOTHING] * view.width
        if self.interval is not None:
            begin, end = view.column_of(self.interval[0]), view.column_of(self.interval[1] - 1)
            for column in range(max(begin, 0), min(end + 1, view.width)):
                line[column] = _INTERVAL
        for span in self.lost:
            begin, end = view.column_of(span.begin), view.column_of(span.end)
            for column in range(max(begin, 0), min(end + 1, view.width)):
                line[column] = _LOST
        if self.mark is not None and 0 <= (column := view.column_of(self.mark)) < view.width:
            line[column] = _MARK
        line[min(self.column, view.width - 1)] = _CURSOR
        label = "loss !" if self.lost else ""
        return [Segment(f"{label:<{LABEL}}", Style(color=LOST)), *(Segment(t, s) for t, s in runs(line))]

    def _lane(self, view: Viewport, number: int) -> list[Segment]:
        worker = self.ids[number]
        at_cursor = number == self.row
        label = f"{worker:>4} {self.roles.get(worker, '')[: LABEL - 6]:<{LABEL - 6}} "
        looks = [self._look(view, worker, column) for column in range(view.width)]
        if at_cursor and self.column < view.width:
            under = looks[self.column]
            looks[self.column] = Look(under.glyph, under.style + Style(reverse=True))
        segments = [Segment(t, s) for t, s in runs(looks)]
        return [Segment(label, Style(bold=True, reverse=True) if at_cursor else Style(dim=True)), *segments]

    def _look(self, view: Viewport, worker: int, column: int) -> Look:
        cell = self.drawn.at(worker, view.time_of(column)) if self.drawn is not None else None
        return NOTHING if cell is None or self.drawn is None else self.looks.of(cell, self.drawn.view.cell_ns)


_INTERVAL = Look("━", Style(color="#7fd8ff", bold=True))
_LOST = Look("!", Style(color=LOST, bold=True))
_MARK = Look("▼", Style(color="#7fd8ff", bold=True))
_CURSOR = Look("▾", Style(bold=True))
