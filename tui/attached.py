"""Programs as the Monitors screen lists them: what the trace says of each, and what its engine says at this moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from ..capture import control
from ..store.tables import HOOKS
from . import trust
from .charts import size
from .literals import Clause, fill
from .page import Page, text
from .times import count, moment, share

PROGRAMS = """
    SELECT p.program, p.name, p.selection, p.hooks, p.instructions, p.rows, p.attached, p.detached, p.source, p.hash,
        sum(c.eligible) FILTER (WHERE c.closed)::BIGINT AS eligible,
        sum(c.observed) FILTER (WHERE c.closed)::BIGINT AS observed,
        sum(c.throttled) FILTER (WHERE c.closed)::BIGINT AS throttled,
        sum(c.lost) FILTER (WHERE c.closed)::BIGINT AS lost,
        sum(c.faulted) FILTER (WHERE c.closed)::BIGINT AS faulted,
        sum(c.emitted) FILTER (WHERE c.closed)::BIGINT AS emitted,
        sum(c.ring_lost + c.emit_throttled) FILTER (WHERE c.closed)::BIGINT AS not_written,
        count(*) FILTER (WHERE NOT c.closed) AS "open"
    FROM programs AS p LEFT JOIN coverage AS c ON p.program = c.program
    WHERE p.program <> 1
    GROUP BY ALL
    ORDER BY p.program
"""

FULL = """
    SELECT detail AS stream, sum(count)::BIGINT AS refused
    FROM loss
    WHERE kind = 'map_full'
    GROUP BY detail
"""

SPENT = """
    WITH costs(program, hook, cost) AS (
        VALUES {costs}
    ), epochs AS (
        -- Rows merged over workers tell their mean, rows of one worker its own.
        SELECT program, rank, epoch, coalesce(worker, -1) AS worker, max(epochs) AS epochs, max(workers) AS workers,
            sum((observed + faulted) * cost) AS instructions
        FROM coverage JOIN costs USING (program, hook)
        WHERE closed
        GROUP BY ALL
    )
    SELECT program, max(instructions / (workers * epochs)) AS spent
    FROM epochs
    GROUP BY program
