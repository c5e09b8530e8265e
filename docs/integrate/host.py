"""The host's side of the example kernels: what the compiler of a kernel knows, and a launch.

    python docs/integrate/host.py smooth|sum SEGMENT [--iterations N]

Meanwhile, from another terminal: megascope capture SEGMENT -o mine.mscope
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from megascope.capture.engines.cuda.compilation import Hooks, cubin
from megascope.capture.engines.cuda.scope import Rows, Scope

HERE = Path(__file__).resolve().parent
THREADS, TILES, LEAVES = 128, 96, 64
HOOKS = ("ready", "start", "complete", "wait", "resume", "release", "step")
DATA, CONTROL = 1, 4


def class_row(number: int, name: str, writes: str, waits_for: list[int]) -> dict[str, Any]:
    told = {"operator": name, "layer": -1, "device_function": "", "tensor_region": writes}
    return {"id": number, "name": name, "expected_dep_classes": waits_for, **told}


def dep_row(number: int, name: str, at: list[int], kind: int, wanted: int, by: int) -> dict[str, Any]:
    told = {"name": f"{name}{at or ''}", "event_tensor": name, "coordinate": at, "rank": 0}
    return {"id": number, "kind": kind, "wanted": wanted, "producer_class": by, **told}


def task_row(number: int, task_class: int, tile: int, dep: int, worker: int = -1, order: int = -1) -> dict[str, Any]:
    return {
        "index": number,
        "task_class": task_class,
        "tile": tile,
        "rank": 0,
        "worker": worker,
        "order": order,
        "dep": dep,
    }


def edges(tasks: Rows, releases: dict[int, int]) -> Rows:
    """What each task waits on, and what it releases."""
    waits = [{"index": t["index"], "dep": t["dep"], "releases": False} for t in tasks if t["dep"]]
    return waits + [{"index": task, "dep": dep, "releases": True} for task, dep in releases.items()]


def smooth_tables(blocks: int) -> dict[str, Rows]:
    tasks = [
        task_row(n, 1 + (n > TILES), (n - 1) % TILES, int(n > TILES), (n - 1) % blocks, (n - 1) // blocks)
        for n in range(1, 2 * TILES + 1)
    ]
    return {
        "task_classes": [class_row(1, "scale", "y[tile]", []), class_row(2, "blend", "x[tile]", [DATA])],
        "dependencies": [dep_row(1, "scaled", [], DATA, TILES, 1), dep_row(2, "blended", [], CONTROL, TILES, 2)],
        "static_tasks": tasks,
        "task_deps": edges(tasks, {n: 1 + (n > TILES) for n in range(1, 2 * TILES + 1)}),
    }


def sum_tables() -> dict[str, Rows]:
    nodes = range(1, 2 * LEAVES)
    tasks = [task_row(n, 1 + (n > LEAVES), n - 1, max(n - LEAVES, 0)) for n in nodes]
    inner = [dep_row(n, "children", [n], DATA, 2, 1 if n <= LEAVES // 2 else 2) for n in range(1, LEAVES)]
    return {
        "task_classes": [class_row(1, "leaf", "value[node]", []), class_row(2, "add", "value[node]", [DATA])],
        "dependencies": [*inner, dep_row(LEAVES, "end", [], CONTROL, 1, 2)],
        "static_tasks": tasks,
        "task_deps": edges(tasks, {n: (n + 1) // 2 for n in nodes}),
    }


def run(
    cupy: Any, example: str, segment: Path, iterations: int, *, compiled: Any = cubin, **how: Any
) -> np.ndarray[Any, Any]:
    """What the kernel computed: x [TILES * THREADS] of smooth, the totals [iterations] of sum."""
    device = cupy.cuda.Device(0)
    blocks = min(device.attributes["MultiProcessorCount"], TILES)
    transport = "warp" if example == "smooth" else "block"
    hooks = Hooks.QUEUE if transport == "warp" else Hooks.DEVICE
    source = HERE / f"{example}.cu"
    module = cupy.RawModule(path=str(compiled(source, f"sm_{device.compute_capability}", hooks)))
    kernel = module.get_function(example)
    shared = cupy.zeros(80, np.uint32)
    if example == "smooth":
        x = cupy.asarray(np.arange(TILES * THREADS, dtype=np.float32))
        out, arguments = x, (x, cupy.zeros(len(x), np.float32), shared, np.uint32(iterations))
        tables, end = smooth_tables(blocks), 2
    else:
        x = cupy.asarray(np.arange(LEAVES * THREADS, dtype=np.uint32))
        out = cupy.zeros(iterations, np.uint32)
        arguments = (x, cupy.zeros(2 * LEAVES, np.uint32), out, shared, np.uint32(iterations))
        tables, end = sum_tables(), LEAVES
    stream = cupy.cuda.Stream(non_blocking=True)
    with Scope(
        cupy, module, segment, tables, blocks=blocks, hooks=HOOKS, transport=transport, end=end, name=example,
        shared_bytes=kernel.shared_size_bytes, compiled=compiled, **how,
    ) as scope:  # fmt: skip
        scope.begin(stream)
        with stream:
            kernel((blocks,), (THREADS + scope.threads,), arguments)
        scope.follow(stream)
    return np.asarray(out.get())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=("smooth", "sum"))
    parser.add_argument("segment", type=Path)
    parser.add_argument("--iterations", type=int, default=100_000)
    args = parser.parse_args()
    from megascope.capture.engines.cuda.libraries import library

    print(run(library(), args.example, args.segment, args.iterations))


if __name__ == "__main__":
    main()
