"""What a query may call by name: the fields of the event row, and what each hook's aux, flags and task say.

Source: hook ABI v1 in `store.tables` (EVENT_ROW, HOOKS).
"""

from __future__ import annotations

from dataclasses import dataclass

from ....store.tables import EVENT_ROW, FLAG_RANGE, HOOK_BY_NAME, HOOKS
from .tree import Bits, Expr, Load, Since

_OFFSETS = EVENT_ROW.offsets
ROW: dict[str, Load] = {c.name: Load(_OFFSETS[c.name], c.bits // 8) for c in EVENT_ROW}
"""Columns of the row."""
ALIASES = {"class": "task_class"}
"""Other names of columns, as a query's author says them."""

_TASK, _AUX, _FLAGS = ROW["task"], ROW["aux"], ROW["flags"]
_HIGH, _LOW = Load(_AUX.offset + 4, 4), Load(_AUX.offset, 4)
_RANGE = Bits(_FLAGS, FLAG_RANGE.bit_length() - 1, 1)
_FLAG = {f"{h.name}.{meaning}": value for h in HOOKS for value, meaning in h.flags}


@dataclass(frozen=True)
class Derived:
    """A name for a part of the row. hooks: id → what it is there; {}: at every hook, `everywhere`."""

    name: str
    meaning: str
    hooks: dict[int, Expr]
    everywhere: Expr | None = None


def _at(name: str, meaning: str, **hooks: Expr) -> Derived:
    return Derived(name, meaning, {HOOK_BY_NAME[h].id: e for h, e in hooks.items()})


def _flag(hook: str, meaning: str) -> Bits:
    return Bits(_FLAGS, _FLAG[f"{hook}.{meaning}"].bit_length() - 1, 1)


_TIMED = {h.name: Since() for h in HOOKS if h.since}
DERIVED: dict[str, Derived] = {
    d.name: d
    for d in (
        Derived("iteration", "high half of the task generation", {}, Load(_TASK.offset + 4, 4)),
        Derived("index", "low half of the task generation: its number in the iteration", {}, Load(_TASK.offset, 4)),
        Derived("range", "1 where the row stands for `tile` consecutive tasks", {}, _RANGE),
        _at("since_ns", "t - aux, ns", **_TIMED),
        _at("exec_ns", "time from start to complete, ns", complete=Since()),
        _at("queue_ns", "time from ready to start, ns", start=Since()),
        _at("wait_ns", "time waited, ns", resume=Since(), receive=Since()),
        _at("step_ns", "time from the step's begin to its end, ns", step=Since(_FLAG["step.ends"])),
        _at("epoch_ns", "length of the epoch, ns", epoch=Since()),
        _at("released_by", "task generation that released the last dependency", ready=_AUX),
        _at("target", "worker whose queue the task was put in", assign=Bits(_AUX, 48, 16)),
        _at("depth", "tasks in the queue", assign=Bits(_AUX, 24, 24), pressure=_HIGH),
        _at("capacity", "tasks that the queue holds", assign=Bits(_AUX, 0, 24)),
        _at("threshold", "depth at which pressure fires", pressure=_LOW),
        _at("rises", "1 where the depth rose above the threshold", pressure=_flag("pressure", "rises above")),
        _at("falls", "1 where the depth fell below it", pressure=_flag("pressure", "falls below")),
        _at("seen", "counter when the wait began", wait=_HIGH),
        _at("counter", "counter after the release", release=_HIGH),
        _at("wanted", "counter that satisfies the dependency", wait=_LOW, release=_LOW),
        _at("bytes", "bytes sent", send=_AUX),
        _at("slot", "slot of the request", request=_HIGH),
        _at("state", "what became of the request", request=_LOW),
        _at("begins", "1 where the step begins", step=_flag("step", "begins")),
        _at("ends", "1 where the step ends", step=_flag("step", "ends")),
    )
}  # fmt: skip
TILE = "tile."
"""`tile.NAME` is the coordinate of that name, where a field of the same name hides it."""
