"""Synthetic traces of a decode megakernel under a dynamic schedule, of any size: for measuring, kept out of git.

    python benchmarks/synthetic.py OUT.mscope --events 20e6

Every block has a compute worker, which waits, starts and completes, and a scheduler worker, which finds tasks ready,
assigns them and counts releases. A step runs phases of equal tasks; a phase begins when the one before has ended on
all workers. Each second phase is prelaunched, some events are lost in bursts, and rows arrive window by window as a
drain takes them. Requests come and go; coverage, intervals and losses say what was lost, so that every bound is known.
The same seed gives the same trace.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import synthetic_tables as st
from synthetic_coverage import Accounts

from megascope.store import tables as tb
from megascope.store.trace import TraceWriter

BLOCKS = 132
LAYERS = 16
STEPS_AT_ONCE = 16
TICK = 32
BEGIN = 1_000_000_000
EPOCH_NS = 100_000_000
LOST_SHARE = 0.01
BURST = 5
LAYER = ((1, 8), (2, 144), (3, 264), (4, 264), (5, 96), (6, 8), (7, 264), (8, 132))
PHASES = (*(LAYER * LAYERS), (9, 264), (10, 8))
NS = np.array([0, 4_000, 18_000, 12_000, 11_000, 15_000, 9_000, 26_000, 22_000, 30_000, 8_000])
HOOK = {h.name: h.id for h in tb.HOOKS}
COLUMNS = ("t", "worker", "hook", "task", "aux", "request", "dep", "tile", "task_class", "dep_class", "flags")

Array = np.ndarray[Any, Any]


@dataclass
class Piece:
    """Ring rows in order of arrival; [4, n] worker, seq, t and hook of what was lost; when its steps began, ns."""

    rows: pa.RecordBatch
    lost: Array
    begun: Array


class Engine:
    """Runs steps and fires hooks."""

    def __init__(self, seed: int = 1, lost_share: float = LOST_SHARE) -> None:
        self._rng = np.random.default_rng(seed)
        self._lost_below = int(lost_share * (1 << 32))
        self._seq = np.zeros(2 * BLOCKS, np.int64)
        self._step = 0
        self._t = BEGIN

    def pieces(self, events: int) -> Iterator[Piece]:
        """Pieces of some steps each, until there are `events` rows or a few more."""
        done = 0
        while done < events:
            piece = self._piece()
            done += piece.rows.num_rows
            yield piece

    def _piece(self) -> Piece:
        k = STEPS_AT_ONCE
        step = self._step + np.arange(k)[:, None]
        parts: list[dict[str, Array]] = []
        at = np.zeros(k, np.int64)
        first = 1
        for number, (kind, tasks) in enumerate(PHASES):
            at = self._phase(parts, at, step, number, kind, tasks, first)
            first += tasks
        length = (at + 2_000) // TICK * TICK + TICK
        begin = self._t + np.cumsum(length) - length
        self._t = int(begin[-1] + length[-1])
        self._requests(parts, at, step)
        for flag, t in ((1, np.zeros(k, np.int64)), (2, at)):
            parts.append(_rows(t[:, None], BLOCKS, HOOK["step"], aux=begin[:, None], flags=flag))
        columns = {}
        for n in COLUMNS:
            columns[n] = np.concatenate([np.broadcast_to(p[n], p["t"].shape).reshape(k, -1) for p in parts], axis=1)
        # Times and tasks were relative to their step.
        columns["t"] = (columns["t"] + begin[:, None]) // TICK * TICK
        timed = np.isin(columns["hook"], [HOOK[h] for h in ("start", "complete", "resume")])
        columns["aux"] = np.where(
            timed & (columns["aux"] != 0), (columns["aux"] + begin[:, None]) // TICK * TICK, columns["aux"]
        )
        columns["aux"] = np.where(columns["hook"] == HOOK["ready"], columns["aux"] | step << 32, columns["aux"])
        columns["task"] = np.where(columns["task"] > 0, columns["task"] | step << 32, 0)
        columns["step"] = np.broadcast_to(step, columns["t"].shape)
        self._step += k
        # A request that neither begins nor ends tells of no state.
        fired = (columns["hook"] != HOOK["request"]) | (columns["aux"] & 0xFF != 0)
        return self._arrive({n: c[fired] for n, c in columns.items()}, begin)

    def _requests(self, parts: list[dict[str, Array]], at: Array, step: Array) -> None:
        """What becomes of the requests in these steps, told by the first scheduler: admitted, a token, finished."""
        slot = np.arange(st.SLOTS)
        first, last = st.begins(step, slot), st.ends(step, slot)
        states = ((32, first * 1), (at[:, None] - 1_000, 4 - first), (at[:, None] - 500, last * 7))
        for t, state in states:
            who = {"request": st.request_of(step, slot), "aux": slot << 32 | state}
            parts.append(_rows(np.broadcast_to(t + 32 * slot, state.shape), BLOCKS, HOOK["request"], **who))

    def _phase(
        self, parts: list[dict[str, Array]], at: Array, step: Array, number: int, kind: int, n: int, first: int
    ) -> Array:
        """All steps' rows of one phase, by time since their step began; when it ends."""
        k, rounds = len(at), -(-n // BLOCKS)
        ran = (NS[kind] * self._rng.normal(1, 0.08, (k, rounds, BLOCKS)).clip(0.6, 3)).astype(np.int64)
        exists = np.arange(rounds * BLOCKS).reshape(rounds, BLOCKS) < n
        ran[:, ~exists] = 0
        gap = 160
        complete = at[:, None, None] + 1_000 + np.cumsum(ran + gap, axis=1)
        start = complete - ran
        last = np.where(exists, complete, at[:, None, None] + 900).max(axis=1)
        end = last.max(axis=1)
        who = np.arange(BLOCKS)
        dep = number + 1
        deps = 2 if kind == 6 else 1
        index = (first + np.arange(rounds * BLOCKS).reshape(rounds, BLOCKS))[exists]
        worker = np.broadcast_to(who, (rounds, BLOCKS))[exists]
        batch = tb.REQUEST_SET_BIT | st.set_of(step)
        request = st.request_of(step, index % st.SLOTS) if kind in (3, 4) else batch
        ready = at + 600
        assign = at[:, None] + (200 if number % 2 else 700) + 32 * (index - first) // BLOCKS
        of = {"task": index, "request": request, "tile": index - first, "task_class": kind}
        s, c = start[:, exists], complete[:, exists]
        common = {"request": batch, "task_class": kind, "dep": dep, "dep_class": deps}
        parts.append(
            _rows(
                ready[:, None],
                BLOCKS + number % BLOCKS,
                HOOK["ready"],
                **common,
                task=first,
                tile=n,
                aux=first - 1,
                flags=0x80,
            )
        )
        depth = 1 + (index - first) // BLOCKS
        counted = 1 + np.argsort(np.argsort(c, axis=1), axis=1)
        parts.append(_rows(assign, BLOCKS + worker, HOOK["assign"], **of, aux=worker << 48 | depth << 24 | 64))
        parts.append(_rows(s, worker, HOOK["start"], **of, aux=np.broadcast_to(ready[:, None], s.shape)))
        parts.append(_rows(c, worker, HOOK["complete"], **of, aux=s))
        parts.append(
            _rows(c + 64, BLOCKS + worker, HOOK["release"], **of, dep=dep + 1, dep_class=1, aux=counted << 32 | n)
        )
        waited = last + 64
        wait = {"dep": dep + 1, "dep_class": 2 if kind == 5 else 1}
        parts.append(_rows(waited, who, HOOK["wait"], **wait, aux=n))
        parts.append(_rows(end[:, None] + 500 + 32 * (who % 8), who, HOOK["resume"], **wait, aux=waited))
        begins: Array = end + 400
        return begins

    def _arrive(self, columns: dict[str, Array], begun: Array) -> Piece:
        """Number each worker's events, lose some, and put the rest in the order in which a drain takes them."""
        t, worker = columns["t"], columns["worker"]
        t0 = int(t.min())
        order = np.argsort(worker << 44 | (t - t0) << 4 | columns["hook"])
        worker = worker[order]
        counts = np.bincount(worker, minlength=2 * BLOCKS)
        seq = np.arange(len(worker)) - np.repeat(np.cumsum(counts) - counts, counts) + 1 + self._seq[worker]
        self._seq += counts
        hashed = (worker << 40 | seq >> BURST).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashed = (hashed ^ hashed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32)
        lost = hashed < self._lost_below
        missing = np.stack([worker[lost], seq[lost], t[order][lost], columns["hook"][order][lost]])
        left = np.flatnonzero(~lost)
        window = ((t[order[left]] - t0) >> 20).astype(np.uint16)
        arrival = left[np.argsort(window, kind="stable")]
        columns = {n: c[order[arrival]] for n, c in columns.items()}
        columns |= {"seq": seq[arrival], "worker": worker[arrival], "sm": worker[arrival] % BLOCKS}
        columns["by"] = np.broadcast_to(np.uint32(tb.RECORDER), len(arrival))
        columns["peer"] = np.broadcast_to(np.uint16(tb.PEER_NONE), len(arrival))
        arrays = []
        for c in tb.RING_ROW:
            values = columns.get(c.name)
            kind = tb.RING_ROW.dtype[c.name]
            arrays.append(pa.array(np.zeros(len(arrival), kind) if values is None else values.astype(kind)))
        return Piece(pa.record_batch(arrays, schema=tb.RING_ROW.schema), missing, begun)


def _rows(t: Array, worker: Any, hook: int, **given: Any) -> dict[str, Array]:
    return {n: np.asarray(given.get(n, 0)) for n in COLUMNS} | {
        "t": t,
        "worker": np.broadcast_to(worker, t.shape),
        "hook": np.broadcast_to(hook, t.shape),
    }


def side_tables() -> dict[str, pa.Table]:
    """The compiler's tables that name what is in the events."""
    return st.compiler_tables(BLOCKS, PHASES, (*(2 if kind == 6 else 1 for kind, _ in PHASES), 1))


def write(path: Path, events: int, *, seed: int = 1, force: bool = False) -> int:
    """Write a trace of `events` events to `path`; returns how many it has."""
    hooks = [h for h in HOOK if h not in ("send", "receive", "pressure", "epoch")]
    engine = {"name": "synthetic", "kind": "synthetic", "clock_kind": "virtual", "clock_tick_ns": TICK,
              "epoch_ns": EPOCH_NS, "policy": "drop", "exported_hooks": hooks, "params": {"seed": seed}}  # fmt: skip
    recorder = {"program": tb.RECORDER, "name": "recorder", "selection": "all", "source": "", "hash": ""}
    writer = TraceWriter.create(path, {"engine": engine, "programs": [recorder]}, side_tables(), force=force)
    accounts = Accounts(2 * BLOCKS, EPOCH_NS, BEGIN)
    begun: list[int] = []
    done = end = 0
    for piece in Engine(seed).pieces(events):
        rows = piece.rows.slice(0, events - done)  # the recording ends here
        for begin in range(0, rows.num_rows, 1 << 15):
            writer.append("events", rows.slice(begin, 1 << 15))
        t, worker, hook, seq = (rows[n].to_numpy().astype(np.int64) for n in ("t", "worker", "hook", "seq"))
        done, end = done + rows.num_rows, int(t.max())
        accounts.count(t, worker, hook, lost=False)
        lost = piece.lost
        if rows.num_rows < piece.rows.num_rows:
            last = np.zeros(2 * BLOCKS, np.int64)
            np.maximum.at(last, worker, seq)
            lost = lost[:, lost[1] < last[lost[0]]]
        who, _, when, what = lost
        accounts.count(when, who, what, lost=True)
        accounts.close(writer, end if done < events else 0)
        begun += [b for b in piece.begun.tolist() if b <= end]
        writer.flush()
    accounts.finish(writer, end + 1)
    st.write_requests(writer, begun)
    writer.finish("ended", t=end)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="replace a trace that is there")
    args = parser.parse_args()
    began = time.perf_counter()
    events = write(args.out, int(args.events), seed=args.seed, force=args.force)
    print(f"{args.out}: {events} events in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
