"""A histogram program in machine code: events a second on one core, and the time to verify and lower.

    python benchmarks/native.py [--rows 1e6] [--rounds 15]

The program counts t - aux by task class in a histogram, at one hook; batches come as rows and as columns. Beside it
runs a plain numba loop that does the same to an array indexed by worker and class: no hash, no budgets, no counters,
no verifier. All are called in turn, so that a busy machine slows all of them; figures are of CPU time and the best
round. Times to compile are of a program of 200 instructions with eight calls on three maps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.execution import HOOK_SLOTS
from megascope.capture.programs.histogram import HEAD, SUB, SUB_BITS, VALUE_BYTES, WORDS
from megascope.capture.programs.maps import STATS_BYTES, Map, MapKind
from megascope.capture.programs.native import Native
from megascope.capture.programs.native_cells import rebuild
from megascope.capture.programs.native_context import columns_read
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.verifier import verify
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

COMPLETE = HOOK_BY_NAME["complete"].id
CLASSES = 40
MAPS = (
    Map("lat", MapKind.HIST, 4, VALUE_BYTES, 64, aggregate=True),
    Map("sums", MapKind.HASH, 8, 8, 1024, aggregate=True),
    Map("stats", MapKind.STATS, 4, STATS_BYTES, 64, aggregate=True),
)
AT = EVENT_ROW.offsets
HISTOGRAM = f"""
    ldxdw %r3, [%r1+{AT["t"]}]
    ldxdw %r4, [%r1+{AT["aux"]}]
    sub %r3, %r4
    ldxh %r2, [%r1+{AT["task_class"]}]
    stxw [%r10-4], %r2
    mov %r2, %r10
    add %r2, -4
    lddw %r1, map:lat
    call hist_add
    mov %r0, 0
    exit
