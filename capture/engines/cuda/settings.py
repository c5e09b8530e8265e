"""What a run of the CUDA engine is asked for: `k=v,…`, as after `cuda:` on the command line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any

from ....store.errors import Usage
from ...segment.words import Policy
from ..faults import KINDS, Faults, parse_fault
from ..model import Model
from ..serving import Load

MODEL = Model(qkv_tile=16, out_tile=8, ffn_tile=32, vocab_tile=64)
"""Tiles small enough to give every multiprocessor of an H200 some in each operator."""
_MODEL_KEYS = tuple(f.name for f in fields(Model))
_LOAD_KEYS = ("occupancy", "prompt_tokens", "max_tokens", "preempt", "cancel", "tenants")


@dataclass(frozen=True)
class Settings:
    """A run: the model and its load, the schedule, the segment's sizes, and faults to inject.

    The model's ranks are groups of the device's multiprocessors, an equal number each.

    transport: a monitor warp in each block, or monitor_blocks blocks of one warp beside them; see docs/device.md.
    steps: decode steps to run. seconds: the device-side deadline. pressure: queue depth that counts as pressure.
    ring_mb: size of all event rings together. block_rows, summary_rows, policy: of each monitor. program_slots:
    programs at once; arena_mb: memory for their maps; map_kb: of each monitor's map ring; telemetry: bytes of exports
    per second, 0: as many as the ring takes.
    """

    model: Model = MODEL
    load: Load = field(default_factory=lambda: Load(slots=MODEL.slots, context=MODEL.context, chunk=1))
    schedule: str = "dynamic"
    transport: str = "warp"
    monitor_blocks: int = 33
    steps: int = 2000
    seconds: float = 60.0
    seed: int = 1
    pressure: int = 4
    ring_mb: float = 256.0
    block_rows: int = 512
    summary_rows: int = 512
    epoch_ms: float = 100.0
    policy: str = "drop"
    program_slots: int = 16
    arena_mb: float = 1024.0
    map_kb: float = 256.0
    telemetry: float = 0.0
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        what = "cannot start the cuda engine"
        if self.schedule not in ("dynamic", "static"):
            raise Usage(what, f"schedule={self.schedule} is neither dynamic nor static", "choose one")
        if self.transport not in ("warp", "block"):
            raise Usage(what, f"transport={self.transport} is neither warp nor block", "choose one")
        if self.policy not in ("drop", "overwrite"):
            raise Usage(what, f"policy={self.policy}: a kernel cannot wait for a reader", "use drop or overwrite")
        for name, low, high in (
            ("steps", 1, 1 << 20),
            ("seconds", 0.001, 3600),
            ("pressure", 1, 1 << 20),
            ("ring_mb", 0.25, 1 << 16),
            ("epoch_ms", 1, 1e6),
            ("program_slots", 0, 31),
            ("monitor_blocks", 1, 1 << 10),
            ("arena_mb", 0, 1 << 16),
            ("map_kb", 64, 1 << 16),
            ("telemetry", 0, 1e9),
        ):
            if not low <= getattr(self, name) <= high:
                raise Usage(what, f"{name}={getattr(self, name)} is outside {low} to {high}", "choose another")

    @property
    def dynamic(self) -> bool:
        return self.schedule == "dynamic"

    @property
    def ring_policy(self) -> Policy:
        return Policy[self.policy.upper()]

    def params(self) -> dict[str, Any]:
        """What was asked, for the trace's manifest; without the faults, which a diagnosis must not read."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "load", "faults")}
        return {k: getattr(self.model, k) for k in _MODEL_KEYS} | {k: getattr(self.load, k) for k in _LOAD_KEYS} | own

    @classmethod
    def parse(cls, spec: str) -> Settings:
        """From `k=v,…`. Raises Usage for an unknown key, a value of the wrong type, or sizes that do not fit."""
        own = {f.name: _type(cls, f.name) for f in fields(cls) if f.name not in ("model", "load", "faults")}
        types = own | {k: _type(Model, k) for k in _MODEL_KEYS} | {k: _type(Load, k) for k in _LOAD_KEYS}
        given: dict[str, Any] = {}
        faults = []
        for part in spec.split(","):
            if not part.strip():
                continue
            key, equals, text = (s.strip() for s in part.partition("="))
            if key in KINDS:
                faults.append(parse_fault(key, text))
                continue
            if key not in types or not equals:
                close = difflib.get_close_matches(key, [*types, *KINDS], 1)
                todo = f"did you mean {close[0]}?" if close else "write key=value, …"
                raise Usage("cannot start the cuda engine", f"there is no setting {part.strip()!r}", todo)
            try:
                given[key] = types[key](text)
            except ValueError as e:
                raise Usage("cannot start the cuda engine", f"{key}={text} is no {types[key].__name__}") from e
        model = Model(**(vars(MODEL) | {k: given[k] for k in _MODEL_KEYS if k in given}))
        seed = given.get("seed", 1)
        load = Load(
            slots=model.slots, context=model.context, seed=seed, chunk=1, model="reference",
            **{k: given[k] for k in _LOAD_KEYS if k in given},
        )  # fmt: skip
        return cls(model, load, faults=Faults(tuple(faults)), **{k: given[k] for k in own if k in given})


def _type(cls: Any, name: str) -> type:
    default: object = next(f.default for f in fields(cls) if f.name == name)
    return type(default)
