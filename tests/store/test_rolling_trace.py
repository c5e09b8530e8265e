"""Rolling recordings on disk: what is kept and counted, whoever reads meanwhile, and whenever the recorder dies."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_traces import GIVEN, all_events, expected_keys, keys, record, ring_rows, summaries
from test_trace_crash_points import STEPS, in_child

from megascope.store import budget, manifest, retention, retiring, seal, spool
from megascope.store.check import check, repair
from megascope.store.errors import MegascopeError
from megascope.store.loss import LOSS_BY_NAME
from megascope.store.retiring import Retirer
from megascope.store.tables import EVENTS, MARKS, RING_ROW, WORKERS
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small", "quick")

STEP_NS = 32
"""Between two rows of `ring_rows`."""


def at(row: int) -> int:
    return 1000 + STEP_NS * row


def workers_table() -> pa.Table:
    rows = [{"worker": w, "monitor": 0, "sm": w, "role": "compute", "rank": 0} for w in range(3)]
    return pa.Table.from_pylist(rows, schema=WORKERS.schema)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts as short as the window asks for, however fast the rows come."""
    monkeypatch.setattr(retiring, "_GRAIN_LEAST_S", 0.0)


def begin(path: Path, rows: int, **options: Any) -> TraceWriter:
    """A rolling recording that keeps the last `rows` rows."""
    given = GIVEN | {"engine": GIVEN["engine"] | {"exported_hooks": ["complete"]}}
    return TraceWriter.create(path, given, {"workers": workers_table()}, keep_ns=rows * STEP_NS, **options)


def pour(w: TraceWriter, first: int, count: int, batch: int = 50, *, beside: bool = False) -> None:
    """Rows in batches; `beside`: and a file of another stream between them."""
    for n in range(first, first + count, batch):
        w.append("events", ring_rows(n, min(batch, first + count - n), hook="complete"))
        if beside:
            (now,) = pa.Table.from_batches([summaries(n)["now"]] * 210).combine_chunks().to_batches()
            w.append("now", now)
        w.flush()


def end(w: TraceWriter, rows: int) -> None:
    for stream, summary in summaries(rows).items():
        w.append(stream, summary)
    w.finish("done", t=at(rows))


def counted(trace: Trace) -> int:
    losses = [pq.read_table(p.path).to_pylist() for p in trace.verified("loss")]
    rows = [*(r for part in losses for r in part), *trace.tail("loss").to_pylist()]
    return sum(r["count"] for r in rows if r["kind"] in ("retired", "retired_early", "disk_budget"))


