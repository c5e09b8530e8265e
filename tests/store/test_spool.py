"""Spool files: what counts as written, and what a reader may believe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
from made_traces import ring_rows

from megascope.store import seal, spool
from megascope.store.tables import RING_ROW

ID = "ab" * 16


def written(folder: Path, batches: int, *, finish: bool = True, sync: bool = False) -> spool.SpoolFile:
    w = spool.SpoolWriter(folder, "events", RING_ROW.schema, ID, sync=sync)
    for i in range(batches):
        w.write(ring_rows(i * 10, 10))
    if finish:
        w.finish()
    w.close()
    return spool.scan(folder / "events-000001.arrows", ID)


def rows(f: spool.SpoolFile) -> list[int | None]:
    """First task of each batch, None for one that cannot be read."""
    return [None if b is None else b["task"][0].as_py() for b in spool.read(f, RING_ROW.schema)]


@pytest.mark.parametrize("sync", [False, True])
def test_written_is_read(tmp_path: Path, sync: bool) -> None:
    f = written(tmp_path, 5, sync=sync)
    assert (f.rows, f.ended, f.cut) == (50, True, 0)
    assert rows(f) == [0, 10, 20, 30, 40]
    assert f.on_disk == sum(p.stat().st_size for p in tmp_path.iterdir())


def test_end_record_in_the_stream_itself(tmp_path: Path) -> None:
    """Any Arrow reader sees the rows, and at the end a batch without rows that says how many there were."""
    f = written(tmp_path, 5)
    with pa.ipc.open_stream(f.path) as stream:
        batches = [stream.read_next_batch_with_custom_metadata() for _ in range(6)]
        with pytest.raises(StopIteration):
            stream.read_next_batch()
    assert [b.batch.num_rows for b in batches] == [10] * 5 + [0]
    assert batches[-1].custom_metadata[spool.END_KEY] == b"50"


def test_unfinished_file_has_no_end(tmp_path: Path) -> None:
    f = written(tmp_path, 2, finish=False)
    assert (f.rows, f.ended, f.cut) == (20, False, 0)


def test_every_cut_of_either_file_leaves_whole_batches(tmp_path: Path) -> None:
    f = written(tmp_path, 3)
    sums = f.path.with_suffix(spool.SUMS)
    for file in (f.path, sums):
        whole = file.read_bytes()
        for size in [*range(0, len(whole), 97 if file == f.path else 1), len(whole)]:
            file.write_bytes(whole[:size])
            cut = spool.scan(f.path, ID)
            assert rows(cut) == [0, 10, 20][: len(cut.frames)]
            assert cut.ended == (size == len(whole))
        file.write_bytes(whole)


def test_one_damaged_batch_costs_no_other(tmp_path: Path) -> None:
    f = written(tmp_path, 3)
    data = bytearray(f.path.read_bytes())
    data[(f.frames[1].begin + f.frames[1].end) // 2] ^= 1
    f.path.write_bytes(data)
    assert rows(spool.scan(f.path, ID)) == [0, None, 20]


def test_a_file_under_another_name_is_noticed(tmp_path: Path) -> None:
    f = written(tmp_path, 3)
    for name in ("events-000002", "events-000011"):
        for suffix in (spool.DATA, spool.SUMS):
            shutil.copy(f.path.with_suffix(suffix), tmp_path / f"{name}{suffix}")
        assert spool.scan(tmp_path / f"{name}.arrows", ID).rows == 0
    assert spool.scan(f.path, "cd" * 16).rows == 0


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    f = written(tmp_path, 1)
    f.path.unlink()
    os.mkfifo(f.path)
    with pytest.raises(OSError, match="not a regular file"):
        spool.scan(f.path, ID)
    f.path.unlink()
    f.path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic links"):
        spool.scan(f.path, ID)


def test_numbers_and_gaps(tmp_path: Path) -> None:
    for name in (
        "events-000003.arrows",
        "events-000003.sums",
        "events-000007.sums",
        "loss-000001.arrows",
        "events-7.x",
    ):
        (tmp_path / name).touch()
    assert spool.numbers(tmp_path, "events") == [3, 7]
    assert spool.numbers(tmp_path / "none", "events") == []
    assert list(spool.gaps([3, 7], 1)) == [(2, 2), (4, 6)]
    assert list(spool.gaps([2, 3], 1)) == []


def test_groups_gather_to_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "PART_ROWS", 100)
    monkeypatch.setattr(seal, "_PART_MOST", 125)

    def files(*sizes: int) -> list[spool.SpoolFile]:
        return [spool.SpoolFile("events", i, Path(), [spool.Frame(0, 1, n, 0)]) for i, n in enumerate(sizes, 1)]

    def shape(sizes: tuple[int, ...], last: bool) -> list[list[int]]:
        return [[f.rows for f in g] for g in seal.groups(files(*sizes), last=last)]

    assert shape((100, 100, 30), last=False) == [[100], [100]]
    assert shape((100, 100, 30), last=True) == [[100], [100], [30]]
    assert shape((60, 60, 60), last=False) == [[60, 60]]
    assert shape((60, 90, 60), last=True) == [[60], [90], [60]]
    assert shape((10,) * 9, last=False) == []
    assert shape((300,), last=False) == [[300]]


def test_slow_streams_rotate_by_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "ROTATE_FRAMES", 3)
    w = spool.SpoolWriter(tmp_path, "events", RING_ROW.schema, ID)
    full = []
    for i in range(3):
        w.write(ring_rows(i, 1))
        full.append(w.full)
    w.close()
    assert full == [False, False, True]
