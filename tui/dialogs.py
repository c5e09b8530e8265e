"""What opens over a screen: its keys, the SQL behind it, and a line to fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ..store.errors import MegascopeError
from . import trust
from .database import Question
from .page import text

_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "full_stop": ".",
    "space": "space",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "escape": "esc",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def key_name(key: str) -> str:
    """A key as it stands on a keyboard."""
    return "+".join(_NAMES.get(k, k) for k in key.split("+"))


class _Reader(ModalScreen[None]):
    """Text to read and scroll; Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,s", "dismiss(None)", "close")]

    def __init__(self, title: str, told: Text) -> None:
        super().__init__()
        self._title, self._told = title, told

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="reader") as box:
            box.border_title = self._title
            box.border_subtitle = self._subtitle
            yield Static(self._told)

    def on_mount(self) -> None:
        self.query_one("#reader").focus()

    _subtitle = "esc closes"


class Keys(_Reader):
    """All keys of a screen."""

    def __init__(self, title: str, groups: Iterable[tuple[str, Sequence[BindingType]]]) -> None:
        """groups: a heading and its bindings."""
        told = Text()
        for heading, bindings in groups:
            told.append(f"{heading}\n", "bold")
            for binding in bindings:
                if isinstance(binding, Binding) and binding.description:
                    keys = " ".join(key_name(k.strip()) for k in binding.key.split(","))
                    told.append(f"  {keys:<16}", "bold #7fd8ff")
                    told.append(f"{binding.tooltip or binding.description}\n")
            told.append("\n")
        told.rstrip()
        super().__init__(f"keys: {title}", told)


class Behind(ModalScreen[str | None]):
    """The SQL behind a screen and what its answers stand for; Enter takes a query to the SQL screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,s", "dismiss(None)", "close"),
        Binding("enter", "take", "to the SQL screen"),
        Binding("n,tab", "next(1)", "next query"),
        Binding("p,shift+tab", "next(-1)", "previous query"),
    ]

    def __init__(self, title: str, asked: Sequence[Question]) -> None:
        """asked: the screen's questions; `tell` says later what their answers stand for."""
        super().__init__()
        self._title, self._asked = title, asked
        self._told: Sequence[Sequence[str]] = ()
        self._at = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="reader") as box:
            box.border_title = f"SQL behind {self._title}"
            box.border_subtitle = "enter: to the SQL screen · n: next query · esc: close"
            yield Static(id="behind")

    def on_mount(self) -> None:
        self.query_one("#reader").focus()
        self._show()

    def tell(self, notes: Sequence[Sequence[str]]) -> None:
        """What the answer to each question stands for."""
        self._told = notes
        self._show()

    def action_next(self, by: int) -> None:
        """Show another of the screen's queries."""
        self._at = (self._at + by) % max(len(self._asked), 1)
        self._show()

    def action_take(self) -> None:
        """Close, and hand the query over."""
        self.dismiss(self._asked[self._at].sql if self._asked else None)

    def _show(self) -> None:
        told = Text()
        if not self._asked:
            told.append("nothing was asked for this screen", "dim")
        else:
            question = self._asked[self._at]
            notes = self._told[self._at] if self._at < len(self._told) else ()
            told.append(f"{self._at + 1} of {len(self._asked)}: {question.key}\n", "bold")
            begin, end = question.window
            if begin is not None or end is not None:
                told.append(f"asked through the interval [{begin}, {end}) ns\n", "dim")
            told.append(f"\n{question.sql}\n")
            if notes:
                told.append("\nwhat it stands for\n", "bold")
                told.append("\n".join(notes))
        self.query_one("#behind", Static).update(told)
        self.query_one("#reader").scroll_home(animate=False)


class Prompt(ModalScreen[str | None]):
    """One line to fill in; Enter gives it, Escape gives None.

    check: raises MegascopeError for a value that will not do: it is told below the line, which stays to be mended.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel")]

    def __init__(self, title: str, hint: str, value: str, check: Callable[[str], object]) -> None:
        super().__init__()
        self._title, self._hint, self._value, self._check = title, hint, value, check

    def compose(self) -> ComposeResult:
        line = Input(self._value, id="prompt", select_on_focus=False)
        line.border_title, line.border_subtitle = self._title, self._hint
        yield line
        yield Static(id="refused")

    def on_input_changed(self, _: Input.Changed) -> None:
        """What was refused is no longer what stands there."""
        self._tell("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        value = event.value.strip()
        try:
            self._check(value)
        except MegascopeError as error:
            self._tell(str(error))
        else:
            self.dismiss(value)

    def _tell(self, problem: str) -> None:
        self.query_one("#refused", Static).update(Text(text(problem), trust.BAD))
