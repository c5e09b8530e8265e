"""The device VM as a process: its C++ compiled for a CPU with the sanitizers. See vm_driver.cpp.

MEGASCOPE_VM_DRIVER names another driver, which then answers instead: the same source compiled by nvcc, say.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from megascope.capture.programs import vm_exports, vmcode
from megascope.capture.programs.execution import COUNTS, HOOK_SLOTS, I64, U32, U64, Export, Limits
from megascope.capture.programs.helpers import HELPER_BY_ID, Arg
from megascope.capture.programs.isa import R1, Insn, Kind, Pseudo, operation
from megascope.capture.programs.map_state import MapState
from megascope.capture.programs.maps import MapKind
from megascope.capture.programs.verdict import Verdict

HERE = Path(__file__).resolve().parent
DEVICE = HERE.parents[2] / "capture/device"
GIVEN = os.environ.get("MEGASCOPE_VM_DRIVER")
COMPILER = GIVEN or shutil.which("g++") or shutil.which("clang++")
MISSING = "there is no C++ compiler"
SHARED = (1 << 64) - 1
_ATTACH, _RUN, _CLOSE, _ENTRIES, _FEED, _STATE, _RAW, _THREADS, _TAKE = range(1, 10)
_SANITIZERS = ("address,undefined", "thread")


@cache
def driver(sanitizer: str = _SANITIZERS[0]) -> Path:
    """The compiled driver, kept between sessions by what it is made of."""
    if GIVEN:
        return Path(GIVEN)
    assert COMPILER
    sources = [*sorted(DEVICE.glob("vm*")), HERE / "vm_driver.cpp"]
    options = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-pthread"]
    options += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{DEVICE}"]
    digest = hashlib.sha256(
        b"\0".join([COMPILER.encode(), *map(str.encode, options), *(f.read_bytes() for f in sources)])
    )
    folder = Path(tempfile.gettempdir()) / f"megascope-vm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    out = folder / f"vm_driver-{digest.hexdigest()[:20]}"
    if not out.exists():
        with tempfile.TemporaryDirectory(dir=folder) as d:
            made = Path(d) / "vm_driver"
            subprocess.run([COMPILER, *options, "-o", str(made), str(HERE / "vm_driver.cpp")], check=True)
            made.replace(out)
    return out


class VmProcess:
    """One driver. A sanitizer's report, or any other death, is an AssertionError that says what it printed."""

    def __init__(self, sanitizer: str = _SANITIZERS[0]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(driver(sanitizer))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        )

    def ask(self, command: int, words: Sequence[int] | U64) -> U64:
        given = np.asarray(words, np.uint64)
        assert self._process.stdin
        try:
            self._process.stdin.write(np.array([command, len(given)], np.uint64).tobytes() + given.tobytes())
            self._process.stdin.flush()
            return self._read(int(self._read(1)[0]))
        except (BrokenPipeError, EOFError):
            self._process.wait()
            self._errors.seek(0)
            raise AssertionError(self._errors.read().decode(errors="replace")) from None

    def _read(self, n: int) -> U64:
        assert self._process.stdout
        data = self._process.stdout.read(8 * n)
        if len(data) < 8 * n:
            raise EOFError
        return np.frombuffer(data, np.uint64)

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Unsound(Exception):
    """The device's check refused the words."""


