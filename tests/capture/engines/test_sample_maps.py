"""What the monitors told live on an H200 is what a replay of the same programs makes of the events recorded beside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from live_runs import replay, rows

from megascope.capture.programs import standard
from megascope.store.tables import HOOK_BY_NAME
from megascope.store.trace import Trace

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "h200-experts.mscope"
COMPLETE = HOOK_BY_NAME["complete"].id
MONITORS = [m.name for m in standard.MONITORS]
NO_KEY = {
    *("program", "worker", "workers", "epoch", "epochs", "t_begin", "t_end"),
    *("value", "count", "sum", "min", "max", "lower", "counts"),
    *("eligible", "observed", "throttled", "lost", "faulted", "refused"),
}
"""Columns of a map's table that are no part of its key; `rank` is one, since each rank has its own part of a map."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    """The sample's programs by name, as its manifest has them."""
    with Trace.open(SAMPLE) as trace:
        return {p["name"]: p for p in trace.manifest["programs"]}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs = [(standard.load(m.name), m.limits) for m in standard.MONITORS]
    return replay(SAMPLE, tmp_path_factory.mktemp("again") / "again.mscope", programs)


@pytest.mark.parametrize("name", MONITORS)
def test_replay_tells_what_the_device_told(name: str, recorded: dict[str, dict[str, Any]], replayed: Path) -> None:
    if recorded[name]["hash"] != standard.load(name).hash:
        pytest.skip(f"{name} is another program than when the sample was recorded")
    with Trace.open(SAMPLE) as trace, Trace.open(replayed) as again:
        live = {m for m in trace.maps if m.startswith(f"maps.{name}_")}
        every = live | {m for m in again.maps if m.startswith(f"maps.{name}_")}
    told = {m: whole(rows(SAMPLE, m)) if m in live else {} for m in every}
    assert told == {m: whole(rows(replayed, m)) for m in every}, "to the bit"
    # No task of the sample took as long as a millisecond.
    assert any(told.values()) == (name != "slow_tasks")


def test_maps_count_what_the_events_are(recorded: dict[str, dict[str, Any]], replayed: Path) -> None:
    """By program and hook: every event of it was observed, live and in replay."""
    events = Counter(rows(SAMPLE, "events")["hook"].to_pylist())
    for name in MONITORS:
        hooks = [HOOK_BY_NAME[h].id for h in recorded[name]["hooks"]]
        live, again = observed(SAMPLE, name), observed(replayed, name)
        assert live == again == {h: (events[h], events[h]) for h in hooks}
    of_rank = Counter(rows(SAMPLE, "events").filter(pc.field("hook") == COMPLETE)["rank"].to_pylist())
    executed = whole(rows(SAMPLE, "maps.latency_execution"))
    told = {rank: sum(row["count"] for key, row in executed.items() if key[0] == rank) for rank in of_rank}
    assert told == of_rank
    assert len(of_rank) == 2


def observed(path: Path, name: str) -> dict[int, tuple[int, int]]:
    """By hook: (eligible, observed) events of a program."""
    with Trace.open(path) as trace:
        program = next(p["program"] for p in trace.manifest["programs"] if p["name"] == name)
    out: dict[int, tuple[int, int]] = {}
    for row in rows(path, "coverage").to_pylist():
        if row["program"] == program:
            eligible, seen = out.get(row["hook"], (0, 0))
            out[row["hook"]] = (eligible + row["eligible"], seen + row["observed"])
    return out


def whole(table: pa.Table) -> dict[tuple[int, ...], dict[Any, int]]:
    """By rank and key: a map's value over all epochs; of a histogram each bucket too, by its least value."""
    out: dict[tuple[int, ...], dict[Any, int]] = {}
    for row in table.to_pylist():
        assert not row["refused"], "a full map counts less than there was"
        key = tuple(value for name, value in row.items() if name not in NO_KEY)
        into = out.setdefault(key, {})
        sums = {name: row[name] for name in ("value", "count", "sum") if name in row}
        for name, n in [*sums.items(), *zip(row.get("lower", ()), row.get("counts", ()), strict=True)]:
            into[name] = (into.get(name, 0) + n + (1 << 63)) % (1 << 64) - (1 << 63)  # as the column counts
        for name, better in (("min", min), ("max", max)):
            if name in row:
                into[name] = better(into.get(name, row[name]), row[name])
    return out
