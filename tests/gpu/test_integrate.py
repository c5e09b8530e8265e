"""The example kernels of docs/integrate: they compute the same with and without hooks, and lint has nothing to say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from megascope.analyze.session import Session
from megascope.store.check import check

DOCS = Path(__file__).resolve().parents[2] / "docs" / "integrate"
THREADS, TILES, LEAVES = 128, 96, 64
SHORT = {"record": True, "ring_mb": 16, "arena_mb": 1, "seconds": 30}


@pytest.fixture(scope="module")
def host() -> ModuleType:
    spec = importlib.util.spec_from_file_location("integrate_host", DOCS / "host.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth(example: str, iterations: int) -> Any:
    if example == "sum":
        whole = np.arange(LEAVES * THREADS, dtype=np.uint64).sum()
        return (whole + np.arange(iterations, dtype=np.uint64) * LEAVES * THREADS).astype(np.uint32)
    x = np.arange(TILES * THREADS, dtype=np.float32).reshape(TILES, THREADS)
    for _ in range(iterations):
        y = np.float32(0.9) * x
        x = np.float32(0.5) * (np.roll(y, 1, axis=0) + np.roll(y, -1, axis=0))
    return x.reshape(-1)


def megascope(*args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "megascope", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", ["smooth", "sum"])
def test_an_example_is_right_and_lint_is_silent(
    cuda: Any, host: ModuleType, segment_path: Path, tmp_path: Path, example: str
) -> None:
    iterations = 2 if cuda.simulated else 20
    got = host.run(cuda.cupy, example, segment_path, iterations, compiled=cuda.compiled, **SHORT)
    np.testing.assert_array_equal(got, truth(example, iterations))
    out = tmp_path / "a.mscope"
    megascope("capture", segment_path, "-o", out, "--quiet")
    assert not [f for f in check(out).findings if f.severity == "damaged"]
    assert megascope("lint", out) == ""
    count = "SELECT count(*) AS n FROM tasks WHERE start IS NOT NULL AND complete IS NOT NULL AND class IS NOT NULL"
    tasks = iterations * (2 * TILES if example == "smooth" else 2 * LEAVES - 1)
    assert megascope("sql", out, count, "--format", "csv").split()[-1] == str(tasks)
    waits = "SELECT count(*) AS n FROM waits WHERE dep <> 0 AND dep NOT IN (SELECT id FROM dependencies)"
    assert megascope("sql", out, waits, "--format", "csv").split()[-1] == "0"


def sums(cuda: Any, host: ModuleType, segment: Path, transport: str, blocks: int, ranks: int, iterations: int) -> Any:
    """[iterations, blocks] what ranks.cu computed, recorded into `segment`."""
    from megascope.capture.engines.cuda.compilation import Hooks
    from megascope.capture.engines.cuda.scope import Scope

    each, end = blocks // ranks, ranks + 1
    of = [b // each for b in range(blocks)]
    give = [host.task_row(1 + b, 1, b, 0, b, 0) | {"rank": of[b]} for b in range(blocks)]
    add = [host.task_row(1 + blocks + b, 2, b, 1 + of[b], b, 1) | {"rank": of[b]} for b in range(blocks)]
    releases = {t["index"]: 1 + t["rank"] for t in give} | {t["index"]: end for t in add}
    gathered = [host.dep_row(1 + r, "gathered", [r], host.DATA, each, 1) | {"rank": r} for r in range(ranks)]
    tables = {
        "task_classes": [
            host.class_row(1, "give", "number[block]", []),
            host.class_row(2, "add", "sums[block]", [host.DATA]),
        ],
        "dependencies": [*gathered, host.dep_row(end, "end", [], host.CONTROL, blocks, 2)],
        "static_tasks": give + add,
        "task_deps": host.edges(give + add, releases),
    }
    cp = cuda.cupy
    hooks = Hooks.QUEUE if transport == "warp" else Hooks.DEVICE
    source = Path(__file__).with_name("ranks.cu")
    module = cp.RawModule(path=str(cuda.compiled(source, f"sm_{cp.cuda.Device(0).compute_capability}", hooks)))
    given = cp.asarray(np.arange(blocks, dtype=np.uint32))
    number, counts, begun = (cp.zeros(n, np.uint32) for n in (blocks, ranks + 2, 2 * ranks))
    out = cp.zeros(iterations * blocks, np.uint32)
    stream = cp.cuda.Stream(non_blocking=True)
    with Scope(
        cp, module, segment, tables, blocks=blocks, ranks=ranks, hooks=host.HOOKS, transport=transport, end=end,
        record=True, ring_mb=16, arena_mb=1, seconds=30, compiled=cuda.compiled,
    ) as scope:  # fmt: skip
        scope.begin(stream)
        with stream:
            arguments = (given, number, out, counts, begun, np.uint32(iterations))
            module.get_function("ranks")((blocks,), (32 + scope.threads,), arguments)
        scope.follow(stream)
    return out.get().reshape(iterations, blocks)


@pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])
def test_a_kernel_of_several_ranks_is_told_by_rank(
    cuda: Any, host: ModuleType, segment_path: Path, tmp_path: Path, transport: str
) -> None:
    blocks, ranks, iterations = 6, 3, 3 if cuda.simulated else 20
    got = sums(cuda, host, segment_path, transport, blocks, ranks, iterations)
    numbers = np.arange(blocks) + np.arange(iterations)[:, None]
    each = numbers.reshape(iterations, ranks, -1).sum(axis=2)
    np.testing.assert_array_equal(got, np.repeat(each, blocks // ranks, axis=1))
    out = tmp_path / "a.mscope"
    megascope("capture", segment_path, "-o", out, "--quiet")
    assert megascope("lint", out) == ""

    with Session.open(out) as session:

        def by_rank(what: str) -> list[tuple[int, ...]]:
            rows = session.run(f"SELECT rank, {what} GROUP BY rank ORDER BY rank").read_all().to_pylist()
            return [tuple(int(v) for v in row.values()) for row in rows]

        told = [(r, 2 * r, 2 * r + 1) for r in range(ranks)]
        assert by_rank("min(worker) AS a, max(worker) AS b FROM workers") == told
        assert by_rank("min(worker) AS a, max(worker) AS b FROM events") == told
        whole = "count(*) AS n FROM tasks WHERE ready IS NOT NULL AND start IS NOT NULL AND complete IS NOT NULL"
        assert by_rank(whole) == [(r, iterations * 2 * blocks // ranks) for r in range(ranks)]
        assert by_rank("sum(observed) AS n FROM coverage") == by_rank("count(*) AS n FROM events")


def test_tables_that_do_not_fit_are_refused_in_a_line(cuda: Any, host: ModuleType, segment_path: Path) -> None:
    from megascope.capture.engines.cuda.compilation import Hooks
    from megascope.capture.engines.cuda.scope import Scope
    from megascope.store.errors import Usage

    module = cuda.cupy.RawModule(
        path=str(cuda.compiled(DOCS / "sum.cu", f"sm_{cuda.cupy.cuda.Device(0).compute_capability}", Hooks.DEVICE))
    )
    good = host.sum_tables()

    def refused(tables: dict[str, Any], hooks: tuple[str, ...] = ("start",), ranks: int = 1) -> str:
        with pytest.raises(Usage) as e:
            Scope(
                cuda.cupy,
                module,
                segment_path,
                tables,
                blocks=2,
                ranks=ranks,
                hooks=hooks,
                transport="block",
                arena_mb=1,
                compiled=cuda.compiled,
            )
        assert not segment_path.exists()
        assert "\n" not in str(e.value)
        return str(e.value)

    assert "no side table 'tasks'" in refused({"tasks": []})
    assert "index does not count from 1" in refused({"static_tasks": good["static_tasks"][1:]})
    assert "wait for dependency 63" in refused({"static_tasks": good["static_tasks"]})
    assert "side table 'task_classes'" in refused({"task_classes": [{"id": 1}]})
    assert "no hook 'begin'" in refused(good, ("begin",))
    assert "2 blocks are not 3 ranks" in refused(good, ranks=3)
    assert "2 blocks are not 0 ranks" in refused(good, ranks=0)
    workers = [{"worker": w, "monitor": 0, "sm": -1, "role": "compute", "rank": 0} for w in range(2)]
    assert "'workers' has not its 2 workers, or not on their ranks" in refused(good | {"workers": workers}, ranks=2)
    assert "'workers' has not its 2 workers" in refused(good | {"workers": workers[1:]})


@pytest.fixture
def changed(host: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the host run another version of an example: words of its source that are replaced."""

    def change(example: str, *pairs: tuple[str, str]) -> None:
        text = (DOCS / f"{example}.cu").read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{example}.cu").write_text(text)
        monkeypatch.setattr(host, "HERE", tmp_path)

    return change


