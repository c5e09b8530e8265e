"""The workbench on a trace of any size: how long a user waits, and how much memory that takes.

    python benchmarks/workbench.py TRACE.mscope… [--rounds 5] [--only open,group,zoom,reports,tui,…] [--patience 30]

Every round of every measurement is a process of its own; rounds are interleaved, so that whatever else the machine does
meets all of them alike. Prints Markdown tables of medians, and how much of the machine others used meanwhile. What is
read comes from the page cache: every file is read once before. With patience, in minutes, a measurement begins only
when the machine is idle, and is repeated when others have used more than a tenth of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import workbench_tui

Figures = dict[str, float]
"""Milliseconds by what was measured; MB for keys that end in `MB`; under "%" what others used of the machine."""
Measured = dict[str, dict[str, list[Figures]]]
"""Figures of each round, by trace and kind."""

GROUPS = {
    "tasks: count, running time by class": "SELECT class, count(*), sum(exec_ns) FROM tasks GROUP BY class",
    "tasks: mean queueing by worker": "SELECT worker, avg(queue_ns), max(queue_ns) FROM tasks GROUP BY worker",
    "tasks: first start, last end by step": "SELECT step, min(start), max(complete) FROM tasks GROUP BY step",
    "waits: time by kind and dependency": "SELECT kind, dep_name, sum(ns) FROM waits GROUP BY ALL",
    "events: count by hook": "SELECT hook_name, count(*) FROM events GROUP BY hook_name",
    "events: count by class and hook": "SELECT class, hook_name, count(*) FROM events GROUP BY ALL",
    "events: running time by worker": "SELECT worker, sum(since_ns) FROM events WHERE hook = 4 GROUP BY worker",
    "events: count by ms": "SELECT t // 1000000 AS ms, count(*) FROM events GROUP BY ms",
}
ZOOM = {
    "tiles": "SELECT worker, tile, busy, wait_data, class FROM tiles WHERE level = 16",
    "tasks": "SELECT worker, start, complete, class, missing FROM tasks",
    "waits": "SELECT worker, t_begin, t_end, kind FROM waits",
    "events": "SELECT * FROM events",
}
REPORTS = ("overview", "classes", "requests", "steps", "waits", "workers", "losses")
MS = 1_000_000
ZOOMS = 8
MOST = 0.1
CPU = ", CPU of all cores"


def measure_open(path: str) -> Figures:
    """`megascope.open`: the first time in a process, which loads what it needs, and later."""
    import megascope

    out = {}
    for name in ("open, first in a process", "open"):
        began = time.perf_counter()
        run = megascope.open(path)
        out[name] = _since(began)
        run.close()
    return out


def measure_group(path: str) -> Figures:
    """Grouping all rows, each for the first time in its session."""
    import megascope

    out = {}
    for name, sql in GROUPS.items():
        with megascope.open(path) as run:
            began, used = time.perf_counter(), time.process_time()
            run.sql(sql).arrow()
            out |= {name: _since(began), f"{name}{CPU}": (time.process_time() - used) * 1e3}
    return out | _peak()


def measure_zoom(path: str) -> Figures:
    """All rows of 1 ms: the first one of a session, and the mean of others elsewhere."""
    import megascope

    out = {}
    for name, sql in ZOOM.items():
        with megascope.open(path) as run:
            begin, end = run.session.span() or (0, 0)
            took = []
            for i in range(1 + ZOOMS):
                at = begin + (end - begin) * (2 * i + 1) // (2 * ZOOMS + 2) // MS * MS
                began = time.perf_counter()
                run.window(at, at + MS)
                run.sql(sql).arrow()
                took.append(_since(began))
            out[f"1 ms of {name}, first"] = took[0]
            out[f"1 ms of {name}, then"] = statistics.mean(took[1:])
            out[f"1 ms of {name}, slowest"] = max(took[1:])
    return out | _peak()


def measure_reports(path: str) -> Figures:
    """Each report, in a session of its own."""
    import megascope

    out = {}
    for name in REPORTS:
        with megascope.open(path) as run:
            began, used = time.perf_counter(), time.process_time()
            run.report(name)
            out |= {f"report {name}": _since(began), f"report {name}{CPU}": (time.process_time() - used) * 1e3}
    return out | _peak()


KINDS: dict[str, Callable[[str], Figures]] = {
    "open": measure_open,
    "group": measure_group,
    "zoom": measure_zoom,
    "reports": measure_reports,
    "tui": workbench_tui.measure_shell,
    "tui 200x60": partial(workbench_tui.measure, size=(200, 60)),
    "tui 80x24": partial(workbench_tui.measure, size=(80, 24)),
}


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _peak() -> Figures:
    """Of this process alone: getrusage would begin with what its parent had when it was made."""
    status = Path("/proc/self/status").read_text()
    return {"peak memory, MB": int(status.split("VmHWM:")[1].split()[0]) / 1024}


def _in_a_process(act: Callable[[str], Figures], path: str) -> Figures:
    """Its figures, and the share of the machine that others used."""
    busy, own, began = _busy(), _own(), time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        figures = pool.apply(act, (path,))
        pool.close()
        pool.join()
    wall = time.perf_counter() - began
    return figures | {"%": max(_busy() - busy - (_own() - own), 0) / wall / (os.cpu_count() or 1) * 100}


def _busy() -> float:
    """Seconds that all cores together have worked."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    return sum(os.times()[:4])


