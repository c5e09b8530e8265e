"""Programs attached to, replaced in and removed from a kernel while it runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runs import check_identities, engine, records, rows, worker_of
from monitors import Attacher, attacher, histogram, long_tasks, true_histograms

from megascope.capture.programs.histogram import HEAD, WORDS, merge
from megascope.capture.segment import map_ring
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Control, Cursor, Record, Summary

TRANSPORTS = pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])


def program_of(found: Any) -> Any:
    return (found[:, Summary.WHAT] >> np.uint64(16) & np.uint64(0xFFFF)).astype(np.int64)


def start(e: Any) -> threading.Thread:
    run = threading.Thread(target=e.run, daemon=True)
    run.start()
    while e.kernel.host.steps_begun < 5:
        time.sleep(0.001)
        assert run.is_alive()
    return run


def stop(e: Any, run: threading.Thread) -> None:
    e.segment.control[Control.STOP] = 1
    run.join(60)
    assert not run.is_alive()


def histograms(a: Attacher, declared: Any, program: int) -> dict[int, Any]:
    """What the map ring says of a program's only map, merged over epochs and workers."""
    found: dict[int, list[Any]] = {}
    for span, n, body in a.records:
        if span.program != program:
            continue
        got = map_ring.entries(declared, n, body)
        row = np.zeros((n, WORDS), np.uint64)
        row[:, :HEAD] = got.head
        which = np.repeat(np.arange(n), got.buckets.astype(np.int64))
        row[which, HEAD + got.bucket] = got.count.astype(np.uint64)
        for key, words in zip(got.keys, row, strict=True):
            found.setdefault(int(key.view("<u4")[0]), []).append(words)
    return {k: merge(np.array(v)) for k, v in found.items()}


@TRANSPORTS
def test_a_histogram_attached_to_a_running_kernel(cuda: Any, segment_path: Path, transport: str) -> None:
    """What it says is what the raw rows of the intervals that it covers say, to the bit."""
    spec = f"{cuda.long},transport={transport},ring_mb={64 if cuda.simulated else 4000}"
    while_s = 0.1 if cuda.simulated else 0.04  # nobody drains the ring, so it must hold all of it
    with engine(cuda, segment_path, spec) as e:
        run = start(e)
        with attacher(segment_path) as a:
            program = histogram()
            one = a.attach(program, 1)
            time.sleep(while_s)
            a.drain()
            two = a.attach(program, 1, replace=True)
            time.sleep(while_s)
            a.drain()
            a.detach(1)
            time.sleep(while_s)
            a.drain()
            stop(e, run)
            a.drain()
            print("attach, ms:", a.took_ms)
            check_identities(e.segment, written=False)
            assert not e.segment.cursor[:, Cursor.RING_LOST].any()
            found, coverage = rows(e.segment), records(e.segment, Record.COVERAGE)
            for number in (one, two):
                its = coverage[program_of(coverage) == number]
                assert len(its)
                spans = np.stack([worker_of(its), *its[:, Summary.SEQ_FROM : Summary.SEQ_TO + 1].T.astype(np.int64)], 1)
                truth, said = true_histograms(found, spans), histograms(a, program.maps[0], number)
                assert its[:, Summary.OBSERVED].sum() == sum(int(h[0]) for h in truth.values())
                assert said.keys() == truth.keys()
                for cls, words in truth.items():
                    np.testing.assert_array_equal(said[cls], words, f"class {cls}")


@TRANSPORTS
def test_emitted_rows_without_the_recorder(cuda: Any, segment_path: Path, transport: str) -> None:
    with engine(cuda, segment_path, f"{cuda.long},transport={transport}", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            number = a.attach(long_tasks(cuda.slow_ns), 3)
            time.sleep(0.2)
            a.detach(3)
            stop(e, run)
        found, coverage = rows(e.segment), records(e.segment, Record.COVERAGE)
        its = coverage[program_of(coverage) == number]
        assert (found["by"] == 1 << 3).all()
        assert (found["t"] - found["aux"] >= cuda.slow_ns).all()
        assert its[:, Summary.WRITTEN].sum() == len(found["t"]) > 0
        assert its[:, Summary.OBSERVED].sum() > its[:, Summary.EMITTED].sum()
        np.testing.assert_array_equal(its[:, Summary.ELIGIBLE], its[:, Summary.OBSERVED] + its[:, Summary.LOST])


def test_attached_a_hundred_times(cuda: Any, segment_path: Path) -> None:
    """Each event under one generation or none; nothing is left over."""
    # Nobody frees the summary ring here: long epochs, so that it does not fill.
    with engine(cuda, segment_path, f"{cuda.long},epoch_ms=200", record=False) as e:
        run = start(e)
        with attacher(segment_path) as a:
            program, numbers = histogram(entries=16), []
            for i in range(50):
                numbers.append(a.attach(program, 1 + i % 4))
                a.drain()
                a.detach(1 + i % 4)
                a.drain()
            print("attach, ms: median", np.median(a.took_ms), "max", max(a.took_ms))
            until = time.monotonic() + 90
            while e.programs.in_use and time.monotonic() < until:
                a.drain()
                time.sleep(0.01)
            assert not e.programs.in_use
            assert run.is_alive()
            stop(e, run)
            a.drain()
        coverage = records(e.segment, Record.COVERAGE)
        for number in numbers:
            its = coverage[program_of(coverage) == number]
            said = histograms(a, program.maps[0], number)
            refused = sum(
                span.refused for span, _, _ in a.records if span.program == number
            )  # more classes than entries
            assert sum(int(h[0]) for h in said.values()) + refused == its[:, Summary.OBSERVED].sum()
        check_identities(e.segment, written=False)


def test_changes_without_anybody_who_reads(cuda: Any, segment_path: Path) -> None:
    """The rings of records and maps are freed by the engine; else a change would wait for room for its cut."""
    with engine(cuda, segment_path, f"{cuda.long},epoch_ms=20,summary_rows=32,map_kb=64", record=False) as e:
        run = start(e)
        with SegmentReader.open(segment_path, write=True) as segment:
            a = Attacher(segment)
            for i in range(24):
                a.attach(histogram(entries=16), 1 + i % 2)
                a.detach(1 + i % 2)
        stop(e, run)
        assert e.segment.cursor[:, Cursor.SUMMARY_HEAD].max() > 32
