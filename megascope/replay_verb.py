"""The verb that runs programs over a trace. It stands here because it both replays (capture) and shows (analyze)."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .capture.attach_verbs import add_programs, budget
from .capture.live_line import short
from .capture.programs.verbs import constants
from .store import arguments, signals
from .store.errors import Exit, Usage
from .store.scratch import Scratch

if TYPE_CHECKING:
    from .analyze.session import Session
    from .capture.engines.recorded.recording import Recording
    from .capture.engines.recorded.replay import Progress, Replay

TABLE_ROWS = 40
"""Rows of a map on a terminal, unless --limit says otherwise."""
_COUNTED = ("eligible", "observed", "throttled", "lost", "faulted", "refused")
_ASIDE = {"program", "epoch", "epochs", "lower", "counts", *_COUNTED}
"""Columns that a table leaves out: coverage is told below it, and lists of buckets are for other formats."""


class ReplayVerb:
    """Run programs over a recorded trace, as if they had been attached then.

    P is the name of a standard monitor (or `standard`: all of them), an object of clang's, or a query. With -o, a trace
    is written that reports, SQL and the screen read like any other. Without, what a query prints is printed, and
    of other programs what their maps held.

    Where TRACE has every event, the answer is to the bit what the program would have told live. What the recording lost
    is lost here too, and counted. Rows that a program chose to emit are no population: a trace that has only those is
    refused. Ctrl-C leaves nothing behind.
    """

    name = "replay"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        parser.add_argument("trace", type=Path, metavar="TRACE", help="a NAME.mscope directory")
        add_programs(parser, "--program")
        parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="trace to write")
        parser.add_argument("--force", action="store_true", help="replace a trace that stands at OUT")
        parser.add_argument("-f", "--format", choices=("table", "json"), default="table", help="of what is printed")
        limit = f"rows of each map; table: {TABLE_ROWS}"
        parser.add_argument("--limit", type=arguments.rows, metavar="ROWS", help=limit)
        parser.add_argument("-q", "--quiet", action="store_true", help="neither progress nor coverage")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        from .capture import wanted
        from .capture.engines.recorded.output import Output
        from .capture.engines.recorded.recording import Recording, same_place
        from .capture.engines.recorded.replay import Interrupted, Replay
        from .store.directory import check_room
        from .store.reader import Trace
        from .store.tables import SIDE_TABLES

        if not args.program or wanted.NONE in args.program:
            raise Usage("cannot replay", "no program is named", f"say --program {wanted.ALL}, or an object or a query")
        if args.out is not None:
            if args.out.suffix != ".mscope":
                raise Usage("cannot replay", f"{args.out} does not end in .mscope", f"say -o {args.out.name}.mscope")
            if not same_place(args.trace, args.out):
                check_room(args.out, args.force)
        with Trace.open(args.trace) as trace, _place(args.out) as place:
            # Noted from here on: what compiles programs may swallow an exception.
            with signals.noted() as stop:
                recording = Recording(trace)
                tables = {t.name: trace.table(t.name) for t in SIDE_TABLES}
                asked = wanted.load(args.program, constants(args), budget(args), tables)
                if wanted.ALL in args.program:
                    asked, notes = wanted.fitting(asked, recording.hooks)
                    _notes(notes)
                replay = Replay(recording, asked)
                output = Output(recording, place, replay.programs, replay.table(), force=args.force)
                begun = time.monotonic()
                line = _Line(quiet=args.quiet)
                asking = wanted.queries(asked, constants(args), tables) if args.out is None else {}
                try:
                    said = replay.run(output, queries=asking, progress=line, stopped=stop.is_set)
                    output.finish(replay.end)
                except BaseException as error:
                    output.abandon()
                    if isinstance(error, Interrupted):
                        error.code = stop.code
                    raise
                finally:
                    line.close()
            _notes([*trace.notes, *_stands_for(recording, replay)])
            if args.out is None:
                _show(args, place, said, output.writer.rows["events"])
            else:
                _report(args.out, replay, time.monotonic() - begun)
        return Exit.DONE


@contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    """OUT, or where a trace may stand for as long as its maps are shown."""
    if out is not None:
        yield out
        return
    with Scratch("replay") as folder:
        yield folder / "replay.mscope"


def _show(args: argparse.Namespace, place: Path, said: dict[str, str], emitted: int) -> None:
    """said: what queries printed, by name; the maps of all others, and with -f json of all, are shown as tables.

    emitted: rows that programs exported.
    """
    from .analyze.output import write
    from .analyze.session import Session

    limit = TABLE_ROWS if args.format == "table" and args.limit is None else args.limit
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    with Session.open(place) as session:
        names = list(session.trace.maps)
        queries = {p["program"]: p["name"] for p in session.trace.manifest["programs"] if p["name"] in said}
        for name in queries.values() if args.format == "table" else ():
            if len(session.trace.manifest["programs"]) > 1:
                print(f"program {name}", file=sys.stderr, flush=True)
            print(said[name], end="", flush=True)
        for name in names:
            if args.format == "table" and _program_of(session, name) in queries:
                continue
            print(name, file=sys.stderr, flush=True)
            columns = [c for c in session.trace.maps[name].names if c not in _ASIDE]
            if args.format == "json":
                columns = [f"'{name}' AS map", "*"]
            with session.run(f"SELECT {', '.join(columns)} FROM {name}") as result:
                written = write(result, args.format, sys.stdout.buffer, limit=limit, width=width)
            sys.stdout.buffer.flush()
            if written.more:
                _notes([f">{written.rows:,} rows: --limit gives more"])
        if emitted:
            _notes([f"{emitted:,} rows were emitted: -o OUT.mscope keeps them"])
        if not names:
            _notes([] if emitted else ["no map held anything, and no row was emitted"])
        elif not args.quiet:
            _notes(session.coverage_lines(names))


def _program_of(session: Session, stream: str) -> int:
    """Whose map it is: a replay's streams are one program's each."""
    with session.run(f"SELECT any_value(program) FROM {stream}") as result:
        (found,) = result.read_all().column(0).to_pylist()
    return -1 if found is None else int(found)


def _report(out: Path, replay: Replay, seconds: float) -> None:
    rate = short(replay.rows / max(seconds, 1e-9))
    n = len(replay.programs)
    programs = f"{n} program{'s' if n > 1 else ''}"
    _notes(
        [
            f"wrote {out}: {programs} over {replay.rows:,} rows in {seconds:.1f} s ({rate} rows/s)",
            f'look: megascope sql {out} "SHOW TABLES"',
        ]
    )


def _stands_for(recording: Recording, replay: Replay) -> list[str]:
    """What the answer is of, where that is not every event."""
    lines = []
    if recording.population.selection != "all":
        lines.append(f"of {recording.population.selection} alone: counts are of that sample")
    if replay.fed:
        lines.append(f"engine-wide values reached {', '.join(replay.fed)} as each epoch closed; live they came later")
    if replay.missing:
        lines.append(
            f"the recording lost {replay.missing:,} of {replay.eligible:,} events at these hooks; see coverage"
        )
    saturated = sum(p.get("since_saturated", 0) for p in recording.trace.manifest["streams"]["events"]["parts"])
    if saturated:
        lines.append(f"of {saturated:,} rows the time that they carry is a bound: it was more than 4.29 s before")
    return lines


class _Line:
    """Progress on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()

    def __call__(self, p: Progress) -> None:
        if self._on:
            rate = short(p.rows / max(p.seconds, 1e-9))
            text = f"replaying · {p.seconds:.1f} s · {short(p.rows)} of {short(p.of)} rows · {rate} rows/s"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _notes(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
