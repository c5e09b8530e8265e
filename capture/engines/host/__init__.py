"""The host engine: the task graph in deterministic virtual time, on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .spec import Spec, engine_command, parse_spec

if TYPE_CHECKING:
    from .engine import Result
    from .sinks import Sink

__all__ = ["Spec", "engine_command", "parse_spec", "run"]


def run(spec: Spec, sink: Sink) -> Result:
    """A whole run in this process, into a sink (`sinks.MemorySink` keeps all events).

    Raises Usage when a fault control cannot be applied.
    """
    # Compiled code is loaded only by those who run it.
    from .engine import HostEngine

    return HostEngine(spec).run(sink)
