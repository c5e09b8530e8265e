"""Pairing and tiles on one core: events a second and peak memory, from sealed parts of a synthetic trace.

    python benchmarks/pairing.py [TRACE.mscope | EVENTS]…        (default: 1e6 20e6)

Each trace is measured in a process of its own, pinned to one core. Times are of that process's CPU, so that a busy
machine counts little; reading the parts' Parquet stands in a column of its own. A number makes a synthetic trace
of that many events in the temporary directory and removes it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
import synthetic

from megascope.store.pairing import Context, Pairer
from megascope.store.tables import EVENTS, INTERVALS
from megascope.store.tiles import TileBuilder
from megascope.store.trace import Trace


class Stopwatch:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, name: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = act()
        self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - began
        return result


def measure(path: Path) -> dict[str, Any]:
    """Pair a whole trace and build its tiles."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    pa.set_cpu_count(1)
    watch = Stopwatch()
    events = tasks = waits = tiles = 0
    with Trace.open(path) as trace:
        workers = pq.read_table(path / "tables" / "workers.parquet").replace_schema_metadata(None)
        lost = [pq.read_table(p.path).cast(INTERVALS.schema) for p in trace.parts("intervals")]
        losses = pa.concat_tables(lost) if lost else None
        pairer, builder = Pairer(Context.of(trace.manifest, workers)), TileBuilder()
        for part in trace.parts("events"):
            table = watch("read", lambda path=part.path: pq.read_table(path, use_threads=False).cast(EVENTS.schema))
            derived = watch("pair", lambda table=table: pairer.feed(table))
            rows = watch("tiles", lambda d=derived, lost=losses: builder.feed(d.tasks, d.waits, d.frontier, lost))
            losses = None
            events, tasks, waits = events + part.rows, tasks + derived.tasks.num_rows, waits + derived.waits.num_rows
            tiles += rows.num_rows
        derived = watch("pair", pairer.finish)
        tiles += watch("tiles", lambda: builder.feed(derived.tasks, derived.waits, derived.frontier)).num_rows
        tiles += watch("tiles", builder.finish).num_rows
    # Of this process alone: getrusage would begin with what its parent had when it was made.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) >> 10
    counts = {"events": events, "tasks": tasks + derived.tasks.num_rows, "waits": waits + derived.waits.num_rows}
    return counts | {"rows": tiles, "peak": peak} | watch.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=["1e6", "20e6"])
    args = parser.parse_args()
    print(f"$ python benchmarks/pairing.py {' '.join(args.traces)}")
    print(
        f"{'events':>12}{'tasks':>12}{'waits':>12}{'tile rows':>12}{'read s':>9}{'pair s':>9}{'M events/s':>12}"
        f"{'tiles s':>9}{'M events/s':>12}{'peak MB':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="pairing-") as temporary:
        for given in args.traces:
            path = Path(given)
            if not path.is_dir():
                path = Path(temporary) / "synthetic.mscope"
                synthetic.write(path, int(float(given)), force=True)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                m = pool.apply(measure, (path,))
            print(line(m))


def line(m: dict[str, Any]) -> str:
    """One line of the printed table."""
    return (
        f"{m['events']:>12,}{m['tasks']:>12,}{m['waits']:>12,}{m['rows']:>12,}{m['read']:>9.2f}{m['pair']:>9.2f}"
        f"{m['events'] / m['pair'] / 1e6:>12.2f}{m['tiles']:>9.2f}{m['events'] / m['tiles'] / 1e6:>12.2f}{m['peak']:>9}"
    )


if __name__ == "__main__":
    main()
