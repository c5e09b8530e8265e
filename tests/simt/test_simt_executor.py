"""The executor itself: it computes what the threads say, and whoever would hang on a GPU is found and told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import build
import driver
import numpy as np
import pytest

from megascope.capture.engines.cuda.compilation import Hooks

pytestmark = pytest.mark.skipif(build.COMPILER is None, reason=build.MISSING)
KERNELS = Path(__file__).with_name("kernels.cu")
SEEDS = range(1, 6)


def module(seed: int = 1) -> driver.RawModule:
    return driver.RawModule(str(build.compiled(KERNELS, build.ARCHITECTURE, Hooks.NONE)), seed=seed)


def launch(name: str, blocks: int, threads: int, *args: Any, seed: int = 1, shared: int = 0) -> None:
    stream = driver.Stream()
    with stream:
        module(seed).get_function(name)((blocks,), (threads,), args, shared_mem=shared)
    stream.synchronize()


def report(name: str, threads: int = 32, *args: Any, seed: int = 1) -> str:
    with pytest.raises(driver.CUDARuntimeError) as caught:
        launch(name, 2, threads, *args, seed=seed)
    return str(caught.value)


def place(mark: str) -> str:
    """file:line of the line of kernels.cu that ends with a comment."""
    (number,) = [i for i, line in enumerate(KERNELS.read_text().splitlines(), 1) if line.endswith(f"// {mark}")]
    return f"kernels.cu:{number}"


# --- what threads compute ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives_give_what_cuda_gives(seed: int) -> None:
    out = driver.zeros((12, 32), np.uint32)
    launch("collectives", 1, 32, out, seed=seed)
    lane = np.arange(32, dtype=np.uint32)
    got = out.get()
    np.testing.assert_array_equal(got[0], np.full(32, 7 * 7))
    np.testing.assert_array_equal(got[1], (lane ^ 5) ** 2)
    np.testing.assert_array_equal(got[2], np.where(lane < 3, lane, lane - 3) ** 2)
    np.testing.assert_array_equal(got[3], np.where(lane % 8 < 6, lane + 2, lane) ** 2)
    np.testing.assert_array_equal(got[4], np.full(32, 0xAAAAAAAA))
    np.testing.assert_array_equal(got[5], np.full(32, int(lane.sum())))
    np.testing.assert_array_equal(got[6], np.full(32, 3))
    np.testing.assert_array_equal(got[7].view(np.int32), np.full(32, -16))
    np.testing.assert_array_equal(got[8], np.where(lane % 2, 0xAAAAAAAA, 0x55555555))
    np.testing.assert_array_equal(got[9], np.where(lane < 16, 15 * 16 // 2, (16 + 31) * 16 // 2))
    np.testing.assert_array_equal(got[10], np.ones(32))
    np.testing.assert_array_equal(got[11], np.zeros(32))


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_have_their_own_shared_memory_and_barriers(seed: int) -> None:
    out = driver.zeros((3, 96), np.uint32)
    launch("reversal", 3, 96, out, seed=seed, shared=96 * 4)
    want = np.arange(95, -1, -1) + 100 * np.arange(3)[:, None]
    np.testing.assert_array_equal(out.get(), 2 * want + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics_lose_nothing_and_plain_words_do(seed: int) -> None:
    out = driver.zeros(2, np.uint32)
    launch("counting", 4, 64, out, np.uint32(50), seed=seed)
    exact, torn = out.get().tolist()
    assert exact == 4 * 64 * 50
    assert torn < exact, "a load and a store with somebody else between them"


def test_a_seed_says_who_goes_on() -> None:
    """Without a clock or another process a seed decides everything."""
    runs = {}
    for seed in (1, 1, 2, 3):
        out = driver.zeros(4 * 64 + 1, np.uint32)
        launch("arrivals", 4, 64, out, seed=seed)
        runs.setdefault(seed, []).append(out.get()[:-1].tolist())
        assert sorted(runs[seed][-1]) == list(range(4 * 64))
    assert runs[1][0] == runs[1][1]
    assert len({tuple(r[0]) for r in runs.values()}) == 3


def test_launches_of_one_stream_follow_each_other_and_of_two_run_together() -> None:
    words = driver.zeros(2, np.uint32)
    kernels, one, two = module(), driver.Stream(), driver.Stream()
    for stream, who in ((one, 0), (two, 1)):
        with stream:
            kernels.get_function("meet")((1,), (32,), (words, np.uint32(who)))
    with one:
        kernels.get_function("meet")((1,), (32,), (words, np.uint32(2)))
    for stream in (one, two):
        stream.synchronize()
        assert stream.done
    np.testing.assert_array_equal(words.get(), [3, 1])


# --- what would hang ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_in_two_collectives_are_told_of(seed: int) -> None:
    said = report("diverges", seed=seed)
    assert "lanes of a warp wait at different places" in said
    assert "diverges block" in said
    for mark in ("one way", "the other way"):
        assert place(mark) in said


def test_one_line_in_two_callers_is_two_places() -> None:
    assert "lanes of a warp wait at different places" in report("diverges_inside")


def test_other_masks_at_one_place_are_told_of() -> None:
    said = report("disagrees")
    assert "left" in said
    assert "wait in __syncwarp" in said
    assert "for the whole warp" in said


def test_a_lane_in_a_collective_and_others_at_a_barrier_are_told_of() -> None:
    said = report("crosses", 64)
    assert "lanes of a warp wait at different places" in said
    assert place("at a barrier") in said
    assert place("in a vote") in said


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lane_that_leaves_early_is_told_of(seed: int) -> None:
    said = report("leaves", seed=seed)
    assert "left" in said
    assert "warp 0" in said
    assert place("without lane 7") in said


def test_a_barrier_that_not_all_reach_is_a_deadlock() -> None:
    said = report("waits", 64)
    assert "nobody can go on" in said
    assert "waits block 0 warp 0" in said
    assert "waits block 1 warp 0" in said
    assert "barrier 3, where 32 of 64 threads are" in said
    assert place("half of them") in said


def test_a_shuffle_from_outside_its_mask_is_told_of() -> None:
    assert "a shuffle takes from a lane that is not in it" in report("takes")


@pytest.mark.parametrize(("offset", "what"), [(2, "not aligned"), (1 << 20, "outside its block")])
def test_shared_addresses_are_checked(offset: int, what: str) -> None:
    said = report("reaches", 32, np.uint32(offset))
    assert what in said
    assert "lane" in said


def test_after_a_failure_everything_fails() -> None:
    kernels, stream = module(), driver.Stream()
    with stream:
        kernels.get_function("takes")((1,), (32,), ())
    with pytest.raises(driver.CUDARuntimeError):
        stream.synchronize()
    with pytest.raises(driver.CUDARuntimeError):
        _ = stream.done
