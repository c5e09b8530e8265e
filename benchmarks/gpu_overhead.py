"""What recording costs on a GPU: slowdown of the megakernel, cycles per firing, rows per second to host memory.

    python benchmarks/gpu_overhead.py [--out FILE.json] [--rounds N] [--only PART…] [--spec k=v,…]

Variants of one kernel run interleaved, round by round, in one process: hooks compiled out, compiled in and detached,
programs attached (through a monitor warp, and through monitor blocks), recording every hook (with a drainer in a
process of its own, with nobody draining, and with a ring that is full), and a compiler-native record in the same
places. A launch's figure is the median step time on the device's own clock; a variant's, the median over the rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megascope.capture.engines.cuda.compilation import Hooks, cubin
from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import THREADS, Megakernel, clock_state
from megascope.capture.engines.cuda.libraries import library
from megascope.capture.engines.cuda.parameters import SEGMENT, SEGMENT_SYMBOL, fill
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.programs import image
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.programs.standard import MONITORS, load
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.mailbox import Mailbox
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import CHUNK, Control, Cursor, Record, Summary, Worker
from megascope.store.tables import HOOK_BY_NAME

WARM_STEPS = 20
FIRING_TASKS = 4000
FIRING_LAUNCHES = 15
BURST_EVENTS = 60_000
FULL_MB = 8
"""of event rings that are full after a few steps"""


def drain(path: str, stop: Any, taken: Any) -> None:
    """A drainer: copies every published row out of the segment and frees its place."""
    with SegmentReader.open(Path(path), write=True) as segment:
        rings, lay = RingReader(segment), segment.layout
        while not stop.is_set():
            if rings.take().rows.num_rows == 0:
                time.sleep(0.0002)
            heads = segment.cursors()[:, Cursor.SUMMARY_HEAD] // CHUNK
            segment.poke(lay.tails_offset + lay.monitors, heads.astype(np.uint8).tobytes())
            taken.value = rings.taken


class Bench:
    """One kernel, with a fresh segment for every launch that records."""

    def __init__(self, settings: Settings) -> None:
        self.cupy = library()
        self.kernel = Megakernel(self.cupy, settings)
        self.block = Megakernel(self.cupy, dataclasses.replace(settings, transport="block"))
        for hooks in Hooks:
            self.kernel.build(hooks)
        self.path = Path(f"/dev/shm/megascope-bench-{os.getpid()}.seg")

    @staticmethod
    def step_ns(kernel: Megakernel) -> float:
        times = kernel.host.begun.astype(np.int64)
        return float(np.median(np.diff(times)[WARM_STEPS:]))

    def plain(self, hooks: Hooks, dynamic: bool) -> dict[str, float]:
        self.kernel.launch(hooks, dynamic=dynamic)
        assert self.kernel.wait() == "done"
        return {"step_ns": self.step_ns(self.kernel)}

    def roomy(self, dynamic: bool) -> dict[str, float]:
        """Hooks compiled out, launched with the shared memory of the build that has a monitor warp."""
        kernel, build = self.kernel, self.kernel.build(Hooks.NONE)
        shared = kernel.build(Hooks.QUEUE).shared_bytes
        build.function.max_dynamic_shared_size_bytes = shared
        kernel.prepare(build.module, dynamic=dynamic)
        with kernel.stream:
            build.function((kernel.blocks,), (THREADS[Hooks.NONE],), (), shared_mem=shared)
        assert kernel.wait() == "done"
        return {"step_ns": self.step_ns(kernel)}

    def watched(
        self, dynamic: bool, programs: tuple[Program, ...], kernel: Megakernel | None = None
    ) -> dict[str, float]:
        """Programs attached to the running kernel before its first step, nothing recorded."""
        kernel = kernel or self.kernel
        self.path.unlink(missing_ok=True)
        engine = CudaEngine(kernel, self.path)

        def attach() -> None:
            with SegmentReader.open(self.path, write=True) as segment:
                for slot, program in enumerate(programs, 1):
                    with Mailbox(segment, "benchmark") as box:
                        said = box.attach(slot, image.pack(program), Limits())
                        assert said.code == 0, said

        try:
            kernel.launch(kernel.firing, engine.memory, dynamic=dynamic, hold=True)
            asking = threading.Thread(target=attach, daemon=True)
            asking.start()
            while asking.is_alive():
                engine.programs.poll()
            kernel.host.go()
            while kernel.running:
                engine.programs.poll()
                time.sleep(0.0005)
            kernel.wait()
            engine.programs.end()
            heads = engine.segment.cursor[:, Cursor.SUMMARY_HEAD].astype(int)
            found = np.concatenate([engine.segment.summary[m, :h] for m, h in enumerate(heads)])
            its = found[found[:, Summary.WHAT] & np.uint64(0xFF) == Record.COVERAGE]
            worker = engine.segment.worker
            return {
                "step_ns": self.step_ns(kernel),
                "events": int(worker[:, Worker.FIRED].sum()),
                "queue_lost": int(worker[:, Worker.LOST].sum()),
                "eligible": int(its[:, Summary.ELIGIBLE].sum()),
                "observed": int(its[:, Summary.OBSERVED].sum()),
            }
        finally:
            kernel.host.ask_stop()
            kernel.wait()
            engine.close()
            self.path.unlink(missing_ok=True)

    def segmented(self, dynamic: bool, record: bool, drained: bool, ring_mb: float | None = None) -> dict[str, float]:
        self.path.unlink(missing_ok=True)
        settings = self.kernel.settings
        self.kernel.settings = dataclasses.replace(settings, ring_mb=settings.ring_mb if ring_mb is None else ring_mb)
        engine = CudaEngine(self.kernel, self.path, record=record)
        self.kernel.settings = settings
        context = multiprocessing.get_context("spawn")
        stop, taken = context.Event(), context.Value("q", 0)
        process = context.Process(target=drain, args=(str(self.path), stop, taken), daemon=True)
        if drained:
            process.start()
            time.sleep(1.0)
        try:
            self.kernel.launch(
                Hooks.QUEUE, engine.memory, dynamic=dynamic, mask=engine.segment.layout.exported if record else 0
            )
            begin = time.monotonic()
            assert self.kernel.wait() == "done"
            took = time.monotonic() - begin
            time.sleep(0.3 if drained else 0)
            worker, cursor = engine.segment.worker, engine.segment.cursor
            return {
                "step_ns": self.step_ns(self.kernel),
                "events": int(worker[:, Worker.FIRED].sum()),
                "queue_lost": int(worker[:, Worker.LOST].sum()),
                "ring_lost": int(cursor[:, Cursor.RING_LOST].sum()),
                "written": int(cursor[:, Cursor.HEAD].sum()),
                "taken": taken.value,
                "seconds": took,
            }
        finally:
            stop.set()
            if drained:
                process.join(10)
            engine.close()
            self.path.unlink(missing_ok=True)


def slowdown(bench: Bench, rounds: int) -> dict[str, Any]:
    """Step times of every variant and schedule, interleaved."""
    standard = tuple(load(m.name) for m in MONITORS if m.name != "comm")
    variants: dict[str, Callable[[bool], dict[str, float]]] = {
        "compiled out": lambda d: bench.plain(Hooks.NONE, d),
        "compiled out, roomy": lambda d: bench.roomy(d),
        "detached": lambda d: bench.segmented(d, record=False, drained=False),
        "one histogram": lambda d: bench.watched(d, (load("latency"),)),
        "standard monitors": lambda d: bench.watched(d, standard),
        "blocks: detached": lambda d: bench.watched(d, (), bench.block),
        "blocks: standard monitors": lambda d: bench.watched(d, standard, bench.block),
        "recording, undrained": lambda d: bench.segmented(d, record=True, drained=False),
        "recording, drained": lambda d: bench.segmented(d, record=True, drained=True),
        "recording, ring full": lambda d: bench.segmented(d, record=True, drained=False, ring_mb=FULL_MB),
        "compiler-native": lambda d: bench.plain(Hooks.NATIVE, d),
        "compiled out, again": lambda d: bench.plain(Hooks.NONE, d),
    }
    out: dict[str, Any] = {}
    for name, dynamic in (("dynamic", True), ("static", False)):
        got: dict[str, list[dict[str, float]]] = {v: [] for v in variants}
        for _ in range(rounds):
            for variant, run in variants.items():
                got[variant].append(run(dynamic))
        base = statistics.median(r["step_ns"] for r in got["compiled out"])
        print(f"\n{name} schedule, {bench.kernel.graph.tasks} tasks a step, median of {rounds} interleaved launches")
        for variant, runs in got.items():
            steps = [r["step_ns"] for r in runs]
            median = statistics.median(steps)
            row = {"step_us": median / 1e3, "slowdown": median / base - 1, "spread_us": (max(steps) - min(steps)) / 1e3}
            if "events" in runs[0]:
                row |= {k: statistics.median(r[k] for r in runs) for k in runs[0] if k != "step_ns"}
            out.setdefault(name, {})[variant] = row
            rest = "".join(
                f"  {k} {v:,.0f}"
                for k, v in row.items()
                if k in ("events", "queue_lost", "ring_lost", "eligible", "observed")
            )
            print(
                f"  {variant:25} {row['step_us']:9.2f} us a step  {100 * row['slowdown']:+6.2f} %"
                f"  (spread {row['spread_us']:.2f} us){rest}",
                flush=True,
            )
    return out


def firing(bench: Bench) -> list[dict[str, Any]]:
    """Cycles that firing adds to a task, on its critical path (inside) and overlapping the next task (beside)."""
    cp, blocks = bench.cupy, bench.kernel.blocks
    cycles, sink = cp.zeros(blocks, np.uint64), cp.zeros(blocks * 128, np.float32)
    modules = {
        h: cp.RawModule(path=str(cubin("firing.cu", bench.kernel.architecture, h))) for h in (Hooks.QUEUE, Hooks.NATIVE)
    }
    log = dict(zip(("native", "native_slots"), bench.kernel.native_log, strict=True))
    fill(cp, modules[Hooks.NATIVE], SEGMENT_SYMBOL, SEGMENT, log, bench.kernel.stream)
    bench.kernel.stream.synchronize()

    def one(hooks: Hooks, events: int, place: str, length: int, mask: int) -> float:
        function = modules[hooks].get_function(f"firing_{events}_{place}")
        args = (cycles, sink, np.uint32(FIRING_TASKS), np.uint32(length), np.uint32(mask))
        function((blocks,), (THREADS[hooks],), args)
        cp.cuda.runtime.deviceSynchronize()
        return float(cycles.get().mean()) / FIRING_TASKS

    every, complete = 0x1FFE, 1 << HOOK_BY_NAME["complete"].id
    cases = [  # what, build, hooks in the code, mask, the case to compare it with
        ("nothing", Hooks.NATIVE, 0, 0, "nothing"),
        ("a consumer warp beside it", Hooks.QUEUE, 0, 0, "nothing"),
        ("start and complete, detached", Hooks.QUEUE, 2, 0, "a consumer warp beside it"),
        ("complete", Hooks.QUEUE, 2, complete, "a consumer warp beside it"),
        ("start and complete", Hooks.QUEUE, 2, every, "a consumer warp beside it"),
        ("compiler-native begin and end", Hooks.NATIVE, 2, 0, "nothing"),
    ]
    out = []
    print("\ncycles that firing adds to a task")
    for length in (1, 4):
        for place in ("inside", "beside"):
            got: dict[str, list[float]] = {name: [] for name, *_ in cases}
            for _ in range(FIRING_LAUNCHES):
                for name, hooks, events, mask, _ in cases:
                    got[name].append(one(hooks, events, place, length, mask))
            median = {name: statistics.median(cycles) for name, cycles in got.items()}
            for name, *_, than in cases[1:]:
                row = {"what": name, "than": than, "place": place, "length": length}
                out.append(row | {"task_cycles": median["nothing"], "added_cycles": median[name] - median[than]})
                print(f"  {place}, task of {median['nothing']:5.0f} cycles: {name:30} {out[-1]['added_cycles']:+7.1f}")
    return out


def burst(bench: Bench) -> dict[str, float]:
    """Every worker fires as fast as it can, nobody drains: rows per second into host memory until the ring is full."""
    cp, kernel = bench.cupy, bench.kernel
    module = cp.RawModule(path=str(cubin("firing.cu", kernel.architecture, Hooks.QUEUE)))
    function = module.get_function("burst")
    rates, totals = [], {}
    for _ in range(5):
        bench.path.unlink(missing_ok=True)
        engine = CudaEngine(kernel, bench.path, record=True)
        try:
            kernel.prepare(module, engine.memory, mask=engine.segment.layout.exported)
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            with kernel.stream:
                begin.record()
                function((kernel.blocks,), (THREADS[Hooks.QUEUE],), (np.uint32(BURST_EVENTS),))
                end.record()
            kernel.stream.synchronize()
            seconds = cp.cuda.get_elapsed_time(begin, end) / 1e3
            written = int(engine.segment.cursor[:, Cursor.HEAD].sum())
            worker = engine.segment.worker
            totals = {
                "fired": int(worker[:, Worker.FIRED].sum()),
                "queue_lost": int(worker[:, Worker.LOST].sum()),
                "ring_lost": int(engine.segment.cursor[:, Cursor.RING_LOST].sum()),
                "written": written,
                "seconds": seconds,
            }
            rates.append(written / seconds)
        finally:
            engine.close()
            bench.path.unlink(missing_ok=True)
    rate = statistics.median(rates)
    print(f"\nburst: {rate:.3g} rows/s of 68 bytes to host memory ({totals})", flush=True)
    return {"rows_per_s": rate, **totals}


def attach(bench: Bench, toggles: int) -> dict[str, float]:
    """Publication of a new mask to the last monitor's acknowledgement, on a running kernel."""
    bench.path.unlink(missing_ok=True)
    engine = CudaEngine(bench.kernel, bench.path)
    took = []
    try:
        bench.kernel.launch(Hooks.QUEUE, engine.memory)
        segment = engine.segment
        word = segment.control[Control.MASK : Control.MASK + 8].view("<u8")
        while bench.kernel.host.steps_begun < 2:
            pass
        for i in range(toggles):
            word[0] = segment.layout.exported if i % 2 == 0 else 0
            commit = (i + 1) % 256
            begin = time.perf_counter()
            segment.control[Control.COMMIT] = commit
            while not (segment.cursor[:, Cursor.ACK] == commit).all():
                if not bench.kernel.running:
                    break
            took.append(1e3 * (time.perf_counter() - begin))
            time.sleep(0.0005)
        bench.kernel.host.ask_stop()
        bench.kernel.wait()
    finally:
        engine.close()
        bench.path.unlink(missing_ok=True)
    row = {"p50_ms": float(np.median(took)), "p99_ms": float(np.quantile(took, 0.99)), "max_ms": max(took)}
    print(f"\nmask published to last acknowledgement, {len(took)} times: {row}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=("firing", "burst", "attach", "slowdown"), help="default: all")
    parser.add_argument("--spec", default="steps=300,ring_mb=1000,summary_rows=2048")
    args = parser.parse_args()
    bench = Bench(Settings.parse(args.spec))
    builds = {
        h.name.lower(): {
            "registers": bench.kernel.build(h).registers,
            "shared_bytes": bench.kernel.build(h).shared_bytes,
            "local_bytes": bench.kernel.build(h).local_bytes,
            "threads": THREADS[h],
        }
        for h in Hooks
    }
    print(bench.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "clocks:", clock_state())
    for name, build in builds.items():
        print(f"  {name:7} {build}")
    result: dict[str, Any] = {
        "clocks_before": clock_state(),
        "settings": bench.kernel.settings.params(),
        "builds": builds,
    }
    measured: dict[str, Callable[[], Any]] = {
        "firing": lambda: firing(bench),
        "burst": lambda: burst(bench),
        "attach": lambda: attach(bench, 200),
        "slowdown": lambda: slowdown(bench, args.rounds),
    }
    for name in args.only or measured:
        result[name] = measured[name]()
    result["clocks_after"] = clock_state()
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
