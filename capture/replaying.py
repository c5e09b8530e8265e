"""One query over a recording: what `megascope replay` does for many programs, for whoever shows the answer at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..store.reader import Trace
from ..store.tables import SIDE_TABLES
from . import attaching
from .engines.recorded.output import Output
from .engines.recorded.recording import Recording
from .engines.recorded.replay import Progress, Replay
from .programs.execution import Limits


@dataclass(frozen=True)
class Replayed:
    """A replay that is done. trace: where its answer stands. rows: of the recording. eligible, missing: events.

    selection: what the recording's rows are, all or sampled(1/n).
    """

    trace: Path
    name: str
    rows: int
    eligible: int
    missing: int
    selection: str


def replay(
    recorded: Path,
    text: str,
    out: Path,
    *,
    name: str = "query",
    progress: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Run a query over the trace at `recorded`, and write the trace `out` of what it tells.

    Raises Refused for a query that is none, a recording without its hooks, and one whose rows are no population;
    MegascopeError when `stopped()` said so: then nothing is left at `out`.
    """
    with Trace.open(recorded) as trace:
        recording = Recording(trace)
        tables = {t.name: trace.table(t.name) for t in SIDE_TABLES}
        program = attaching.load(text, {}, tables, name=name, query=True)
        run = Replay(recording, [(program, Limits())])
        output = Output(recording, out, run.programs, run.table())
        try:
            run.run(output, progress=progress, stopped=stopped)
            output.finish(run.end)
        except BaseException:
            output.abandon()
            raise
        return Replayed(out, name, run.rows, run.eligible, run.missing, recording.population.selection)
