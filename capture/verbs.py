"""The verbs that look at live engines: ls, now."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..store.errors import Exit
from . import control
from .columns import print_columns
from .live_line import lasting, short


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
            if f.status is None or f.standing is None:
                rows.append((str(f.path), "", "", f"unreadable: {f.problem}", "", "", "", "", "", ""))
                continue
            rows.append(
                (
                    str(f.path),
                    f.name,
                    str(f.pid),
                    f.standing.text,
                    f"{f.status.step:,}",
                    str(f.workers),
                    str(f.monitors),
                    short(f.bytes, "B"),
                    f"{f.silent_s:.1f} s",
                    str(f.drainer) if f.drainer else "-",
                )
            )
        print_columns(rows)
        for f in found:
            if f.standing is not None and f.standing.told:
                print(f"{f.path}: {f.standing.told}", file=sys.stderr)
        return Exit.DONE


class Now:
    """Show what every worker of a live engine is doing or waiting for, and cycles in it.

    Of an engine that has ended, it is what they did last.
    """

    name = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("segment", nargs="?", type=Path, help="a segment (default: the one live engine)")

    def run(self, args: argparse.Namespace) -> int:
        look = control.now(args.segment or control.only_live())
        print(f"{look.name} ({look.standing.text}), step {look.step:,}", file=sys.stderr)
        if look.standing.told:
            print(look.standing.told, file=sys.stderr)
        if not look.live:
            print("the engine is gone: this is what its workers did last", file=sys.stderr)
        rows = [("RANK", "WORKER", "ROLE", "STATE", "FOR", "SEEN", "WANTED", "SINCE", "TASK", "EVENTS")]
        for w in look.workers:
            waits = w["waited_ns"] is not None
            since = lasting(w["waited_ns"]) if waits else ""
            does = ("waits" if waits else "runs") if look.live else ("waited" if waits else "ran")
            who = (str(w["rank"]), str(w["worker"]), w["role"], does)
            rows.append((*who, w["target"], w["seen"], w["wanted"], since, w["task"], f"{w['fired']:,}"))
        print_columns(rows)
        wait = "waits" if look.live else "waited"
        for cycle in look.cycles:
            names_ = " → ".join(f"worker {w}" for w in [*cycle, cycle[0]])
            print(f"deadlock: {names_}: each {wait} for what the next would release", file=sys.stderr)
        return Exit.DONE
