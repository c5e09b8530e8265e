"""The megakernel on a device: right results, and nothing recorded that did not happen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runs import check_identities, engine, kernel, rows

from megascope.capture.engines.cuda.compilation import Hooks
from megascope.capture.engines.cuda.kernel import FIRING, Megakernel
from megascope.capture.engines.cuda.reference import logits
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Control, Cursor, State, Status, Worker
from megascope.store.tables import FLAG_RANGE, HOOK_BY_NAME, REQUEST_SET_BIT

HOOK = {name: hook.id for name, hook in HOOK_BY_NAME.items()}
TOLERANCE = 1e-4


def errors(kernel: Megakernel) -> tuple[float, float]:
    """Relative error of all kept logits, and the worst of one step and slot."""
    plan, out = kernel.plan, kernel.kept_logits().astype(np.float64)
    weights = {name: value.get() for name, value in kernel.weights.items()}
    reference = logits(kernel.settings.model, weights, plan.request, plan.position, kernel.used_tokens())
    kept = [r for step, r in enumerate(reference) if step % kernel.keep_every == 0]
    ref = np.stack(kept)
    there = ~np.isnan(ref[..., 0])
    assert np.array_equal(there, plan.request[:: kernel.keep_every] > 0)
    difference = np.linalg.norm(out[there] - ref[there], axis=-1)
    return (
        float(np.linalg.norm(difference) / np.linalg.norm(ref[there])),
        float((difference / np.linalg.norm(ref[there], axis=-1)).max()),
    )


@pytest.mark.parametrize("hooks", list(Hooks), ids=lambda h: h.name.lower())
@pytest.mark.parametrize("schedule", ["dynamic", "static"])
def test_logits_agree_with_float64(cuda: Any, segment_path: Path, schedule: str, hooks: Hooks) -> None:
    spec = f"schedule={schedule},seed={int(hooks) + 3}"
    if hooks == Hooks.DEVICE:
        spec += ",transport=block"
    if hooks in FIRING:
        with engine(cuda, segment_path, spec, keep_every=1) as e:
            assert e.run() == "done"
            whole, worst = errors(e.kernel)
    else:
        made = kernel(cuda, spec, keep_every=1)
        made.launch(hooks)
        assert made.wait() == "done"
        whole, worst = errors(made)
    print(f"{schedule} {hooks.name}: relative error {whole:.2e}, worst step and slot {worst:.2e}")
    assert whole < TOLERANCE
    assert worst < TOLERANCE


@pytest.mark.parametrize("schedule", ["dynamic", "static"])
def test_every_event_is_a_row_or_a_counted_loss(cuda: Any, segment_path: Path, schedule: str) -> None:
    with engine(cuda, segment_path, f"schedule={schedule},epoch_ms={cuda.epoch_ms}") as e:
        assert e.run() == "done"
        total = check_identities(e.segment)
        print(schedule, total)
        assert total["ring_lost"] == 0
        assert total["eligible"] == total["written"] + total["lost"]
        assert e.segment.status[Status.STATE] == State.ENDED
        fired = e.segment.worker[:, Worker.FIRED].astype(np.int64)
        assert fired.sum() == total["eligible"]


def test_monitor_blocks_fit_beside_a_kernel_that_takes_most_shared_memory(cuda: Any, segment_path: Path) -> None:
    """Each of its blocks takes a whole multiprocessor, also those on which a monitor was first."""
    with engine(cuda, segment_path, "transport=block,context=30000,epoch_ms=50,steps=4") as e:
        assert e.kernel.build(Hooks.DEVICE).shared_bytes > 114 << 10, "half of what there is"
        assert e.run() == "done"
        sums = check_identities(e.segment)
    assert sums["written"] > 0


@pytest.mark.parametrize("schedule", ["dynamic", "static"])
def test_rows_tell_what_the_graph_says(cuda: Any, segment_path: Path, schedule: str) -> None:
    with engine(cuda, segment_path, f"schedule={schedule}") as e:
        assert e.run() == "done"
        found, graph, plan = rows(e.segment), e.kernel.graph, e.kernel.plan
        lost = int(e.segment.worker[:, Worker.LOST].sum())
        steps = e.kernel.settings.steps
    hook, task = found["hook"], found["task"].astype(np.int64)
    index, iteration = task & 0xFFFFFFFF, task >> 32
    assert lost == 0, "the queues hold a small run"
    everything = np.arange(1, graph.tasks + 1)
    for name in ("start", "complete") + (("assign",) if schedule == "dynamic" else ()):
        of = hook == HOOK[name]
        order = np.lexsort((index[of], iteration[of]))
        assert np.array_equal(index[of][order], np.tile(everything, steps)), f"each task has one {name} a step"
        assert np.array_equal(iteration[of][order], np.repeat(np.arange(steps), graph.tasks))
        assert np.array_equal(found["task_class"][of], graph.task_class[index[of]])
        assert np.array_equal(found["tile"][of], graph.tile[index[of]])
        assert np.array_equal(found["step"][of], iteration[of])
        slot = graph.slot[index[of]]
        batch = plan.request_set[iteration[of]] | np.uint32(REQUEST_SET_BIT)
        expected = np.where(slot < 0, batch, plan.request[iteration[of], np.maximum(slot, 0)])
        assert np.array_equal(found["request"][of], expected)
    complete, start = hook == HOOK["complete"], hook == HOOK["start"]
    began = dict(zip(task[start].tolist(), found["t"][start].tolist(), strict=True))
    for t, since, which in zip(found["t"][complete], found["aux"][complete], task[complete], strict=True):
        assert began[int(which)] == since <= t
    release = hook == HOOK["release"]
    releases = np.repeat(np.arange(graph.tasks + 1), np.diff(graph.release_ptr))
    assert release.sum() == steps * len(releases)
    after, wanted = (
        (found["aux"][release] >> np.uint64(32)).astype(int),
        (found["aux"][release] & np.uint64(0xFFFFFFFF)),
    )
    assert np.array_equal(wanted, graph.wanted[found["dep"][release]])
    key = iteration[release] * (graph.deps + 1) + found["dep"][release]
    order = np.lexsort((after, key))
    counts = np.concatenate([np.arange(1, w + 1) for _ in range(steps) for w in graph.wanted[1:]])
    assert np.array_equal(after[order], counts), "a counter takes each value from 1 to wanted once a step"
    ready = hook == HOOK["ready"]
    count = np.where(found["flags"][ready] & FLAG_RANGE, found["tile"][ready], 1)
    assert count.sum() == steps * graph.tasks
    assert (hook == HOOK["wait"]).sum() - (hook == HOOK["resume"]).sum() in range(e.kernel.blocks + 1)
    waits = (hook == HOOK["wait"]) & (found["dep"] > 0)
    seen, wanted = found["aux"][waits] >> np.uint64(32), found["aux"][waits] & np.uint64(0xFFFFFFFF)
    assert (seen < wanted).all(), "who waits for something has not seen all of it"
    step = hook == HOOK["step"]
    assert np.array_equal(np.bincount(found["flags"][step], minlength=3), [0, steps, steps])
    requests = hook == HOOK["request"]
    order = np.argsort(found["seq"][requests])
    assert np.array_equal(found["request"][requests][order], plan.row_request)
    assert np.array_equal((found["aux"][requests] & np.uint64(0xFF))[order], plan.row_state)


def test_pressure_falls_as_it_rises(cuda: Any, segment_path: Path) -> None:
    """Whoever pushes knows only nearly how many have been popped, so they are not to the last one as many."""
    with engine(cuda, segment_path, "schedule=dynamic,pressure=2") as e:
        assert e.run() == "done"
        found = rows(e.segment)
    _, rises, falls = np.bincount(found["flags"][found["hook"] == HOOK["pressure"]], minlength=3)
    assert falls > rises / 2 > 0
    assert rises > falls / 2


def test_an_undrained_ring_drops_and_counts(cuda: Any, segment_path: Path) -> None:
    with engine(cuda, segment_path, f"ring_mb=0.25,block_rows=64,steps={cuda.many},epoch_ms=10") as e:
        assert e.run() == "done"
        total = check_identities(e.segment)
        print(total)
        heads = e.segment.cursor[:, Cursor.HEAD]
        assert total["ring_lost"] > 0
        assert heads.max() == e.segment.layout.ring_rows
        assert heads.sum() == total["written"]
        assert e.segment.cursor[:, Cursor.RING_LOST].sum() == total["ring_lost"]


def test_overwriting_keeps_the_newest(cuda: Any, segment_path: Path) -> None:
    with engine(cuda, segment_path, f"ring_mb=0.25,block_rows=64,steps={cuda.many},policy=overwrite") as e:
        assert e.run() == "done"
        assert check_identities(e.segment, written=False)["ring_lost"] == 0
        lay, heads = e.segment.layout, e.segment.cursor[:, Cursor.HEAD].astype(int)
        assert heads.max() > lay.ring_rows
        for monitor, head in enumerate(heads):
            last = (head - 1) // lay.block_rows
            for block in range(max(0, last - lay.blocks + 1), last + 1):
                whole = (block + 1) * lay.block_rows <= head
                generation = e.segment.generation[monitor, block % lay.blocks]
                assert generation == 2 * (block // lay.blocks) + (2 if whole else 1)
                n = head - block * lay.block_rows
                seq = e.segment.columns["seq"][monitor, block % lay.blocks, :n]
                worker = e.segment.columns["worker"][monitor, block % lay.blocks, :n]
                for w in np.unique(worker):
                    assert (np.diff(seq[worker == w].astype(np.int64)) > 0).all()


@pytest.mark.parametrize("schedule", ["dynamic", "static"])
def test_a_stall_can_be_read_and_the_deadline_ends_it(cuda: Any, segment_path: Path, schedule: str) -> None:
    spec = f"schedule={schedule},seconds=3,postpone=l01.norm2:4000000000@5-"
    with engine(cuda, segment_path, spec, record=False) as e:
        ends: list[str] = []
        run = threading.Thread(target=lambda: ends.append(e.run()), daemon=True)
        run.start()
        deadline = time.monotonic() + 60
        graph = e.kernel.graph
        dep = next(d for d in range(1, graph.deps + 1) if graph.dep_name(d) == "l01.norm2")
        seen = False
        while run.is_alive() and time.monotonic() < deadline:
            t, task, on, counts, check = (e.segment.worker[: e.kernel.blocks, w].copy() for w in range(5))
            valid = (t != 0) & ((t ^ task ^ on ^ counts) == check)
            if schedule == "dynamic":  # nobody has work
                seen |= bool(valid.all() and (task == 0).all())
            else:
                stuck = valid & (on == dep)
                seen |= bool(stuck.any() and valid.all() and (task[stuck] >> np.uint64(32) == 5).all())
            time.sleep(0.005)
        run.join(60)
        assert seen, "now records of the stall"
        assert ends == ["deadline"]
        assert e.segment.status[Status.STATE] == State.FAILED
        assert e.segment.status[Status.STEP] == 5
        check_identities(e.segment)


def test_the_mask_follows_the_drainer(cuda: Any, segment_path: Path) -> None:
    """Attach, change and detach while the kernel runs; each is acknowledged, and nothing fires outside its mask."""
    with engine(cuda, segment_path, f"{cuda.long},epoch_ms=5", record=False) as e:
        run = threading.Thread(target=e.run, daemon=True)
        run.start()

        def ask(mask: int, commit: int) -> float:
            e.segment.control[Control.MASK : Control.MASK + 8].view("<u8")[0] = mask
            e.segment.control[Control.COMMIT] = commit
            begin = time.monotonic()
            while not (e.segment.cursor[:, Cursor.ACK] == commit).all():
                assert time.monotonic() - begin < 20
            assert (e.segment.cursor[:, Cursor.MASK] == mask).all()
            return time.monotonic() - begin

        while e.kernel.host.steps_begun < 5:
            time.sleep(0.001)
        assert e.segment.cursor[:, Cursor.HEAD].sum() == 0
        took = [ask(1 << HOOK["complete"], 1)]
        time.sleep(0.05)
        took.append(ask(1 << HOOK["complete"] | 1 << HOOK["release"], 2))
        time.sleep(0.02)
        took.append(ask(0, 3))
        time.sleep(0.01)
        heads = e.segment.cursor[:, Cursor.HEAD].copy()
        time.sleep(0.05)
        assert np.array_equal(heads, e.segment.cursor[:, Cursor.HEAD]), "detached: nothing more is recorded"
        print("publish to last acknowledgement, ms:", [round(1e3 * t, 3) for t in took])
        e.segment.control[Control.STOP] = 1
        run.join(60)
        assert not run.is_alive()
        found = rows(e.segment)
        assert set(np.unique(found["hook"])) == {HOOK["complete"], HOOK["release"]}
        total = check_identities(e.segment)
        assert total["eligible"] > 0
        assert e.segment.status[Status.STATE] == State.ENDED


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["sigterm", "stop byte"])
def test_the_process_ends_in_order(gpu: Any, segment_path: Path, how: str) -> None:
    command = [sys.executable, "-m", "megascope.capture.engines.cuda", "--segment", str(segment_path), "--record"]
    spec = f"{gpu.small},steps=60000,seconds=50"
    with subprocess.Popen([*command, spec], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not segment_path.exists() or segment_path.stat().st_size == 0:
            assert process.poll() is None, process.stderr
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        with SegmentReader.open(segment_path, write=True) as segment:
            while segment.status().step < 5:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if how == "sigterm":
                process.send_signal(signal.SIGTERM)
            else:
                segment.poke(segment.layout.control_offset + Control.STOP, b"\1")
            out, err = process.communicate(timeout=30)
            assert process.returncode == 0, err
            said = json.loads(out)
            assert said["ended"] == "stopped"
            assert said["fired"] == said["dequeued"] + said["lost"]
            assert said["dequeued"] == said["written"] + said["ring_lost"]
            assert segment.status().state == State.ENDED
            fits = segment.clock_fits()
            assert len(fits) >= 2
            assert all(0 < f.error_ns < 100_000 for f in fits)


@pytest.mark.gpu
def test_faults_are_felt_where_they_were_put(gpu: Any, segment_path: Path) -> None:
    spec = "steps=40,delay=l00.attn:4@10-19,starve=l01.gate_up/3:300000@20-29,oversubscribe=7:0.5@30-39"
    with engine(gpu, segment_path, spec, keep_every=1) as e:
        assert e.run() == "done"
        assert max(errors(e.kernel)) < TOLERANCE, "a fault changes times, never results"
        found, graph = rows(e.segment), e.kernel.graph
        truth = e.truth()
    assert [len(i.intervals) for i in truth] == [1, 1, 1]
    step, hook, cls = found["step"], found["hook"], found["task_class"]
    took = (found["t"] - found["aux"]).astype(np.int64)

    def during(first: int, last: int, *, of: Any) -> Any:
        return of & (step >= first) & (step <= last)

    attn = (hook == HOOK["complete"]) & (cls == graph.class_id("l00.attn"))
    assert np.median(took[during(10, 19, of=attn)]) > 2 * np.median(took[during(20, 39, of=attn)])
    index = found["task"] & np.uint64(0xFFFFFFFF)
    starved = np.nonzero(graph.task_class == graph.class_id("l01.gate_up"))[0][3]
    waited = (hook == HOOK["start"]) & (index == starved)
    assert took[during(20, 29, of=waited)].min() >= 300_000
    assert np.median(took[during(30, 39, of=waited)]) < 300_000
    assign = hook == HOOK["assign"]
    target = found["aux"] >> np.uint64(48)
    crowded = (target[during(30, 39, of=assign)] == 7).mean()
    assert 0.4 < crowded < 0.6
    assert (target[during(20, 29, of=assign)] == 7).mean() < 0.1