"""

_LIVE = ("eligible", "observed", "missing", "emitted")
WIDE = 110
"""From so many cells on, each way of missing an event has a column."""


@dataclass(frozen=True)
class Program:
    """A program. Counts are events of closed intervals since it was attached; None: not known. Times: device ns.

    state: attached, detached, to end (of the recording) or replayed. missing: eligible events that it did not see
    to their end. full: updates that found a map full. spent: the most instructions of a worker and epoch, by the worst
    case of what was observed.
    """

    program: int
    name: str
    state: str
    hooks: tuple[str, ...]
    selection: str
    instructions: int | None
    rows: int | None
    eligible: int | None = None
    observed: int | None = None
    throttled: int | None = None
    lost: int | None = None
    faulted: int | None = None
    missing: int | None = None
    emitted: int | None = None
    not_written: int | None = None
    full: int | None = None
    open: int = 0
    attached: int | None = None
    detached: int | None = None
    memory: int | None = None
    source: str = ""
    hash: str = ""
    judged: control.Judged | None = None
    spent: float | None = None

    @property
    def key(self) -> str:
        """Tells it apart from all others: numbers of replayed programs are of their own traces."""
        return f"replayed {self.name}" if self.state == "replayed" else str(self.program)

    @property
    def cost(self) -> int | None:
        """Worst-case instructions of an event, at the dearest hook."""
        return max(self.judged.cost.values(), default=0) if self.judged is not None else None

    @property
    def costs(self) -> str:
        """`cost at most 52 at start complete · simt: 32 at once`: instructions of an event"""
        if self.judged is None:
            return "cost not known: its code is not in the trace"
        names = {h.id: h.name for h in HOOKS}
        at: dict[int, list[str]] = {}
        for hook, cost in self.judged.cost.items():
            at.setdefault(cost, []).append(names.get(hook, str(hook)))
        told = ", ".join(f"{cost} at {' '.join(hooks)}" for cost, hooks in sorted(at.items()))
        return f"cost at most {told} · {mode(self.judged)}"


def mode(judged: control.Judged) -> str:
    """How its events are taken."""
    if judged.serial_because:
        return f"serial: {text(judged.serial_because)}"
    return "simt: 32 at once"


def of_trace(row: Mapping[str, Any], state: str = "") -> Program:
    """What a trace says, from a row of `PROGRAMS`."""
    counts = {n: row[n] for n in ("eligible", "observed", "throttled", "lost", "faulted", "emitted", "not_written")}
    gone = [row[n] for n in ("throttled", "lost", "faulted")]
    return Program(
        program=row["program"],
        name=text(row["name"]),
        state=state or ("attached" if row["detached"] is None else "detached"),
        hooks=tuple(row["hooks"] or ()),
        selection=text(row["selection"]),
        instructions=row["instructions"],
        rows=row["rows"],
        **counts,
        missing=None if None in gone else sum(gone),
        open=row["open"],
        attached=row["attached"],
        detached=row["detached"],
        source=row["source"] or "",
        hash=row["hash"] or "",
    )


def of_engine(running: control.Running) -> Program:
    """What a live engine says of a program that it runs."""
    line, found = running.line, running.program
    return Program(
        program=line.program,
        name=text(running.name),
        state="attached",
        hooks=tuple(h.name for h in HOOKS if line.hooks >> h.id & 1),
        selection="",
        instructions=None if line.instructions >= control.UNLIMITED else line.instructions,
        rows=None if line.rows >= control.UNLIMITED else line.rows,
        eligible=line.observed + line.missing,
        observed=line.observed,
        missing=line.missing,
        emitted=line.emitted,
        attached=line.since,
        memory=line.memory,
        source=found.source if found is not None else "",
        hash=found.hash if found is not None else "",
    )


def together(recorded: Sequence[Program], running: Sequence[Program] | None, *, recording: bool) -> list[Program]:
    """All programs, those that run first, of these the newest first. running: what a live engine says; None: nothing.

    What the trace counts is exact to its last interval; who runs, the engine knows first. recording: the trace grows.
    """
    now = {p.program: p for p in running or ()}
    out = []
    for p in recorded:
        here = now.pop(p.program, None)
        if here is not None:
            unknown = {n: getattr(here, n) for n in _LIVE if getattr(p, n) is None}
            out.append(replace(p, state="attached", memory=here.memory, **unknown))
        elif p.state == "attached" and running is not None:
            out.append(replace(p, state="detached"))
        elif p.state == "attached" and not recording:
            out.append(replace(p, state="to end"))
        else:
            out.append(p)
    return sorted([*out, *now.values()], key=lambda p: (p.state != "attached", -p.program))


def page(programs: Sequence[Program], width: int) -> Page:
    """A row of each."""
    parts = ("throttled", "lost", "faulted") if width >= WIDE else ("missing",)
    full = "map full" if width >= WIDE else "full"
    titles = ("program", "state", "coverage", "eligible", *parts, full, "cost", "budget", "hooks")
    cells = tuple(
        (
            p.name,
            p.state,
            _coverage(p),
            count(p.eligible),
            *(count(getattr(p, name)) for name in parts),
            *(count(p.full), count(p.cost), _budget(p)),
            " ".join(p.hooks),
        )
        for p in programs
    )
    right = (False, False, *[True] * (len(titles) - 3), False)
    return Page(titles, right, cells, tuple({"key": p.key} for p in programs))


def _coverage(p: Program) -> str:
    if not p.eligible or p.missing is None:
        return "–"
    return share(p.eligible - p.missing, p.eligible) + ("+" if p.open else "")


def _budget(p: Program) -> str:
    if p.instructions is None:
        return "none"
    return share(p.spent, p.instructions) if p.spent is not None else "–"


def detail(p: Program, t_zero: int, *, source: bool) -> Text:
    """A program in three lines: who and when, what it saw, what it costs; and its source."""
    when = p.state
    if p.attached is not None and t_zero:
        when += f" from {moment(p.attached - t_zero, 1_000)}"
        when += f" to {moment(p.detached - t_zero, 1_000)}" if p.detached is not None else " on"
    lines = [
        Text.assemble(
            (f"{p.name} ", "bold"),
            f"program {p.program} · {when} · at {', '.join(p.hooks) or 'no hook'}",
            (f" · its rows are {p.selection}" if p.selection and p.emitted else ""),
        ),
        _saw(p),
        _costs(p),
    ]
    if source:
        lines.append(Text(" ".join(text(line.strip()) for line in p.source.splitlines()), "dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _saw(p: Program) -> Text:
    if p.eligible is None:
        return Text("nothing is known yet of what it saw: its first interval has not closed", "dim")
    told = Text.assemble(
        (f"coverage {_coverage(p)}", trust.GOOD if not p.missing else trust.WARN), f" of {count(p.eligible)} eligible"
    )
    if p.throttled is None:
        told.append(f": observed {count(p.observed)}, missing {count(p.missing)}", "" if not p.missing else trust.WARN)
    else:
        told.append(f": observed {count(p.observed)}")
        for name in ("throttled", "lost", "faulted"):
            if n := getattr(p, name):
                told.append(f", {name} {count(n)}", trust.WARN)
    if p.full:
        told.append(f" · map_full {count(p.full)}", trust.BAD)
    if p.emitted:
        told.append(f" · {count(p.emitted)} rows emitted")
        if p.not_written:
            told.append(f", {count(p.not_written)} not written", trust.WARN)
    if p.open:
        told.append(f" · {p.open:,} open intervals: eligible unknown there", trust.WARN)
    return told


def _costs(p: Program) -> Text:
    told = Text(p.costs, "" if p.judged is not None else "dim")
    if p.instructions is None:
        told.append(" · no budget")
    elif p.spent is None:
        told.append(f" · budget {count(p.instructions)} a worker and epoch")
    else:
        over = p.spent > 0.9 * p.instructions or bool(p.throttled)
        spent = f" · spent at most {count(p.spent)} of {count(p.instructions)} a worker and epoch"
        told.append(spent, trust.WARN if over else "")
    if p.memory:
        told.append(f" · maps {size(p.memory)}")
    return told


def spent(programs: Sequence[Program]) -> str:
    """The question of how much of their budgets they spent; empty where no cost is known."""
    known = [(p.program, p.judged.cost) for p in programs if p.judged is not None]
    costs = [f"({program}, {hook}, {cost})" for program, of in known for hook, cost in of.items()]
    return fill(SPENT, costs=Clause(", ".join(costs))) if costs else ""
