"""The sample traces: whole, as sample_traces/README.md tells of them, and with one answer however they are asked."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from page import Shell, blocks, matches

from megascope.__main__ import run
from megascope.analyze.report import ask
from megascope.analyze.session import Session
from megascope.store.check import check
from megascope.store.trace import Trace

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
SAMPLES = sorted(FOLDER.glob("*.mscope"))
EXPERTS = FOLDER / "h200-experts.mscope"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\S+\.mscope)` \| .*? \| ([\d,]+) events", README, re.MULTILINE))

samples = pytest.mark.parametrize("path", SAMPLES, ids=[p.stem for p in SAMPLES])


@samples
def test_sound_and_as_large_as_it_is_said_to_be(path: Path) -> None:
    found = check(path)
    assert not found.findings
    with Trace.open(path) as trace:
        assert trace.state == "sealed"
        events = sum(part.rows for part in trace.parts("events"))
    assert ROWS[path.name] == f"{events:,}"


def test_the_readme_tells_of_every_sample() -> None:
    assert set(ROWS) == {p.name for p in SAMPLES}


def test_the_readme_prints_what_stands_there() -> None:
    shell = Shell(FOLDER.parent)
    commands = [c for block in blocks(README) for c in block.commands]
    assert commands
    for command in commands:
        assert matches(command.shown, printed := shell.run(command)), f"{command.line}\nprinted\n{printed}"


@samples
def test_nothing_tells_where_it_was_made(path: Path) -> None:
    """No folder of a machine in the manifest; the sources of programs have comments, and no paths."""
    text = (path / "manifest.json").read_text(encoding="utf-8")
    assert not re.search(r"""[\s"'=:](~|/\w[\w.-]*)/\w""", text)
    assert ".mscope" not in text


def replayed(query: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[tuple[int, ...], int]]:
    """By map and key: what a query tells of the sample, over all workers."""
    assert run(["replay", str(EXPERTS), "-q", "-f", "json", "--program", query]) == 0
    out: dict[str, dict[tuple[int, ...], int]] = defaultdict(lambda: defaultdict(int))
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        names = list(row)
        key = names[names.index("t_end") + 1 : names.index("value")]
        out[row["map"].removeprefix("maps.query_")][tuple(row[name] for name in key)] += row["value"]
    return {name: dict(rows) for name, rows in out.items()}


def asked(sql: str) -> dict[tuple[int, ...], int]:
    """By all columns but the last: the last."""
    with Session.open(EXPERTS, threads=1) as session:
        table = session.run(sql).read_all()
    return {tuple(key): value for *key, value in zip(*(c.to_pylist() for c in table.columns), strict=True)}


def test_experts_in_a_query_and_in_sql(capsys: pytest.CaptureFixture[str]) -> None:
    """Which expert got how many tiles, and how long they took."""
    told = replayed(
        'complete /operator == "expert_*"/ { @tiles[rank, expert] = count(); @ns[rank, expert] = sum(exec_ns); }',
        capsys,
    )
    by_expert = "SELECT rank, tile >> 16 & 65535, {} FROM tasks WHERE class LIKE '%.expert_%' GROUP BY ALL"
    assert told["tiles"] == asked(by_expert.format("count(*)"))
    assert told["ns"] == asked(by_expert.format("sum(exec_ns)::BIGINT"))
    assert sorted(told["tiles"]) == [(expert // 4, expert) for expert in range(8)]


def test_rounds_in_a_query_in_sql_and_in_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """How long each rank waited for the other, by round: receives, the view `comm`, waits and the monitor agree."""
    told = replayed("receive { @ns[rank, class] = sum(wait_ns); }", capsys)["ns"]
    grouped = "SELECT rank, c.id, {} FROM {} JOIN task_classes AS c ON c.name = {} GROUP BY ALL"
    rounds = "comm AS t", "replace(t.class, '_send', '_recv')"
    assert told == asked(grouped.format("sum(wait_ns)::BIGINT", *rounds))
    # On two ranks the peer of one is the other.
    assert told == asked("SELECT 1 - peer, task_class, sum(sum)::BIGINT FROM maps.comm_received GROUP BY ALL")
    # A wait ends a little before what was waited for is told to have been received.
    waits = "waits AS t", "t.class"
    waited = asked(grouped.format("count(*)", *waits))
    assert waited == asked(grouped.format("nullif(count(*) FILTER (wait_ns > 0), 0)", *rounds))
    for key, ns in asked(grouped.format("sum(ns)::BIGINT", *waits)).items():
        assert 0 < ns < told[key] < ns + 1000 * waited[key]


@samples
def test_reports_add_up_to_the_same_time(path: Path) -> None:
    """Of one window the overview, the waits and the workers tell the same time, and none longer than the window is."""
    with Session.open(path, threads=1) as session:
        span = session.looked_at()
        assert span is not None
        for window in ((None, None), (span[0] + (span[1] - span[0]) // 3, span[0] + (span[1] - span[0]) // 2)):
            session.window(*window)
            workers, waits = (ask(session, name).rows.to_pylist() for name in ("workers", "waits"))
            overview = {
                r["item"]: r["value"] for r in ask(session, "overview").rows.to_pylist() if r["section"] == "waits"
            }
            begin, end = session.looked_at() or (0, 0)
            for worker in workers:
                told = [worker[k] for k in worker if k.endswith("_ms")]
                assert sum(told) == pytest.approx((end - begin) / 1e6, rel=1e-6)
            assert_same(workers, waits, overview)


def assert_same(workers: list[dict[str, Any]], waits: list[dict[str, Any]], overview: dict[str, str]) -> None:
    kinds = {"work": "idle_ms", "data": "wait_data_ms", "communication": "wait_communication_ms"}
    for kind, column in kinds.items():
        of_workers = sum(w[column] for w in workers)
        of_waits = [w for w in waits if w["kind"] == kind]
        assert sum(w["wait_ms"] for w in of_waits) == pytest.approx(of_workers, abs=1e-5)
        if of_waits:
            count = sum(w["waits"]["low"] for w in of_waits)
            assert overview[kind].startswith(f"{count} waits, {of_workers:.3f} ms")
        else:
            assert kind not in overview
