"""What the Monitors screen shows: programs as trace and engine tell of them, a map of the one under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from textual import events
from textual.message import Message
from textual.widgets import Static

from ..capture import control
from . import attached
from .attached import Program
from .database import Answer, Failure, Question
from .dialogs import Behind
from .engine_side import Engine, EngineSide, Known, Looked
from .literals import fill
from .map_pane import KEY as MAP_KEY
from .map_pane import MapPane
from .map_questions import MapInfo, maps_of
from .query_line import EXAMPLE
from .replays import Replays, Replied
from .rows import Rows
from .workbench import Workbench

LOOK_S = 0.5


class Watching(Workbench):
    """Keeps the list of programs, its cursor, and the map below in step with what trace and engine say."""

    def __init__(self) -> None:
        super().__init__()
        self._engine = EngineSide()
        self._replays = Replays(self.post_message)
        self._recorded: tuple[Program, ...] = ()
        self._replayed: dict[str, Program] = {}
        self._maps: tuple[MapInfo, ...] = ()
        self._replayed_maps: dict[str, tuple[MapInfo, ...]] = {}
        self._met: dict[int, Program] = {}
        """programs that the engine was seen to run"""
        self._full: dict[str, int] = {}
        self._spent: dict[int, float] = {}
        self._known: dict[str, control.Judged | None] = {}
        self._programs: tuple[Program, ...] = ()
        self._looked: Looked | None = None
        self._looking = False
        self._changes = 0
        """programs attached and detached from here, done or not"""
        self._wanted = ""
        """name of the program that the cursor is to stand on as soon as it is there"""

    def on_mount(self) -> None:
        # Textual calls the handlers of the classes above, too.
        self.bench.at_end += [self._replays.close, self._engine.close]
        self.set_interval(LOOK_S, self._look)

    def on_screen_resume(self) -> None:
        self._look()
        self._refresh()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._refresh)

    # --- what the trace says -----------------------------------------------------------------------------------

    def ask_all(self) -> None:
        info = self.bench.info
        if self.bench.source.segment is None and info is not None and info.recording:
            self._do("find", partial(self._engine.find, info.pid))
        self.ask(Question("monitors.programs", fill(attached.PROGRAMS), window=self.window))
        self.ask(Question("monitors.full", fill(attached.FULL), window=self.window))
        self.ask(Question("monitors.maps", "SHOW TABLES", work=maps_of))

    def show(self, answer: Answer) -> None:
        match answer.question.key:
            case "monitors.programs":
                self._recorded = tuple(attached.of_trace(row) for row in answer.table.to_pylist())
                self._ask_spent()
            case "monitors.full":
                self._full = {row["stream"]: row["refused"] for row in answer.table.to_pylist()}
            case "monitors.spent":
                self._spent = {row["program"]: row["spent"] for row in answer.table.to_pylist()}
            case "monitors.maps":
                self._maps = answer.value
                self._asked.pop("monitors.maps", None)
                self._refresh(again=True)
                return
            case _:
                self.query_one(MapPane).show(answer.value)
                return
        self._refresh()

    def on_replied(self, message: Replied) -> None:
        """The trace of a replay has answered."""
        posted = message.posted
        if not self._replays.database.is_current(posted):
            return
        if isinstance(posted, Failure):
            if posted.defect is not None:
                raise posted.defect
            self.fail(posted)
            return
        self.problem(posted.question.key, "")
        if posted.question.key == MAP_KEY:
            self.take(posted)
        else:
            self._replayed_maps[posted.question.key] = posted.value
            self._refresh(again=True)

    def _ask_spent(self) -> None:
        sql = attached.spent([replace(p, judged=self._known.get(p.hash)) for p in self._recorded])
        if sql:
            self.ask(Question("monitors.spent", sql, window=self.window))

    def _ask_map(self) -> None:
        """Ask the map that is shown, of the trace that has it."""
        program, question = self._program, self.query_one(MapPane).ask()
        trace = self._replays.trace_of(program)
        if trace is not None and program is not None and program.key not in self._replayed_maps:
            self._replays.ask(trace, Question(program.key, "SHOW TABLES", work=maps_of))
        elif question is None:
            self.forget(MAP_KEY)
        elif trace is not None:
            self.forget(MAP_KEY)
            self._replays.ask(trace, question)
        elif self.bench.info is not None:
            self.ask(replace(question, window=self.window))

    def behind(self) -> list[Question]:
        """The map's question first where the cursor is in the map, else that of the programs."""
        of_map = self.query_one("#map", Rows).has_focus
        return sorted(super().behind(), key=lambda q: (q.key == MAP_KEY) != of_map)

    def action_behind(self) -> None:
        trace, question = self._replays.trace_of(self._program), self.query_one(MapPane).ask()
        if trace is None or question is None:
            super().action_behind()
            return
        # The SQL screen asks the recording, which does not have this map.
        self.app.push_screen(Behind("the replay", [question]), self._of_replay)

    def _of_replay(self, sql: str | None) -> None:
        if sql is not None:
            self.say("this asks the replay; for SQL over it: megascope replay -o, then megascope tui", error=True)

    # --- what the engine says ----------------------------------------------------------------------------------

    def on_looked(self, message: Looked) -> None:
        """A look at the engine is done."""
        self._looking = False
        if message.changes != self._changes:
            # What it saw may be of before the change.
            self._look()
            return
        self._looked = message
        self._refresh()

    def on_known(self, message: Known) -> None:
        """What programs cost, and what their maps are."""
        self._known |= message.judged
        if self._recorded:
            self._ask_spent()
        self._refresh(again=True)

    def on_engine(self, message: Engine) -> None:
        """The engine that this trace is being recorded from."""
        if message.segment is not None and self.bench.source.segment is None:
            self.bench.source = self.bench.source.live(message.segment)
            self._look()

    @property
    def _live(self) -> bool:
        """Whether an engine runs that takes programs."""
        looked = self._looked
        return looked is not None and looked.found.live and looked.watched is not None and looked.watched.slots > 0

    @property
    def _target(self) -> Path | None:
        """Whose names queries use."""
        source = self.bench.source
        return source.segment if self._live or source.trace is None else source.trace

    def _look(self) -> None:
        segment = self.bench.source.segment
        if segment is not None and self.is_current and not self._looking:
            self._looking = True
            self._do("look", partial(self._engine.look, segment, self._changes))

    def _do(self, group: str, work: Callable[[], Message]) -> None:
        """Do what blocks on a thread of its own; its message comes back."""
        self.run_worker(lambda: self.post_message(work()), thread=True, group=group)

    # --- what is shown -----------------------------------------------------------------------------------------

    @property
    def _program(self) -> Program | None:
        """The one under the cursor."""
        row = self.query_one("#programs", Rows).row
        return next((p for p in self._programs if row is not None and p.key == row["key"]), None)

    def on_rows_moved(self, _: Rows.Moved) -> None:
        """Tell of the program under the cursor."""
        self._tell_program()
        self._ask_map()

    def on_rows_chosen(self, _: Rows.Chosen) -> None:
        """Enter: to the keys of its map."""
        self.set_focus(self.query_one("#map", Rows))

    def _refresh(self, *, again: bool = False) -> None:
        """Show the programs as they are known now; the cursor stays on its program. again: ask its map, too."""
        if not self.is_there:
            return
        rows, before = self.query_one("#programs", Rows), self._program
        watched = self._looked.watched if self._looked is not None else None
        running = [attached.of_engine(r) for r in watched.programs] if watched is not None and self._live else None
        together = attached.together(self._with_gone(running), running, recording=self._growing)
        programs = [*reversed(self._replayed.values()), *together]
        self._learn([p for p in programs if p.hash and p.hash not in self._known])
        self._programs = tuple(self._filled(p) for p in programs)
        rows.show(attached.page(self._programs, self.size.width), empty=self._nothing)
        rows.styles.height = min(len(self._programs) + 1, max(self.size.height // 4, 3))
        wanted = next((p for p in self._programs if p.name == self._wanted), None) if self._wanted else None
        if wanted is not None:
            self._wanted = ""
        at = wanted or before
        if at is not None:
            rows.find("key", at.key)
        moved = (self._program.key if self._program else "") != (before.key if before else "")
        self._tell_program()
        if again or moved:
            self._ask_map()

    def _with_gone(self, running: Sequence[Program] | None) -> list[Program]:
        """What the trace says, and the programs that ran a moment ago, of which it may not tell yet."""
        self._met |= {p.program: p for p in running or ()}
        told = {p.program for p in (*self._recorded, *(running or ()))}
        return [*self._recorded, *(replace(p, state="detached") for p in self._met.values() if p.program not in told)]

    def _filled(self, p: Program) -> Program:
        judged = self._known.get(p.hash)
        if p.state == "replayed":
            return replace(p, judged=judged)
        full = sum(self._full.get(m.stream, 0) for m in self._maps if p.program in m.programs)
        known = self.bench.info is not None
        return replace(p, judged=judged, full=full if known else None, spent=self._spent.get(p.program))

    def _learn(self, programs: list[Program]) -> None:
        """Ask once for each code what it costs."""
        if programs:
            self._known |= dict.fromkeys((p.hash for p in programs), None)
            watched = self._looked.watched if self._looked is not None else None
            running = watched.programs if watched is not None else ()
            self._do("know", partial(self._engine.know, programs, running, self._target))

    def _tell_program(self) -> None:
        p = self._program
        pane, told = self.query_one(MapPane), self.query_one("#program", Static)
        if p is None:
            told.update("")
            pane.put(None, (), "")
            return
        told.update(attached.detail(p, self.bench.t_zero, source=self.size.height >= 30))
        pane.put(p, self._replayed_maps.get(p.key, ()) if p.state == "replayed" else self._maps, self._no_maps(p))

    @property
    def _growing(self) -> bool:
        return self.bench.info is not None and self.bench.info.recording

    @property
    def _why_not(self) -> str:
        """Why nothing can be attached."""
        looked = self._looked
        if looked is not None and looked.watched is not None and looked.found.live:
            return "this engine runs no programs"
        if looked is not None:
            return looked.error or f"the engine has {looked.found.status.text if looked.found.status else 'gone'}"
        return "the engine of this recording is not found" if self._growing else "no engine is known yet"

    @property
    def _nothing(self) -> str:
        if self.bench.info is None and self._looked is None:
            return "…"
        if self._live:
            return f"no program is attached; / asks, as in: {EXAMPLE}"
        if self.bench.source.trace is not None and not self._growing:
            return f"no program was attached; / asks the recording, as in: {EXAMPLE}"
        return f"no program is attached: {self._why_not}"

    def _no_maps(self, p: Program) -> str:
        if self.bench.source.trace is None:
            drainer = self._looked.found.drainer if self._looked is not None else 0
            if drainer:
                return f"process {drainer} records this engine: open its trace to see what maps hold"
            return "nobody records this engine, so nobody is told what maps hold: r records them"
        if p.judged is not None and not p.judged.shapes:
            return "it has no maps; what it emits is among the events"
        if p.state == "attached" and self._growing:
            return "no epoch of its maps has closed and been exported yet"
        return "its maps held nothing"
