"""The verbs that touch a running engine: capture, ls, now."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.errors import Exit, Usage
from . import control
from .live_line import LiveLine, short

if TYPE_CHECKING:
    from .session import Progress

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size(text: str) -> int:
    """'500M' → 500,000,000 bytes. Raises ValueError for anything else than a number and k, M, G or T."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    value = int(float(text[: len(text) - len(unit)]) * _SIZES[unit]) if unit in _SIZES else 0
    if value <= 0:
        raise ValueError(text)
    return value


class Capture:
    """Record an engine into a trace.

    TARGET is demo[:k=v,…] (the host engine), cuda[:k=v,…] (the reference megakernel) or a segment; it may be left out
    if one engine is live. After `--`, a command is run that makes its own segment where $MEGASCOPE_SEGMENT says.
    Ctrl-C ends the recording in order: all that was recorded is sealed.
    """

    name = "capture"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("target", nargs="?", metavar="TARGET", help="demo[:k=v,…], cuda[:k=v,…] or a segment")
        parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="trace to write (default: megascope.mscope)")
        parser.add_argument("--force", action="store_true", help="replace a trace that stands at OUT")
        parser.add_argument("--seconds", type=float, metavar="S", help="end the recording after so long")
        budget = "disk budget (k, M, G, T): raw rows stop there, summaries go on"
        parser.add_argument("--max-bytes", type=size, metavar="N", help=budget)
        loss = "exit with 4 if more of the events was lost"
        parser.add_argument("--max-loss", type=float, metavar="PERCENT", help=loss)
        parser.add_argument("--quiet", action="store_true", help="no live line")

    def run(self, args: argparse.Namespace) -> int:
        from . import session, target
        from .segment.reader import SegmentReader

        out = self._out(args)
        stop = threading.Event()
        before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
        engine = target.start(args.target, args.command)
        try:
            engine.wait_for_segment(120.0, stop.is_set, _note)
            with SegmentReader.open(engine.path, write=True) as segment:
                recording = session.Session(segment, out, force=args.force, max_bytes=args.max_bytes)
                line = LiveLine(segment.layout.name)
                try:
                    reason = recording.run(
                        stopped=stop.is_set,
                        progress=(lambda _: None) if args.quiet else line,
                        seconds=args.seconds,
                        stop_engine=engine.ours,
                    )
                finally:
                    line.close()
                    recording.release()
                last = recording.progress()
        finally:
            engine.end()
            for s, handler in before.items():
                signal.signal(s, handler)
        return self._report(args, out, reason, last, stop.is_set())

    @staticmethod
    def _out(args: argparse.Namespace) -> Path:
        out: Path = args.out or Path("megascope.mscope")
        if out.suffix != ".mscope":
            raise Usage("cannot capture", f"{out} does not end in .mscope", f"say -o {out.name}.mscope")
        return out

    @staticmethod
    def _report(args: argparse.Namespace, out: Path, reason: str, last: Progress, interrupted: bool) -> int:
        said = {"ended": "the engine ended", "failed": "the engine failed", "died": "the engine died"}
        print(
            f"wrote {out}: {last.rows:,} rows, {short(last.bytes, 'B')}, lost {last.lost:,} ({last.loss_share:.2%}); "
            f"{said.get(reason, reason)} after {last.seconds:.1f} s",
            file=sys.stderr,
        )
        if last.dropped:
            why = (last.stopped or "disk_budget").replace("_", " ")
            _note(f"{last.dropped:,} raw rows were dropped for the {why}; summaries went on; see the loss table")
        _note(f"look: megascope report overview {out}, or megascope tui {out}")
        if reason in ("died", "failed", "truncated"):
            return Exit.INCOMPLETE
        if args.max_loss is not None and last.loss_share * 100 > args.max_loss:
            return Exit.INCOMPLETE
        return Exit.INTERRUPTED if interrupted else Exit.DONE


class Ls:
    """List the live engines of this machine."""

    name = "ls"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--prune", action="store_true", help="remove the segments of engines that are gone")

    def run(self, args: argparse.Namespace) -> int:
        if args.prune:
            for path in control.prune():
                print(f"removed {path}", file=sys.stderr)
        found = control.find()
        if not found:
            print(f"no segments in {control.directory()}", file=sys.stderr)
            return Exit.DONE
        rows = [("SEGMENT", "ENGINE", "PID", "STATE", "STEP", "WORKERS", "MONITORS", "BYTES", "SILENT", "RECORDED BY")]
        for f in found:
            if f.status is None:
                rows.append((str(f.path), "", "", f"unreadable: {f.problem}", "", "", "", "", "", ""))
                continue
            rows.append(
                (
                    str(f.path),
                    f.name,
                    str(f.pid),
                    f.status.text,
                    f"{f.status.step:,}",
                    str(f.workers),
                    str(f.monitors),
                    short(f.bytes, "B"),
                    f"{f.silent_s:.1f} s",
                    str(f.drainer) if f.drainer else "-",
                )
            )
        _columns(rows)
        return Exit.DONE


class Now:
    """Show what every worker of a live engine is doing or waiting for, and cycles in it."""

    name = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("segment", nargs="?", type=Path, help="a segment (default: the one live engine)")

    def run(self, args: argparse.Namespace) -> int:
        look = control.now(args.segment or control.only_live())
        print(f"{look.name} ({look.status}), step {look.step:,}", file=sys.stderr)
        rows = [("RANK", "WORKER", "ROLE", "STATE", "FOR", "SEEN", "WANTED", "SINCE", "TASK", "EVENTS")]
        for w in look.workers:
            waits = w["waited_ns"] is not None
            since = short(w["waited_ns"] / 1e9, "s") if waits else ""
            who = (str(w["rank"]), str(w["worker"]), w["role"], "waits" if waits else "runs")
            rows.append((*who, w["target"], w["seen"], w["wanted"], since, w["task"], f"{w['fired']:,}"))
        _columns(rows)
        for cycle in look.cycles:
            names_ = " → ".join(f"worker {w}" for w in [*cycle, cycle[0]])
            print(f"deadlock: {names_}: each waits for what the next would release", file=sys.stderr)
        return Exit.DONE


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip())
