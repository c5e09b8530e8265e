"""printf: the format checked when a query is compiled, the text made on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .errors import Position, Problem
from .query import Piece

_PIECE = re.compile(r"%(-?)(0?)([1-9][0-9]{0,2})?(l{0,2})([a-zA-Z%])|[^%]+|%")


def pieces(text: str, args: int, at: Position) -> tuple[Piece, ...]:
    """A format for so many arguments. Raises Problem."""
    out: list[Piece] = []
    for m in _PIECE.finditer(text):
        if m[5] is None and m[0] != "%":
            out.append(Piece(m[0]))
        elif m[5] == "%":
            out.append(Piece("%"))
        elif m[5] in ("d", "i", "u", "x", "s"):
            out.append(Piece("", m[5].replace("i", "d"), int(m[3] or 0) * (-1 if m[1] else 1), m[2] or " "))
        else:
            raise Problem(at, f"{m[0]} is no conversion", "there are %d %u %x %s, with widths, and %%")
    wanted = sum(1 for p in out if p.conversion)
    if wanted != args:
        raise Problem(at, f"the format wants values: {wanted}, and is given: {args}")
    return tuple(out)


def formatted(format: Sequence[Piece], values: Sequence[int], names: Sequence[Mapping[int, str]]) -> str:
    """The text. names: of each value, what its numbers are called where %s asks for it."""
    out, i = [], 0
    for p in format:
        if not p.conversion:
            out.append(p.text)
            continue
        value, known = values[i], names[i]
        i += 1
        match p.conversion:
            case "x":
                text = f"{value & (1 << 64) - 1:x}"
            case "u":
                text = str(value & (1 << 64) - 1)
            case "s":
                text = known.get(value, str(value))
            case _:
                text = str(value)
        zero = p.fill == "0" and p.width > 0 and p.conversion != "s"
        out.append(text.zfill(p.width) if zero else text.ljust(-p.width) if p.width < 0 else text.rjust(p.width))
    return "".join(out)
