"""The lines that say what an answer stands for: exact text on lossless, lossy, open, empty and damaged traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recordings
from hypothesis import given
from hypothesis import strategies as st

from megascope.analyze.coverage import percent
from megascope.analyze.session import Session
from megascope.store import map_streams, tables


def lines_of(path: Path, *views: str) -> list[str]:
    """What a fresh session says of `views`."""
    with Session.open(path, threads=1) as session:
        return session.coverage_lines(views)


def recorded(path: Path, n: int, flows: list[dict[str, Any]], **how: Any) -> Path:
    """A sealed trace of `n` events with these rows of coverage."""
    writer = recordings.begin(path, **how)
    if n:
        writer.append("events", recordings.ring_rows(n))
    if flows:
        writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    writer.finish("engine ended")
    return path


def test_lossless(tmp_path: Path) -> None:
    """Only a trace that misses nothing is covered in full."""
    path = recorded(tmp_path / "x.mscope", 100, [recordings.flow(60), recordings.flow(40)])
    assert lines_of(path, "events") == [
        "events: selection all · coverage 100 % of the whole trace "
        "(observed 100 of 100 eligible; lost 0 in worker queues, 0 in the ring)"
    ]


def test_one_of_many_is_not_full_coverage(tmp_path: Path) -> None:
    """Percentages round down."""
    flows = [recordings.flow(30_000, lost=1, ring_lost=0, t_end=10**6)]
    (line,) = lines_of(recorded(tmp_path / "x.mscope", 29_999, flows), "events")
    assert "coverage 99.99 % of the whole trace" in line
    assert "damaged" not in line


def test_rows_that_are_nowhere_are_not_covered(tmp_path: Path) -> None:
    """What was written and is not here counts against coverage, however it went."""
    (line,) = lines_of(recorded(tmp_path / "x.mscope", 9, [recordings.flow(1_000_000, lost=1)]), "events")
    assert "coverage 0 % of the whole trace" in line
    assert "damaged: 999,990 rows were written" in line


def test_queue_and_ring_losses(tmp_path: Path) -> None:
    """Both count against the rows; each is named where it happened."""
    path = recorded(tmp_path / "x.mscope", 970, [recordings.flow(1000, lost=18, ring_lost=12, faulted=0)])
    assert lines_of(path, "events") == [
        "events: selection all · coverage 97 % of the whole trace "
        "(observed 982 of 1,000 eligible; lost 18 in worker queues, 12 in the ring)"
    ]


def test_rows_lost_after_the_ring(tmp_path: Path) -> None:
    """What a disk budget or a torn block took is in the percentage and named; a saturated since_ns is no lost row."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("events", recordings.ring_rows(90))
    writer.append("coverage", recordings.rows(tables.COVERAGE, recordings.flow(100)))
    writer.lose("disk_budget", 7)
    writer.lose("torn_block", 3)
    writer.lose("since_saturated", 50)
    writer.lose("engine_stalled", 1)
    writer.finish("engine ended")
    assert lines_of(writer.path, "events") == [
        "events: selection all · coverage 90 % of the whole trace "
        "(observed 100 of 100 eligible; lost 0 in worker queues, 0 in the ring, 7 disk_budget, 3 torn_block)"
    ]
    assert lines_of(writer.path, "loss") == [
        "loss: known losses: disk_budget 7 rows, engine_stalled 1 intervals, since_saturated 50 rows, torn_block 3 rows"
    ]


def test_open_intervals_are_apart(tmp_path: Path) -> None:
    """Of an interval that a death cut short nothing but what was observed is claimed."""
    flows = [recordings.flow(100), recordings.flow(0, observed=30, closed=False, written=30, emitted=30)]
    path = recorded(tmp_path / "x.mscope", 130, flows)
    assert lines_of(path, "events", "coverage") == [
        "events: selection all · coverage 100 % of closed intervals "
        "(observed 100 of 100 eligible; lost 0 in worker queues, 0 in the ring) "
        "· 1 open intervals apart: observed 30, eligible unknown",
        "coverage: 1 rows closed, 1 open: nothing is claimed of what was eligible there",
    ]


def test_nothing_closed_is_nothing_claimed(tmp_path: Path) -> None:
    """Rows without a closed interval have no percentage; nor has an empty trace."""
    only_open = recorded(tmp_path / "open.mscope", 30, [recordings.flow(0, observed=30, closed=False)])
    assert "coverage unknown: no interval was closed · 1 open intervals" in lines_of(only_open, "events")[0]
    nothing = recorded(tmp_path / "none.mscope", 0, [])
    assert lines_of(nothing, "events", "loss", "now") == [
        "events: selection all · coverage unknown: no interval was closed",
        "loss: no loss is known",
        "now: 0 workers",
    ]
    idle = recorded(tmp_path / "idle.mscope", 0, [recordings.flow(0)])
    assert lines_of(idle, "events") == ["events: selection all · coverage: nothing was eligible"]


def test_rows_missing_without_a_count(tmp_path: Path) -> None:
    """Fewer rows than were written and lost together: the trace is damaged, and says by how much."""
    path = recorded(tmp_path / "x.mscope", 80, [recordings.flow(100)])
    assert "damaged: 20 rows were written, are not in the trace and in no count of loss" in lines_of(path, "events")[0]


