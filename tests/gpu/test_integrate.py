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

from megascope.store.check import check

DOCS = Path(__file__).resolve().parents[2] / "docs" / "integrate"
THREADS, TILES, LEAVES = 128, 96, 64


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
    how = {"record": True, "ring_mb": 16, "arena_mb": 1, "seconds": 30}
    got = host.run(cuda.cupy, example, segment_path, iterations, compiled=cuda.compiled, **how)
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


def test_tables_that_do_not_fit_are_refused_in_a_line(cuda: Any, host: ModuleType, segment_path: Path) -> None:
    from megascope.capture.engines.cuda.compilation import Hooks
    from megascope.capture.engines.cuda.scope import Scope
    from megascope.store.errors import Usage

    module = cuda.cupy.RawModule(
        path=str(cuda.compiled(DOCS / "sum.cu", f"sm_{cuda.cupy.cuda.Device(0).compute_capability}", Hooks.DEVICE))
    )
    good = host.sum_tables()

    def refused(tables: dict[str, Any], hooks: tuple[str, ...] = ("start",)) -> str:
        with pytest.raises(Usage) as e:
            Scope(
                cuda.cupy,
                module,
                segment_path,
                tables,
                blocks=2,
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
