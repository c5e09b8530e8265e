"""Continuous batching as a seeded plan: who sits in which slot at which step, and what is told about it.

The plan depends on steps, never on time, so that every engine that executes it serves the same requests. Within a
step's begin the order is: what the step before brought (tokens, ends), who leaves and who comes (preempted, resumed,
admitted), what this step does (prefill chunks). An empty batch never runs: when nobody is there, the next arrives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...store.errors import Usage
from ...store.tables import REQUEST_SETS, REQUEST_STATES, REQUESTS, STEP_REQUESTS

STATE = {name: i + 1 for i, name in enumerate(REQUEST_STATES)}
PATIENCE = 4096
"""Steps that a request waits for a slot before it is given up, never having been a request generation."""
QUERY_TILE = 16
"""Rows of an attention tile: a prefill chunk reads its positions once for each tile of its tokens."""


@dataclass(frozen=True)
class Load:
    """What is asked of the engine. Lengths are means in tokens; draws are cut so that a request fits the context.

    occupancy: offered load as a share of the slots (above 1: requests queue). chunk: prompt tokens per prefill step.
    preempt, cancel: chance per step that one running request is preempted or cancelled.
    Raises Usage for values that make no sense.
    """

    slots: int
    context: int
    seed: int = 0
    occupancy: float = 0.9
    prompt_tokens: int = 96
    max_tokens: int = 48
    chunk: int = 32
    preempt: float = 0.01
    cancel: float = 0.005
    tenants: int = 3
    model: str = "demo"

    def __post_init__(self) -> None:
        for name, low, high in (
            ("slots", 1, 1 << 16),
            ("context", 2, 1 << 30),
            ("occupancy", 0.01, 100),
            ("prompt_tokens", 1, 1 << 30),
            ("max_tokens", 1, 1 << 30),
            ("chunk", 1, 1 << 20),
            ("preempt", 0, 1),
            ("cancel", 0, 1),
            ("tenants", 1, 1 << 20),
        ):
            if not low <= getattr(self, name) <= high:
                raise Usage("cannot plan the serving", f"{name}={getattr(self, name)} is outside {low} to {high}")

    @property
    def arrivals(self) -> float:
        """Mean arrivals per step."""
        prompt, limit = min(self.prompt_tokens, self.context / 2), min(self.max_tokens, self.context / 2)
        return self.occupancy * self.slots / (prompt / self.chunk + limit)


@dataclass(frozen=True)
class Told:
    """A row of an engine table, in its columns' order, as it becomes known when `step` begins.

    A row of `requests` has 0 for its arrival, which is when `arrival_step` began: only an engine knows that time.
    """

    step: int
    table: str
    row: tuple[int | str, ...]
    arrival_step: int = -1


@dataclass(frozen=True)
class Plan:
    """Consecutive steps from `first`. Arrays are [steps, slots] unless said otherwise; an empty slot has zeros.

    Request events of step i are row_*[row_ptr[i]:row_ptr[i + 1]], to be fired when the step begins.
    """

    first: int
    request: NDArray[np.uint32]
    """request generation, 0: the slot is empty"""
    position: NDArray[np.int32]
    """positions already in its cache: that of the first token it processes in this step"""
    tokens: NDArray[np.int32]
    """tokens it processes: 1 when it decodes, a chunk of its prompt when it prefills"""
    request_set: NDArray[np.uint32]
    """[steps] id of the membership, new whenever that changes"""
    row_ptr: NDArray[np.int64]
    row_slot: NDArray[np.int32]
    row_request: NDArray[np.uint32]
    row_state: NDArray[np.uint8]
    """number of a `store.tables.REQUEST_STATES`, from 1"""
    told: list[Told]
    """in order of step"""

    @property
    def steps(self) -> int:
        return len(self.request_set)

    def told_at(self, step: int) -> list[Told]:
        """What becomes known as `step` begins."""
        first = bisect_left(self.told, step, key=lambda one: one.step)
        return self.told[first : bisect_left(self.told, step + 1, key=lambda one: one.step)]

    def attended(self) -> NDArray[np.int64]:
        """[steps, slots] positions read by one head's attention: all up to its own, once per tile of queries."""
        tiles = -(-self.tokens.astype(np.int64) // QUERY_TILE)
        return (self.position.astype(np.int64) + self.tokens) * tiles


@dataclass
class _Request:
    external: str
    tenant: str
    arrival_step: int
    prompt: int
    limit: int
    generation: int = 0
    prefilled: int = 0
    generated: int = 0
    processing: int = 0
    """tokens it processes in the step that goes on"""
    member_from: int = -1
    member_position: int = 0
    resume_at: int = 0

    @property
    def position(self) -> int:
        return self.prefilled + max(self.generated - 1, 0)


class Serving:
    """The batcher. `plan` continues where the last plan ended; two of equal Load plan alike whatever the pieces."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.step = 0
        self._random = np.random.default_rng(load.seed)
        self._slots: list[_Request | None] = [None] * load.slots
        self._waiting: deque[_Request] = deque()
        self._paused: deque[_Request] = deque()
        self._arrived = self._generation = self._set = 0
        self._rows: list[tuple[int, int, int]] = []
        self._told: list[Told] = []

    def plan(self, steps: int) -> Plan:
        """The next `steps` steps."""
        shape = (steps, self.load.slots)
        first = self.step
        request, position = np.zeros(shape, np.uint32), np.zeros(shape, np.int32)
        tokens, sets, ptr = np.zeros(shape, np.int32), np.zeros(steps, np.uint32), np.zeros(steps + 1, np.int64)
        self._rows, self._told = [], []
        for i in range(steps):
            self._advance()
            for slot, r in enumerate(self._slots):
                if r is not None:
                    request[i, slot], position[i, slot], tokens[i, slot] = r.generation, r.position, r.processing
            sets[i], ptr[i + 1] = self._set, len(self._rows)
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        slots, who, state = rows[:, 0].astype(np.int32), rows[:, 1].astype(np.uint32), rows[:, 2].astype(np.uint8)
        return Plan(first, request, position, tokens, sets, ptr, slots, who, state, self._told)

    def _advance(self) -> None:
        """Begin the next step."""
        changed = self._outcomes()
        # The engine starts under its load, not from an empty hall.
        crowd = round(min(self.load.occupancy, 1) * self.load.slots) if self.step == 0 else 0
        self._arrive(crowd + int(self._random.poisson(self.load.arrivals)))
        changed |= self._preempt()
        changed |= self._fill()
        if not any(self._slots):
            if not self._paused and not self._waiting:
                self._arrive(1)
            for paused in self._paused:
                paused.resume_at = self.step
            changed |= self._fill()
        if changed:
            self._set += 1
            members = [r.generation for r in self._slots if r]
            self._told += [Told(self.step, REQUEST_SETS.name, (self._set, g)) for g in members]
        for slot, r in enumerate(self._slots):
            if r is not None:
                r.processing = min(self.load.chunk, r.prompt - r.prefilled) or 1
                if r.prefilled < r.prompt:
                    self._fire(slot, r, "prefill_chunk")
        self.step += 1

    def _fire(self, slot: int, r: _Request, state: str) -> None:
        self._rows.append((slot, r.generation, STATE[state]))

    def _outcomes(self) -> bool:
        """What the step before brought. True when somebody left."""
        left = False
        cancelled = self._drawn(self.load.cancel)
        for slot, r in enumerate(self._slots):
            if r is None:
                continue
            if r.prefilled < r.prompt:
                r.prefilled += r.processing
                if r.prefilled == r.prompt:
                    r.generated = 1
                    self._fire(slot, r, "first_token")
                    self._leave(slot, r)
                    self._join(slot, r)
            else:
                r.generated += 1
                self._fire(slot, r, "token")
            ended = "finished" if r.generated >= r.limit else "cancelled" if slot == cancelled else ""
            if ended:
                self._fire(slot, r, ended)
                self._leave(slot, r)
                self._slots[slot] = None
                left = True
        return left

    def _drawn(self, chance: float) -> int:
        """A slot with that chance, else -1. Always the same number of draws, so that plans stay comparable."""
        happens, slot = self._random.random(2)
        return int(slot * self.load.slots) if happens < chance else -1

    def _arrive(self, count: int) -> None:
        load = self.load
        while self._waiting and self.step - self._waiting[0].arrival_step >= PATIENCE:
            self._waiting.popleft()
        for _ in range(count):
            self._arrived += 1
            a, b, tenant = self._random.random(3)
            prompt = min(max(1, round(load.prompt_tokens * 2 * a)), load.context // 2)
            limit = min(max(1, round(load.max_tokens * 2 * b)), load.context - prompt)
            name = f"tenant-{int(tenant * load.tenants) + 1}"
            self._waiting.append(_Request(f"req-{self._arrived:06d}", name, self.step, prompt, limit))

    def _preempt(self) -> bool:
        slot = self._drawn(self.load.preempt)
        r = self._slots[slot] if slot >= 0 else None
        # A prefill is not interrupted, and one that has just sat down runs at least a step.
        if r is None or r.prefilled < r.prompt or r.member_from == self.step:
            return False
        self._fire(slot, r, "preempted")
        self._leave(slot, r)
        self._slots[slot] = None
        r.resume_at = self.step + 1 + int(self._random.integers(1, 16))
        self._paused.append(r)
        return True

    def _fill(self) -> bool:
        """Seat whoever may come: the preempted first. True when somebody came."""
        came = False
        for slot, sitting in enumerate(self._slots):
            if sitting is not None:
                continue
            if self._paused and self._paused[0].resume_at <= self.step:
                r = self._paused.popleft()
                self._fire(slot, r, "resumed")
            elif self._waiting:
                r = self._waiting.popleft()
                self._generation += 1
                r.generation = self._generation
                self._fire(slot, r, "admitted")
                row = (r.generation, slot, r.external, self.load.model, r.tenant, 0, r.prompt, r.limit)
                self._told.append(Told(self.step, REQUESTS.name, row, r.arrival_step))
            else:
                break
            self._slots[slot] = r
            self._join(slot, r)
            came = True
        return came

    def _join(self, slot: int, r: _Request) -> None:
        r.member_from, r.member_position = self.step, r.position
        self._told.append(Told(self.step, STEP_REQUESTS.name, (self.step, -1, r.generation, slot, r.position)))

    def _leave(self, slot: int, r: _Request) -> None:
        if r.member_from == self.step:
            # It joined as a decoder in this very step's outcomes and ends there: no step was run.
            joined = Told(self.step, STEP_REQUESTS.name, (self.step, -1, r.generation, slot, r.member_position))
            # What this step has told stands at the end of all that has been.
            del self._told[next(i for i in range(len(self._told) - 1, -1, -1) if self._told[i] == joined)]
            return
        row = (r.member_from, self.step - 1, r.generation, slot, r.member_position)
        self._told.append(Told(self.step, STEP_REQUESTS.name, row))


@lru_cache(maxsize=2)
def planned(load: Load, steps: int) -> Plan:
    """The first steps of a load. Long ones take seconds, and several kernels of one process often serve the same."""
    return Serving(load).plan(steps)


@dataclass
class Teller:
    """Tells an engine's tables as its steps begin, through `say(table, rows)`."""

    say: Callable[[str, Iterable[tuple[int | str, ...]]], None]
    _begin_ns: dict[int, int] = field(default_factory=dict)
    _open: dict[tuple[int, int], tuple[int | str, ...]] = field(default_factory=dict)

    def begin(self, step: int, t: int, told: Iterable[Told]) -> None:
        """Step `step` begins at device time t (ns): tell what is known now. `told`: the plan's rows of that step."""
        self._begin_ns[step] = t
        self._begin_ns.pop(step - PATIENCE - 1, None)
        rows: dict[str, list[tuple[int | str, ...]]] = {}
        for one in told:
            row = one.row
            if one.table == REQUESTS.name:
                at = REQUESTS.names.index("arrival")
                row = (*row[:at], self._begin_ns.get(one.arrival_step, t), *row[at + 1 :])
            elif one.table == STEP_REQUESTS.name:
                key = int(row[0]), int(row[2])
                if row[1] == -1:
                    self._open[key] = row
                else:
                    self._open.pop(key, None)
            rows.setdefault(one.table, []).append(row)
        for table, those in rows.items():
            self.say(table, those)

    def end(self, step: int) -> None:
        """The run ends with step `step`: close the memberships that go on."""
        rows = [(begin, step, *row[2:]) for (begin, _), row in self._open.items() if begin <= step]
        self._open.clear()
        if rows:
            self.say(STEP_REQUESTS.name, rows)
