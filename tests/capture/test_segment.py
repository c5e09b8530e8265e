"""The segment: made whole or refused by name; its parts told truly; never more claimed than was written."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedEngine, workers_table

from megascope.capture import control
from megascope.capture.segment import host_ring, side
from megascope.capture.segment.layout import HEADER_OFFSETS, Layout
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.process import alive, start_time
from megascope.capture.segment.reader import SegmentReader, Truncated
from megascope.capture.segment.told import HostRingReader
from megascope.capture.segment.words import PAGE, Control, Policy, State, Worker
from megascope.capture.segment.writer import SegmentWriter
from megascope.capture.waiting import waiting
from megascope.store.errors import MegascopeError, Refused, Usage
from megascope.store.tables import ENGINE_TABLES, REQUESTS, STATIC_TASKS, TASK_CLASSES, TASK_DEPS


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert ": " in text
    return text


def test_a_segment_is_private_and_whole(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0, 0, 1])
    stat = (tmp_path / "a.mseg").stat()
    assert stat.st_mode & 0o777 == 0o600
    assert stat.st_size == engine.layout.file_bytes
    assert stat.st_blocks * 512 >= stat.st_size  # allocated: a full file system shows now, not as the engine's death
    with SegmentReader.open(tmp_path / "a.mseg") as segment:
        assert segment.layout == engine.layout
        assert segment.monitor_of.tolist() == [0, 0, 1]
        assert segment.status().text == "running"
        engine.end()
        assert segment.status().state == State.ENDED


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.mseg").write_bytes(b"mine")
    with pytest.raises(MegascopeError) as e:
        ScriptedEngine(tmp_path / "a.mseg", [0])
    assert "it exists" in one_line(e)
    assert (tmp_path / "a.mseg").read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_is_an_error_at_start(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)], check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        with pytest.raises(MegascopeError) as e:
            ScriptedEngine(small / "a.mseg", [0])
        assert "bytes do not fit there" in one_line(e)
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"workers": 0, "monitors": 1}, "workers is 0"),
        ({"workers": 40_000, "monitors": 1}, "workers is 40000"),
        ({"workers": 1, "monitors": 1, "block_rows": 100}, "no multiple of 64"),
        ({"workers": 1, "monitors": 1, "blocks": 256}, "blocks is 256"),
        ({"workers": 1, "monitors": 1, "summary_rows": 40}, "no multiple of 16"),
        ({"workers": 1, "monitors": 1, "exported": 1 << 20}, "names hooks"),
    ],
)
def test_impossible_sizes_are_named(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(Usage) as e:
        Layout(**sizes)
    assert says in one_line(e)


def _header(path: Path, offset: int, data: bytes, *, mend: bool = True) -> None:
    """Change the header in place; `mend` its checksum, as someone who means it would."""
    page = bytearray(path.read_bytes()[:PAGE])
    page[offset : offset + len(data)] = data
    if mend:
        page[-4:] = struct.pack("<I", zlib.crc32(page[:-4]))
    with path.open("r+b") as f:
        f.write(page)


@pytest.mark.parametrize(
    ("name", "data", "mend", "says"),
    [
        ("magic", b"ELF", True, "does not begin as a segment does"),
        ("abi_major", struct.pack("<I", 9), True, "hook ABI is 9.0"),
        ("workers", struct.pack("<I", 7), False, "damaged (checksum)"),
        ("workers", struct.pack("<I", 9_999), True, "sizes add up to"),
        ("blocks", struct.pack("<I", 10**6), True, "blocks is 1000000"),
        ("file_bytes", struct.pack("<Q", 1 << 50), True, "sizes add up to"),
        ("schema_hash", b"\xff" * 32, True, "tables (schema ffffffffffff)"),
        ("epoch_ns", struct.pack("<Q", 0), True, "epoch_ns is 0"),
        ("policy", struct.pack("<I", 77), True, "policy is 77"),
    ],
)
def test_each_way_of_refusing_a_header(tmp_path: Path, name: str, data: bytes, mend: bool, says: str) -> None:
    path = tmp_path / "a.mseg"
    ScriptedEngine(path, [0, 0])
    _header(path, HEADER_OFFSETS[name], data, mend=mend)
    with pytest.raises(Refused) as e:
        SegmentReader.open(path)
    assert says in one_line(e)


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mseg"
    ScriptedEngine(path, [0, 0])
    _header(path, HEADER_OFFSETS["abi_minor"], struct.pack("<I", 3))
    _header(path, HEADER_OFFSETS["schema_hash"], b"\xee" * 32)
    with SegmentReader.open(path) as segment:
        assert segment.layout.workers == 2


def test_what_is_no_segment_is_refused(tmp_path: Path) -> None:
    for name, content, says in (
        ("empty", b"", "0 bytes and no header"),
        ("short", b"MEGASCOP", "8 bytes and no header"),
        ("text", b"x" * 10_000, "does not begin"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Refused) as e:
            SegmentReader.open(tmp_path / name)
        assert says in one_line(e)
    with pytest.raises(MegascopeError) as e2:
        SegmentReader.open(tmp_path / "absent")
    assert "No such file" in one_line(e2)
    with pytest.raises(MegascopeError) as e3:
        SegmentReader.open(tmp_path)
    one_line(e3)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(MegascopeError) as e4:
        SegmentReader.open(tmp_path / "fifo")
    one_line(e4)


def test_a_truncated_file_is_refused_and_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.mseg"
    ScriptedEngine(path, [0, 0])
    size = path.stat().st_size
    with SegmentReader.open(path, write=True) as segment:
        os.truncate(path, PAGE)
        with pytest.raises(Truncated) as e:
            segment.cursors()
        assert "cut to 4,096 bytes" in one_line(e)
        with pytest.raises(Truncated):
            segment.poke(segment.layout.tails_offset, b"\1")
        assert path.stat().st_size == PAGE
    with pytest.raises(Refused) as e2:
        SegmentReader.open(path)
    assert f"4,096 of {size:,} bytes" in one_line(e2)


def test_side_tables_come_as_arrow_or_json_and_are_checked() -> None:
    rows = [
        {"id": 1, "name": "l0.attn", "operator": "attention", "layer": 0, "device_function": "attn"}
        | {"tensor_region": "o[0]", "expected_dep_classes": [1]}
    ]
    table = pa.Table.from_pylist(rows, schema=TASK_CLASSES.schema)
    area, n = side.pack({"task_classes": table}, {"kind": "host"})
    tables, engine = side.unpack(area, n, "x")
    assert tables["task_classes"] == table
    assert engine == {"kind": "host"}
    assert tables["workers"].num_rows == 0
    assert side.from_json(rows, "task_classes") == table
    for damage in range(0, len(area), 37):
        bad = bytearray(area)
        bad[damage] ^= 0x40
        try:
            side.unpack(bytes(bad), n, "x")
        except Refused as e:
            assert "\n" not in str(e)
    with pytest.raises(Refused, match="directory of side tables is cut off"):
        side.unpack(b"", 1, "x")


def test_a_schema_json_entry_needs_no_arrow() -> None:
    import megascope.capture.segment.words as lay

    doc = json.dumps({"workers": [{"worker": 0, "monitor": 0, "sm": 3, "role": "compute", "rank": 0}]}).encode()
    entry = lay.SIDE_ENTRY.pack(b"schema.json", lay.SIDE_JSON, zlib.crc32(doc), lay.SIDE_ENTRY.size, len(doc))
    tables, _ = side.unpack(entry + doc, 1, "x")
    assert tables["workers"]["sm"].to_pylist() == [3]


def test_a_worker_outside_its_table_is_refused(tmp_path: Path) -> None:
    table = workers_table([0, 5])
    writer = SegmentWriter.create(tmp_path / "a.mseg", Layout(workers=2, monitors=1), side_tables={"workers": table})
    assert writer.layout.monitors == 1
    with pytest.raises(Refused, match="names a monitor outside 0 to 0"):
        SegmentReader.open(tmp_path / "a.mseg")


def test_one_drainer_at_a_time_and_the_lock_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.mseg"
    ScriptedEngine(path, [0])
    hold = (
        "import sys, pathlib; from megascope.capture.segment.lease import Lease\n"
        "from megascope.capture.segment.reader import SegmentReader\n"
        f"l = Lease(SegmentReader.open(pathlib.Path({str(path)!r}), write=True))\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with SegmentReader.open(path, write=True) as segment:
        with pytest.raises(MegascopeError) as e:
            Lease(segment)
        assert f"process {child.pid} (" in one_line(e)
        assert "records it already; end that first" in one_line(e)
        child.kill()
        child.wait()
        Lease(segment).release()


def test_control_words_reach_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    with SegmentReader.open(tmp_path / "a.mseg", write=True) as segment:
        lease = Lease(segment)
        before = engine.writer.commit
        commit = lease.record(0b1100)
        assert engine.writer.mask == 0b1100
        assert engine.writer.commit == commit != before
        assert not engine.writer.stop
        lease.stop_engine()
        assert engine.writer.stop
        assert segment.lease() == (os.getpid(), start_time(os.getpid()))


def test_a_now_record_counts_only_whole(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0, 0])
    with SegmentReader.open(tmp_path / "a.mseg") as segment:
        engine.wait(1, task=5 << 32 | 9, dep=3, seen=2, wanted=8)
        idle, waits = segment.now().to_pylist()
        assert not idle["waiting"]
        assert (waits["task"], waits["dep"], waits["seen"], waits["wanted"]) == (5 << 32 | 9, 3, 2, 8)
        engine.writer.worker[1, Worker.NOW_DEP] = 4  # half of the next one
        assert not segment.now().to_pylist()[1]["waiting"]
        engine.wait(1, task=1, dep=4, seen=0, wanted=1)
        engine.resume(1)
        assert not segment.now().to_pylist()[1]["waiting"]


def test_a_cycle_of_waits_is_shown(tmp_path: Path) -> None:
    static = [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1)]
    rows = [
        {"index": i, "task_class": 1, "tile": 0, "rank": 0, "worker": w, "order": o, "dep": 0} for i, w, o in static
    ]
    deps = [{"index": i, "dep": i + 1, "releases": True} for i in range(4)]
    writer = SegmentWriter.create(
        tmp_path / "a.mseg",
        Layout(workers=3, monitors=1),
        side_tables={
            "workers": workers_table([0, 0, 0]),
            "static_tasks": pa.Table.from_pylist(rows, schema=STATIC_TASKS.schema),
            "task_deps": pa.Table.from_pylist(deps, schema=TASK_DEPS.schema),
        },
    )

    def wait(worker: int, task: int, dep: int) -> None:
        words = np.array([100, task, dep, 1], np.uint64)
        writer.worker[worker, :4] = words
        writer.worker[worker, Worker.NOW_CHECK] = np.bitwise_xor.reduce(words)

    with SegmentReader.open(tmp_path / "a.mseg") as segment:
        wait(0, 0, 2)  # task 0 waits for what task 1 releases, on worker 1
        wait(1, 1, 3)  # task 1 for task 2, on worker 2
        assert waiting(segment).cycles == []
        wait(2, 2, 1)  # task 2 for task 0, on worker 0
        assert [sorted(c) for c in waiting(segment).cycles] == [[0, 1, 2]]
        wait(0, 3, 2)  # worker 0 is past task 0: no cycle, whatever it waits for
        assert waiting(segment).cycles == []


def _row(table, draw):  # type: ignore[no-untyped-def]
    return tuple(
        draw(st.text(max_size=60)) if c.type == "str" else draw(st.integers(-(1 << 63), (1 << 63) - 1)) for c in table
    )


@given(st.data())
def test_host_ring_records_come_back(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(ENGINE_TABLES))
    rows = [_row(table, data.draw) for _ in range(data.draw(st.integers(0, 5)))]
    raw = b"".join(host_ring.records(table.name, rows)) + host_ring.filler(24)
    assert [r for _, r in host_ring.decode(raw)] == [
        tuple(v.encode()[:255].decode("utf-8", "replace") if isinstance(v, str) else v for v in r) for r in rows
    ]


@given(st.binary(max_size=400))
def test_host_ring_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        list(host_ring.decode(data))
    except ValueError as e:
        assert "\n" not in str(e)


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=60))
def test_the_host_ring_loses_only_what_it_counts(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[int, bool]]
) -> None:
    path = tmp_path_factory.mktemp("ring") / "a.mseg"
    writer = SegmentWriter.create(path, Layout(workers=1, monitors=1, host_bytes=4096))
    said, got, lost, n = 0, [], 0, 0
    sizes: list[int] = []
    with SegmentReader.open(path) as segment:
        ring = HostRingReader(segment)
        for count, take in script:
            for _ in range(count):
                n += 1
                row = (n, 0, "x" * (n % 200), "m", "t", n, 1, 1)
                sizes.append(len(host_ring.encode(REQUESTS, row)))
                writer.say("requests", [row])
                said += 1
            if take:
                rows, losses = ring.take()
                got += [r[0] for r in rows.get("requests", [])]
                lost += sum(x.count for x in losses)
        rows, losses = ring.take()
        got += [r[0] for r in rows.get("requests", [])]
        lost += sum(x.count for x in losses)
    assert got == sorted(set(got))
    assert got[-1:] == ([said] if said else [])
    missing = [i for i in range(1, said + 1) if i not in set(got)]
    assert (lost > 0) == bool(missing) or (lost > 0 and not missing)
    assert lost >= sum(sizes[i - 1] for i in missing)


def test_clock_fits_are_kept_in_a_ring(tmp_path: Path) -> None:
    writer = SegmentWriter.create(tmp_path / "a.mseg", Layout(workers=1, monitors=1))
    with SegmentReader.open(tmp_path / "a.mseg") as segment:
        for i in range(130):
            writer.clock_fit(1_000 + i, 5_000 + i, 7)
        fits = segment.clock_fits()
        assert len(fits) == 112
        assert (fits[0].host_ns, fits[-1].device_ns, fits[-1].error_ns) == (1_018, 5_129, 7)


def test_ls_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    ScriptedEngine(tmp_path / "live.mseg", [0])
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import pathlib, os, signal\n"
            f"from scripted import ScriptedEngine; ScriptedEngine(pathlib.Path({str(tmp_path / 'dead.mseg')!r}), [0])\n"
            "os.kill(os.getpid(), signal.SIGKILL)",
        ],
        check=False,
    )
    assert child.returncode == -9
    (tmp_path / "junk.mseg").write_bytes(b"no segment")
    found = {f.path.name: f for f in control.find()}
    assert found["live.mseg"].live
    assert found["dead.mseg"].status is not None
    assert found["dead.mseg"].status.text == "died"
    assert "no header" in found["junk.mseg"].problem
    assert control.only_live() == tmp_path / "live.mseg"
    assert control.prune() == [tmp_path / "dead.mseg"]
    ScriptedEngine(tmp_path / "second.mseg", [0])
    with pytest.raises(Usage, match="2 engines are live"):
        control.only_live()


def test_a_pid_that_was_reused_is_not_the_engine() -> None:
    me = os.getpid()
    assert alive(me, start_time(me))
    assert not alive(me, start_time(me) + 1)
    assert not alive(0, 0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    born = start_time(child.pid)
    while Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    assert not alive(child.pid, born)  # a zombie runs nothing
    child.wait()


def test_no_process_but_the_engine_needs_a_mapping() -> None:
    """The drainer's every store is one byte, or latched by one: what a torn write shows is old or new, never both."""
    assert Control.COMMIT.value % 8 == 0
    assert Control.STOP.value == Control.COMMIT + 1
    assert Policy.DROP == 0  # what a zeroed header would say is the harmless policy
