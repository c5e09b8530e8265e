"""What one cell of the timeline shows of a worker's time: a glyph and a style.

Tasks are blocks, as high as the share of the cell that they fill, in the colour of their operator. Waits are letters,
so that they are told apart without colours: `d` data, `c` communication, `r` resource, `k` control, `·` idle. A cell in
which events of the worker were lost is underlined in red: less may be known of it than it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
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
_LOST_BACKGROUND = "#4a1520"

GLYPHS = " " + "".join(letter for _, letter, _ in WAITS) + BLOCKS
"""Glyphs by number."""
_FIRST_BLOCK = 1 + len(WAITS)
_COLOURS = (None, *(colour for _, _, colour in WAITS), *PALETTE)
_FIRST_OPERATOR = 1 + len(WAITS)

I64 = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int16]
"""What is drawn, a number a cell: glyph << 8 | colour << 1 | lost. Cells of one style share the low 8 bits."""


@dataclass(frozen=True)
class Cell:
    """What a worker did in one cell; times in ns. lost: its events that were lost somewhere around here."""

    busy: int
    waits: tuple[int, ...]
    top_class: int
    lost: int


@dataclass(frozen=True)
class Cells:
    """What is known of some workers: [workers, width] each, waits [workers, 5, width]; times in ns."""

    row_of: dict[int, int]
    known: npt.NDArray[np.bool_]
    busy: I64
    waits: I64
    top_class: I64
    lost: I64
    codes: Codes

    def at(self, worker: int, column: int) -> Cell | None:
        """One cell; None where nothing is known."""
        row = self.row_of.get(worker)
        if row is None or not 0 <= column < self.known.shape[1] or not self.known[row, column]:
            return None
        return Cell(
            int(self.busy[row, column]),
            tuple(self.waits[row, :, column].tolist()),
            int(self.top_class[row, column]),
            int(self.lost[row, column]),
        )


def cells_of(table: pa.Table, workers: Sequence[int], width: int, cell_ns: int, operators: dict[int, str]) -> Cells:
    """The cells in an answer to `queries.timeline`, and how they are drawn. operators: of each class id."""
    row_of = {worker: i for i, worker in enumerate(workers)}
    shape = (len(workers), width)
    ids, whose = np.array(workers, np.int64), _ints(table, "worker", -1)
    order = np.argsort(ids)
    # A place among the sorted ids, which is a row only where the id there is the one sought.
    row = np.append(order, -1)[np.searchsorted(ids, whose, sorter=order)]
    row[np.append(ids, -1)[row] != whose] = -1
    column = _ints(table, "cell")
    kept = (row >= 0) & (column >= 0) & (column < width)
    at = (row[kept], column[kept])

    def spread(name: str, blank: int = 0) -> I64:
        out = np.full(shape, blank, np.int64)
        out[at] = _ints(table, name, blank)[kept]
        return out

    known = np.zeros(shape, np.bool_)
    known[at] = True
    busy, top, lost = spread("busy"), spread("top_class", -1), spread("lost")
    waits = np.stack([spread(f"wait_{name}") for name in DEP_CLASSES], axis=1)
    return Cells(row_of, known, busy, waits, top, lost, _codes(busy, waits, top, lost, cell_ns, operators))


def _codes(busy: I64, waits: I64, top: I64, lost: I64, cell_ns: int, operators: dict[int, str]) -> Codes:
    """The longest wait where it is longer than all tasks, else tasks by height. Waiting for work is the background."""
    held_up = 1 + waits[:, 1:].argmax(axis=1)
    idle = (busy * 2 * len(BLOCKS) < cell_ns) & (waits[:, 0] > busy)
    waited = waits[:, 1:].max(axis=1)
    letter = (waited >= busy) & (waited > 0)
    kind = np.where(letter, held_up, 0)
    letter |= idle
    height = np.clip(np.rint(busy * len(BLOCKS) / cell_ns), 1, len(BLOCKS)).astype(np.int64)
    colour_of = np.full(max(operators, default=0) + 2, _FIRST_OPERATOR, np.int64)
    order = {name: i for i, name in enumerate(dict.fromkeys(operators.values()))}
    for id_, name in operators.items():
        colour_of[id_] = _FIRST_OPERATOR + order[name] % len(PALETTE)
    glyph = np.where(letter, 1 + kind, _FIRST_BLOCK - 1 + height)
    colour = np.where(letter, 1 + kind, colour_of[np.clip(top, -1, len(colour_of) - 1)])
    nothing = (busy == 0) & ~letter
    code = np.where(nothing, 0, glyph << 8 | colour << 1) | (lost > 0)
    return code.astype(np.int16)


def _ints(table: pa.Table, name: str, blank: int = 0) -> I64:
    column: Any = table[name].combine_chunks()
    values: I64 = column.fill_null(blank).to_numpy(zero_copy_only=False).astype(np.int64)
    return values


def style_of(code: int) -> Style:
    """The style of a code's low 8 bits."""
    return _STYLES[code & 0xFF]


def _style(low: int) -> Style:
    lost, colour = bool(low & 1), low >> 1
    # The underline takes the letter's colour in many terminals: the background makes it red in all.
    return Style(
        color=_COLOURS[colour] if colour < len(_COLOURS) else None,
        bgcolor=_LOST_BACKGROUND if lost else None,
        underline=lost,
    )


_STYLES = tuple(_style(low) for low in range(256))


@lru_cache(8)
def styles_on(base: Style) -> tuple[Style, ...]:
    """The style of each code's low 8 bits on top of another style: adding that to every run is half of drawing."""
    return tuple(base + style for style in _STYLES)


def runs(codes: Codes, styles: Sequence[Style] = _STYLES) -> list[tuple[str, Style]]:
    """Text and style of each run of cells with the same style: a third of the time of drawing cell by cell."""
    if not len(codes):
        return []
    text = "".join([GLYPHS[glyph] for glyph in (codes >> 8).tolist()])
    low = codes & 0xFF
    cuts = [0, *(np.flatnonzero(np.diff(low)) + 1).tolist(), len(codes)]
    return [(text[a:b], styles[code]) for (a, b), code in zip(pairwise(cuts), low[cuts[:-1]].tolist(), strict=True)]
