"""What every worker of a live engine waits for, and cycles in it.

A worker that waits for a dependency waits, through the static schedule, for the workers that have a producer of it
still ahead of them. Where such edges close, nobody will ever move: a deadlock, shown by name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa

from .segment.reader import SegmentReader

INDEX = 0xFFFF_FFFF


@dataclass(frozen=True)
class Waiting:
    """Rows of table `now`, device time now (ns), and cycles: each a list of worker ids that wait for the next."""

    rows: pa.Table
    t_now: int
    cycles: list[list[int]]


def waiting(segment: SegmentReader) -> Waiting:
    """One look at the segment's now records."""
    rows = segment.now()
    t_now = int(rows["heartbeat"].to_numpy().max(initial=0))
    return Waiting(rows, t_now, _cycles(_edges(segment, rows)))


def _edges(segment: SegmentReader, rows: pa.Table) -> dict[int, list[int]]:
    """Waiting worker → workers that have a producer of what it waits for at or after the task they wait at."""
    producers: dict[int, list[int]] = defaultdict(list)
    deps = segment.tables["task_deps"]
    for index, dep, releases in zip(*(deps[c].to_pylist() for c in ("index", "dep", "releases")), strict=True):
        if releases:
            producers[dep].append(index)
    static = segment.tables["static_tasks"]
    place = {
        i: (w, o)
        for i, w, o in zip(*(static[c].to_pylist() for c in ("index", "worker", "order")), strict=True)
        if w >= 0
    }
    at = {r["worker"]: r for r in rows.to_pylist() if r["waiting"] and r["dep"]}
    edges: dict[int, list[int]] = {}
    for worker, row in at.items():
        ahead = set()
        for producer in producers.get(row["dep"], ()):
            other, order = place.get(producer, (-1, -1))
            if other in at:
                iteration, index = at[other]["task"] >> 32, at[other]["task"] & INDEX
                here = place.get(index, (-1, -1))[1]
                if 0 <= here <= order and iteration <= row["task"] >> 32:
                    ahead.add(other)
        edges[worker] = sorted(ahead)
    return edges


def _cycles(edges: dict[int, list[int]]) -> list[list[int]]:
    """One cycle for every knot of the graph, by walking each worker's edges once (iterative depth first)."""
    done: set[int] = set()
    found: list[list[int]] = []
    for root in edges:
        path: list[int] = []
        on_path: dict[int, int] = {}
        stack = [(root, 0)]
        while stack:
            node, i = stack.pop()
            if i == 0:
                if node in done:
                    continue
                on_path[node] = len(path)
                path.append(node)
            if i < len(edges.get(node, ())):
                stack.append((node, i + 1))
                after = edges[node][i]
                if after in on_path:
                    found.append(path[on_path[after] :])
                elif after not in done:
                    stack.append((after, 0))
            else:
                done.add(node)
                path.pop()
                del on_path[node]
    return found
