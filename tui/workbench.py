"""What the seven screens have in common: three lines above, two below, questions, and following the selection."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from ..analyze.session import Session
from . import trust
from .database import WHOLE, Answer, Failure, Question, Window
from .dialogs import Behind, Keys
from .page import text

if TYPE_CHECKING:
    from .app import Megascope

SCREENS = ("overview", "timeline", "tasks", "requests", "now", "sql", "monitors")
TITLES = {"sql": "SQL"}
NO_TRACE = "no trace is open: record this engine, as is said above"
_ABSENT = """\
This is the segment of an engine and no trace, so there is nothing here.
5 shows what its workers do now, 7 what watches it.

To see the rest, record it, in another terminal:

  megascope capture {segment} -o NAME.mscope

and look at that, also while it is being recorded:

  megascope tui NAME.mscope"""
STATUS_LINES = 4
"""What a message at the bottom may take, as in the style sheet."""
MOVING: list[BindingType] = [
    Binding("up,down", "", "move", tooltip="move the cursor; also pgup, pgdn, home, end"),
    Binding("left,right", "", "columns", tooltip="show columns further left or right"),
]
"""For the list of keys: what `Rows` binds."""


def title_of(name: str) -> str:
    """A screen's name for people."""
    return TITLES.get(name, name.capitalize())


def _notes(asked: list[Question], session: Session) -> list[list[str]]:
    """What the answer to each question stands for."""
    return [session.coverage_lines(session.touched(question.sql)) for question in asked]


