"""Whole traces mutated a thousand times: a one-line refusal, or rows that are a part of the truth and a note."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_traces import all_events, all_of, expected_starts, make_small, record, ring_rows, started, truth

from megascope.store import manifest, spool
from megascope.store.check import check, repair
from megascope.store.errors import MegascopeError, Refused
from megascope.store.tables import RING_ROW
from megascope.store.trace import Trace

ROWS = 500


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring for a few hundred rows."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(before)


@pytest.fixture(scope="module", params=["sealed", "unsealed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed trace of three parts, and one whose recorder died with rows in the spool."""
    path: Path = tmp_path_factory.mktemp("original") / "a.mscope"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        w = record(path, ROWS, finish=request.param == "sealed")
        if request.param == "unsealed":
            while w.sealing_lag_rows > 200 or w._deriver.owed:
                pass
            w.close()
    return path


def rows_as_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


TRUTH = set(rows_as_tuples(truth(ROWS)))
STARTS = set(expected_starts(ROWS))


def judge(path: Path) -> str:
    """Open, read and check a trace; how it went: refused, partial or whole. Anything else fails the test."""
    report = check(path)
    for finding in report.findings:
        assert all("\n" not in part for part in finding)
    try:
        trace = Trace.open(path)
    except Refused as error:
        assert "\n" not in str(error)
        assert not report.clean
        return "refused"
    with trace:
        rows = rows_as_tuples(all_events(trace))
        refused = 0
        for name in trace.manifest["tables"]:
            try:
                trace.table(name)
            except Refused as error:
                assert "\n" not in str(error)
                refused += 1
        for stream in ("coverage", "intervals", "loss", "now"):
            trace.verified(stream)
            trace.tail(stream)
        assert set(started(trace)) <= STARTS
        for name in ("waits", "tiles"):
            all_of(trace, name)
        assert all("\n" not in n for n in trace.notes)
    assert set(rows) <= TRUTH
    assert len(rows) == len(set(rows)) or not report.clean
    if len(rows) < ROWS or refused:
        assert trace.notes or refused
        assert not report.clean
        return "partial"
    return "whole"


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def flip(rng: random.Random, path: Path) -> None:
    file = rng.choice([f for f in files_of(path) if f.stat().st_size])
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut(rng: random.Random, path: Path) -> None:
    file = rng.choice(files_of(path))
    os.truncate(file, rng.randrange(file.stat().st_size + 1))


def grow(rng: random.Random, path: Path) -> None:
    with rng.choice(files_of(path)).open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 32, 4096))))


def delete(rng: random.Random, path: Path) -> None:
    rng.choice(files_of(path)).unlink()


def swap(rng: random.Random, path: Path) -> None:
    a, b = rng.choice(files_of(path)), rng.choice(files_of(path))
    a_data, b_data = a.read_bytes(), b.read_bytes()
    a.write_bytes(b_data)
    b.write_bytes(a_data)


def copy_over(rng: random.Random, path: Path) -> None:
    a, b = rng.choice(files_of(path)), rng.choice(files_of(path))
    b.write_bytes(a.read_bytes())


def duplicate(rng: random.Random, path: Path) -> None:
    """A file, and its other half if it is of the spool, again under the next number."""
    file = rng.choice(files_of(path))
    stem, _, number = file.stem.rpartition("-")
    if not number.isdecimal():
        return
    for half in file.parent.glob(f"{file.stem}.*"):
        shutil.copy(half, half.with_name(f"{stem}-{int(number) + rng.randrange(1, 4):06d}{half.suffix}"))


def overwrite(rng: random.Random, path: Path) -> None:
    file = rng.choice([f for f in files_of(path) if f.stat().st_size])
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    data[at : at + 64] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * len(data[at : at + 64])
    file.write_bytes(data)


def replace_by_thing(rng: random.Random, path: Path) -> None:
    """A pipe, a link, a folder in the place of a file: nothing may block on it."""
    file = rng.choice(files_of(path))
    file.unlink()
    kind = rng.randrange(4)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.symlink_to("/etc/passwd")
    elif kind == 2:
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()


def litter(rng: random.Random, path: Path) -> None:
    folder = rng.choice([path, *(p for p in path.iterdir() if p.is_dir())])
    name = rng.choice(
        (
            "events-000099.parquet",
            ".x.tmp",
            "events-000050.sums",
            "a\nb",
            "events-000051.arrows",
            "loss-999999999999.arrows",
        )
    )
    (folder / name).write_bytes(rng.randbytes(100))


def lose_folder(rng: random.Random, path: Path) -> None:
    folder = rng.choice([p for p in path.iterdir() if p.is_dir()])
    shutil.rmtree(folder)
    if rng.random() < 0.5:
        folder.symlink_to("/proc/self")


