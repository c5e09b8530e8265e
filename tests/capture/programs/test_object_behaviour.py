"""The stored C programs, verified and executed: each does what a few lines of Python say that it does.

What clang makes of them here, for every cpu and optimisation, does the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import CLANG, OBJECTS, SOURCES, compile_bpf

from megascope.capture.programs import loader
from megascope.capture.programs.maps import TypeLayout
from megascope.capture.programs.program import Program
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verifier import verify
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

WORKERS = 3
M64 = (1 << 64) - 1
Event = dict[str, int]
Table = dict[Any, Any]
NAMES = [p.name.removesuffix(".bpf.c") for p in SOURCES if p.name != "pick.bpf.c"]
HOOK = {h: n.id for h, n in HOOK_BY_NAME.items()}


def events(count: int, hooks: tuple[int, ...], seed: int = 1) -> list[Event]:
    """Events of few tasks, classes and requests, so that keys meet again; times that differ by little and by much."""
    random = np.random.default_rng(seed)
    out, seqs = [], defaultdict(int)
    for i in range(count):
        worker = int(random.integers(WORKERS))
        seqs[worker] += 1
        event = {c.name: int(random.integers(4)) for c in EVENT_ROW}
        event |= {"worker": worker, "seq": seqs[worker], "hook": int(random.choice(hooks))}
        event["t"] = 10**9 + i * 1000 + int(random.integers(900))
        event["task"] = int(random.integers(20)) << 32 | int(random.integers(2))
        event["tile"] = int(random.integers(1 << 32))
        event["aux"] = event["t"] - int(random.integers(1 << int(random.integers(1, 18))))
        event["request"] = int(random.choice((0, 1, 2, 3, 0xFFFF_FFFF)))
        event["flags"], event["step"] = int(random.integers(256)), i // 16
        if event["hook"] == HOOK["request"]:
            event["aux"] = int(random.integers(8)) << 32 | int(random.integers(10))
        out.append(event)
    return out


def rows(of: list[Event]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    out = np.zeros(len(of), EVENT_ROW.dtype)
    for i, e in enumerate(of):
        out[i] = tuple(e[c.name] for c in EVENT_ROW)
    return out.view(np.uint64).reshape(len(of), 8)


class Ran:
    """A program that has seen some events: its maps as {name: {worker: {key bytes: value bytes}}}, rows it emitted."""

    def __init__(
        self, p: Program, of: list[Event], close_every: int = 0, feed: Mapping[int, tuple[int, int]] = {}
    ) -> None:
        execution = Reference(verify(p), WORKERS, instrumented=True)
        for i, m in enumerate(p.maps):
            if m.name == "engine":
                for cell, (value, epoch) in (feed or {}).items():
                    execution.feed(i, cell, value, epoch)
        self.program, by = p, np.zeros(len(of), np.uint32)
        for at in range(0, len(of), close_every or len(of)):
            part = slice(at, at + (close_every or len(of)))
            if at:
                execution.close(np.arange(WORKERS))
            execution.run(rows(of)[part], by[part], 0)
        self.emitted = np.flatnonzero(by).tolist()
        self.maps: dict[str, dict[int, dict[bytes, bytes]]] = {}
        for i, m in enumerate(p.maps):
            self.maps[m.name] = {}
            for w in range(WORKERS):
                found = execution.entries(i, w)
                pairs = {k.tobytes(): v.tobytes() for k, v in zip(found.keys, found.values, strict=True)}
                self.maps[m.name][w] = {k: v for k, v in pairs.items() if not m.indexed or m.initial or any(v)}

    def table(self, name: str, worker: int) -> Table:
        """Entries with keys and values as numbers: by their leaves, or the words of those that have none."""
        (m,) = (m for m in self.program.maps if m.name == name)
        found = self.maps[name][worker]
        return {_plain(_leaves(k, m.key)): _plain(_leaves(v, m.value)) for k, v in found.items()}

    def leaves(self, name: str, worker: int) -> dict[str, Any]:
        """Global variables of a section."""
        (m,) = (m for m in self.program.maps if m.name == name)
        return _leaves(self.maps[name][worker][bytes(4)], m.value)


def _leaves(data: bytes, layout: TypeLayout | None) -> dict[str, Any]:
    if layout is None:
        if len(data) % 8:
            return {"": int.from_bytes(data, "little")}
        return {str(i): int.from_bytes(data[8 * i : 8 * i + 8], "little") for i in range(min(len(data) // 8, 4))}
    out: dict[str, Any] = {}
    for leaf in layout.members:
        for i in range(leaf.count):
            raw = data[leaf.offset + i * leaf.size :][: leaf.size]
            n = int.from_bytes(raw, "little", signed=leaf.kind == "i" and not leaf.bits)
            n = n >> leaf.bit_offset & (1 << leaf.bits) - 1 if leaf.bits else n
            out[leaf.name if leaf.count == 1 else f"{leaf.name}[{i}]"] = raw if leaf.kind == "c" else n
    return out


def _plain(leaves: dict[str, Any]) -> Any:
    return next(iter(leaves.values())) if len(leaves) == 1 else tuple(leaves.values())


def stored(name: str) -> Program:
    return loader.load(OBJECTS / f"{name}.bpf.o")


def seen(p: Program) -> tuple[int, ...]:
    """Its hooks, and one that it does not want."""
    return (*(h for e in p.entries for h in e.hooks if h), HOOK["pressure"])


def stats(values: list[int]) -> tuple[int, int, int, int]:
    return len(values), sum(values) & M64, min(values), max(values)


def of_worker(of: list[Event], worker: int, *hooks: str) -> list[Event]:
    return [e for e in of if e["worker"] == worker and e["hook"] in [HOOK[h] for h in hooks]]


def grouped(of: list[Event], key: Callable[[Event], Any], value: Callable[[Event], int]) -> dict[Any, list[int]]:
    out: dict[Any, list[int]] = defaultdict(list)
    for e in of:
        out[key(e)].append(value(e))
    return out


def took(e: Event) -> int:
    return e["t"] - e["aux"] & M64


def test_class_latency() -> None:
    p = loader.load(OBJECTS / "class_latency.bpf.o", {"threshold_ns": "3us"})
    of = events(400, seen(p))
    ran = Ran(p, of)
    for w in range(WORKERS):
        want = grouped(of_worker(of, w, "complete"), lambda e: (e["task_class"], e["worker"]), took)
        assert ran.table("latency", w) == {k: stats(v) for k, v in want.items()}
    assert ran.emitted == [i for i, e in enumerate(of) if e["hook"] == HOOK["complete"] and took(e) > 3000]
    assert 0 < len(ran.emitted) < 400


def test_wait_stats() -> None:
    of = events(400, seen(stored("wait_stats")))
    ran = Ran(stored("wait_stats"), of)
    for w in range(WORKERS):
        resumed = of_worker(of, w, "resume")
        want = grouped(resumed, lambda e: (e["dep_class"], e["rank"], e["task_class"], e["dep"]), took)
        assert ran.table("waited", w) == {k: stats(v) for k, v in want.items()}
    begun = grouped([e for e in of if e["hook"] == HOOK["wait"]], lambda e: e["dep_class"], lambda _: 1)
    assert ran.table("begun", 0) == {k: len(v) for k, v in begun.items()}


def test_pairing() -> None:
    of = events(600, seen(stored("pairing")))
    ran = Ran(stored("pairing"), of)
    for w in range(WORKERS):
        running: dict[int, tuple[int, int, int]] = {}
        latency: dict[int, list[int]] = defaultdict(list)
        unpaired = [0, 0]
        for e in of_worker(of, w, "start", "complete"):
            if e["hook"] == HOOK["start"]:
                unpaired[0] += e["task"] in running
                running.setdefault(e["task"], (e["t"], e["step"], e["tile"]))
            elif e["task"] in running:
                latency[e["task_class"]].append(e["t"] - running.pop(e["task"])[0])
            else:
                unpaired[1] += 1
        assert ran.table("running", w) == running
        assert ran.table("latency", w) == {k: stats(v) for k, v in latency.items()}
        assert ran.table("unpaired", w) == {i: n for i, n in enumerate(unpaired) if n}


def test_extremes() -> None:
    of = events(400, seen(stored("extremes")))
    ran = Ran(stored("extremes"), of)
    for w in range(WORKERS):
        mine = [e for e in of_worker(of, w, "complete", "resume", "receive") if e["request"] in (1, 2, 3)]
        want = grouped(mine, lambda e: e["request"], took)
        for name, how in (("events", len), ("shortest", min), ("longest", max)):
            assert ran.table(name, w) == {k: how(v) for k, v in want.items()}
        assert ran.table("last", w) == {0: max(e["t"] for e in mine)}


def test_feedback() -> None:
    p = loader.load(OBJECTS / "feedback.bpf.o", {"objective_ns": "40us"})
    of = events(100, seen(p))
    complete = [i for i, e in enumerate(of) if e["hook"] == HOOK["complete"]]
    assert Ran(p, of).emitted == []
    assert Ran(p, of, feed={0: (40_000, 9), 1: (10, 10)}).emitted == []
    assert Ran(p, of, feed={0: (40_001, 9), 1: (10, 10)}).emitted == complete
    assert Ran(p, of, feed={0: (40_001, 9), 1: (13, 13)}).emitted == []


def test_trend() -> None:
    of = events(900, seen(stored("trend")))
    ran = Ran(stored("trend"), of, close_every=300)
    before: dict[tuple[int, int], list[int]] = {}
    emitted, slower = [], defaultdict(int)
    for at in range(0, 900, 300):
        now: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, e in enumerate(of[at : at + 300], at):
            if e["hook"] != HOOK["complete"]:
                continue
            key = e["worker"], e["task_class"]
            old = before.get(key, [])
            if len(old) >= 8 and took(e) > max(old):
                emitted.append(i)
                slower[at, *key] += 1
            now[key].append(took(e))
        before = now
    assert ran.emitted == emitted != []
    for w in range(WORKERS):
        assert ran.table("slower", w) == {c: n for (at, x, c), n in slower.items() if x == w and at == 600}


def test_calls() -> None:
    p = loader.load(OBJECTS / "calls.bpf.o", {"shift": 5})
    of = events(300, seen(p))

    def mix(x: int) -> int:
        x = (x ^ x >> 31) * 0x9E3779B97F4A7C15 & M64
        return x ^ x >> 29

    def key(e: Event) -> int:
        return mix(e["task"] + mix(e["worker"]) & M64) >> 5 & 0xFF

    ran = Ran(p, of)
    for w in range(WORKERS):
        mine = of_worker(of, w, "start", "complete")
        want = grouped(mine, key, lambda e: 1 if e["hook"] == HOOK["start"] else mix(e["t"]) & 0xFFFF)
        assert ran.table("seen", w) == {k: sum(v) for k, v in want.items()}


def test_shapes() -> None:
    of = events(200, seen(stored("shapes")))
    ran = Ran(stored("shapes"), of)
    for w in range(WORKERS):
        want: dict[Any, dict[str, Any]] = {}
        for e in of_worker(of, w, "complete"):
            key = (e["aux"] & 3, 0)
            s = want.get(key)
            if s is None:
                s = dict.fromkeys(("b0", "e0", "b1", "e1", "phase", "change", "late", "tag"), 0)
                s |= dict.fromkeys(
                    ("depth", "lane", "hot", "drift", "l0", "l1", "l2", "tile", "low", "high", "where"), 0
                )
                s |= {"e0": e["t"], "phase": 5, "tag": b"tile\0\0\0", "l2": e["rank"], "tile": e["tile"]}
                want[key] = s
            else:
                s |= {"b1": e["aux"], "e1": e["t"], "depth": s["depth"] + 1, "lane": e["worker"], "hot": e["flags"] & 1}
                s |= {"drift": e["step"] - 7, "change": 1 if e["step"] & 1 else -1, "late": int(took(e) > 1000)}
                s["tile"] = s["tile"] & 0xFFFF0000 | e["tile"] & 0xFFFF
            s["low"], s["high"] = s["tile"] & 0xFFFF, s["tile"] >> 16
        assert ran.table("states", w) == {k: tuple(v.values()) for k, v in want.items()}


def test_globals() -> None:
    p = loader.load(OBJECTS / "globals.bpf.o", {"level": "LEVEL_HIGH", "limits.offset": -3, "limits.weight[1]": 200})
    of = events(200, seen(p))
    ran = Ran(p, of)
    fibonacci, weight = (1, 1, 2, 3, 5, 8, 13, 21), (1, 200, 3, 4)
    for w in range(WORKERS):
        mine = of_worker(of, w, "complete")
        spans = [took(e) - 3 & M64 for e in mine]
        total = sum(s * 2 + weight[w] * fibonacci[e["step"] & 7] for s, e in zip(spans, mine, strict=True)) & M64
        between = sum(100 <= s < 10_000 for s in spans)
        assert ran.leaves(".bss", w) == {"total": total, "between": between}
        assert ran.leaves(".data", w) == {"first_step": mine[0]["step"]}
    off = Ran(loader.load(OBJECTS / "globals.bpf.o", {"label": "x"}), of)
    assert all(off.leaves(".bss", w) == {"total": 0, "between": 0} for w in range(WORKERS))


def test_loops() -> None:
    of = events(200, seen(stored("loops")))
    ran = Ran(stored("loops"), of)
    for w in range(WORKERS):
        want: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for e in of_worker(of, w, "assign", "start"):
            for i in range(8):
                want[e["tile"] >> 4 * i & 15][i & 1] += 1
        assert ran.table("digits", w) == {k: tuple(v) for k, v in want.items()}
        octaves = grouped(of_worker(of, w, "complete"), lambda e: min(took(e).bit_length(), 32), took)
        assert ran.table("octaves", w) == {k: len(v) for k, v in octaves.items()}


def test_relocated() -> None:
    of = events(50, seen(stored("relocated")))
    ran = Ran(stored("relocated"), of)
    for w in range(WORKERS):
        mine = of_worker(of, w, "send", "receive")
        parts = ("comm", "peer", "rank", "task", "hook")
        total = sum(e[n] & 0xFFFF_FFFF for e in mine for n in parts) & 0xFFFF_FFFF
        assert ran.table("facts", w) == {0: (0, 1, 4, 64, total)}


def test_requests() -> None:
    of = events(400, seen(stored("requests")))
    ran = Ran(stored("requests"), of)
    for w in range(WORKERS):
        alive: dict[int, tuple[int, int]] = {}
        states: dict[int, int] = defaultdict(int)
        for e in of_worker(of, w, "request", "epoch"):
            if e["hook"] == HOOK["epoch"]:
                states[0] += e["t"] > e["aux"]
                continue
            state = e["aux"] & 15
            if state in (3, 4):
                states[state] += 1
            if state == 1:
                alive[e["request"]] = e["t"], e["aux"] >> 32
            elif state in (7, 8):
                alive.pop(e["request"], None)
        assert ran.table("alive", w) == alive
        assert ran.table("states", w) == states


def test_advice_is_verified() -> None:
    assert verify(stored("pick")).cost.keys() == {0}


SERIAL = {"pairing", "shapes", "globals", "loops", "relocated", "requests"}


@pytest.mark.parametrize("name", NAMES)
def test_who_commutes_is_simt(name: str) -> None:
    verdict = verify(stored(name))
    assert verdict.simt == (name not in SERIAL), verdict.serial_because


@pytest.mark.skipif(CLANG is None, reason="no clang here")
@pytest.mark.parametrize(
    ("cpu", "optimise"), [("v1", "-O2"), ("v2", "-O1"), ("v3", "-O2"), ("v3", "-Os"), ("v4", "-O2")]
)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_compiled_here_behaves_alike(tmp_path: Path, name: str, cpu: str, optimise: str) -> None:
    fresh = loader.load(compile_bpf(OBJECTS / f"{name}.bpf.c", tmp_path / "x.o", cpu=cpu, optimise=optimise))
    of = events(80, seen(fresh))
    here, there = Ran(fresh, of, close_every=30), Ran(stored(name), of, close_every=30)
    assert here.emitted == there.emitted
    assert here.maps == there.maps
