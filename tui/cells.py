"""What one cell of the timeline shows of a worker's time: a glyph and a style.

Tasks are blocks, as high as the share of the cell that they fill, in the colour of their operator. Waits are letters,
so that they are told apart without colours: `d` data, `c` communication, `r` resource, `k` control, `·` for work. A
cell in which events of the worker were lost is underlined in red: less may be known of it than it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.style import Style

from ..store.tables import DEP_CLASSES

BLOCKS = "▁▂▃▄▅▆▇█"
WAITS: tuple[tuple[str, str, str], ...] = (
    ("none", "·", "#6c7086"),
    ("data", "d", "#f9c74f"),
    ("communication", "c", "#f94fd0"),
    ("resource", "r", "#ff9f5a"),
    ("control", "k", "#7fd8ff"),
)
"""Kind of wait, its letter, its colour; in the order of their numbers."""
assert tuple(w[0] for w in WAITS) == DEP_CLASSES
PALETTE = ("#5aa9e6", "#7bc96f", "#b28dff", "#4fd1c5", "#e6b35a", "#8fb3ff", "#a3d977", "#d98cb3", "#66c2a5", "#c9b1ff")
LOST = "#ff5f5f"


@dataclass(frozen=True)
class Cell:
    """What a worker did in one cell; times in ns. lost: its events that were lost somewhere around here."""

    busy: int = 0
    waits: tuple[int, ...] = (0, 0, 0, 0, 0)
    top_class: int | None = None
    lost: int = 0

    @property
    def longest_wait(self) -> int:
        """Kind of the longest wait."""
        return max(range(len(self.waits)), key=self.waits.__getitem__)


@dataclass(frozen=True)
class Look:
    """How a cell is drawn; equal looks next to each other are drawn at once."""

    glyph: str
    style: Style


NOTHING = Look(" ", Style())


class Looks:
    """Looks of cells by what they show; classes of one operator share a colour."""

    def __init__(self, operators: dict[int, str]) -> None:
        """operators: of each class id."""
        order = {name: i for i, name in enumerate(dict.fromkeys(operators.values()))}
        self._colour = {id_: PALETTE[order[name] % len(PALETTE)] for id_, name in operators.items()}
        self._known: dict[tuple[str, str, bool], Look] = {}

    def of(self, cell: Cell, width_ns: int) -> Look:
        """The look of a cell that is `width_ns` wide."""
        kind = cell.longest_wait
        waited = cell.waits[kind]
        if cell.busy == 0 and waited == 0:
            return self._look(" ", "", lost=cell.lost > 0)
        if waited >= cell.busy:
            _, glyph, colour = WAITS[kind]
            return self._look(glyph, colour, lost=cell.lost > 0)
        height = min(max(round(cell.busy * len(BLOCKS) / width_ns), 1), len(BLOCKS))
        return self._look(BLOCKS[height - 1], self.colour(cell.top_class), lost=cell.lost > 0)

    def colour(self, task_class: int | None) -> str:
        """The colour of a class's operator."""
        return self._colour.get(-1 if task_class is None else task_class, PALETTE[0])

    def _look(self, glyph: str, colour: str, *, lost: bool) -> Look:
        key = (glyph, colour, lost)
        if key not in self._known:
            # The underline takes the letter's colour in many terminals: the background makes it red in all.
            style = Style(color=colour or None, bgcolor="#4a1520" if lost else None, underline=lost)
            self._known[key] = Look(glyph, style)
        return self._known[key]


def runs(looks: Iterable[Look]) -> list[tuple[str, Style]]:
    """Text and style of each run of cells with the same style: a third of the time of drawing cell by cell."""
    out: list[tuple[str, Style]] = []
    text: list[str] = []
    style: Style | None = None
    for look in looks:
        if look.style is not style and text:
            assert style is not None
            out.append(("".join(text), style))
            text = []
        style = look.style
        text.append(look.glyph)
    if text:
        assert style is not None
        out.append(("".join(text), style))
    return out


def cells_of(table: pa.Table, workers: Sequence[int], width: int) -> dict[int, list[Cell | None]]:
    """Cells of each worker, [width] each, from an answer to `queries.timeline`; None where nothing is known."""
    out: dict[int, list[Cell | None]] = {w: [None] * width for w in workers}
    columns: list[list[Any]] = [table[c].to_pylist() for c in ("worker", "cell", "busy", "top_class", "lost")]
    waits = zip(*(table[f"wait_{name}"].to_pylist() for name in DEP_CLASSES), strict=True)
    for (worker, at, busy, top, lost), waited in zip(zip(*columns, strict=True), waits, strict=True):
        if worker in out and 0 <= at < width:
            out[worker][at] = Cell(busy or 0, tuple(w or 0 for w in waited), top, lost or 0)
    return out