def rows_in(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.sort(all_events(trace)["task"].to_numpy())


def assert_kept(path: Path, written: int, window: int, pins: list[tuple[int, int]]) -> None:
    """Row by row: the window and the pins are there, once, and what is not there is counted."""
    with Trace.open(path) as trace:
        got = rows_in(trace)
        assert len(np.unique(got)) == len(got)
        wanted = [np.arange(max(0, written - window), written), *(np.arange(a, b + 1) for a, b in pins)]
        assert np.isin(np.concatenate(wanted), got).all()
        assert len(got) + counted(trace) == written
        assert set(keys(all_events(trace))) <= set(expected_keys(written))


def test_the_window_and_the_pins_stay_and_the_rest_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = begin(path, 1000)
    pour(w, 0, 3000)
    assert w.pin(at(2900), at(3300)) == (at(2900), at(3300))
    pour(w, 3000, 5000, beside=True)
    assert w.pin(at(7900), at(7950)) == (at(7900), at(7950))
    end(w, 8000)
    assert_kept(path, 8000, 1000, [(2900, 3300), (7900, 7950)])
    with Trace.open(path) as trace:
        got = rows_in(trace)
        # A sixteenth of the window, and what a batch holds more, is all that is kept beside it.
        assert len(got) < 1000 + 401 + 6 * (1000 // 16 + 50)
        assert trace.state == "sealed"
        said = trace.manifest[retention.KEY]
        assert said["pins"] == [[at(2900), at(3300)], [at(7900), at(7950)]]
        assert at(8000 - 1 - 1000) <= said["horizon"] <= at(8000 - 1000)
        assert len(said["retired"]) == 2
        assert [n for n in trace.notes if "a rolling recording" in n]
        numbers = {p.path.stem[-6:] for p in trace.parts("events")}
        last = max(p.path.stem[-6:] for p in trace.parts("tasks"))
        assert {p.path.stem[-6:] for n in ("tasks", "tiles") for p in trace.parts(n) if "lost" not in p.path.stem} <= {
            *numbers,
            last,
        }
        times = all_events(trace)["t"].to_pylist()
        assert all(r["t_begin"] <= r["t_end"] for r in trace.tail("loss").to_pylist())
        gone = set(range(8000)) - set(got.tolist())
        assert all(any(r["t_begin"] <= at(n) <= r["t_end"] for r in trace.tail("loss").to_pylist()) for n in gone)
        assert not any(r["t_begin"] <= t <= r["t_end"] for t in times for r in trace.tail("loss").to_pylist())
    report = check(path)
    assert report.findings == []
    assert {p.name for p in (path / "events").iterdir()} == {f"events-{n}.parquet" for n in numbers}
    assert repair(path).findings == []


def test_readers_and_checks_at_any_moment(tmp_path: Path) -> None:
    """While it rolls at full speed, a trace opens without holes beside the counted ones, and a check finds nothing."""
    path, stop, problems = tmp_path / "a.mscope", threading.Event(), list[object]()
    w = begin(path, 1000)
    opened = [0]

    def read() -> None:
        try:
            while not stop.is_set():
                with Trace.open(path) as trace:
                    lacking = [n for n in trace.notes if "left out" in n]
                    known = trace.manifest[retention.KEY]["horizon"]
                    tail = trace.tail("events")
                    parts = sum(p.rows for p in trace.parts("events"))
                    last = tail["task"].to_numpy().max(initial=-1)
                    if lacking or (tail.num_rows and parts + tail.num_rows + counted(trace) != last + 1):
                        problems.append((lacking, parts, tail.num_rows, counted(trace), last, known))
                opened[0] += 1
                report = check(path)
                problems.extend(f for f in report.findings if f.severity != "info")
        except MegascopeError as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for r in readers:
        r.start()
    rows = 0
    while rows < 20_000 or (opened[0] < 6 and rows < 400_000):
        pour(w, rows, 500)
        rows += 500
    stop.set()
    for r in readers:
        r.join()
    end(w, rows)
    assert problems == []
    assert opened[0] >= 4
    assert_kept(path, rows, 1000, [])
    assert check(path).findings == []


def test_who_had_it_open_is_told_what_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = begin(path, 1000)
    pour(w, 0, 1000)
    while not Trace.open(path).parts("events"):
        time.sleep(0.01)
    with Trace.open(path) as trace:
        first = trace.parts("events")[0]
        pour(w, 1000, 3000)
        while first.path.exists():
            pour(w, 4000, 1)
            time.sleep(0.01)
        assert first not in trace.verified("events")
        assert any(f"{first.path.name} was left out: it was retired since" in n for n in trace.notes)
        assert not any("checksum" in n for n in trace.notes)
    w.close()


def test_a_part_that_goes_while_the_trace_is_opened_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is read, the part goes, its file is looked for: then the manifest is read again."""
    path = tmp_path / "a.mscope"
    w = begin(path, 2000)
    pour(w, 0, 2000)
    while len(Trace.open(path).parts("events")) < 3:
        time.sleep(0.01)
    real, done = Trace._found, list[str]()

    def found(self: Trace, stream: str) -> Any:
        if stream == EVENTS.name and not done:
            done.append(stream)
            pour(w, 2000, 6000)
            gone = path / "events" / "events-000001.parquet"
            while gone.exists():
                time.sleep(0.01)
        return real(self, stream)

    monkeypatch.setattr(Trace, "_found", found)
    with Trace.open(path) as trace:
        assert done
        assert not any("left out" in n for n in trace.notes)
        assert retention.retired_rows(trace.manifest) > 0
    w.close()


def pour_slowly(w: TraceWriter, first: int, count: int) -> int:
    """Rows as fast as they are sealed and derived, and no faster; returns the most bytes that the trace took."""
    most = 0
    for n in range(first, first + count, 250):
        pour(w, n, 250, 250)
        most = max(most, w.bytes_written)
        while w.sealing_lag_rows > 750 or w._deriver.owed:
            time.sleep(0.001)
    return most


def test_a_budget_makes_the_window_shorter_and_not_the_end(tmp_path: Path) -> None:
    path, budget_ = tmp_path / "a.mscope", 1 << 20
    w = begin(path, 1_000_000, max_bytes=budget_)
    rows = 0
    while w.retired_rows < 5000 and rows < 200_000:
        assert pour_slowly(w, rows, 2000) < budget_
        rows += 2000
    end(w, rows)
    with Trace.open(path) as trace:
        got = rows_in(trace)
        losses = trace.tail("loss").to_pylist()
        assert {r["kind"] for r in losses} == {"retired_early"}
        assert len(got) + counted(trace) == rows
        assert np.array_equal(got, np.arange(got[0], rows))
        assert trace.manifest[retention.KEY]["horizon"] == at(got[0] - 1) + 1
    assert check(path).findings == []
    assert sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) < budget_


def test_pins_take_their_share_of_the_budget_and_no_more(tmp_path: Path) -> None:
    path, budget_ = tmp_path / "a.mscope", 1 << 20
    w = begin(path, 1000, max_bytes=budget_)
    w.pin(0, 1 << 60)
    rows = 0
    while w.pinned_to is None and rows < 200_000:
        pour_slowly(w, rows, 1000)
        rows += 1000
    assert w.pinned_to is not None
    pinned = (w.pinned_to - 1000) // STEP_NS
    assert w.pin(1 << 61, 1 << 62) is None
    pour_slowly(w, rows, 6000)
    end(w, rows + 6000)
    # Nothing of what was pinned was given up for it, and the window goes on.
    assert_kept(path, rows + 6000, 1000, [(0, pinned)])
    with Trace.open(path) as trace:
        assert counted(trace) > 4000
        assert budget_ // 4 < sum(p.bytes for n in ("events", "tasks", "tiles") for p in trace.parts(n)) < budget_
    assert check(path).findings == []


def test_what_leaves_the_window_before_it_is_sealed_is_never_sealed(tmp_path: Path) -> None:
    """A recording that seals more slowly than rows come keeps to its window, and counts."""
    path = tmp_path / "a.mscope"
    w = begin(path, 1000)
    w._sealer.stop()
    w.pin(at(2000), at(2500))
    pour(w, 0, 20_000, beside=True)
    assert (path / "spool" / "events-000001.arrows").exists()
    for f in w._sealer.waiting["events"]:
        t = pa.concat_arrays([b["t"] for b in spool.read(f, RING_ROW.schema) if b is not None]).to_pylist()
        assert f.times == (min(t), max(t))
    end(w, 20_000)
    assert_kept(path, 20_000, 1000, [(2000, 2500)])
    assert check(path).findings == []
    with Trace.open(path) as trace:
        assert len(rows_in(trace)) < 1000 + 501 + 6 * 115


def kinds(path: Path) -> set[str]:
    with Trace.open(path) as trace:
        return {r["kind"] for r in trace.tail("loss").to_pylist()} | {
            r["kind"] for p in trace.verified("loss") for r in pq.read_table(p.path).to_pylist()
        }


def assert_newest(path: Path, *, only: bool = True) -> int:
    """The rows from the horizon on are there, once, and no others (or some, not `only`), and those that are not are
    counted; returns how many came."""
    with Trace.open(path) as trace:
        got, horizon = rows_in(trace), trace.manifest[retention.KEY]["horizon"]
        came = len(got) + counted(trace)
    assert len(np.unique(got)) == len(got)
    begin = 0 if horizon is None else -((1000 - horizon) // STEP_NS)
    assert begin < came
    assert np.array_equal(got[got >= begin], np.arange(begin, came))
    assert not only or got[0] == begin
    return came


@pytest.mark.parametrize("sealing", [True, False])
def test_the_oldest_go_first_however_far_sealing_lags(tmp_path: Path, sealing: bool) -> None:
    path, budget_ = tmp_path / "a.mscope", 1 << 19
    w = begin(path, 1_000_000, max_bytes=budget_)
    if not sealing:
        w._sealer.stop()
    rows = 20_000
    for n in range(0, rows, 500):
        pour(w, n, 500, 500)
        assert w.raw_stopped is None
        assert w.bytes_written < budget_
    end(w, rows)
    assert assert_newest(path) == rows
    assert kinds(path) == {"retired_early"}
    assert check(path).findings == []


def test_the_newest_are_refused_only_where_nothing_older_may_go(tmp_path: Path) -> None:
    path, budget_ = tmp_path / "a.mscope", 1 << 19
    w = begin(path, 1_000_000, max_bytes=budget_)
    w._sealer.stop()
    w.pin(0, 1 << 60)
    pour(w, 0, 10_000, 500)
    assert w.raw_stopped == "disk_budget"
    assert w.bytes_written < budget_
    end(w, 10_000)
    with Trace.open(path) as trace:
        got = rows_in(trace)
        assert np.array_equal(got, np.arange(len(got)))
        assert len(got) + counted(trace) == 10_000
    todo = LOSS_BY_NAME["disk_budget"].todo
    assert "--keep" in todo
    assert "--max-bytes" in todo


def test_what_goes_while_it_is_being_sealed_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder lets go of the oldest files, of which the sealer has one in hand: its part never counts."""
    path = tmp_path / "a.mscope"
    w = begin(path, 1_000_000, max_bytes=1 << 20)
    w._sealer.stop()
    pour(w, 0, 6000)
    files = w._unsealed()
    assert len(files) > 4
    assert w._retirer is not None
    w._sealer.seal("events", files[:1])
    assert w._unsealed() == files[1:]
    real = seal.write_part

    def overtaken(*args: Any) -> Any:
        sealed = real(*args)
        assert w._retirer is not None
        w._retirer.step(sum(f.on_disk for f in files[:4]))
        w._sealer.pass_over()
        return sealed

    with monkeypatch.context() as patch:
        patch.setattr(seal, "write_part", overtaken)
        w._sealer.seal("events", files[1:2])
    left = w._unsealed()
    assert 0 < len(left) < len(files) - 2
    assert left == files[-len(left) :]
    w._sealer.seal("events", files[2:3])
    assert w._unsealed() == left
    # Who comes too late with a file that is sealed by now lets go of the others only.
    w._sealer.seal("events", left[:1])
    w._retirer.step(1 << 40)
    assert seal.pass_over(path, w._manifest, left[:3], w._retirer) == left[1:3]
    w._sealer._no_more("events", left[1:3])
    w._sealer._on_sealed("events", left[1:3], None)
    assert w.sealing_lag_rows == 6000 - sum(f.rows for f in files) + sum(f.rows for f in left[3:])
    end(w, 6000)
    with Trace.open(path) as trace:
        assert len(rows_in(trace)) + counted(trace) == 6000
    assert check(path).findings == []


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_while_room_is_made_loses_and_doubles_nothing(memory_path: Path, stride: int) -> None:
    crashes = 0
    for step in range(1 + os.getpid() % stride, 2000, stride):
        path = memory_path / f"{step}.mscope"

        def act(path: Path = path, step: int = step) -> None:
            w = begin(path, 1_000_000, max_bytes=200_000)
            w._sealer.stop()
            pour(w, 0, 1000, 100)
            for f in w._unsealed()[:3]:
                w._sealer.seal("events", [f])
            crash_in_retiring(step)
            pour(w, 1000, 1500, 100)
            os._exit(0)

        status = in_child(act)
        assert status in (0, 77)
        # Parts that wait for deriving go when it comes to them, which may be after what was not sealed.
        came = assert_newest(path, only=False)
        assert came % 50 == 0
        report = repair(path)
        assert report.clean, report.findings
        assert assert_newest(path, only=False) == came
        if status == 0:
            assert came == 2500
            break
        shutil.rmtree(path)
        crashes += 1
    assert crashes >= 24 // stride


def rolled(path: Path) -> TraceWriter:
    """A rolling recording of which much is due to be retired, sealed and derived, and nothing has been yet."""
    w = begin(path, 300)
    w._deriver.stop()
    w._sealer.stop()
    pour(w, 0, 400, 200)
    for group in list(w._sealer.groups("events", w._sealer.waiting["events"], last=True)):
        w._sealer.seal("events", group)
    w.pin(at(250), at(350))
    pour(w, 400, 600, 200)
    for stream, summary in summaries(1000).items():
        w.append(stream, summary)
    w.flush()
    return w


def crash_in_retiring(step: int) -> None:
    """End this process before the `step`-th change of a directory or fsync that retiring makes."""
    left, inside = [step], [False]

    def within(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            inside[0] = True
            try:
                return real(*args)
            finally:
                inside[0] = False

        return wrapped

    def armed(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= inside[0]
            if left[0] == 0:
                os._exit(77)
            return real(*args, **kwargs)

        return wrapped

    for name in STEPS:
        setattr(os, name, armed(getattr(os, name)))
    Retirer._forget = within(Retirer._forget)  # type: ignore[method-assign]
    seal.pass_over = within(seal.pass_over)


STRIDE = 4


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_anywhere_in_retiring_loses_and_doubles_nothing(memory_path: Path, stride: int) -> None:
    crashes = litter = 0
    for step in range(1 + os.getpid() % stride, 2000, stride):
        path = memory_path / f"{step}.mscope"

        def act(path: Path = path, step: int = step) -> None:
            w = rolled(path)
            crash_in_retiring(step)
            w.finish("done", t=at(1000))

        status = in_child(act)
        assert status in (0, 77)
        assert_kept(path, 1000, 300, [(250, 350)])
        found = check(path)
        assert all(f.severity != "damaged" for f in found.findings), found.findings
        if status == 0:
            assert found.findings == []
            break
        litter += any(f.file.startswith("events/") and "crash" in f.what for f in found.findings)
        report = repair(path)
        assert report.clean, report.findings
        assert not [f for f in report.findings if "events/" in f.file]
        assert_kept(path, 1000, 300, [(250, 350)])
        with Trace.open(path) as trace:
            assert (trace.state, trace.is_derived) == ("sealed", True)
        shutil.rmtree(path)
        crashes += 1
    print(crashes, "crashes,", litter, "left a part behind")
    assert crashes >= 20 // stride
    assert litter, "no crash between the manifest and the files"


def test_killed_while_it_rolls(memory_path: Path) -> None:
    """SIGKILL at a random moment at full speed: what was confirmed is there or counted, and repair makes it whole."""
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    draw = random.Random(seed)
    retired = 0
    for round_ in range(10):
        path = memory_path / f"{round_}.mscope"
        reader, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                w = begin(path, 500)
                w.pin(at(1000), at(1200))
                rows = 0
                while True:
                    pour(w, rows, 61, 61)
                    rows += 61
                    os.write(told, rows.to_bytes(8))
            finally:
                os._exit(1)
        os.close(told)
        assert len(os.read(reader, 8)) == 8
        time.sleep(draw.random() * 0.25)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest = b""
        while piece := os.read(reader, 1 << 16):
            rest += piece
        os.close(reader)
        confirmed = int.from_bytes(rest[-8:]) if rest else 61
        for mended in (False, True):
            if mended:
                report = repair(path)
                assert report.clean, report.findings
            with Trace.open(path) as trace:
                assert trace.state == ("sealed" if mended else "unsealed")
                got = rows_in(trace)
                written = len(got) + counted(trace)
                assert confirmed <= written <= confirmed + 61
                assert np.isin(np.arange(max(0, confirmed + 61 - 500), confirmed), got).all()
                assert np.isin(np.arange(1000, min(1201, written)), got).all()
                retired += counted(trace) > 0
        shutil.rmtree(path)
    assert retired


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    """Not even where everything was retired: what was derived from a number belongs to it for ever."""
    path = tmp_path / "a.mscope"
    w = begin(path, 10)
    pour(w, 0, 2000)
    end(w, 2000)
    content = manifest.read(path)
    numbers = [int(p["file"][7:13]) for p in content["streams"]["events"]["parts"]]
    assert numbers
    content["streams"]["events"]["parts"] = []
    assert seal._next_number(content, "events") == retention.last_retired(content) + 1 > 1
    assert seal._next_number(content, "loss") >= 1


def test_a_trace_from_before_marks_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    record(path, 100)
    content = json.loads((path / manifest.FILE).read_text())
    del content["spool_sealed"][MARKS.name], content["tables"][MARKS.name]
    (path / "tables" / "marks.parquet").unlink()
    manifest.write(path, content)
    with Trace.open(path) as trace:
        assert trace.notes == []
        assert trace.table(MARKS.name).equals(MARKS.schema.empty_table())
    assert check(path).findings == []
    assert repair(path).clean


def test_a_full_disk_retires_later(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the manifest finds no room the parts stay, and count, until it does."""
    path = memory_path / "a.mscope"
    w = begin(path, 1000)
    pour(w, 0, 1000)
    real, failing = manifest.write, [True]

    def full(*args: Any) -> None:
        if failing[0]:
            raise OSError(budget.FULL[0], "No space left on device")
        real(*args)

    monkeypatch.setattr(manifest, "write", full)
    pour(w, 1000, 4000)
    failing[0] = False
    end(w, 5000)
    assert_kept(path, 5000, 1000, [])
    assert check(path).findings == []


@pytest.mark.slow
def test_a_long_recording_stays_bounded(tmp_path: Path) -> None:
    """Thousands of windows, with pins now and then: parts, manifest and disk do not grow but by the pins."""
    path = tmp_path / "a.mscope"
    w = begin(path, 2000)
    sizes, rows = list[tuple[int, int, int]](), 0
    for round_ in range(400):
        pour_slowly(w, rows, 2000)
        rows += 2000
        if round_ in (50, 60):
            w.pin(at(rows - 300), at(rows + 300))
        if round_ >= 100 and round_ % 20 == 0:
            disk = sum(f.stat().st_size for f in path.rglob("*") if f.is_file() and f.name != "reserve")
            parts = len(manifest.read(path)["streams"]["events"]["parts"])
            sizes.append((disk, parts, (path / manifest.FILE).stat().st_size))
    end(w, rows)
    first, last = np.array(sizes[: len(sizes) // 2]), np.array(sizes[len(sizes) // 2 :])
    assert (last.max(axis=0) <= first.max(axis=0) * 3).all(), sizes
    assert_kept(path, rows, 2000, [(102_000 - 300, 102_000 + 300), (122_000 - 300, 122_000 + 300)])
    assert check(path).findings == []
