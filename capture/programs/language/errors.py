"""How a query is refused: one line that names the place, and an excerpt with a caret under it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NamedTuple

from ....store.errors import Refused

SHOWN = 100
"""characters of a line that an excerpt shows"""


class Position(NamedTuple):
    """Where something stands in the text; both count from 1."""

    line: int
    column: int


class Problem(Exception):
    """Something is wrong at a place. `compile`, which has the text, makes a QueryRefused of it."""

    def __init__(self, at: Position, why: str, todo: str = "") -> None:
        super().__init__(why)
        self.at, self.why, self.todo = at, why, todo


class QueryRefused(Refused):
    """A query that cannot be compiled. `line` and `column` count from 1; `excerpt` is the line and a caret under it."""

    def __init__(self, name: str, text: str, problem: Problem) -> None:
        self.line, self.column = problem.at
        where = f"line {self.line}, column {self.column}" if "\n" in text.strip() else f"column {self.column}"
        super().__init__(f"{name}: {where}", problem.why, problem.todo)
        self.excerpt = excerpt(text, problem.at)


def excerpt(text: str, at: Position) -> str:
    """The line of `at`, cut to what a terminal holds, and a caret under its column."""
    lines = text.split("\n")
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    line = "".join(c if c.isprintable() else " " for c in line)
    first = max(0, at.column - 1 - SHOWN // 2) if len(line) > SHOWN else 0
    return f"{line[first : first + SHOWN]}\n{' ' * (at.column - 1 - first)}^"


_ENDS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"|[^";{}\n/]|/(?!\s*\{))*')


def snippet(text: str, at: Position) -> str:
    """What stands at a place: a statement, or what is before a block."""
    lines = text.split("\n")
    rest = lines[at.line - 1][at.column - 1 :] if at.line <= len(lines) else ""
    match = _ENDS.match(rest)
    return match[0].strip() if match else ""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """'did you mean X?' for the nearest of `known`, else `otherwise`."""
    close = difflib.get_close_matches(word, list(known), 1, 0.65)
    return f"did you mean {close[0]}?" if close else otherwise


def listed(words: Iterable[str], most: int = 12) -> str:
    """'a, b, c', cut where there are too many."""
    words = list(words)
    return ", ".join(words[:most]) + (f" … ({len(words)} in all)" if len(words) > most else "")
