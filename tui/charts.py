"""Numbers as bars of characters: counters beside each other, histograms over a logarithmic axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from rich.text import Text

from .times import count, duration, share

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = " ▁▂▃▄▅▆▇█"
COLOUR = "#5aa9e6"
LARGEST = 1 << 63
"""What is counted lies below."""


def scaled(value: float | None, unit: str) -> str:
    """A value in its unit: `1.23 µs`, `4,096 B`; `–` where it is not known."""
    if unit == "ns" or value is None:
        return duration(value)
    return size(value) if unit == "bytes" else count(value)


def size(bytes_: float) -> str:
    """`4,096 B`, `2.01 MB`."""
    told = count(bytes_)
    return f"{told}B" if told[-1].isalpha() else f"{told} B"


def bar(value: float, most: float, width: int) -> str:
    """A bar of at most `width` cells, an eighth of a cell exact; whatever is not nothing is seen."""
    if value <= 0 or most <= 0 or width <= 0:
        return ""
    eighths = max(round(min(value / most, 1.0) * width * 8), 1)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def octave(value: int) -> int:
    """0 of 0, 1 of 1, 2 of 2 and 3, 3 of 4 to 7: the number of bits."""
    return max(value, 0).bit_length()


def sparkline(lower: Sequence[int], counts: Sequence[int], first: int, last: int, width: int) -> str:
    """A histogram in `width` cells or less: octaves `first` to `last`, the fullest of them as high as a cell."""
    octaves = last - first + 1
    each = -(-octaves // max(width, 1))
    cells = [0] * -(-octaves // each)
    for value, n in zip(lower, counts, strict=True):
        at = (min(max(octave(value), first), last) - first) // each
        cells[at] += n
    most = max(cells, default=0)
    return "".join(_HEIGHTS[-(-n * 8 // most) if n else 0] for n in cells) if most else ""


def edges(first: int, last: int, most: int) -> list[int]:
    """Lower ends of at most `most` bars from octave `first` to `last`, and the upper end: the finest that fit.

    A bar is a sixteenth to a whole of an octave, or several octaves. Below 16 it is one number at least.
    """
    for parts in (16, 8, 4, 2, 1):
        found = [e for o in range(first, last + 1) for e in _within(o, parts)]
        if len(found) <= most:
            return [*found, _begin(last + 1)]
    each = -(-(last - first + 1) // max(most, 1))
    return [*(_begin(o) for o in range(first, last + 1, each)), _begin(last + 1)]


def _begin(octave_: int) -> int:
    return 0 if octave_ == 0 else 1 << octave_ - 1


def _within(octave_: int, parts: int) -> list[int]:
    begin, width = _begin(octave_), max(_begin(octave_), 1)
    parts = min(parts, width)
    return [begin + i * width // parts for i in range(parts)]


def histogram(lower: Sequence[int], counts: Sequence[int], unit: str, width: int, height: int) -> Text:
    """A bar for each stretch of a logarithmic axis, the lowest first: from where to where, how many, which share."""
    if not counts:
        return Text("no values", "dim")
    octaves = [octave(v) for v in lower]
    cuts = edges(min(octaves), max(octaves), max(height, 1))
    bars = [0] * (len(cuts) - 1)
    for value, n in zip(lower, counts, strict=True):
        bars[min(bisect_right(cuts, value) - 1, len(bars) - 1)] += n
    some = [i for i, n in enumerate(bars) if n]
    shown = range(some[0], some[-1] + 1)
    total, most = sum(bars), max(bars)
    numbers = [count(bars[i]) for i in shown]
    froms, tos = [scaled(cuts[i], unit) for i in shown], [scaled(min(cuts[i + 1], LARGEST), unit) for i in shown]
    left, middle, right = (max(map(len, column)) for column in (froms, tos, numbers))
    room = width - left - middle - right - 15
    lines = []
    for i, begin, end, number in zip(shown, froms, tos, numbers, strict=True):
        line = Text(f"{begin:>{left}} – {end:>{middle}}  {number:>{right}}  {share(bars[i], total):>6} ", no_wrap=True)
        line.append(bar(bars[i], most, room), COLOUR)
        lines.append(line)
    return Text("\n").join(lines)
