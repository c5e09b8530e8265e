"""What to run, as `k=v,…`: the sizes of the model, the load, the deployment, and the faults."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ....store.errors import Usage
from ....store.tables import MAX_WORKERS
from ...segment.words import Policy
from ..faults import KINDS, Fault, Faults, parse_fault
from ..model import Model
from ..serving import Load

_OF_MODEL = tuple(f.name for f in fields(Model))
_OF_LOAD = ("occupancy", "prompt_tokens", "max_tokens", "chunk", "preempt", "cancel", "tenants")
_CHOICES = {"schedule": ("dynamic", "static"), "policy": tuple(p.name.lower() for p in Policy)}


@dataclass(frozen=True)
class Spec:
    """A run of the host engine. Raises Usage for values that make no sense.

    workers: per rank. monitors: per rank, 0: one for every 32 workers. steps: 0 for no end. queue: capacity of a
    worker's queue of tasks (dynamic). epoch_ms: virtual. pace: virtual ns per real ns, 0: as fast as it can.
    jitter: durations vary by that share. lose: share of events lost at workers' queues, in bursts (a test control).
    ring_mb: size of all event rings. record: begin with every hook recorded. programs: how many can be attached at
    once; arena_mb: for their maps; map_kb: of each monitor's map ring; telemetry: bytes of exports per second of
    virtual time, 0: no limit.
    """

    model: Model = field(default_factory=Model)
    load: Load = field(default_factory=lambda: Load(Model.slots, Model.context))
    workers: int = 16
    monitors: int = 0
    steps: int = 1000
    schedule: str = "dynamic"
    seed: int = 0
    policy: str = "wait"
    epoch_ms: float = 100.0
    pace: float = 0.0
    queue: int = 16
    jitter: float = 0.1
    lose: float = 0.0
    ring_mb: float = 32.0
    record: int = 1
    programs: int = 31
    arena_mb: int = 4096
    map_kb: int = 1024
    telemetry: int = 1_000_000
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("workers", 1, 4096),
            ("monitors", 0, self.workers),
            ("steps", 0, 1 << 30),
            ("seed", 0, 1 << 31),
            ("epoch_ms", 0.01, 1e6),
            ("pace", 0, 1e6),
            ("queue", 1, 4096),
            ("jitter", 0, 0.99),
            ("lose", 0, 0.99),
            ("ring_mb", 0.25, 8192),
            ("record", 0, 1),
            ("programs", 1, 31),
            ("arena_mb", 1, 1 << 16),
            ("map_kb", 64, 1 << 20),
            ("telemetry", 0, 1 << 31),
        ):
            if not low <= getattr(self, name) <= high:
                raise Usage("cannot run that", f"{name}={getattr(self, name)} is outside {low} to {high}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise Usage("cannot run that", f"{name}={getattr(self, name)}", f"choose one of {', '.join(choices)}")
        if self.workers * self.model.ranks >= MAX_WORKERS:
            raise Usage("cannot run that", f"{self.workers} workers on {self.model.ranks} ranks are too many")

    @property
    def dynamic(self) -> bool:
        return self.schedule == "dynamic"

    def params(self) -> dict[str, Any]:
        """What the trace may say of the run: everything but the faults, which a diagnosis has to find."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "load", "faults")}
        return {n: getattr(self.model, n) for n in _OF_MODEL} | {n: getattr(self.load, n) for n in _OF_LOAD} | own


def parse_spec(text: str) -> Spec:
    """A Spec from `k=v,…`; a fault control may be given several times.

    Raises Usage for an unknown key, naming the closest known one, and for a value that cannot be read.
    """
    own = {f.name: f.type for f in fields(Spec) if f.name not in ("model", "load", "faults")}
    defaults = {**_defaults(Model, _OF_MODEL), **_defaults(Load, _OF_LOAD), **_defaults(Spec, tuple(own))}
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, sign, value = part.partition("=")
        if key in KINDS:
            faults.append(parse_fault(key, value))
        elif key not in defaults:
            known = [*defaults, *KINDS]
            close = difflib.get_close_matches(key, known, 1)
            todo = f"did you mean {close[0]}?" if close else f"choose among {', '.join(known)}"
            raise Usage(f"unknown key {key}", "the host engine has none of that name", todo)
        elif not sign or not value:
            raise Usage(f"cannot read {part}", f"{key} has no value", f"write {key}={defaults[key]}")
        elif key in values:
            raise Usage(f"cannot read {part}", f"{key} is given twice", "give it once")
        else:
            values[key] = _read(key, value, type(defaults[key]))
    model = Model(**{k: v for k, v in values.items() if k in _OF_MODEL})
    load = Load(model.slots, model.context, values.get("seed", 0), **{k: v for k, v in values.items() if k in _OF_LOAD})
    return Spec(model, load, faults=Faults(tuple(faults)), **{k: v for k, v in values.items() if k in own})


def _defaults(cls: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {f.name: f.default for f in fields(cls) if f.name in names}


def _read(key: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError as e:
        raise Usage(f"cannot read {key}={value}", f"it is no {'whole ' * (kind is int)}number", "give one") from e


def engine_command(segment: Path, spec: str, truth: Path | None = None) -> list[str]:
    """The command that runs the host engine as a process of its own on a segment that it creates.

    truth: file to which it writes what the fault controls did. Raises Usage for a spec that does not parse.
    """
    parse_spec(spec)
    command = [sys.executable, "-m", __package__, "--segment", str(segment), spec]
    return command + (["--truth", str(truth)] if truth else [])