def edit(rng: random.Random, path: Path) -> None:
    """A value somewhere in the manifest becomes another one, and its checksum is made right again."""
    m = json.loads((path / manifest.FILE).read_text())
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in list(items):
            places.append((value, key))
            walk(inner)

    walk(m)
    container, key = rng.choice(places)
    evil = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1.5, 1e308, "", "x" * 5000, [], {}, "\ud800", "a\nb"]
    evil += ["../../etc/passwd", "/etc/passwd", "events-000001.parquet", "events-000002.parquet", "..", [[[]]]]
    action = rng.randrange(4)
    if action == 0 and isinstance(container, dict):
        del container[key]
    elif action == 1 and isinstance(container, list):
        container.append(container[key])
    elif action == 2 and isinstance(container[key], int):
        container[key] += rng.choice((-1, 1, 1000))
    else:
        container[key] = rng.choice(evil)
    with contextlib.suppress(ValueError, TypeError):
        m["crc32"] = manifest.checksum(m)
    (path / manifest.FILE).write_text(json.dumps(m))


def edit_text(rng: random.Random, path: Path) -> None:
    text = (path / manifest.FILE).read_text()
    at = rng.randrange(len(text))
    junk = rng.choice(("[" * 100_000, "9" * 5000, "NaN", "1e999", '"', "\0", "{}", '"state": "sealed",', "\x80", ""))
    (path / manifest.FILE).write_text(text[:at] + junk + text[at + rng.randrange(3) :])


Mutation = Callable[[random.Random, Path], None]
MUTATIONS: list[tuple[Mutation, int]] = [
    (flip, 110), (cut, 50), (grow, 20), (delete, 30), (swap, 40), (copy_over, 20), (duplicate, 30), (overwrite, 30),
    (replace_by_thing, 30), (litter, 20), (lose_folder, 20), (edit, 100), (edit_text, 40),
]  # fmt: skip
"""540 for each of two traces."""


@pytest.mark.parametrize(("mutate", "times"), MUTATIONS, ids=[m.__name__ for m, _ in MUTATIONS])
def test_mutations(original: Path, memory_path: Path, mutate: Mutation, times: int) -> None:
    outcomes: dict[str, int] = {}
    for number in range(times):
        rng = random.Random(f"{mutate.__name__} {number}")
        path = memory_path / "a.mscope"
        shutil.copytree(original, path)
        mutate(rng, path)
        try:
            outcome = judge_edited(path) if mutate is edit else judge(path)
            if number % 5 == 0:
                judge_repaired(path)
        except BaseException:
            print(f"{mutate.__name__} {number}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(path)
    print(outcomes)
    assert sum(outcomes.values()) == times
    if mutate not in (litter, duplicate, grow):
        assert outcomes.get("whole", 0) < times


def judge_edited(path: Path) -> str:
    """As `judge`; but who edits the manifest and its checksum may say that rows are not there."""
    try:
        return judge(path)
    except AssertionError:
        report = check(path)
        with Trace.open(path) as trace:
            rows = rows_as_tuples(all_events(trace))
            told = trace.manifest["streams"]["events"]["parts"], trace.manifest["spool_sealed"]
        assert set(rows) <= TRUTH
        assert not report.clean or report.findings or told
        return "partial"


def judge_repaired(path: Path) -> None:
    """Repair ends, says what it found, keeps to the truth, and has nothing left to do the second time."""
    try:
        first = repair(path)
        second = repair(path)
    except MegascopeError as error:
        assert "\n" not in str(error)
        return
    assert second.findings == first.findings
    try:
        with Trace.open(path) as trace:
            assert set(rows_as_tuples(all_events(trace))) <= TRUTH
    except Refused:
        pass


def test_hostile_arrow_with_right_checksums() -> None:
    """Who can compute checksums can hand Arrow any bytes: it must refuse them or the rows must be valid."""
    good = ring_rows(0, 64).serialize().to_pybytes()
    rng = random.Random(7)
    decoded = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 2, 8))):
            # Mostly in the message's metadata: offsets, lengths, types.
            data[rng.randrange(min(len(data), 1600) if rng.random() < 0.8 else len(data))] = rng.randrange(256)
        frame = spool.Frame(0, len(data), 64, spool.digest_of(bytes(data)))
        batch = spool.decode(bytes(data), frame, RING_ROW.schema)
        if batch is not None:
            decoded += 1
            assert batch.num_rows == 64
            assert batch.schema == RING_ROW.schema
            batch.to_pydict()
    assert 0 < decoded < 2000


def test_part_flips_are_silent_without_verification(original: Path) -> None:
    """Why `verified` exists: somewhere in a part is a byte whose change decodes without any error."""
    with Trace.open(original) as trace:
        part = trace.parts("events")[0]
    data = part.path.read_bytes()
    honest = pq.read_table(part.path)
    silent = 0
    for at in range(100, len(data) - 100, 41):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            silent += not pq.read_table(pa.BufferReader(changed)).equals(honest)
        except (pa.ArrowException, OSError):
            continue
    assert silent > 0