def _await_idle(until: float) -> None:
    """Wait until a second passes in which the machine does next to nothing, but no longer than `until`."""
    while time.monotonic() < until:
        before = _busy()
        time.sleep(1.0)
        if _busy() - before < MOST * (os.cpu_count() or 1):
            return


def _read_once(path: Path) -> None:
    for file in path.rglob("*.parquet"):
        with file.open("rb") as f:
            while f.read(1 << 24):
                pass


def run(paths: Iterable[Path], kinds: Iterable[str], rounds: int, patience: float) -> Measured:
    """Figures of each round, by trace and kind. patience: seconds to spend on waiting for an idle machine."""
    traces: Measured = {str(p): {k: [] for k in kinds} for p in paths}
    for path in traces:
        _read_once(Path(path))
    until = time.monotonic() + patience
    for number in range(rounds):
        for path, of in traces.items():
            for kind, figures in of.items():
                while len(figures) <= number:
                    _await_idle(until)
                    found = _in_a_process(KINDS[kind], path)
                    if found["%"] <= MOST * 100 or time.monotonic() > until:
                        figures.append(found)
    return traces


def table(of: Measured, kind: str) -> list[str]:
    """Medians of one kind in Markdown, a column for each trace."""
    names = [f"{_events(path) / 1e6:g} M" for path in of]
    lines = [f"| {kind} | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    first = next(iter(of.values()))[kind][0]
    for name in [n for n in first if n != "%"]:
        values = [statistics.median(f[name] for f in kinds[kind]) for kinds in of.values()]
        lines.append(f"| {name} | " + " | ".join(_cell(v, name.endswith("MB")) for v in values) + " |")
    return lines


def _cell(value: float, memory: bool) -> str:
    if memory:
        return f"{value:,.0f}"
    return f"{value / 1e3:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _events(path: str) -> int:
    parts: list[dict[str, Any]] = json.loads((Path(path) / "manifest.json").read_text())["streams"]["events"]["parts"]
    return sum(part["rows"] for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--patience", type=float, default=0, metavar="MINUTES")
    args = parser.parse_args()
    kinds = args.only.split(",")
    of = run(args.traces, kinds, args.rounds, args.patience * 60)
    print(f"$ python benchmarks/workbench.py {' '.join(p.name for p in args.traces)} --rounds {args.rounds}")
    others = [f["%"] for figures in of.values() for rounds in figures.values() for f in rounds]
    print(f"others used {statistics.median(others):.0f} % of {os.cpu_count()} cores, at most {max(others):.0f} %")
    for kind in kinds:
        print("\n" + "\n".join(table(of, kind)))


if __name__ == "__main__":
    main()
