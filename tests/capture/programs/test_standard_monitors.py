"""The monitors that are always there: verified, within their budgets, current, and answering what they say."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import CLANG, compile_bpf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))
from host_runs import SHAPES
from live_runs import record, rows

from megascope.__main__ import run as megascope
from megascope.capture import attaching, wanted
from megascope.capture.engines.arena import needed
from megascope.capture.engines.host import parse_spec
from megascope.capture.programs import standard
from megascope.capture.programs.execution import UNLIMITED, Limits
from megascope.capture.programs.verifier import verify
from megascope.store.errors import MegascopeError, Refused, Usage
from megascope.store.tables import HOOK_BY_NAME

DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitors.md"
NAMES = [m.name for m in standard.MONITORS]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_simt_and_keeps_to_what_is_said_of_it(name: str) -> None:
    monitor, program = standard.BY_NAME[name], standard.load(name)
    verdict = verify(program)
    assert verdict.simt, verdict.serial_because
    assert program.mask == sum(1 << HOOK_BY_NAME[h].id for h in monitor.hooks)
    assert verdict.emits == (monitor.limits.rows < UNLIMITED) == (program.emit_limit is not None)
    worst = max(verdict.cost.values())
    # A tenth of a million events of a worker in an epoch, whatever they cost.
    assert 100_000 * worst <= monitor.limits.instructions < UNLIMITED
    said = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    cells = [c.strip() for c in said.strip("|").split("|")]
    assert cells[1].replace("`", "").startswith(monitor.answers.split(", at a limited")[0])
    budget = f"{monitor.limits.instructions // 1_000_000} M"
    assert cells[2:] == [", ".join(monitor.hooks), str(worst), budget, str(monitor.limits.rows if verdict.emits else 0)]


def test_all_fit_the_arena_of_an_engine_together() -> None:
    spec = parse_spec("ranks=4,heads=16")
    total = sum(needed(standard.load(n), spec.workers * 4, 4) for n in NAMES)
    assert total <= spec.arena_mb << 20


@pytest.mark.skipif(CLANG is None or "19" not in CLANG, reason="clang-19 is not there")
@pytest.mark.parametrize("name", NAMES)
def test_the_stored_objects_are_current(name: str, tmp_path: Path) -> None:
    monitor = standard.BY_NAME[name]
    made = compile_bpf(monitor.source, tmp_path / f"{name}.bpf.o")
    assert made.read_bytes() == monitor.object.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_no_object_names_a_place_on_the_machine_that_made_it(name: str) -> None:
    data = standard.BY_NAME[name].object.read_bytes()
    assert not re.search(rb"/(home|work|root|tmp|usr)/", data)
    assert str(Path.cwd()).encode() not in data


def test_names_and_constants() -> None:
    with pytest.raises(Usage, match="did you mean latency"):
        standard.load("latncy")
    with pytest.raises(Refused, match="treshold_ns"):
        standard.load("slow_tasks", {"treshold_ns": 1})
    slow = verify(standard.load("slow_tasks", {"threshold_ns": "20us"})).program
    assert any(m.initial == (20_000).to_bytes(8, "little") for m in slow.maps)


def test_what_a_command_line_asks_for() -> None:
    found = wanted.load(
        ["standard", "complete { @n = count(); }", "start { @n = count(); }"], {}, Limits(10_000_000, 7)
    )
    assert [p.name for p, _ in found] == [*NAMES, "query", "query_2"]
    limits = {p.name: x for p, x in found}
    assert limits["requests"] == Limits(8_000_000, 7)
    assert limits["slow_tasks"] == Limits(10_000_000, 7)
    with pytest.raises(Usage, match="no program has a constant treshold"):
        wanted.load(["latency", "slow_tasks"], {"treshold": "1"}, Limits())
    with pytest.raises(MegascopeError, match="there is no such file"):
        wanted.load(["latncy"], {}, Limits())
    left, notes = wanted.fitting(found, ~(1 << HOOK_BY_NAME["send"].id), {"waits"})
    assert [p.name for p, _ in left] == [n for n in NAMES if n not in ("comm", "waits")] + ["query", "query_2"]
    assert notes == ["standard monitors left out: waits (attached already), comm (no hook send)"]


def test_a_standard_monitor_is_known_by_its_code_and_not_by_its_name() -> None:
    """Whatever its constants; a query that is called like one is refused, and no monitor is left out because of it."""
    slow = standard.load("slow_tasks", {"threshold_ns": "2us"})
    assert standard.is_one(slow)
    standard.check_name(slow)
    query = attaching.load("complete { @n = count(); }", {}, name="waits", query=True)
    assert not standard.is_one(query)
    assert wanted.fitting([(query, Limits())], 0, {"waits"}) == ([(query, Limits())], [])
    for name in standard.RESERVED:
        with pytest.raises(Usage, match=f"cannot call a program {name.upper()}: "):
            standard.check_name(dataclasses.replace(query, name=name.upper()))
    named = Path(str(standard.BY_NAME["waits"].object))
    standard.check_name(attaching.load(str(named), {}))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs = [
        (standard.load(n, {"threshold_ns": "2us"} if n == "slow_tasks" else {}), standard.BY_NAME[n].limits)
        for n in NAMES
    ]
    spec = SHAPES["dynamic-2-ranks"] + ",steps=80,epoch_ms=1,jitter=0.3,queue=4"
    return record(tmp_path_factory.mktemp("monitors"), spec, programs)


def _totals(path: Path, stream: str, *keys: str) -> dict[tuple[int, ...], list[int]]:
    """[count, sum, min, max] by key, over all epochs."""
    out: dict[tuple[int, ...], list[int]] = {}
    for r in rows(path, stream).to_pylist():
        t = out.setdefault(tuple(r[k] for k in keys), [0, 0, 1 << 63, 0])
        t[:] = [t[0] + r["count"], t[1] + r["sum"], min(t[2], r["min"]), max(t[3], r["max"])]
    return out


def _from_events(path: Path, hook: str, value: str, *keys: str) -> dict[tuple[int, ...], list[int]]:
    out: dict[tuple[int, ...], list[int]] = {}
    for r in rows(path, "events").to_pylist():
        if r["hook"] == HOOK_BY_NAME[hook].id and r["by"] & 1 and r[value] is not None:
            t = out.setdefault(tuple(r[k] for k in keys), [0, 0, 1 << 63, 0])
            t[:] = [t[0] + 1, t[1] + r[value], min(t[2], r[value]), max(t[3], r[value])]
    return out


@pytest.mark.parametrize(
    ("stream", "hook", "value", "keys"),
    [
        ("maps.latency_execution", "complete", "since_ns", ("rank", "task_class")),
        ("maps.latency_ready_to_start", "start", "since_ns", ("rank", "task_class")),
        ("maps.waits_waited", "resume", "since_ns", ("rank", "task_class", "dep_class")),
        ("maps.comm_sent", "send", "aux", ("rank", "peer", "task_class")),
        ("maps.comm_received", "receive", "since_ns", ("rank", "peer", "task_class")),
    ],
)
def test_maps_hold_what_the_events_say(
    recorded: Path, stream: str, hook: str, value: str, keys: tuple[str, ...]
) -> None:
    expected = _from_events(recorded, hook, value, *keys)
    assert expected
    assert _totals(recorded, stream, *keys) == expected


def test_queues_requests_and_slow_tasks_hold_what_the_events_say(recorded: Path) -> None:
    events = [r for r in rows(recorded, "events").to_pylist() if r["by"] & 1]

    def at(hook: str) -> list[dict[str, Any]]:
        return [r for r in events if r["hook"] == HOOK_BY_NAME[hook].id]

    depth = _totals(recorded, "maps.queues_depth", "target")
    assert sum(t[0] for t in depth.values()) == len(at("assign"))
    assert depth.keys() == {(r["aux"] >> 48,) for r in at("assign")}
    for (target,), total in depth.items():
        mine = [r["aux"] >> 24 & 0xFFFFFF for r in at("assign") if r["aux"] >> 48 == target]
        assert total == [len(mine), sum(mine), min(mine), max(mine)]
    crossings = _totals(recorded, "maps.queues_pressure", "rises")
    assert {k: t[0] for (k,), t in crossings.items()} == {
        rises: len([r for r in at("pressure") if (r["flags"] & 1) == rises]) for rises in (0, 1)
    }
    seen = _totals(recorded, "maps.requests_seen", "request", "state")
    for (request, state), total in seen.items():
        t = [r["t"] for r in at("request") if (r["request"], r["aux"] & 0xFFFFFFFF) == (request, state)]
        assert [total[0], *total[2:]] == [len(t), min(t), max(t)]
    states = rows(recorded, "maps.requests_states").to_pylist()
    assert sum(r["value"] for r in states) == len(at("request")) == sum(t[0] for t in seen.values())
    ends = [r["since_ns"] for r in at("step") if r["flags"] & 2]
    assert sum(t[1] for t in _totals(recorded, "maps.requests_steps", "device").values()) == sum(ends)
    slow = [r for r in at("complete") if r["since_ns"] > 2_000]
    assert sum(t[0] for t in _totals(recorded, "maps.slow_tasks_slow", "task_class").values()) == len(slow) > 0
    bit = next(p["slot"] for p in _programs(recorded) if p["name"] == "slow_tasks")
    emitted = {(r["worker"], r["seq"]) for r in events if r["by"] >> bit & 1}
    assert emitted < {(r["worker"], r["seq"]) for r in slow}, "the limit is below what this run has"
    epoch = {(w, r["t"] // 1_000_000) for r in slow for w in [r["worker"]]}
    assert len(emitted) == len(epoch), "200 rows a second are one in an epoch of 1 ms"


def _programs(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((path / "manifest.json").read_text())["programs"]
    return found


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_the_examples_of_the_docs_answer(number: int, recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(examples) == len(NAMES)
    assert f"maps.{NAMES[number]}_" in examples[number]
    assert megascope(["sql", str(recorded), examples[number], "-f", "json"]) == 0
    answer = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert answer
    numbers = [v for row in answer for v in row.values() if isinstance(v, (int, float))]
    assert np.isfinite(numbers).all()


def test_every_map_is_in_the_docs() -> None:
    text = DOCS.read_text()
    for name in NAMES:
        for m in standard.load(name).maps:
            if m.key is not None and m.key.members and m.key.members[0].name:
                assert f"`maps.{name}_{m.name}`" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [n for n in NAMES if n != "comm"]),
        (["--program", "none"], []),
        (["--program", "none", "--program", "waits"], ["waits"]),
    ],
)
def test_a_capture_attaches_them_unless_it_is_told_not_to(
    options: list[str], expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.mscope"
    assert megascope(["capture", "demo:steps=20,workers=4", "-o", str(out), "--quiet", *options]) == 0
    assert [p["name"] for p in _programs(out) if p["name"] != "recorder"] == expected
    limits = {p["name"]: (p["instructions"], p["rows"]) for p in _programs(out)[1:]}
    for name, (instructions, emits) in limits.items():
        monitor = standard.BY_NAME[name]
        assert instructions == monitor.limits.instructions
        assert emits == (20 if monitor.emit_limit else None)
    assert ("left out: comm (no hook send)" in capfd.readouterr().err) == (not options)
