"""What queries print while they are recorded: against the maps, the events and a replay, and where it is not whole."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_runs import spec_of
from live_runs import rows

from megascope.__main__ import run
from megascope.analyze.session import Session as Analysis
from megascope.capture import attaching
from megascope.capture.answer_printer import Pass, Printer
from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.live_answers import LiveAnswers
from megascope.capture.programs import language
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.language import Query
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.segment.exports import exports_of
from megascope.capture.segment.map_ring import Span, encode, records
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.writer import SegmentWriter
from megascope.capture.session import Session
from megascope.store.check import check
from megascope.store.errors import Exit
from megascope.store.tables import HOOK_BY_NAME, REQUEST_STATES
from megascope.store.trace import Trace

TOP = "complete { @n[class] = count(); } end { print(top(@n, 3)); }"
ROWS = (
    'request /state == "finished"/ { printf("%s slot %02d at %x\\n", state, slot, t); } '
    "complete { @all = count(); } end { print(@all); } "
    'interval 10ms { printf("%d in all\\n", @all); clear(@all); }'
)
FINISHED = REQUEST_STATES.index("finished") + 1


@dataclass
class Said:
    """What a recording printed, in order, and its notes."""

    text: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def printed(self) -> str:
        return "".join(self.text)


def record(
    folder: Path,
    spec: str,
    queries: Mapping[str, tuple[str, Limits]],
    outside: Sequence[Query] = (),
    said: Said | None = None,
) -> Said:
    """Record a run into folder/live.mscope, with queries from its first event on, and some attached by others."""
    engine = HostEngine(spec_of(spec))
    engine.load()
    said = said or Said()
    path, failed = folder / "live.mseg", list[BaseException]()
    about = {"kind": "host", "params": {}, "perturbation": {}}
    compiled = {name: language.compile(text, name=name) for name, (text, _) in queries.items()}
    with SegmentWriter.create(path, layout_of(engine.spec), side_tables=engine.tables(), engine=about) as writer:

        def live() -> None:
            try:
                result = engine.run(SegmentSink(writer), hold=True)
                writer.end(result.t, result.steps - 1)
            except BaseException as error:
                failed.append(error)
                writer.end(engine.t, max(engine.step, 0), failed=True)

        thread = threading.Thread(target=live)
        with SegmentReader.open(path, write=True) as segment:
            thread.start()
            answers = LiveAnswers(segment, compiled, said.text.append, said.notes.append)
            try:
                for query in outside:
                    attaching.attach(segment, query.program)
                session = Session(segment, folder / "live.mscope", raw=False, answers=answers)
                try:
                    session.attach_all((query.program, queries[name][1]) for name, query in compiled.items())
                    assert session.run(stopped=lambda: False) == "ended"
                finally:
                    session.release()
            finally:
                answers.close()
                thread.join()
            answers.join()
    assert not failed, failed
    return said


def capture(out: Path, spec: str, *programs: str) -> int:
    """The verb, with no program but these."""
    words = [w for p in ("none", *programs) for w in ("--program", p)]
    return run(["capture", spec, "-o", str(out), "-q", *words])


def of_each(text: str) -> list[list[str]]:
    """The lines of TOP, and those of ROWS: a capture prints them as they come, a replay one query after the other."""
    lines = text.splitlines()
    return [[line for line in lines if line.startswith("@n[") == top] for top in (True, False)]


def test_a_capture_prints_what_sql_says_and_a_replay_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.mscope"
    assert capture(out, "demo:steps=60,epoch_ms=1,telemetry=0", TOP, ROWS) == Exit.DONE
    printed, notes = capfd.readouterr()
    assert "lost 0 (" in notes
    assert " saw " not in notes
    top, others = of_each(printed)

    sql = "SELECT class, sum(value) AS n FROM maps.query_n GROUP BY class ORDER BY n DESC, class LIMIT 3"
    with Analysis.open(out) as trace, trace.run(sql) as result:
        found = result.read_all().to_pylist()
    with Trace.open(out) as recorded:
        names = {r["id"]: r["name"] for r in recorded.table("task_classes").to_pylist()}
    assert top == [f"@n[{names[r['class']]}]: {r['n']}" for r in found]

    events = rows(out, "events")
    hook, t, aux = (events[n].to_numpy(zero_copy_only=False) for n in ("hook", "t", "aux"))
    finished = (hook == HOOK_BY_NAME["request"].id) & (np.nan_to_num(aux).astype(np.int64) & 0xFFFFFFFF == FINISHED)
    truth = sorted((int(at), int(a) >> 32) for at, a in zip(t[finished], aux[finished], strict=True))
    assert truth
    assert [line for line in others if line[0] == "f"] == [f"finished slot {slot:02d} at {at:x}" for at, slot in truth]

    complete = int(np.count_nonzero(hook == HOOK_BY_NAME["complete"].id))
    counted = [int(line.split()[0]) for line in others if line.endswith("in all")]
    (rest,) = [int(line.split()[1]) for line in others if line.startswith("@all")]
    assert len(counted) > 1
    assert sum(counted) + rest == complete

    assert run(["replay", str(out), "-q", "--program", TOP, "--program", ROWS]) == Exit.DONE
    assert of_each(capfd.readouterr().out) == [top, others]


def test_a_query_from_outside_is_compiled_again_from_its_text(tmp_path: Path) -> None:
    text = 'const least = 1us; complete /exec_ns > least/ { @n = count(); } begin { printf("begun\\n"); }'
    with_names = language.compile(text, name="theirs")
    other = language.compile(text, constants={"least": "9us"}, name="unknown")
    said = record(tmp_path, "steps=20,epoch_ms=1,telemetry=0", {}, [with_names, other])
    (count,) = re.fullmatch(r"begun\n@n: (\d+)\n", said.printed).groups()  # type: ignore[union-attr]
    assert int(count) == sum(rows(tmp_path / "live.mscope", "maps.theirs_n")["value"].to_pylist())
    assert [n for n in said.notes if n.startswith("unknown: it was compiled with other constants")]
    assert rows(tmp_path / "live.mscope", "maps.unknown_n").num_rows


def test_an_answer_says_how_many_events_it_is_of(tmp_path: Path) -> None:
    said = record(tmp_path, "steps=20,epoch_ms=1,telemetry=0", {"few": (TOP, Limits(instructions=1000))})
    coverage = [r for r in rows(tmp_path / "live.mscope", "coverage").to_pylist() if r["program"] == 2]
    eligible, observed, throttled = (sum(r[n] for r in coverage) for n in ("eligible", "observed", "throttled"))
    assert min(throttled, observed) > 0
    assert f"few: @n saw {observed:,} of {eligible:,} events: throttled {throttled:,}" in said.notes


def test_nothing_printed_is_of_no_events_and_says_so(tmp_path: Path) -> None:
    said = record(tmp_path, "steps=10,epoch_ms=1,telemetry=0", {"none": (TOP, Limits(instructions=1))})
    assert said.printed == ""
    assert re.search(r"none: @n saw 0 of [\d,]+ events: throttled", "\n".join(said.notes))


def test_what_comes_late_is_counted_once_and_told_of(tmp_path: Path) -> None:
    text = (
        "complete { @n[task % 512] = count(); @all = count(); } end { print(@all); } "
        'interval 1ms { printf("%d\\n", @all); clear(@all); clear(@n); }'
    )
    said = record(tmp_path, "steps=60,epoch_ms=1,telemetry=40000", {"slow": (text, Limits())})
    found = [int(line.split()[-1]) for line in said.printed.splitlines() if not line.startswith("@n[")]
    assert sum(found) == sum(rows(tmp_path / "live.mscope", "maps.slow_all")["value"].to_pylist())
    assert [n for n in said.notes if re.match(r"slow: [\d,]+ exports of what was since [\d.]+ ms came late", n)]


def test_answers_of_before_the_recording_say_so() -> None:
    """A query that was there before: events count where there are exports of them, and what is missing is said."""
    query, said = language.compile("complete { @n = count(); } interval 1s { print(@n); }", name="old"), Said()
    printer = Printer(said.text.append, said.notes.append, 10**9, began=5 * 10**9)
    declared = query.program.maps[0]
    key = np.zeros((1, declared.key_size), np.uint8)
    value = np.array([[7]], "<u8").view(np.uint8)

    def passed(second: int, over: int, counts: Mapping[int, int], **more: Any) -> Pass:
        """An export of the epoch that ends at `second`; epochs up to `over` are over."""
        span = Span(2, 0, 0, None, 1, second - 1, 1, (second - 1) * 10**9, second * 10**9, (7, 7, 0, 0, 0))
        (record,) = [r for part in encode(span, declared, key, value, 1 << 12) for r in records(part)]
        cuts = [s * 10**9 for s in range(1, over + 1)]
        told = {(2, s * 10**9): np.array([n, n - 1, 0, 1, 0]) for s, n in counts.items()}
        return Pass(over * 10**9, records=[record], coverage=told, cuts=cuts, **more)

    printer.take(passed(2, 4, {1: 100, 2: 10, 3: 1000, 4: 1000}, joined=[(2, query, 0)]))
    assert said.notes[0] == "old: the answers are of 1 s to 2 s; this recording began at 5 s"
    assert said.notes[1] == "old: @n saw 9 of 10 events: lost 1"
    printer.take(passed(6, 6, {5: 1000, 6: 1000, 7: 50}))
    assert "old: the answers begin at 1 s; this recording began at 5 s" in said.notes
    assert "old: @n saw 4,005 of 4,010 events: lost 5" in said.notes
    printer.take(Pass(7 * 10**9, gone=[(2, 7 * 10**9)], staying={2}, last=7 * 10**9))
    assert said.notes[-1] == "old: what it has counted since 6 s is not told yet, and in no answer"


def test_state_is_whole_at_the_end_though_it_comes_in_parts(tmp_path: Path) -> None:
    text = "map @last[task] size 8192; complete { @last[task] = t; } end { print(@last); }"
    said = record(tmp_path, "steps=6,epoch_ms=1,telemetry=0,map_kb=64", {"state": (text, Limits())})
    stored = rows(tmp_path / "live.mscope", "maps.state_last").to_pylist()
    printed = [line for line in said.printed.splitlines() if line.startswith("@last[")]
    assert len(printed) == len(stored) > 4000
    assert sorted(int(line.rsplit(" ", 1)[1]) for line in printed) == sorted(r["value"] for r in stored)


def test_a_reader_who_leaves_stops_nothing_but_the_answers(tmp_path: Path) -> None:
    class Gone(Said):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.text = self  # type: ignore[assignment]

        def append(self, text: str) -> None:
            self.calls += 1
            raise BrokenPipeError(text)

    gone = Gone()
    record(tmp_path, "steps=40,epoch_ms=1,telemetry=0", {"query": (ROWS, Limits())}, said=gone)
    assert gone.calls == 1
    report = check(tmp_path / "live.mscope")
    assert report.clean, report.findings


def test_parts_of_one_export_are_one() -> None:
    declared = Map("m", MapKind.HASH, 8, 8, 4096)
    keys = np.arange(1000, dtype="<u8").view(np.uint8).reshape(1000, 8)
    span = Span(2, 0, 0, 3, 1, 5, 1, 50, 60, (9, 9, 0, 0, 0), refused=7)
    parts = encode(span, declared, keys, keys[::-1].copy(), 512)
    assert len(parts) > 10
    (export,) = exports_of([declared], records(b"".join(parts)))
    assert (export.map, export.worker, export.refused) == (0, 3, 7)
    assert (export.keys == keys).all()
    assert (export.values == keys[::-1]).all()
