"""Monitors: the programs that watch the engine, what they saw and cost, what their maps hold; a line to ask more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ..capture import control
from .ask_bar import AskBar
from .engine_side import Changed, Recording, Said
from .map_pane import MapPane
from .query_line import EXAMPLE, QueryLine, one_line
from .replays import Replaying
from .rows import Rows
from .watching import Watching
from .workbench import MOVING


class Monitors(Watching):
    """Programs above, the maps of the one under the cursor below, and the query line."""

    KEY = "monitors"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask", "ask", tooltip="type a query; what the verifier says of it stands below at once"),
        Binding("e", "edit", "edit", tooltip="edit the program's query; enter puts it in the program's place"),
        Binding("d", "detach", "detach", tooltip="detach the program from the live engine"),
        Binding("m", "map(1)", "map", tooltip="the next map of the program; M: the one before"),
        Binding("M", "map(-1)", "", show=False),
        Binding("t", "chart", "chart", tooltip="table or histogram, where they do not fit side by side"),
        Binding("o", "span", "epochs", tooltip="all epochs, the last 10 s, or the last epoch"),
        Binding("r", "record", "record", tooltip="record what maps hold, where nobody records the engine"),
        Binding("escape", "stop", "stop", show=False, tooltip="stop a replay"),
    ]
    MORE_KEYS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("tab", "", "next", tooltip="from the programs to the keys of the map and to the query line"),
        Binding("enter", "", "enter", tooltip="in the query line: attach it, or replay it where no engine is live"),
        Binding("up,down", "", "history", tooltip="in the query line: what was asked before"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._changing = ""
        """what is being asked of the engine or replayed now"""

    def body(self) -> Iterable[Widget]:
        history = self.bench.history
        yield Rows(id="programs", empty="…")
        yield Static(id="program")
        yield MapPane()
        yield AskBar(None if history is None else history.with_name("query_history.jsonl"))

    def on_mount(self) -> None:
        # Textual calls the handlers of the classes above, too.
        self.set_focus(self.query_one("#programs", Rows))
        # The grammar is built once: not when the first letter is typed.
        self._do("judge", partial(self._engine.judge, EXAMPLE, None, "query"))

    # --- asking, attaching, detaching --------------------------------------------------------------------------

    def on_ask_bar_typed(self, message: AskBar.Typed) -> None:
        """A text is to be judged."""
        self.problem("ask", "")
        if message.text:
            self._do("judge", partial(self._engine.judge, message.text, self._target, "query"))

    def on_query_line_left(self, _: QueryLine.Left) -> None:
        """Escape: what was said of the query is of no interest any more."""
        self.problem("ask", "")
        self.hush()

    def on_said(self, message: Said) -> None:
        """What the verifier says of it."""
        self.query_one(AskBar).said(message.text, message.verdict)

    def on_ask_bar_asked(self, message: AskBar.Asked) -> None:
        """Enter: attach the query to the live engine; else replay it over the recording."""
        source, query = self.bench.source, message.text
        if isinstance(message.verdict, control.Rejection):
            self.problem("ask", "the query is rejected: nothing was attached")
        elif self._changing:
            self.say(f"{self._changing}: one after the other", error=True)
        elif self._live and source.segment is not None:
            name = message.replaces or self._free_name()
            self._change(f"attaching {name}", name)
            attach = partial(self._engine.attach, source.segment, query, name, replace=bool(message.replaces))
            self._do("change", attach)
            self._remember(query)
        elif source.trace is not None and self.bench.info is not None and not self.bench.info.recording:
            name = self._free_name()
            self._change(f"replaying {name}; esc stops it", name)
            self._do("change", partial(self._replays.run, source.trace, query, name))
            self._remember(query)
        else:
            self.say(f"{self._why_not}, so there is nothing to attach it to", error=True)

    def on_changed(self, message: Changed) -> None:
        """A program came or went, or could not."""
        self._over()
        self._changes += 1
        self._wanted = message.name
        self.say(message.told, error=message.error)
        if message.name:
            self.set_focus(self.query_one("#programs", Rows))
        self._look()

    def on_replaying(self, message: Replaying) -> None:
        """A replay goes on or has ended."""
        if message.program is None and not message.error:
            self.standing(message.told)
            return
        self._over()
        self.say(message.told, error=message.error)
        if message.program is not None:
            self._replayed[message.program.key] = message.program
            self.set_focus(self.query_one("#programs", Rows))
            self._refresh(again=True)

    def on_recording(self, message: Recording) -> None:
        """The maps of the engine are recorded from now on."""
        self._over()
        if message.out is None:
            self.say(message.error, error=True)
        else:
            self.bench.follow_trace(message.out)
            self.say("recording coverage and maps, no raw events, for as long as this screen is open")

    def action_ask(self) -> None:
        """Type a query."""
        self.set_focus(self.query_one(AskBar).line)

    def action_edit(self) -> None:
        """Edit the program's query."""
        p = self._program
        query = one_line(p.source) if p is not None and p.judged is not None and p.judged.query else None
        if p is None or query is None:
            self.say("its source is no query of one line: attach another with megascope attach --replace", error=True)
        else:
            self.query_one(AskBar).edit(query, p.name if p.state == "attached" and self._live else "")

    def action_detach(self) -> None:
        """Detach the program."""
        p, segment = self._program, self.bench.source.segment
        if p is None or p.state != "attached" or segment is None or not self._live:
            self.say(f"{p.name if p else 'nothing'} is not attached to a live engine", error=True)
        elif self._changing:
            self.say(f"{self._changing}: one after the other", error=True)
        else:
            self._change(f"detaching {p.name}", "")
            self._do("change", partial(self._engine.detach, segment, p.name))

    def action_record(self) -> None:
        """Record what maps hold, where nobody records."""
        source = self.bench.source
        if source.trace is not None or source.segment is None or not self._live:
            self.say("this follows a recording already" if source.trace else self._why_not, error=True)
        elif not self._changing:
            self._change("beginning to record", "")
            self._do("change", partial(self._engine.record, source.segment))

    def action_stop(self) -> None:
        """Stop a replay."""
        self._replays.stop.set()

    def action_map(self, by: int) -> None:
        """Show another map."""
        self.query_one(MapPane).next_map(by)
        self._ask_map()

    def action_span(self) -> None:
        """Look at another stretch of time."""
        self.query_one(MapPane).next_span()
        self._ask_map()

    def action_chart(self) -> None:
        """Table or histogram."""
        self.query_one(MapPane).toggle()

    def _change(self, doing: str, name: str) -> None:
        """What is being done, and to which program the cursor is to go."""
        self._changing, self._wanted = doing, name
        self.standing(doing)

    def _over(self) -> None:
        """It is done, or could not be."""
        self._changing = ""
        self.standing("")

    def _remember(self, query: str) -> None:
        problem = self.query_one(AskBar).done(query)
        if problem:
            self.say(problem, error=True)

    def _free_name(self) -> str:
        """`query`, or with the least number that no program had: so each has maps of its own."""
        taken = {p.name for p in self._programs}
        return next(n for n in ("query", *(f"query_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
