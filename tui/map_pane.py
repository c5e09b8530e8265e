"""The maps of one program: which is shown, its keys as a table, and the histogram of the key under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from ..capture import control
from . import trust
from .attached import Program
from .charts import histogram
from .database import Question
from .map_pages import Held, page_of
from .map_questions import ROWS, SPANS, MapInfo, question
from .page import EMPTY, text
from .rows import Rows
from .times import count

WIDE = 120
"""From so many cells on table and histogram stand side by side; below, one at a time."""
KEY = "monitors.map"


class MapPane(Vertical):
    """Shows one map at a time. `ask` gives the question whose answer `show` takes."""

    def __init__(self) -> None:
        super().__init__(id="maps")
        self._program: Program | None = None
        self._maps: tuple[MapInfo, ...] = ()
        self._map = ""
        self._span = 0
        self._charted: bool | None = None
        """histogram instead of table where only one fits; None: of a map with one key"""
        self._held: Held | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="map-line", classes="line")
        with Horizontal():
            yield Rows(id="map", empty="")
            yield Static(id="chart")

    @property
    def info(self) -> MapInfo | None:
        """The map that is shown."""
        return next((m for m in self._maps if m.stream == self._map), None)

    @property
    def is_histogram(self) -> bool:
        return self.info is not None and self.info.kind == "hist"

    def put(self, program: Program | None, maps: Sequence[MapInfo], why_none: str) -> None:
        """The program whose maps are shown. why_none: what to say if nothing of them is there."""
        if program is None or self._program is None or program.key != self._program.key:
            self._held = None
        self._program = program
        self._maps = tuple(m for m in maps if program is not None and program.program in m.programs)
        if self.info is None:
            self._map = self._maps[0].stream if self._maps else ""
            self._held = None
        if not self._maps:
            self.query_one("#map", Rows).show(EMPTY, empty=why_none)
        elif self._held is None:
            self.query_one("#map", Rows).show(EMPTY, empty="…")
        self._tell()

    def ask(self) -> Question | None:
        """What to ask of the map that is shown."""
        info = self.info
        if info is None or self._program is None:
            return None
        shape = self._shape
        what, unit = (shape.what, shape.unit) if shape is not None else (_guess(info), "")
        sql = question(info, self._program.program, what, SPANS[self._span])
        # A death leaves its interval open: every span of time reaches to it.
        still_open = self._program.open > 0
        names = shape.names if shape is not None else ()
        return Question(
            KEY, sql, rows=ROWS + 1, shape=page_of(info, what, unit, self.app.size.width, names, still_open)
        )

    def show(self, held: Held) -> None:
        """The answer."""
        self._held = held
        self.query_one("#map", Rows).show(held.page, empty="it holds nothing here")
        self._tell()

    def next_map(self, by: int) -> None:
        """Show another map."""
        if self._maps:
            at = next((i for i, m in enumerate(self._maps) if m.stream == self._map), 0)
            self._map = self._maps[(at + by) % len(self._maps)].stream
            self._held = None
            rows = self.query_one("#map", Rows)
            rows.cursor = 0
            rows.show(EMPTY, empty="…")
            self._tell()

    def next_span(self) -> None:
        """Look at another stretch of time."""
        self._span = (self._span + 1) % len(SPANS)
        self._tell()

    def toggle(self) -> None:
        """Table or histogram, where they do not stand side by side."""
        self._charted = not self._shows_chart
        self._tell()

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """The cursor stands on another key."""
        event.stop()
        self._tell()

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter: the histogram of the key."""
        event.stop()
        self.toggle()

    def on_resize(self, _: events.Resize) -> None:
        self._tell()

    @property
    def _shape(self) -> control.Shape | None:
        judged = self._program.judged if self._program is not None else None
        return judged.shape(self.info.map) if judged is not None and self.info is not None else None

    def _tell(self) -> None:
        wide = self.app.size.width >= WIDE
        rows, chart = self.query_one("#map", Rows), self.query_one("#chart", Static)
        charted = self.is_histogram and bool(self._held and self._held.buckets)
        chart.display = charted and (wide or self._shows_chart)
        # Not hidden: it keeps the focus, and its keys choose what the histogram is of.
        rows.styles.width = "1fr" if wide or not chart.display else 0
        # Beside a table that fills its half, a gap.
        chart.styles.padding = (0, 0, 0, 2 if wide else 0)
        self.query_one("#map-line", Static).update(self._line())
        if chart.display:
            # It is laid out when it is known that it is shown, and drawn for its size.
            self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        rows, chart = self.query_one("#map", Rows), self.query_one("#chart", Static)
        if self._held is not None and self._held.buckets:
            chart.update(self._chart(self._held, chart, rows))

    @property
    def _shows_chart(self) -> bool:
        one = self._held is not None and len(self._held.buckets) == 1
        return one if self._charted is None else self._charted

    def _line(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        info, held = self.info, self._held
        if info is None:
            return line
        line.append("maps ", "dim")
        for m in self._maps:
            line.append(f" {text(m.map)} ", "reverse bold" if m is info else "")
        known = self._shape is not None or info.kind in ("hist", "stats")
        line.append(f" {SPANS[self._span if known else -1]}")
        if held is not None:
            n = len(held.page.rows)
            line.append(f" · {'the first ' if n >= ROWS else ''}{n:,} key{'s' * (n != 1)}")
            if held.missing:
                line.append(f" · bounds: {count(held.missing)} of {count(held.eligible)} events missing", trust.WARN)
            if self._program is not None and self._program.open:
                line.append(", what its last, open interval missed is unknown", trust.WARN)
            if held.refused:
                line.append(f", {count(held.refused)} found it full", trust.BAD)
        if not known:
            line.append(" · how its epochs add up is not known", "dim")
        return line

    def _chart(self, held: Held, chart: Static, rows: Rows) -> Text:
        at = min(rows.cursor, len(held.buckets) - 1)
        keys = sum(not r for r in held.page.right) - 1
        name = ", ".join(held.page.cells[at][:keys]) or text(self.info.map if self.info else "")
        told = Text(f"{name}: {held.page.cells[at][keys]} values, p50 {held.page.cells[at][keys + 1]}", "bold")
        told.append(", logarithmic axis\n", "not bold dim")
        lower, counts = held.buckets[at]
        unit = self._shape.unit if self._shape is not None else ""
        told.append_text(histogram(lower, counts, unit, chart.size.width or self.app.size.width, chart.size.height - 1))
        return told


def _guess(info: MapInfo) -> str:
    return info.kind if info.kind in ("hist", "stats") else "last" if info.state else ""