def test_escalated_rows_are_no_population(tmp_path: Path) -> None:
    """A program that picks rows has its own line, which is about what it saw and not about the rows it picked."""
    programs = [
        recordings.RECORDER_PROGRAM,
        {"program": 2, "name": "slow", "selection": "escalated(slow)", "source": "", "hash": ""},
    ]
    flows = [recordings.flow(100), recordings.flow(100, program=2, throttled=10, observed=90, emitted=5, written=5)]
    path = recorded(tmp_path / "x.mscope", 100, flows, programs=programs)
    assert lines_of(path, "events") == [
        "events: selection all · coverage 100 % of the whole trace "
        "(observed 100 of 100 eligible; lost 0 in worker queues, 0 in the ring)",
        "events: selection escalated(slow): rows are no population · coverage 90 % of the whole trace "
        "(observed 90 of 100 eligible; lost 0 in worker queues, 0 in the ring, 10 throttled)",
    ]


LAT = {"program": 2, "name": "lat", "selection": "escalated(lat)", "source": "", "hash": "", "slot": 1}


def held(path: Path, program: dict[str, Any], held_epochs: range, end: str = "stopped") -> str:
    """The line of a map with rows of some epochs, of a program with coverage of epochs 1 to 5; told from 2000 ns on."""
    writer = recordings.begin(path, programs=[recordings.RECORDER_PROGRAM, LAT | program])
    writer.update(engine={"told_from": 2000})
    flows = [
        recordings.flow(
            100, program=2, lost=10 * (epoch == 1), epoch=epoch, t_begin=epoch * 1000, t_end=epoch * 1000 + 999
        )
        for epoch in range(1, 6)
    ]
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    table = map_streams.table("lat_n", "a map", [tables.Column("key", "i64", "key")])
    writer.declare(table)
    rows = [{"program": 2, "key": k, "epoch": e, "epochs": 1} for e in held_epochs for k in range(2)]
    writer.append(table.name, recordings.rows(table, *rows))
    writer.finish(end)
    (line,) = lines_of(path, "maps.lat_n")
    return line


def test_the_line_of_a_map_is_of_the_epochs_of_its_rows(tmp_path: Path) -> None:
    """Coverage of epochs that the maps are not told of is named apart."""
    assert held(tmp_path / "both.mscope", {"attached": 900}, range(2, 5)) == (
        "maps.lat_n: 6 rows of program lat (2) · coverage 100 % of epochs 2 to 4 (observed 300 of 300 eligible; "
        "lost 0 in worker queues, 0 in the ring) · no rows of epoch 1 and epoch 5: what it counted there is not in "
        "this trace"
    )
    stays = held(tmp_path / "stays.mscope", {"attached": 2000}, range(2, 5))
    assert "coverage 97.50 % of epochs 1 to 4 (observed 390 of 400 eligible; lost 10" in stays
    assert "no rows of epoch 5: what" in stays
    unknown = held(tmp_path / "unknown.mscope", {"attached": 900}, range(8, 9))
    assert "coverage unknown: no interval of epoch 8 was closed · no rows of epochs 1 to 5" in unknown
    partly = held(tmp_path / "partly.mscope", {"attached": 900}, range(4, 8))
    assert "of epochs 4 to 5 (observed 200 of 200" in partly
    assert "coverage unknown of epochs 6 to 7" in partly


def test_an_epoch_without_rows_counts_where_all_is_told(tmp_path: Path) -> None:
    """What was lost of it may be why it has none."""
    for name, program, end in (("left", {"detached": 5900}, "stopped"), ("ended", {}, "ended")):
        line = held(tmp_path / f"{name}.mscope", {"attached": 2000} | program, range(2, 4), end)
        assert "coverage 98 % while it was attached (observed 490 of 500 eligible; lost 10 in worker queues" in line
        assert "no rows" not in line


def test_unsealed_and_damaged_are_said_on_every_line(tmp_path: Path) -> None:
    """Whoever reads one line knows; what is wrong with the files follows."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    writer.lose("engine_died", 2)
    writer.flush()
    writer.close()
    told = lines_of(writer.path, "events", "now", "requests", "intervals", "task_classes")
    assert len(told) == 5
    assert all(line.endswith(" · damaged: engine_died 2 intervals · trace unsealed") for line in told)
    assert told[2].startswith("requests: as the engine told; 0 bytes of it were overwritten unread")
    assert told[3].startswith("requests: selection all · coverage ")
    assert told[4].startswith("intervals: 1 rows, all closed")


def test_recording_is_said(tmp_path: Path) -> None:
    """A trace that still grows is no end."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    assert lines_of(writer.path, "trace")[0].endswith(" · trace still being recorded")
    writer.finish("engine ended")


def test_static_views_need_no_line(session: Session) -> None:
    """What the compiler gave is whole by itself."""
    names = ["task_classes", "dependencies", "hooks", "loss_kinds", "programs"]
    assert session.coverage_lines(names) == []


@pytest.mark.parametrize("kind", ["\x1b[31m", "two\nlines", "unheard_of"])
def test_kinds_of_loss_are_untrusted(kind: str, tmp_path: Path) -> None:
    """A kind that nobody declared counts as damage, on one printable line."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("loss", recordings.rows(tables.LOSS, {"kind": kind, "count": 5}))
    writer.finish("engine ended")
    (line,) = lines_of(writer.path, "loss")
    assert line.isprintable()
    assert "damaged: " in line


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_percent_never_overstates(part: int, whole: int) -> None:
    """Rounded down, and 100 only for all."""
    part = min(part, whole)
    told = float(percent(part, whole).removesuffix(" %"))
    assert told <= 100 * part / whole + 1e-9
    assert (told == 100) == (part == whole)
