"""The timeline's drawing: a lane per worker, a ruler, and a lane that says where something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from .cells import LOST, Cell, Cells, Codes, runs, styles_on
from .times import duration, moment
from .viewport import Viewport

LABEL, RANK = 13, 3
"""Cells before the lanes, for the worker's number and role, and for its rank where there are several."""
HEAD = 2
"""Lines above them: the ruler and the marks."""
_TICK = 18


@dataclass(frozen=True)
class Drawn:
    """What is known of a stretch of time, in the cells of `view`."""

    view: Viewport
    cells: Cells

    def at(self, worker: int, t: int) -> Cell | None:
        """The cell of a worker at a time; None where nothing is known."""
        return self.cells.at(worker, self.view.column_of(t))

    def codes(self, worker: int, view: Viewport) -> Codes:
        """[view.width] what to draw of a worker in the cells of another view, until that has been asked for."""
        out = np.zeros(view.width, np.int16)
        row = self.cells.row_of.get(worker)
        if row is not None:
            columns = ((np.arange(view.width) + view.first << view.bits) >> self.view.bits) - self.view.first
            inside = (columns >= 0) & (columns < self.view.width)
            out[inside] = self.cells.codes[row, columns[inside]]
        return out


@dataclass(frozen=True)
class Span:
    """Something is to be said of a worker (None: of any) between two times: mostly that something is missing."""

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
        self.ranks: dict[int, int] = {}
        self.t_zero = 0
        self.top = 0
        self.row = 0
        self.column = 0
        self.mark: int | None = None
        self.interval: tuple[int, int] | None = None
        self.lost: Sequence[Span] = ()
        self.notes: Sequence[Span] = ()
        self.empty = "…"
        self._base = Style()

    @property
    def label_width(self) -> int:
        """Cells before the lanes."""
        return LABEL + RANK if len(set(self.ranks.values())) > 1 else LABEL

    @property
    def lane_width(self) -> int:
        """Cells of time that fit."""
        return max(self.size.width - self.label_width, 1)

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

    def render_lines(self, crop: Region) -> list[Strip]:
        """All lines of a part of it; the style that they stand on is made once."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """The ruler, the marks, or a lane."""
        width, number = self.size.width, self.top + y - HEAD
        if self.view is not None and y >= HEAD and number < len(self.ids):
            return self._lane(self.view, number).adjust_cell_length(width, self._base)
        return Strip(self._line(y)).adjust_cell_length(width).apply_style(self._base)

    def _line(self, y: int) -> list[Segment]:
        if self.view is None:
            return [Segment(self.empty if y == 0 else "", Style(dim=True))]
        if y == 0:
            return self._ruler(self.view)
        return self._marks(self.view) if y == 1 else []

    def _ruler(self, view: Viewport) -> list[Segment]:
        text = f"{'1 = ' + duration(view.cell_ns):<{self.label_width}}"
        for column in range(0, view.width, _TICK):
            label = "│" + moment(view.time_of(column) - self.t_zero, view.cell_ns)
            if column + len(label) <= view.width:
                text += f"{label:<{_TICK}}"
        return [Segment(text, Style(dim=True))]

    def _marks(self, view: Viewport) -> list[Segment]:
        """Where something is missing, the selected interval, the mark and the cursor."""
        line = [" "] * view.width
        if self.interval is not None:
            self._draw(line, view, *self.interval, "━")
        for span in self.lost:
            self._draw(line, view, span.begin, span.end + 1, "!")
        for note in self.notes:
            self._draw(line, view, note.begin, note.end + 1, "◆")
        if self.mark is not None:
            self._draw(line, view, self.mark, self.mark + 1, "▼")
        line[min(self.column, view.width - 1)] = "▾"
        label = "loss !" if self.lost else ""
        segments = [Segment(f"{label:<{self.label_width}}", _MARKS["!"])]
        return segments + [Segment("".join(run), _MARKS[glyph]) for glyph, run in groupby(line)]

    def _draw(self, line: list[str], view: Viewport, begin: int, end: int, glyph: str) -> None:
        """Draw what lasts from `begin` until before `end`."""
        first, after = max(view.column_of(begin), 0), min(view.column_of(end - 1) + 1, view.width)
        line[first:after] = glyph * (after - first)

    def _lane(self, view: Viewport, number: int) -> Strip:
        worker = self.ids[number]
        at_cursor = number == self.row
        room, what = self.label_width - 6, self.roles.get(worker, "")
        if self.label_width > LABEL:
            what = f"r{self.ranks.get(worker, '?')} {what}"
        label = f"{worker:>4} {what[:room]:<{room}} "
        segments = [Segment(label, self._base + (Style(bold=True, reverse=True) if at_cursor else Style(dim=True)))]
        length = cell_len(label)
        if self.drawn is None:
            return Strip(segments, length)
        codes, styles = self.drawn.codes(worker, view), styles_on(self._base)
        parts = [(codes, False)]
        if at_cursor and self.column < view.width:
            at = self.column
            parts = [(codes[:at], False), (codes[at : at + 1], True), (codes[at + 1 :], False)]
        for part, reverse in parts:
            segments += [Segment(t, s + Style(reverse=True) if reverse else s) for t, s in runs(part, styles)]
        # Its glyphs take one cell each, so that nobody needs to measure them.
        return Strip(segments, length + view.width)


_MARKS = {
    " ": Style(),
    "━": Style(color="#7fd8ff", bold=True),
    "!": Style(color=LOST, bold=True),
    "◆": Style(color="#ffd75f", bold=True),
    "▼": Style(color="#7fd8ff", bold=True),
    "▾": Style(bold=True),
}
