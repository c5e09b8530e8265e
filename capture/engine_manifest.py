"""What a segment says of its engine, for the manifest of a trace."""

from __future__ import annotations

from typing import Any

from ..store.tables import HOOKS, SINCE_MAX
from .segment.reader import SegmentReader
from .segment.words import Clock, Policy


def manifest(segment: SegmentReader) -> dict[str, Any]:
    """What capture knows of the engine, for the trace's manifest."""
    lay, said = segment.layout, segment.engine
    exported = [h.name for h in HOOKS if lay.exported >> h.id & 1]
    return {
        "name": lay.name,
        "engine": {
            "name": lay.name,
            "kind": str(said.get("kind", "live")),
            "pid": lay.engine_pid,
            "clock_kind": Clock(lay.clock).name.lower(),
            "clock_tick_ns": lay.clock_tick_ns,
            "epoch_ns": lay.epoch_ns,
            "policy": Policy(lay.policy).name.lower(),
            "exported_hooks": exported,
            "told_from": min(segment.status().t_now, 1 << 62),
            "params": dict(said.get("params", {})),
        },
        "clock": {"fits": []},
        "perturbation": {"hooks": exported, "since_max_ns": SINCE_MAX} | dict(said.get("perturbation", {})),
    }
