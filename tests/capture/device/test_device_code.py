"""The device code without a device: it compiles for sm_90, spills nothing, and agrees with what the host gives it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

from megascope.capture.engines.cuda import exports, monitors, parameters, tables
from megascope.capture.engines.cuda.compilation import SOURCES, Hooks, nvcc_command

ARCHITECTURE = "sm_90"
MONITORED = (Hooks.QUEUE, Hooks.DEVICE)
NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
C_TYPES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


@functools.cache
def compiled(source: str, hooks: Hooks) -> tuple[str, str]:
    """(the compiler's resource report, the PTX) of a build."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.cubin"
        command = nvcc_command(str(NVCC), source, ARCHITECTURE, hooks, str(out))
        done = subprocess.run([*command, "--keep", "--keep-dir", folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr, done.stderr
        assert out.stat().st_size > 0
        return done.stderr, (out.parent / source).with_suffix(".ptx").read_text()


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "hooks"),
    [
        # What firing measures has the megakernel's monitors, which take most of the time to compile.
        pytest.param(s, h, id=f"{s}-{h.name.lower()}", marks=[pytest.mark.slow] * (s == "firing.cu" and h in MONITORED))
        for s in ("megakernel.cu", "firing.cu")
        for h in Hooks
    ],
)
def test_every_build_compiles_and_spills_nothing(source: str, hooks: Hooks) -> None:
    report, _ = compiled(source, hooks)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert frames
    assert set(frames) == {("0", "0", "0")}, report


@needs_nvcc
def test_the_clock_compiles() -> None:
    compiled("clock.cu", Hooks.QUEUE)


@needs_nvcc
def test_without_hooks_nothing_of_them_is_left() -> None:
    """Neither a queue's store nor a word of the segment is in the code; the other builds show what to look for."""
    code = {hooks: compiled("megakernel.cu", hooks)[1] for hooks in (Hooks.NONE, Hooks.QUEUE, Hooks.NATIVE)}
    offset = {
        name: parameters.SEGMENT.fields[name][1] for name in ("cursors", "workers", "summaries", "rings", "native")
    }

    def reads(hooks: Hooks, name: str) -> bool:
        place = rf"\+{offset[name]}" if offset[name] else ""
        return re.search(rf"ld\.const\S*\s.*\[{parameters.SEGMENT_SYMBOL}{place}\]", code[hooks]) is not None

    def stamps(hooks: Hooks) -> int:
        return len(re.findall(r"st\.relaxed\.cta\.shared\.b128", code[hooks]))

    for name in ("cursors", "workers", "summaries", "rings"):
        assert reads(Hooks.QUEUE, name)
        assert not reads(Hooks.NONE, name)
        assert not reads(Hooks.NATIVE, name)
    assert reads(Hooks.NATIVE, "native")
    assert not reads(Hooks.NONE, "native")
    assert stamps(Hooks.NONE) == stamps(Hooks.NATIVE) == 1, "the mailbox alone"
    assert stamps(Hooks.QUEUE) > 10
    assert "globaltimer_lo" in code[Hooks.NATIVE]


def struct(name: str) -> list[tuple[str, str]]:
    """(field, C type) of a struct in segment.cuh or engine.cuh, what it begins with included, pointers as u64."""
    text = (SOURCES / "segment.cuh").read_text() + (SOURCES / "engine.cuh").read_text()
    body = re.search(rf"struct (?:alignas\(\d+\) )?{name}(?: : (\w+))? {{\n(.*?)\n}};", text, re.S)
    assert body
    out = struct(body[1]) if body[1] else []
    for line in re.sub(r"//[^\n]*", "", body[2]).split(";"):
        declaration = line.strip()
        if declaration:
            kind, names = re.fullmatch(r"((?:const )?\w+ ?\*?) ?(.*)", declaration, re.S).groups()  # type: ignore[union-attr]
            out += [(n.strip(), "u64" if "*" in kind else kind.strip()) for n in names.split(",")]
    return out


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Segment", parameters.SEGMENT),
        ("Engine", parameters.ENGINE),
        ("Shard", parameters.SHARD),
        ("Task", parameters.TASK),
        ("Dependency", parameters.DEPENDENCY),
        ("Release", parameters.RELEASE),
    ],
)
def test_records_are_as_the_device_declares_them(name: str, dtype: np.dtype[np.void]) -> None:
    declared = struct(name)
    assert [n for n, _ in declared] == list(dtype.names or ())
    at = 0
    for field, kind in declared:
        size = C_TYPES[kind]
        at = -(-at // size) * size
        assert dtype.fields is not None
        assert dtype.fields[field][1] == at, field
        assert dtype[field].itemsize == size, field
        at += size
    assert -(-at // 8) * 8 == dtype.itemsize


def test_constants_are_as_the_device_declares_them() -> None:
    text = "\n".join(p.read_text() for p in sorted(SOURCES.glob("*.cuh")))
    words = dict(re.findall(r"(HOST_\w+) = (\d+)", text))
    assert words == {name: str(getattr(parameters, name)) for name in words}
    assert len(words) == 7
    leave = dict(re.findall(r"(RUNNING|DONE|STOPPED|DEADLINE|OVERTAKEN) = (\d)", text))
    assert [name.lower() for name in leave] == list(parameters.LEAVE)
    assert list(leave.values()) == ["0", "1", "2", "3", "4"]
    for name, mirror in (("Run", parameters.RUN_LINES), ("Orders", parameters.ORDER_LINES)):
        lines = re.search(rf"struct {name} {{(.*?)}};", text, re.S)
        assert lines
        assert tuple(re.findall(r"Line (\w+);", lines[1])) == mirror
    assert f"alignas({parameters.LINE_BYTES}) Line" in text
    assert f"RELEASE_BITS = {parameters.RELEASE_BITS};" in text
    assert f"NO_SLOT = {parameters.NO_SLOT:#x};" in text
    assert parameters.RECEIVES == 1 << 31
    assert "RECEIVES = 1u << 31;" in text
    assert f"MOST_CHOSEN = {tables.MOST_CHOSEN};" in text
    assert f"ROWS = {tables.ROWS};" in text
    assert [h.value for h in Hooks] == [
        int(re.search(rf"#define MS_HOOKS_{h.name} (\d)", text)[1])  # type: ignore[index]
        for h in Hooks
    ]


@pytest.mark.parametrize(
    ("name", "mirror", "prefix"),
    [
        ("MonitorWord", monitors.MonitorWord, "MONITOR_"),
        ("ChangeWord", monitors.ChangeWord, "CHANGE_"),
        ("SliceOf", exports.SliceOf, "SLICE_"),
    ],
)
def test_enumerations_are_as_the_device_declares_them(name: str, mirror: type[IntEnum], prefix: str) -> None:
    text = "\n".join(p.read_text() for p in sorted(SOURCES.glob("*.cuh")))
    body = re.search(rf"enum {name} : u32 {{(.*?)}};", text, re.S)
    assert body
    declared, at = {}, 0
    for member in re.sub(r"//[^\n]*", "", body[1]).split(","):
        if member.strip():
            word, _, value = (part.strip() for part in member.partition("="))
            at = int(value) if value else at
            declared[word.removeprefix(prefix)] = at
            at += 1
    assert declared == {m: int(v) for m, v in mirror.__members__.items()}
    assert f"CELLS = {monitors.CELLS};" in text