class DeviceVm:
    """An Execution. batch: rows that a warp takes at once; room: words that an export may use in one call."""

    def __init__(
        self,
        process: VmProcess,
        verdict: Verdict,
        workers: int,
        limits: Limits | None = None,
        *,
        batch: int = 32,
        room: int = 4096,
        words: bytes | None = None,
    ) -> None:
        self.process, self.program, self.workers = process, verdict.program, workers
        self.batch, self.room = batch, room
        limits = limits or Limits()
        code = vmcode.render(verdict) if words is None else words
        arena = vmcode.arena(self.program.maps).bytes(workers) // 8
        head = np.array([workers, limits.instructions, limits.rows, 0, 1000, arena], np.uint64)
        if not process.ask(_ATTACH, np.concatenate([head, np.frombuffer(code, np.uint64)]))[0]:
            raise Unsound

    @property
    def counters(self) -> I64:
        state = self.state[:, vmcode.PART_WORDS - HOOK_SLOTS * COUNTS :].view(np.int64)
        return state.reshape(self.workers, HOOK_SLOTS, COUNTS)

    @property
    def state(self) -> U64:
        """[workers, PART_WORDS]"""
        return self.process.ask(_STATE, []).reshape(self.workers, vmcode.PART_WORDS)

    @property
    def faults(self) -> list[tuple[int, int]]:
        """Of each worker the slot and vmcode.Reason of its last fault."""
        return [(int(f) >> 8, int(f) & 0xFF) for f in self.state[:, 3]]

    def run(self, rows: U64, by: U32, bit: int) -> None:
        out = self.process.ask(_RUN, np.concatenate([np.array([self.batch], np.uint64), rows.ravel()]))
        by |= (out != 0).astype(np.uint32) << np.uint32(bit)

    def run_in_threads(self, rows: U64, threads: int) -> None:
        self.process.ask(_THREADS, np.concatenate([np.array([threads], np.uint64), rows.ravel()]))

    def close(self, workers: I64) -> list[Export]:
        parts = self._parts(workers)
        self.end_epochs(parts)
        return [c.export for c in self.take(parts)]

    def _parts(self, workers: Iterable[int]) -> list[int]:
        some = [int(w) for w in workers]
        return some + [SHARED] * (set(some) == set(range(self.workers)))

    def end_epochs(self, parts: Sequence[int]) -> None:
        """Close, and leave what was closed where it is."""
        self.process.ask(_CLOSE, parts)

    def records(self, parts: Sequence[int]) -> U64:
        """The same as the device writes it: [part, words, its records] of each part."""
        return self.process.ask(_TAKE, [self.room, *parts])

    def take(self, parts: Sequence[int]) -> list[vm_exports.Closed]:
        """Export what is closed and not yet exported."""
        words = self.records(parts)
        out: list[vm_exports.Closed] = []
        while len(words):
            worker, n = int(words[0]), int(words[1])
            out += vm_exports.read(self.program, -1 if worker == SHARED else worker, words[2 : 2 + n])
            words = words[2 + n :]
        return out

    def entries(self, map_index: int, worker: int) -> Export:
        declared = self.program.maps[map_index]
        read_only = declared.read_only and not MapState(declared).aggregates
        shared = declared.kind != MapKind.FEEDBACK and (declared.shared or read_only)
        words = self.process.ask(_ENTRIES, [map_index, SHARED if shared else worker, self.room])
        ((closed),) = vm_exports.read(self.program, worker, words)
        export = closed.export
        if declared.indexed:
            export = self._filled(export)
        return replace(export, worker=-1 if declared.shared or declared.kind == MapKind.FEEDBACK else worker)

    def _filled(self, e: Export) -> Export:
        """With the entries that nothing has touched."""
        declared = self.program.maps[e.map]
        n = declared.max_entries
        blank = np.frombuffer(declared.initial or bytes(MapState(declared).value_size), np.uint8)
        values = np.repeat(blank[None], n, axis=0)
        values[e.keys.copy().view(np.uint32)[:, 0]] = e.values
        return replace(e, keys=np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 4), values=values)

    def feed(self, map_index: int, index: int, value: int, epoch: int) -> None:
        if self.process.ask(_FEED, [map_index, index, value, epoch])[0] != self.workers:
            raise ValueError

    def raw(self, *, lane: int = 0, r1: int = 0, r2: int = 0, memory: bytes = b"") -> tuple[int, int, int]:
        """Run one lane from slot 0 on: the vmcode.Reason it was stopped for, where, and r0. memory: of map 0."""
        words = np.frombuffer(memory + bytes(-len(memory) % 8), np.uint64)
        stopped, r0 = self.process.ask(_RAW, np.concatenate([np.array([0, lane, r1, r2], np.uint64), words]))
        return int(stopped) & 0xFF, int(stopped) >> 8, int(r0)


def same(a: Export, b: Export) -> bool:
    """Whether two executions say the same of a map."""
    return (
        (a.map, a.worker, a.refused) == (b.map, b.worker, b.refused)
        and np.array_equal(a.keys, b.keys)
        and np.array_equal(a.values, b.values)
    )


def guessed_call_maps(insns: Sequence[Insn]) -> dict[int, int]:
    """For code that nobody has verified: the map last loaded into r1 before a call, in the order of the slots."""
    out, last = {}, None
    for pc, insn in enumerate(insns):
        op = operation(insn)
        if op and op.kind == Kind.WIDE and insn.dst == R1:
            last = insn.imm if insn.src == Pseudo.MAP else None
        if op and op.kind == Kind.CALL and not op.register and last is not None:
            helper = HELPER_BY_ID.get(insn.imm)
            if helper and Arg.MAP in helper.args:
                out[pc] = last
    return out
