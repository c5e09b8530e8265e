"""An attached program as machine code: the execution of the host engine and of replay. See `execution.Execution`.

The program, its maps' operations and the loop over a batch are compiled as one, once for each kind of batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .execution import COUNTS, HOOK_SLOTS, I64, U32, U64, Export, Limits
from .helpers import HELPER_BY_ID, Effect
from .isa import Kind, operation
from .maps import MapKind
from .native_cells import rebuild
from .native_compile import Compiled
from .native_context import ROWS, Place, Places, columns_read, places
from .native_driver import module
from .native_layout import ENV_WORDS, Env, aggregates, is_common
from .native_maps import Tables
from .verdict import Verdict

_POINTER, _WORD, _BIT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
_RUN = (_WORD, _POINTER, _POINTER, _WORD, _WORD, _POINTER, _BIT)


SETTLED = 1 << 20
"""Rows after which a program has shown that it stays, and is compiled thoroughly"""


@dataclass
class _Code:
    """Machine code for one kind of batch, and how many rows it has run. run: see native_driver."""

    assembly: str
    compiled: Compiled
    run: Callable[..., int]
    rows: int = 0
    thorough: bool = False


class Native:
    """An Execution for `workers` workers. shared: `.shared` of another execution of the same program on this rank.

    A program is compiled quickly first, so that attaching it takes no time, and thoroughly after `settled` rows. Memory
    is per worker, and none before its first row. Raises MegascopeError where there is none left, CannotLower for what
    cannot be compiled. Not for several threads at once; other threads run while a batch does.
    """

    def __init__(
        self,
        verdict: Verdict,
        workers: int,
        limits: Limits | None = None,
        shared: Tables | None = None,
        *,
        settled: int = SETTLED,
    ) -> None:
        self.verdict, self.workers, self.limits, self.settled = verdict, workers, limits or Limits(), settled
        self.counters: I64 = np.zeros((workers, HOOK_SLOTS, COUNTS), np.int64)
        self._code: dict[tuple[tuple[str, Place], ...], _Code] = {}
        maps = verdict.program.maps
        refill = rebuild()
        self._rows = self._compile(ROWS)
        maps = verdict.program.maps
        common = frozenset(m for m, declared in enumerate(maps) if is_common(declared))
        remembered, inserts = _asked(verdict)
        self.shared = shared or Tables(maps, common, 1, refill, remembered)
        self.shared.prepare(0)
        self._own = Tables(maps, frozenset(range(len(maps))) - common, workers, refill, remembered, inserts)
        self._ready = np.zeros(workers, np.uint8)
        self._spent = np.zeros(workers, np.uint64)
        self._emitted = np.zeros(workers, np.uint64)
        self._env = np.zeros(ENV_WORDS, np.uint64)
        arrays: dict[Env, NDArray[Any]] = {
            Env.TABLES: self._own.words,
            Env.COMMON: self.shared.words,
            Env.READY: self._ready,
            Env.COUNTERS: self.counters,
            Env.SPENT: self._spent,
            Env.EMITTED: self._emitted,
        }
        for word, array in arrays.items():
            self._env[word] = array.ctypes.data
        self._env[Env.INSTRUCTIONS], self._env[Env.ROWS] = self.limits.instructions, self.limits.rows

    def _compile(self, places: Places) -> _Code:
        key = tuple(sorted(places.items()))
        if key not in self._code:
            assembly = module(self.verdict, self.workers, places)
            self._code[key] = _Code(assembly, *self._translate(assembly, thorough=False))
        return self._code[key]

    def _translate(self, assembly: str, *, thorough: bool) -> tuple[Compiled, Callable[..., int]]:
        compiled = Compiled(f"program {self.verdict.program.name}", assembly, thorough=thorough)
        return compiled, compiled.function("run", *_RUN)

    def run(self, rows: U64, by: U32, bit: int) -> None:
        """rows: [n, 8] words; by: [n]; bit: which one, from 0. Raises ValueError for a row of an unknown worker."""
        if rows.dtype != np.uint64 or rows.ndim != 2 or rows.shape[1] != 8 or not rows.flags.c_contiguous:
            raise ValueError(f"rows are {rows.dtype}{list(rows.shape)}, not contiguous uint64[n, 8]")
        base = np.array([rows.ctypes.data], np.uint64)
        workers = rows.view(np.uint16)[:, 27]
        self._batch(self._rows, base, len(rows), workers, by, bit)

    def run_columns(self, columns: Mapping[str, NDArray[Any]], by: U32, bit: int) -> None:
        """The same for a batch by columns, of which `columns_read(verdict)` are looked at: see native_context.places.

        Each new combination of widths and strides is compiled when it first comes.
        """
        kind, bases, n = places(columns, columns_read(self.verdict))
        self._batch(self._compile(kind), bases, n, columns["worker"], by, bit)

    def _batch(self, code: _Code, bases: U64, n: int, workers: NDArray[Any], by: U32, bit: int) -> None:
        if by.dtype != np.uint32 or by.shape != (n,) or not by.flags.c_contiguous:
            raise ValueError(f"by is {by.dtype}{list(by.shape)}, not contiguous uint32[{n}]")
        if code.rows >= self.settled and not code.thorough:
            code.compiled, code.run = self._translate(code.assembly, thorough=True)
            code.thorough = True
        code.rows += n
        row = 0
        while True:
            row = code.run(self._env.ctypes.data, bases.ctypes.data, row, n, by.ctypes.data, 1 << bit)
            if row == n:
                return
            worker = int(workers[row]) & 0xFFFF
            if worker >= self.workers:
                raise ValueError(f"row {row} is of worker {worker}, of {self.workers}")
            self._own.prepare(worker)
            self._ready[worker] = 1

    def close(self, workers: I64) -> list[Export]:
        out: list[Export] = []
        maps = self.verdict.program.maps
        for worker in map(int, workers):
            self._spent[worker] = self._emitted[worker] = 0
            self._ready[worker] = 0
            own = (m for m in sorted(self._own.mine) if aggregates(maps[m]))
            out += [self._own.close(m, worker, worker) for m in own]
        if set(map(int, workers)) == set(range(self.workers)):
            common = [m for m in sorted(self.shared.mine) if aggregates(maps[m])]
            out += [self.shared.close(m, 0, -1) for m in common]
            self.shared.prepare(0)
        return out

    def entries(self, map_index: int, worker: int) -> Export:
        if map_index in self.shared.mine:
            return self.shared.export(map_index, 0, -1, sparse=False)
        return self._own.export(map_index, worker, worker, sparse=False)

    def feed(self, map_index: int, index: int, value: int, epoch: int) -> None:
        """Raises ValueError where there is no such cell."""
        maps = self.verdict.program.maps
        known = 0 <= map_index < len(maps) and maps[map_index].kind is MapKind.FEEDBACK
        if not known or not 0 <= index < maps[map_index].max_entries:
            raise ValueError(f"map {map_index} has no feedback cell {index}")
        self.shared.value(map_index, index)[:] = value, epoch


def _asked(verdict: Verdict) -> tuple[frozenset[int], int]:
    """Maps whose closed epochs are read, and the most keys that one event may insert into a map."""
    insns, closed, cheapest = verdict.program.insns, set[int](), 0
    for pc, m in verdict.call_maps.items():
        op, helper = operation(insns[pc]), HELPER_BY_ID.get(insns[pc].imm)
        if op is None or op.kind is not Kind.CALL or helper is None:
            continue
        if helper.name == "map_closed":
            closed.add(m)
        elif helper.effect is not Effect.NONE and helper.name not in ("map_lookup_elem", "map_delete_elem"):
            cheapest = min(cheapest or helper.cost, helper.cost)
    worst = max(verdict.cost.values(), default=0)
    return frozenset(closed), worst // cheapest if cheapest else 0