def asked(segment: Path, out: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Rows of what the recording of a segment answers."""
    megascope("capture", segment, "-o", out, "--quiet")
    with Session.open(out) as session:
        return [[tuple(r.values()) for r in session.run(q).read_all().to_pylist()] for q in queries]


def test_what_a_kernel_says_is_what_is_told(
    cuda: Any, host: ModuleType, changed: Any, segment_path: Path, tmp_path: Path
) -> None:
    """A wait is for the dependency that it names, not for the one that its task is declared with; iterations are
    counted alike by every hook, and from 2^29 on they begin again.
    """
    late = f"i + {1 << 29}u"
    changed(
        "smooth",
        ("task, i, SCALED, end)", "task, i, BLENDED, end)"),
        ("hooks.complete(i)", f"hooks.complete({late})"),
        ("hooks.release(task, i,", f"hooks.release(task, {late},"),
        ("hooks.ready(TILES + 1, TILES, i, task)", f"hooks.ready(TILES + 1, TILES, {late}, task)"),
    )
    host.run(cuda.cupy, "smooth", segment_path, 2, compiled=cuda.compiled, **SHORT)
    waits, told = asked(
        segment_path,
        tmp_path / "a.mscope",
        "SELECT DISTINCT hook_name, dep FROM events WHERE hook_name IN ('wait', 'resume') AND task > 0 ORDER BY ALL",
        "SELECT hook_name, min(task >> 32), max(task >> 32) FROM events WHERE task > 0 GROUP BY ALL",
    )
    assert waits == [("resume", 2), ("wait", 2)]
    iterations = {name: (low, high) for name, low, high in told}
    for name in ("start", "complete", "release", "ready"):  # a wait is where a dependency was late, in either iteration
        assert iterations[name] == (0, 1), name
    assert all(0 <= low <= high <= 1 for low, high in iterations.values())


def test_tasks_and_dependencies_that_nobody_declared_have_their_numbers(
    cuda: Any, host: ModuleType, segment_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = host.smooth_tables(TILES)
    monkeypatch.setattr(host, "smooth_tables", lambda _: {"task_classes": declared["task_classes"]})
    host.run(cuda.cupy, "smooth", segment_path, 2, compiled=cuda.compiled, **SHORT)
    tasks = "SELECT count(*), count(DISTINCT task), min(task & 4294967295), max(task & 4294967295) FROM events WHERE "
    out = tmp_path / "a.mscope"
    starts, releases = asked(
        segment_path, out, tasks + "hook_name = 'start'", "SELECT DISTINCT dep FROM events WHERE hook_name = 'release'"
    )
    assert starts == [(4 * TILES, 4 * TILES, 1, 2 * TILES)]
    assert sorted(releases) == [(1,), (2,)]
