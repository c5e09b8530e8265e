"""The line in which a query is typed: its history, and what the compiler and the verifier say of it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from ..capture import control
from ..store.tables import HOOKS
from . import trust
from .attached import mode
from .history import History
from .page import text

EXAMPLE = "complete { @lat[class] = hist(exec_ns); }"


class QueryLine(Input):
    """Enter posts Input.Submitted; escape posts Left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older(-1)", "older"),
        Binding("down", "older(1)", "newer"),
        Binding("escape", "leave", "leave the line"),
    ]

    class Left(Message):
        """The line is left without an answer."""

    def __init__(self, history: Path | None) -> None:
        super().__init__(id="query", compact=True, select_on_focus=False, placeholder=f"as in: {EXAMPLE}")
        self.history = History(history)

    def action_older(self, by: int) -> None:
        """An older or a newer query."""
        found = self.history.move(by, self.value)
        if found is not None:
            self.put(found)

    def action_leave(self) -> None:
        """Leave the line."""
        self.post_message(self.Left())

    def put(self, query: str) -> None:
        """Put a query into the line."""
        self.value = query
        self.cursor_position = len(query)


def one_line(source: str) -> str | None:
    """A query's source in one line; None where that would say something else: a comment would swallow the rest."""
    lines = [line.strip() for line in source.splitlines()]
    if len(lines) > 1 and any("//" in line for line in lines):
        return None
    return " ".join(line for line in lines if line)


def verdict(said: control.Judged | control.Rejection, typed: str, indent: int, width: int) -> Text:
    """Two or three lines: what the verifier says of a query; or where and why it is refused, with a caret.

    typed: what stands in the line; indent: cells before it; width: of the screen.
    """
    told = Text(no_wrap=True, overflow="ellipsis")
    if isinstance(said, control.Rejection):
        if said.column:
            told.append(_caret(said, typed, indent, width), trust.BAD)
            told.append("\n")
        told.append("rejected ", trust.BAD)
        told.append(text(said.problem))
        return told
    names = {h.id: h.name for h in HOOKS}
    costs = ", ".join(f"{cost} at {names.get(hook, hook)}" for hook, cost in said.cost.items())
    told.append("accepted", trust.GOOD)
    told.append(f" · {mode(said)}", trust.WARN if said.serial_because else "")
    told.append(f" · cost at most {costs}\n")
    told.append(", ".join(_map(s) for s in said.shapes) or "no maps")
    if said.emits:
        told.append(f" · emits raw events{f' of 1 task in {said.sample}' if said.sample > 1 else ''}")
    return told


def _caret(said: control.Rejection, typed: str, indent: int, width: int) -> str:
    """A caret under the line itself; where that has been shifted, a part of the text and a caret under it."""
    before = len(typed) - len(typed.lstrip())
    if indent + len(typed) < width:
        return " " * (indent + before + said.column - 1) + "^"
    line, caret = said.excerpt.split("\n")
    room = width - indent - 1
    first = max(len(caret) - room * 2 // 3, 0)
    return "\n".join(" " * indent + shown[first : first + room] for shown in (text(line), caret))


def _map(shape: control.Shape) -> str:
    unit = f" of {shape.unit}" if shape.unit else ""
    return f"@{text(shape.map)} {shape.what or 'values'}{unit}, {shape.entries:,} keys"
