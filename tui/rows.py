"""The table widget: a page of rows, a cursor, and nothing that it does not show."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from .page import EMPTY, Page

_GAP = 2
_LEAST = 8


class Rows(Widget, can_focus=True):
    """Shows a `Page`. Posts `Chosen` on Enter and `Moved` when the cursor has moved."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--header", "rows--cursor", "rows--note"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home,g", "move(-1000000000)", "first", show=False),
        Binding("end,G", "move(1000000000)", "last", show=False),
        Binding("left", "shift(-1)", "left", show=False),
        Binding("right", "shift(1)", "right", show=False),
        Binding("enter", "choose", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, rows: Rows, row: dict[str, Any]) -> None:
            super().__init__()
            self.rows, self.row = rows, row

        @property
        def control(self) -> Rows:
            return self.rows

    class Moved(Chosen):
        """The cursor stands on another row."""

    def __init__(self, *, id: str | None = None, empty: str = "") -> None:
        """empty: what to say when there are no rows."""
        super().__init__(id=id)
        self.page = EMPTY
        self.empty = empty
        self.cursor = 0
        self._top = 0
        self._column = 0

    def show(self, page: Page, *, empty: str | None = None, keep: bool = True) -> None:
        """Show another page; the cursor stays at its row's number if `keep`."""
        self.page = page
        if empty is not None:
            self.empty = empty
        self.cursor = min(self.cursor, max(len(page.cells) - 1, 0)) if keep else 0
        self._column = min(self._column, max(len(page.titles) - 1, 0))
        self._settle()

    @property
    def row(self) -> dict[str, Any] | None:
        """Values of the row under the cursor."""
        return self.page.rows[self.cursor] if self.cursor < len(self.page.rows) else None

    def find(self, name: str, value: Any) -> bool:
        """Put the cursor on the first row with that value; whether there is one."""
        for i, row in enumerate(self.page.rows):
            if row[name] == value:
                self.cursor = i
                self._settle()
                return True
        return False

    def on_resize(self, _: events.Resize) -> None:
        self._settle()

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        before = self.cursor
        self.cursor = min(max(self.cursor + by, 0), max(len(self.page.cells) - 1, 0))
        self._settle()
        if self.cursor != before and self.row is not None:
            self.post_message(self.Moved(self, self.row))

    def action_page(self, by: int) -> None:
        """Move the cursor by screenfuls."""
        self.action_move(by * max(self.size.height - 2, 1))

    def action_shift(self, by: int) -> None:
        """Show columns further left or right."""
        self._column = min(max(self._column + by, 0), max(len(self.page.titles) - 1, 0))
        self.refresh()

    def action_choose(self) -> None:
        """Choose the row under the cursor."""
        if self.row is not None:
            self.post_message(self.Chosen(self, self.row))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there."""
        self.action_move(self._top + event.y - 1 - self.cursor)

    def _settle(self) -> None:
        visible = max(self.size.height - 1, 1)
        self._top = min(max(self._top, self.cursor - visible + 1), self.cursor)
        self._top = max(min(self._top, len(self.page.cells) - visible), 0)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line: the titles, or a row."""
        width = self.size.width
        plain = self.rich_style
        if not self.page.cells:
            text = self.empty if y == 0 else ""
            return _line(text, self.get_component_rich_style("rows--note") if text else plain, width)
        widths = self._widths(width)
        if y == 0:
            return self._cells(self.page.titles, widths, self.get_component_rich_style("rows--header"), width)
        number = self._top + y - 1
        if number >= len(self.page.cells):
            return _line("", plain, width)
        style = self.get_component_rich_style("rows--cursor") if number == self.cursor and self.has_focus else plain
        if number == self.cursor and not self.has_focus:
            style = plain + Style(bold=True)
        return self._cells(self.page.cells[number], widths, style, width)

    def _cells(self, cells: tuple[str, ...], widths: list[int], style: Style, width: int) -> Strip:
        parts = []
        for i in range(self._column, len(cells)):
            text = cells[i]
            if cell_len(text) > widths[i]:
                text = set_cell_size(text, max(widths[i] - 1, 0)) + "…"
            blank = " " * (widths[i] - cell_len(text))
            parts.append(blank + text if self.page.right[i] else text + blank)
        return _line((" " * _GAP).join(parts), style, width)

    def _widths(self, width: int) -> list[int]:
        """Text columns give way, the widest first, until the columns fit or all are narrow."""
        widths = list(self.page.widths)
        shown = range(self._column, len(widths))
        soft = [i for i in shown if not self.page.right[i]]
        spare = width - sum(widths[i] + _GAP for i in shown) + _GAP
        while spare < 0 and soft:
            widest = max(soft, key=lambda i: widths[i])
            if widths[widest] <= _LEAST:
                break
            cut = min(-spare, max(widths[widest] - _LEAST, 1))
            if len(soft) > 1:
                cut = min(cut, max(widths[widest] - sorted(widths[i] for i in soft)[-2], 1))
            widths[widest] -= cut
            spare += cut
        return widths


def _line(text: str, style: Style, width: int) -> Strip:
    return Strip([Segment(set_cell_size(text, width), style)], width)
