"""A segment that is torn, cut, scribbled over or built to harm: one clear line or a correct partial read, always."""

from __future__ import annotations

import os
import random
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedEngine

from megascope.capture.accounts import Accounts
from megascope.capture.control import look
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.reader import SegmentReader, Truncated
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.segment.told import HostRingReader
from megascope.capture.segment.words import PAGE, Cursor, Policy
from megascope.capture.waiting import waiting
from megascope.store.errors import MegascopeError

MUTATIONS = 1_400


def build(path: Path, policy: Policy = Policy.DROP) -> ScriptedEngine:
    engine = ScriptedEngine(path, [0, 0, 1], policy=policy)
    for i in range(150):
        engine.fire(i % 3, [3, 4, 7][i % 3], lose=i % 11 == 0)
    for worker in range(3):
        engine.cut(worker)
    engine.wait(1, 1 << 32 | 4, 2, 1, 3)
    engine.writer.say("requests", [(1, 0, "r-1", "m", "t", 5, 7, 9), (2, 1, "r-2", "m", "t", 6, 7, 9)])
    engine.writer.clock_fit(10, 20, 1)
    return engine


def drink(path: Path) -> set[tuple[int, int]]:
    """Everything that a reader does with a segment; the (worker, seq) of the rows it took."""
    look(path)
    rows: set[tuple[int, int]] = set()
    with SegmentReader.open(path, write=True) as segment:
        rings, summaries, told = RingReader(segment), SummaryReader(segment), HostRingReader(segment)
        accounts = Accounts(segment)
        for _ in range(4):
            words, _ = summaries.take()
            accounts.book(words)
            batch = rings.take()
            accounts.saw(batch.rows)
            rows |= set(zip(batch.rows["worker"].to_pylist(), batch.rows["seq"].to_pylist(), strict=True))
            told.take()
        accounts.unclosed(1)
        segment.now()
        segment.clock_fits()
        waiting(segment)
    return rows


def mutate(rng: random.Random, data: bytearray, layout_offsets: list[int]) -> str:
    """One damage: bits, words of extreme value, a page of noise, a swap, a cut. Returns what it was."""
    kind = rng.choice(["bit", "word", "word", "word", "noise", "zero", "swap", "cut", "header"])
    at = rng.choice(layout_offsets) + rng.randrange(0, 512) * 8
    at = min(at, len(data) - 8)
    if kind == "bit":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "word":
        value = rng.choice([0, 1, 2**63, 2**64 - 1, 2**62, 192, 193, 64, rng.getrandbits(64), rng.getrandbits(16)])
        data[at : at + 8] = struct.pack("<Q", value)
    elif kind == "noise":
        data[at : at + 64] = rng.randbytes(min(64, len(data) - at))
    elif kind == "zero":
        data[at : at + 4096] = bytes(min(4096, len(data) - at))
    elif kind == "swap":
        other = min(rng.choice(layout_offsets), len(data) - 64)
        data[at : at + 64], data[other : other + 64] = data[other : other + 64], data[at : at + 64]
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    else:
        field = rng.randrange(8, 200)
        data[field] = rng.randrange(256)
        data[PAGE - 4 : PAGE] = struct.pack("<I", zlib.crc32(bytes(data[: PAGE - 4])))
    return kind


@pytest.mark.parametrize("policy", [Policy.DROP, Policy.OVERWRITE])
def test_mutated_segments(tmp_path: Path, policy: Policy) -> None:
    engine = build(tmp_path / "good.mseg", policy)
    truth = set(engine.truth)
    good = (tmp_path / "good.mseg").read_bytes()
    lay = engine.layout
    offsets = [0, lay.side_offset, lay.status_offset, lay.control_offset, lay.tails_offset, lay.cursor_offset]
    offsets += [lay.worker_offset, lay.summary_offset, lay.ring_offset, lay.host_offset]
    assert drink(tmp_path / "good.mseg") == truth
    refused = read = 0
    for i in range(MUTATIONS // 2):
        rng = random.Random(f"{policy}{i}")
        data = bytearray(good)
        kinds = [mutate(rng, data, offsets) for _ in range(rng.choice([1, 1, 2, 5]))]
        path = tmp_path / "bad.mseg"
        path.write_bytes(data)
        size = len(data)
        try:
            drink(path)
            read += 1
        except MegascopeError as e:
            refused += 1
            assert "\n" not in str(e), (i, kinds)
            assert len(str(e)) < 400, (i, kinds)
        assert path.stat().st_size == size, "a reader never lengthens a segment"
    assert refused > 100
    assert read > 100


def test_rows_outside_a_damaged_area_are_still_right(tmp_path: Path) -> None:
    """Damage to one monitor's blocks never shows as rows of the other monitor."""
    for i in range(100):
        path = tmp_path / f"{i}.mseg"
        engine = build(path)
        rng = np.random.default_rng(i)
        block = engine.writer.bytes[engine.layout.ring_offset :][: engine.layout.block_bytes]
        at = rng.integers(0, len(block) - 200)
        block[at : at + 200] = rng.integers(0, 256, 200, np.uint8)
        rows = drink(path)
        assert {r for r in rows if r[0] == 2} == {r for r in engine.truth if r[0] == 2}
        path.unlink()


def _read_to_the_cut(path: Path, begun: threading.Event, after: int) -> list[int]:
    """Row counts of every pass until the reader says Truncated; `begun` is set after pass `after`."""
    taken: list[int] = []
    with SegmentReader.open(path, write=True) as segment:
        ring = RingReader(segment)

        def read() -> None:
            while True:
                if len(taken) == after:
                    begun.set()
                batch = ring.take()
                first = sum(taken)
                assert np.array_equal(batch.rows["seq"].to_numpy(), np.arange(first, first + batch.rows.num_rows))
                taken.append(batch.rows.num_rows)
                segment.status()

        with pytest.raises(Truncated) as e:
            read()
        assert "\n" not in str(e.value)
    return taken


def test_a_segment_truncated_while_it_is_read(tmp_path: Path) -> None:
    """Someone cuts the file at random moments and places: always Truncated, and the rows copied before are whole."""
    partial = 0
    for i in range(25):
        rng = random.Random(i)
        path = tmp_path / f"{i}.mseg"
        engine = ScriptedEngine(path, [0], block_rows=4096, blocks=128)
        lay = engine.layout
        engine.writer.columns["hook"][:] = 3
        engine.writer.columns["seq"][0] = np.arange(lay.ring_rows).reshape(lay.blocks, -1)
        engine.writer.cursor[0, Cursor.HEAD] = lay.ring_rows
        begun, size = threading.Event(), rng.randrange(PAGE, lay.file_bytes)

        def cut(path: Path = path, size: int = size, begun: threading.Event = begun) -> None:
            begun.wait()
            os.truncate(path, size)

        thread = threading.Thread(target=cut)
        thread.start()
        taken = _read_to_the_cut(path, begun, i % 3)
        thread.join()
        partial += 0 < sum(taken) < lay.ring_rows
        assert path.stat().st_size == size, "a reader never lengthens a segment"
        path.unlink()
    assert partial
