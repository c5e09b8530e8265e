"""The line in which a query is typed, and below it what the compiler and the verifier say of it, as it is typed."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Static

from ..capture import control
from .query_line import QueryLine, verdict

TYPED_S = 0.15
"""A query is judged when nothing was typed for so long."""


class AskBar(Vertical):
    """Posts `Typed` for a text that is to be judged, which `said` answers, and `Asked` for a judged one on Enter."""

    class Typed(Message):
        """A text is to be judged, unless there is none."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Asked(Message):
        """Enter was pressed on a query; judged: what it becomes, or why it is refused."""

        def __init__(self, text: str, verdict: control.Judged | control.Rejection, replaces: str) -> None:
            super().__init__()
            self.text, self.verdict, self.replaces = text, verdict, replaces

    def __init__(self, history: Path | None) -> None:
        super().__init__(id="ask-bar")
        self._history = history
        self._timer: Timer | None = None
        self._said: tuple[str, control.Judged | control.Rejection] | None = None
        self._entered = False
        """Enter was pressed before the verdict came"""
        self._replaces = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="ask"):
            yield Static(id="asks")
            yield QueryLine(self._history)
        yield Static(id="verdict")

    def on_mount(self) -> None:
        self._tell()

    @property
    def line(self) -> QueryLine:
        return self.query_one(QueryLine)

    def edit(self, query: str, replaces: str) -> None:
        """Put a query into the line that is to take the place of a program."""
        self._replaces = replaces
        self.line.put(query)
        self.screen.set_focus(self.line)
        self._tell()

    def done(self, query: str) -> str:
        """A query has been taken: remember it and empty the line. Returns why it could not be remembered, if so."""
        problem = self.line.history.add(query)
        self._replaces = ""
        self.line.put("")
        self._tell()
        return problem

    def said(self, text: str, verdict: control.Judged | control.Rejection) -> None:
        """What the verifier says."""
        if text != self._text:
            return
        self._said = text, verdict
        self._tell()
        if self._entered:
            self._entered = False
            self.post_message(self.Asked(text, verdict, self._replaces))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Something was typed."""
        event.stop()
        self._entered = False
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(TYPED_S, self._judge)
        self._tell()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        if not self._text:
            return
        if self._timer is not None:
            self._timer.stop()
        if self._said is not None and self._said[0] == self._text:
            self.post_message(self.Asked(self._text, self._said[1], self._replaces))
        else:
            self._entered = True
            self._judge()

    def on_query_line_left(self, _: QueryLine.Left) -> None:
        """Escape: what stands in the line stays, but it replaces nothing any more."""
        self._replaces = ""
        self._tell()
        self.screen.focus_next()

    def on_resize(self, _: events.Resize) -> None:
        self._tell()

    @property
    def _text(self) -> str:
        return self.line.value.strip()

    def _judge(self) -> None:
        self.post_message(self.Typed(self._text))

    def _tell(self) -> None:
        prompt = f"{self._replaces}> " if self._replaces else "ask> "
        self.query_one("#asks", Static).update(Text(prompt, "bold"))
        told = Text("", no_wrap=True)
        if self._said is not None and self._said[0] == self._text:
            told = verdict(self._said[1], self.line.value, len(prompt), self.app.size.width)
        elif self._text:
            told = Text("…", "dim")
        self.query_one("#verdict", Static).update(told)