class Workbench(Screen[None]):
    """A screen of the workbench. `KEY` is its name; its questions' keys begin with it."""

    KEY: ClassVar[str]
    MORE_KEYS: ClassVar[list[BindingType]] = []
    """Keys of its widgets, for the list of keys"""

    @property
    def bench(self) -> Megascope:
        """The app."""
        return cast("Megascope", self.app)

    def __init__(self) -> None:
        super().__init__()
        self._followed: object = None
        self._asked: dict[str, Question] = {}
        self._waiting: set[str] = set()
        self._said: tuple[str, bool] = ("", False)
        self._problems: dict[str, str] = {}
        self._standing = ""

    @abstractmethod
    def body(self) -> Iterable[Widget]:
        """What stands between the lines above and below."""

    @abstractmethod
    def ask_all(self) -> None:
        """Ask for everything that the screen shows of what is selected."""

    @abstractmethod
    def show(self, answer: Answer) -> None:
        """Show an answer to one of its questions."""

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="trust")
        yield Static(id="selection")
        yield from self.body()
        yield Static(id="absent")
        yield Static(id="status")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.bench.screens_by_key[self.KEY] = self
        self.tell()
        self.tell_status()

    def on_screen_resume(self) -> None:
        self.tell()
        self.follow()

    def on_screen_suspend(self) -> None:
        """Let go of what has not been answered when another screen is shown, so that its questions need not wait."""
        if self._waiting and self.bench.current_mode != self.KEY:
            for key in self._waiting:
                self.bench.database.forget(key)
            self._waiting.clear()
            self._followed = None

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.tell)
        self.call_after_refresh(self.tell_status)

    def on_mouse_down(self, _: events.MouseDown) -> None:
        """A click is an act like a key that does something."""
        self.hush()

    @property
    def is_there(self) -> bool:
        """Whether its widgets are: they come after the screen, and go before it."""
        return self.is_mounted and bool(self.query("#status"))

    @property
    def window(self) -> Window:
        """The selected interval, as questions are asked through it."""
        return self.bench.selection.interval or WHOLE

    def follow(self, *, again: bool = False) -> None:
        """Ask anew if the selection or the trace has changed since."""
        if self.bench.info is None:
            if self.bench.source.trace is None and self.KEY not in ("now", "monitors"):
                self._tell_absent()
            return
        if self.has_class("absent"):
            self.remove_class("absent")
            self.call_after_refresh(self.focus_next)
        self.problem("trace", "")
        if again or self._followed != self.bench.version:
            self._followed = self.bench.version
            self.ask_all()

    def _tell_absent(self) -> None:
        """In the place of all that it would show of a trace, how to have one."""
        self.problem("trace", NO_TRACE)
        segment = text(shlex.quote(str(self.bench.source.segment)))
        self.query_one("#absent", Static).update(Text(_ABSENT.format(segment=segment)))
        self.add_class("absent")
        # What is not shown takes no keys, though its screen may have given it the focus.
        self.call_after_refresh(self.set_focus, None)

    def renew(self) -> None:
        """Ask anew when it is shown next."""
        self._followed = None

    def ask(self, question: Question) -> None:
        """Ask the trace; the answer comes to `show`."""
        self._asked[question.key] = question
        self._waiting.add(question.key)
        self.bench.database.ask(question)

    def take(self, answer: Answer) -> None:
        """An answer has come."""
        if not self.is_there:
            return
        self._waiting.discard(answer.question.key)
        if answer.question.key == f"{self.KEY}.notes":
            if isinstance(self.app.screen, Behind):
                self.app.screen.tell(answer.value)
            return
        self.problem(answer.question.key, "")
        self.show(answer)

    def fail(self, failure: Failure) -> None:
        """There is no answer; the line at the bottom says why until there is one."""
        if not self.is_there:
            return
        self._waiting.discard(failure.question.key)
        if failure.question.key == f"{self.KEY}.notes":
            self.say(failure.error, error=True)
        else:
            self.problem(failure.question.key, failure.error)

    def forget(self, key: str) -> None:
        """A question is no longer of what is shown, nor is why it had no answer."""
        self._asked.pop(key, None)
        self.problem(key, "")

    def say(self, told: str, *, error: bool = False) -> None:
        """At the bottom, what came of the last act; it goes with the next (see `hush`)."""
        self._said = told, error
        self.tell_status()

    def hush(self) -> None:
        """The user does something else: what was said of the act before no longer applies."""
        if self._said[0]:
            self.say("")

    def problem(self, key: str, told: str) -> None:
        """At the bottom while nothing is said: an error that stands until it is told that it is over, with no words."""
        if self._problems.get(key, "") != told:
            self._problems.pop(key, None)
            if told:
                self._problems[key] = told
            self.tell_status()

    def standing(self, told: str) -> None:
        """At the bottom while nothing is said and there is no problem: what goes on; without words it is over."""
        if self._standing != told:
            self._standing = told
            self.tell_status()

    def tell_status(self) -> None:
        """The message at the bottom."""
        if not self.is_there:
            return
        told, error = self._said
        if not told:
            told, error = next(iter([*self._problems.values(), *self.bench.problems.values()]), ""), True
        if not told:
            told, error = self._standing, False
        line = Text(text(told), trust.BAD if error else "")
        # Words are wrapped: a little less than all cells of its lines can be filled.
        line.truncate(max(self.size.width * STATUS_LINES * 9 // 10, 40), overflow="ellipsis")
        self.query_one("#status", Static).update(line)

    def tell(self) -> None:
        """The three lines above."""
        if not self.is_there:
            return
        bench = self.bench
        title = Text(no_wrap=True, overflow="ellipsis")
        for i, name in enumerate(SCREENS, 1):
            title.append(f" {i} {title_of(name)} ", "reverse bold" if name == self.KEY else "")
        title.append(f"  {text(bench.source.title)}", "bold")
        self.query_one("#title", Static).update(title)
        if bench.info is not None:
            self.query_one("#trust", Static).update(trust.line(bench.trust, bench.info))
        chosen = Text("looking at ", "dim", no_wrap=True, overflow="ellipsis")
        chosen.append(text(bench.selection.describe(bench.t_zero)), "" if bench.selection.is_all else "bold #7fd8ff")
        if not bench.selection.is_all:
            chosen.append("   c: everything again", "dim")
        self.query_one("#selection", Static).update(chosen)

    def behind(self) -> list[Question]:
        """What was asked for what is shown, in the order in which it is told."""
        return list(self._asked.values())

    def action_keys(self) -> None:
        """Show the keys."""
        groups = [(title_of(self.KEY), [*self.BINDINGS, *self.MORE_KEYS]), ("everywhere", self.bench.BINDINGS)]
        self.app.push_screen(Keys(title_of(self.KEY), cast(Any, groups)))

    def action_behind(self) -> None:
        """Show the SQL behind this screen."""
        asked = self.behind()
        self.app.push_screen(Behind(title_of(self.KEY), asked), self._to_sql)
        if asked:
            work = partial(_notes, asked)
            self.bench.database.ask(Question(f"{self.KEY}.notes", "", work=work))

    def _to_sql(self, sql: str | None) -> None:
        if sql is not None:
            self.bench.open_sql(sql)
