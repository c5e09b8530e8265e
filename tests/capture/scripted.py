"""An engine that does exactly what a test says: fires, loses, publishes, cuts, dies half-way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from megascope.capture.segment.layout import Layout
from megascope.capture.segment.words import CHUNK, Cursor, Policy, Record, State, Status, Summary, Worker
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.tables import RECORDER, RING_ROW, WORKERS


def workers_table(monitor_of: list[int]) -> pa.Table:
    rows = [{"worker": w, "monitor": m, "sm": w, "role": "compute", "rank": 0} for w, m in enumerate(monitor_of)]
    return pa.Table.from_pylist(rows, schema=WORKERS.schema)


class ScriptedEngine:
    """Workers that belong to monitors as `monitor_of` says. `truth` holds every row that reached a ring, in order."""

    def __init__(self, path: Path, monitor_of: list[int], *, policy: Policy = Policy.DROP, **sizes: int) -> None:
        self.monitor_of = monitor_of
        layout = Layout(
            workers=len(monitor_of),
            monitors=max(monitor_of) + 1,
            policy=policy,
            **({"block_rows": 64, "blocks": 3, "summary_rows": 2 * CHUNK, "host_bytes": 4096} | sizes),
        )
        self.writer = SegmentWriter.create(path, layout, side_tables={"workers": workers_table(monitor_of)})
        self.layout = self.writer.layout
        n = len(monitor_of)
        self.t = 1_000
        self.seq = [0] * n
        self.since_cut = [dict.fromkeys(("from", "dequeued", "lost", "written", "ring_lost"), 0) for _ in range(n)]
        for s in self.since_cut:
            s["from"] = 1
        self.by_hook: list[dict[tuple[int, str], int]] = [{} for _ in range(n)]
        self.tail_blocks = [0] * self.layout.monitors
        self.truth: list[tuple[int, int]] = []
        self.lost: set[tuple[int, int]] = set()
        self.ring_lost: set[tuple[int, int]] = set()
        self.writer.beat(self.t, 0)

    def _room(self, m: int) -> bool:
        lay, w = self.layout, self.writer
        self.tail_blocks[m] += (int(w.tail[m]) - self.tail_blocks[m]) & 0xFF
        return int(w.cursor[m, Cursor.HEAD]) - self.tail_blocks[m] * lay.block_rows < lay.ring_rows

    def _count(self, worker: int, hook: int, what: str) -> None:
        key = (hook, what)
        self.by_hook[worker][key] = self.by_hook[worker].get(key, 0) + 1

    def fire(self, worker: int, hook: int = 3, *, lose: bool = False) -> None:
        """One event: lost before its monitor (`lose`), or written to the ring, or refused by a full one."""
        self.t += 1
        self.seq[worker] += 1
        seq, m, since = self.seq[worker], self.monitor_of[worker], self.since_cut[worker]
        if lose:
            since["lost"] += 1
            self._count(worker, hook, "lost")
            self.lost.add((worker, seq))
            return
        since["dequeued"] += 1
        if self.layout.policy == Policy.DROP and not self._room(m):
            since["ring_lost"] += 1
            self._count(worker, hook, "ring_lost")
            self.ring_lost.add((worker, seq))
            return
        self._count(worker, hook, "written")
        self._write(
            m, {"t": self.t, "seq": seq, "task": seq << 32 | 7, "aux": 0, "worker": worker, "hook": hook, "by": 1}
        )
        self.truth.append((worker, seq))

    def _write(self, m: int, row: dict[str, int]) -> None:
        lay, w = self.layout, self.writer
        head = int(w.cursor[m, Cursor.HEAD])
        turn, block, at = head // lay.ring_rows, head // lay.block_rows % lay.blocks, head % lay.block_rows
        if at == 0:
            w.generation[m, block] = 2 * turn + 1
        for c in RING_ROW:
            w.columns[c.name][m, block, at] = row.get(c.name, 0)
        if at == lay.block_rows - 1:
            w.generation[m, block] = 2 * turn + 2
        w.cursor[m, Cursor.HEAD] = head + 1
        w.cursor[m, Cursor.HEARTBEAT] = self.t

    def cut(self, worker: int, epoch: int = 0) -> bool:
        """Close the worker's interval: one interval record and one coverage record a hook. False: no room for them."""
        since, hooks = self.since_cut[worker], sorted({h for h, _ in self.by_hook[worker]})
        m = self.monitor_of[worker]
        head = int(self.writer.cursor[m, Cursor.SUMMARY_HEAD])
        chunks_waiting = (head // CHUNK - int(self.writer.summary_tail[m])) % 256
        used = chunks_waiting * CHUNK + head % CHUNK
        if used + 1 + len(hooks) > self.layout.summary_rows:
            return False
        common = {Summary.EPOCH: epoch | 1 << 48, Summary.T_BEGIN: self.t - 1, Summary.T_END: self.t}
        common |= {Summary.SEQ_FROM: since["from"], Summary.SEQ_TO: self.seq[worker] + 1}
        what = Record.INTERVAL | worker << 32
        self._record(
            m, common | {Summary.WHAT: what, Summary.DEQUEUED: since["dequeued"], Summary.INTERVAL_LOST: since["lost"]}
        )
        for hook in hooks:
            lost, written, refused = (self.by_hook[worker].get((hook, k), 0) for k in ("lost", "written", "ring_lost"))
            seen = written + refused
            self._record(
                m,
                common
                | {
                    Summary.WHAT: Record.COVERAGE | hook << 8 | RECORDER << 16 | worker << 32,
                    Summary.ELIGIBLE: seen + lost,
                    Summary.OBSERVED: seen,
                    Summary.LOST: lost,
                    Summary.EMITTED: seen,
                    Summary.WRITTEN: written,
                    Summary.RING_LOST: refused,
                },
            )
        self.since_cut[worker] = {"from": self.seq[worker] + 1, "dequeued": 0, "lost": 0, "written": 0, "ring_lost": 0}
        self.by_hook[worker] = {}
        return True

    def _record(self, m: int, words: dict[int, int]) -> None:
        head = int(self.writer.cursor[m, Cursor.SUMMARY_HEAD])
        row = self.writer.summary[m, head % self.layout.summary_rows]
        row[:] = 0
        for word, value in words.items():
            row[word] = value
        row[Summary.STAMP] = head + 1
        self.writer.cursor[m, Cursor.SUMMARY_HEAD] = head + 1

    def wait(self, worker: int, task: int, dep: int, seen: int, wanted: int) -> None:
        """The worker's now record: it waits."""
        self.t += 1
        words = np.array([self.t, task, dep, seen << 32 | wanted], np.uint64)
        self.writer.worker[worker, Worker.NOW_TASK : Worker.NOW_CHECK] = words[1:]
        self.writer.worker[worker, Worker.NOW_CHECK] = np.bitwise_xor.reduce(words)
        self.writer.worker[worker, Worker.NOW_T] = self.t

    def resume(self, worker: int) -> None:
        self.writer.worker[worker, Worker.NOW_T] = 0

    def acknowledge(self) -> None:
        self.writer.cursor[:, Cursor.ACK] = self.writer.commit

    def end(self) -> None:
        self.writer.end(self.t, 0)

    def state(self) -> State:
        return State(int(self.writer.status[Status.STATE]))


def pour(engine: ScriptedEngine, worker: int, count: int) -> int:
    """Write up to `count` rows of one worker at once, as far as its ring has room; how many were written.

    Rows carry seq from 1 on and nothing is lost: what does not fit is for the next call (policy wait).
    """
    m, lay, w = engine.monitor_of[worker], engine.layout, engine.writer
    engine.tail_blocks[m] += (int(w.tail[m]) - engine.tail_blocks[m]) & 0xFF
    head = int(w.cursor[m, Cursor.HEAD])
    count = min(count, lay.ring_rows - (head - engine.tail_blocks[m] * lay.block_rows))
    done = 0
    while done < count:
        block, at = head // lay.block_rows % lay.blocks, head % lay.block_rows
        n = min(count - done, lay.block_rows - at)
        seq = np.arange(engine.seq[worker] + 1, engine.seq[worker] + 1 + n)
        w.columns["seq"][m, block, at : at + n] = seq
        w.columns["t"][m, block, at : at + n] = 1_000 + 32 * seq
        w.columns["task"][m, block, at : at + n] = seq << 32
        w.columns["hook"][m, block, at : at + n] = 3
        w.columns["worker"][m, block, at : at + n] = worker
        w.columns["by"][m, block, at : at + n] = 1
        engine.seq[worker] += n
        head += n
        done += n
        w.cursor[m, Cursor.HEAD] = head
    w.cursor[m, Cursor.HEARTBEAT] = engine.t = 1_000 + 32 * engine.seq[worker]
    return count
