"""SQL: write a question, see the first rows of its answer, keep it in the history, export all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ..analyze.formats import ENDINGS
from ..analyze.output import Written, write_file
from ..analyze.session import Session
from ..store.errors import Refused, Usage
from ..store.new_file import check_free
from . import trust
from .database import Answer, Failure, Question
from .dialogs import Prompt
from .editor import Editor
from .history import History
from .page import page_of_all, text
from .rows import Rows
from .times import duration
from .workbench import NO_TRACE, Workbench

ROWS = 1_000
"""Rows that are shown; an export has all."""
FIRST = "SELECT class, count(*) AS tasks, sum(exec_ns) AS total_ns\nFROM tasks\nGROUP BY class\nORDER BY total_ns DESC"


class Sql(Workbench):
    """An editor, and the answer below."""

    KEY = "sql"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5,ctrl+j", "run", "run", tooltip="run the query (ctrl+enter, where the terminal knows it)"),
        Binding("ctrl+up,ctrl+p", "history(-1)", "older", show=False, tooltip="the query before, from the history"),
        Binding("ctrl+down,ctrl+n", "history(1)", "newer", show=False, tooltip="the next query of the history"),
        Binding(
            "f2,ctrl+s", "export", "export", tooltip="write the whole answer to a file: .csv .json .parquet .arrow"
        ),
        Binding("escape", "leave", "leave editor", tooltip="stop a query that runs; leave the editor for the answer"),
        Binding("e", "edit", "edit", show=False, tooltip="back to the editor"),
    ]
    MORE_KEYS: ClassVar[list[BindingType]] = [
        Binding("tab", "", "complete", tooltip="complete a view, column or word; again: the next that is possible"),
        Binding("up,down,left,right", "", "move", tooltip="in the answer: rows and columns"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._history: History | None = None
        self._busy = False
        self._shown: Question | None = None
        self._told = ""

    def body(self) -> Iterable[Widget]:
        yield Editor(id="editor")
        yield Static(id="words")
        yield Static(id="answer", classes="line")
        yield Rows(id="answer-rows", empty="")

    @property
    def editor(self) -> Editor:
        return self.query_one(Editor)

    def on_mount(self) -> None:
        super().on_mount()
        self._history = History(self.bench.history)
        self.editor.text = self._history.queries[-1] if self._history.queries else FIRST
        self.editor.move_cursor(self.editor.document.end)
        self.editor.focus()
        self._tell_answer("f5 runs it, tab completes, ? after esc shows all keys")

    def edit(self, sql: str) -> None:
        """Put a query into the editor: why the one before could not run is not of this one."""
        self.problem("sql.result", "")
        self.editor.text = sql
        self.editor.move_cursor(self.editor.document.end)
        self.editor.focus()

    def ask_all(self) -> None:
        """An answer is asked for by hand only: it may be long, and it is not the screen's to repeat."""
        if self._shown is not None and self._shown.window != self.window:
            self._tell_answer("the interval has changed since: f5 asks again", warn=True)

    def follow(self, *, again: bool = False) -> None:
        super().follow()
        if again:
            self.action_run()

    def show(self, answer: Answer) -> None:
        self._done()
        if answer.question.key == "sql.export":
            path, written = answer.value
            self.say(f"wrote {written.rows:,} rows to {path}")
            return
        rows = answer.table.num_rows
        self._shown = answer.question
        self.query_one(Rows).show(answer.value, empty="no rows", keep=False)
        told = f"{rows:,} {'row' if rows == 1 else 'rows'}"
        if answer.more:
            told = f">{rows:,} rows: the first {rows:,} are shown, f2 exports all"
        told += f" in {duration(answer.seconds * 1e9)}"
        self._told = told + "".join(f" · {note}" for note in answer.notes)
        self._tell_answer(self._told, warn=answer.more)

    def fail(self, failure: Failure) -> None:
        self._done()
        if failure.question.key == "sql.export":
            self.say(failure.error, error=True)
            return
        super().fail(failure)
        if self._shown is not None and failure.question.key == "sql.result":
            self._tell_answer(f"of a query before: {self._told}", warn=True)

    def on_editor_possible(self, message: Editor.Possible) -> None:
        """Show what the word may become."""
        words = self.query_one("#words", Static)
        told = Text()
        for i, word in enumerate(message.words[:60]):
            told.append(word, "reverse" if i == message.at else "bold")
            told.append("  ")
        words.update(told)
        words.display = bool(message.words)

    def action_run(self) -> None:
        """Run the query."""
        sql = self.editor.text.strip()
        if self.bench.source.trace is None:
            self.say(NO_TRACE, error=True)
            return
        if not sql:
            self.say("there is nothing to run: write a query first", error=True)
            return
        assert self._history is not None
        problem = self._history.add(sql)
        self.problem("sql.result", "")
        self._ask_sql(Question("sql.result", sql, rows=ROWS, window=self.window, shape=page_of_all, notes=True))
        self.standing("running; esc stops it")
        if problem:
            self.say(problem, error=True)

    def action_history(self, by: int) -> None:
        """An older or a newer query."""
        assert self._history is not None
        found = self._history.move(by, self.editor.text)
        if found is not None:
            self.edit(found)

    def action_export(self) -> None:
        """Write the whole answer that is shown to a file."""
        if self._shown is None:
            self.say("there is no answer to export yet: f5 runs the query", error=True)
        elif self._shown.sql != self.editor.text.strip():
            self.say("the answer below is of another query: f5 runs this one, then f2 exports it", error=True)
        else:
            hint = "the ending is the format: .csv .json .parquet .arrow .txt; esc: no"
            self.app.push_screen(Prompt("export to", hint, "answer.csv", self._check_export), self._export)

    def action_leave(self) -> None:
        """Stop the query that runs; else leave the editor."""
        if self._busy:
            self.bench.sql_database.forget("sql.result")
            self.bench.sql_database.forget("sql.export")
            self._done()
            self.say("stopped")
        else:
            self.query_one(Rows).focus()

    def action_edit(self) -> None:
        """Back to the editor."""
        self.editor.focus()

    def _check_export(self, name: str) -> None:
        """Raises MegascopeError for a place that cannot be written to."""
        path, trace = Path(name).expanduser(), self.bench.source.trace
        assert trace is not None
        _format(path)
        check_free(path, force=True)
        if os.path.lexists(path):
            # There is no --force here.
            raise Refused(f"cannot write {path}", "it exists", "give another name")
        if path.resolve().is_relative_to(trace.resolve()):
            raise Refused(f"cannot write {path}", "it lies in the trace", "name a place outside it")

    def _export(self, name: str | None) -> None:
        if name is None or self._shown is None:
            return
        sql, path = self._shown.sql, Path(name).expanduser()

        def work(session: Session) -> tuple[Path, Written]:
            with session.run(sql) as result:
                return path, write_file(result, _format(path), path)

        self._ask_sql(Question("sql.export", sql, window=self._shown.window, work=work))
        self.standing("writing; esc stops it")

    def _done(self) -> None:
        """Nothing runs any more."""
        self._busy = False
        self.standing("")

    def _ask_sql(self, question: Question) -> None:
        """Ask on the SQL screen's own session, so that a long query holds up no other screen."""
        self._asked[question.key] = question
        self._busy = True
        if self.bench.info is not None and self.bench.info.recording:
            self.bench.sql_database.reopen()
        self.bench.sql_database.ask(question)

    def _tell_answer(self, told: str, *, warn: bool = False) -> None:
        style: Any = trust.WARN if warn else "dim"
        self.query_one("#answer", Static).update(Text(text(told), style, no_wrap=True, overflow="ellipsis"))


def _format(path: Path) -> str:
    form = ENDINGS.get(path.suffix.lower())
    if form is None:
        why = f"its ending {path.suffix or '(none)'} is no format"
        raise Usage(f"cannot write {path}", why, f"use one of {', '.join(ENDINGS)}")
    return form