"""


def program(text: str) -> Program:
    insns = assemble(text, {m.name: i for i, m in enumerate(MAPS)})
    return Program("bench", insns, (Entry("complete", (COMPLETE,), 0),), MAPS)


def two_hundred() -> Program:
    """Predicates and arithmetic on the row, each time ending in an upsert, as a compiled query has them."""
    text = "mov %r6, %r1\n"
    for i in range(8):
        name, helper, key = (("lat", "hist_add", 4), ("sums", "map_add", 8), ("stats", "stats_add", 4))[i % 3]
        text += f"""
            ldxdw %r7, [%r6+{AT["t"]}]
            ldxdw %r8, [%r6+{AT["aux"]}]
            jeq %r8, 0, skip{i}
            sub %r7, %r8
            jle %r7, {1000 * i}, skip{i}
            ldxh %r9, [%r6+{AT["task_class"]}]
            ldxw %r2, [%r6+{AT["request"]}]
            lsh %r2, {i}
            xor %r9, %r2
            and %r9, {(1 << i + 3) - 1}
            mov %r3, %r7
            div %r3, {i + 3}
            jsgt32 %r9, 100, other{i}
            add %r3, %r9
            other{i}: stx{"w" if key == 4 else "dw"} [%r10-8], %r9
            mov %r2, %r10
            add %r2, -8
            lddw %r1, map:{name}
            call {helper}
            mov %r1, %r7
            rsh %r1, 3
            add %r7, %r1
            skip{i}: mov %r5, {i}
        """
    count = len(assemble(text, {m.name: i for i, m in enumerate(MAPS)}))
    return program(text + "mov %r0, 0\n" * (199 - count) + "exit")


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def plain(t: Any, aux: Any, task_class: Any, worker: Any, hook: Any, histograms: Any) -> None:
    for i in range(t.shape[0]):
        if hook[i] != COMPLETE:
            continue
        value = t[i] - aux[i]
        words = histograms[worker[i], task_class[i]]
        words[0] += np.uint64(1)
        words[1] += value
        words[2] = min(words[2], value)
        words[3] = max(words[3], value)
        octave = 0
        while (value | np.uint64(SUB)) >> np.uint64(octave + 1):
            octave += 1
        shift = octave - SUB_BITS
        words[HEAD + shift * SUB + np.int64(value >> np.uint64(shift))] += np.uint64(1)


def events(n: int, workers: int) -> Any:
    """Batches of 512 rows of one worker after another, as a monitor drains queues."""
    rng = np.random.default_rng(1)
    rows = np.zeros(n, EVENT_ROW.dtype)
    rows["t"] = 10**9 + 100 * np.arange(n)
    rows["aux"] = rows["t"] - rng.lognormal(10, 0.5, n).astype(np.uint64)
    rows["task_class"] = rng.integers(0, CLASSES, n)
    rows["worker"] = np.arange(n) // 512 % workers
    rows["hook"] = COMPLETE
    return rows


def throughput(n: int, workers: int, rounds: int) -> dict[str, float]:
    """Million events a second of CPU time, best round."""
    verdict = verify(program(HISTOGRAM))
    rows, native = events(n, workers), Native(verdict, workers, settled=0)
    words, by = rows.view(np.uint64).reshape(n, 8), np.zeros(n, np.uint32)
    columns = {name: np.ascontiguousarray(rows[name]) for name in columns_read(verdict)}
    histograms = np.zeros((workers, CLASSES, WORDS), np.uint64)
    histograms[:, :, 2] = np.iinfo(np.uint64).max
    plainly = [columns[name] for name in ("t", "aux", "task_class", "worker", "hook")]
    runs: dict[str, Callable[[], Any]] = {
        "rows": lambda: native.run(words, by, 0),
        "columns": lambda: native.run_columns(columns, by, 0),
        "numba": lambda: plain(*plainly, histograms),
    }
    best = dict.fromkeys(runs, 0.0)
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run()
            best[name] = max(best[name], n / (time.process_time() - began) / 1e6)
    _check(native, histograms, n * rounds)
    return best


def _check(native: Native, histograms: Any, seen: int) -> None:
    """Both saw the same: the program twice, in both forms."""
    for export in native.close(np.arange(native.workers)):
        if export.map == 0:
            want = histograms[export.worker, export.keys[:, 0]]
            got = export.values.view(np.uint64)
            if (
                not (got[:, 2:4] == want[:, 2:4]).all()
                or not (got[:, [0, *range(HEAD, WORDS)]] == 2 * want[:, [0, *range(HEAD, WORDS)]]).all()
            ):
                raise SystemExit("the program and the plain loop disagree")
    if native.counters.sum() != 2 * seen or native.counters.shape[1] != HOOK_SLOTS:
        raise SystemExit("events are missing from the counters")


def compile_times(rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time, best round: verify; lower and compile quickly; the same thoroughly, for one form."""
    rebuild()
    big = two_hundred()
    best = {"verify": 1e9, "attach": 1e9, "thorough": 1e9}
    for _ in range(rounds):
        began = time.process_time()
        verdict = verify(big)
        verified = time.process_time()
        native = Native(verdict, 132, settled=0)
        attached = time.process_time()
        native.run(np.zeros((0, 8), np.uint64), np.zeros(0, np.uint32), 0)
        took = verified - began, attached - verified, time.process_time() - attached
        best = {name: min(best[name], 1e3 * s) for name, s in zip(best, took, strict=True)}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    n = int(args.rows)
    print(f"$ python benchmarks/native.py --rows {n} --rounds {args.rounds}")
    took = compile_times(args.rounds)
    print(f"{len(two_hundred().insns)} instructions, ms: " + ", ".join(f"{k} {v:.1f}" for k, v in took.items()))
    print(f"{'workers':>8} {'rows':>8} {'columns':>8} {'numba':>8}   M events/s on one core, {CLASSES} histograms each")
    for workers in (1, 8, 132):
        best = throughput(n, workers, args.rounds)
        print(f"{workers:8} " + " ".join(f"{v:8.1f}" for v in best.values()))


if __name__ == "__main__":
    main()
