"""The ABI's one declaration against everything that is rendered from it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from megascope.capture import hooks
from megascope.capture.segment import layout
from megascope.store.tables import EVENT_ROW, EVENTS, HOOKS, RING_ROW

OFFSETS = {
    "t": 0,
    "seq": 8,
    "task": 16,
    "aux": 24,
    "request": 32,
    "step": 36,
    "dep": 40,
    "comm": 44,
    "tile": 48,
    "task_class": 52,
    "worker": 54,
    "sm": 56,
    "peer": 58,
    "hook": 60,
    "dep_class": 61,
    "flags": 62,
    "rank": 63,
}


def test_the_event_row_is_what_version_1_says() -> None:
    assert EVENT_ROW.offsets == OFFSETS
    assert EVENT_ROW.dtype.itemsize == 64
    assert [h.name for h in HOOKS] == [
        *("ready", "assign", "start", "complete", "wait", "resume", "release"),
        *("send", "receive", "request", "step", "pressure", "epoch"),
    ]
    assert [h.id for h in HOOKS] == list(range(1, 14))


def test_stored_integers_are_signed_and_wide_enough() -> None:
    for column in RING_ROW:
        if column.name == "aux":
            continue
        stored = EVENTS[column.name]
        assert stored.type[0] == "i"
        assert stored.bits > column.bits or column.bits == 64


@pytest.mark.parametrize("path", hooks.RENDERED)
def test_what_stands_in_the_repository_is_current(path: str) -> None:
    assert (hooks.ROOT / path).read_text() == hooks.RENDERED[path](), "run python -m megascope.capture.hooks"


def _prints_offsets(struct: str, names: tuple[str, ...]) -> str:
    lines = "".join(
        f'  printf("{n} %zu %zu\\n", offsetof(struct {struct}, {n}), sizeof(((struct {struct}*)0)->{n}));\n'
        for n in names
    )
    return f'#include <stdio.h>\n#include <stddef.h>\n#include "abi"\nint main(void) {{\n{lines}  return 0;\n}}\n'


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
@pytest.mark.parametrize(
    ("render", "struct", "table", "language"),
    [
        (hooks.render_cuda, "ms_row", EVENT_ROW, "c"),
        (hooks.render_cuda, "ms_ring_row", RING_ROW, "c++"),
        (hooks.render_bpf, "megascope_event", EVENT_ROW, "c"),
    ],
)
def test_the_compiler_sees_the_same_offsets(tmp_path: Path, render, struct, table, language) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "abi").write_text(render())
    (tmp_path / "main").write_text(_prints_offsets(struct, table.names))
    subprocess.run(
        ["gcc", "-x", language, "-Wall", "-Werror", "-Wno-pragma-once-outside-header", "-o", "out", "main"],
        cwd=tmp_path,
        check=True,
    )
    said = subprocess.run([tmp_path / "out"], capture_output=True, text=True, check=True).stdout.split()
    got = {said[i]: (int(said[i + 1]), int(said[i + 2])) for i in range(0, len(said), 3)}
    assert got == {c.name: (table.offsets[c.name], c.arrow.bit_width // 8) for c in table}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_the_cuda_compiler_takes_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(
        '#include "hooks_abi.cuh"\n__global__ void k(ms_row* r) { r->hook = MS_HOOK_START; }\n'
    )
    include = hooks.ROOT / "capture" / "device"
    subprocess.run(["nvcc", "-arch=sm_90", "-cubin", "-I", str(include), "a.cu"], cwd=tmp_path, check=True)


def test_the_json_schema_names_every_offset() -> None:
    said = json.loads(hooks.render_json())
    assert {c["name"]: c["offset"] for c in said["event_row"]["columns"]} == OFFSETS
    assert set(said["side_tables"]) >= {"task_classes", "dependencies", "workers", "tile_fields"}


def test_block_columns_are_aligned_and_fill_the_block() -> None:
    lay = layout.Layout(workers=1, monitors=1, block_rows=64)
    ends = [lay.column_offset(c.name) + lay.block_rows * c.bits // 8 for c in RING_ROW]
    begins = [lay.column_offset(c.name) for c in RING_ROW]
    assert all(b % 64 == 0 for b in begins)
    assert begins[1:] == ends[:-1]
    assert ends[-1] == lay.block_bytes
