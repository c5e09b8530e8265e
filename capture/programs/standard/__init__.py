"""The monitors that are always there: C sources with their compiled objects, what each answers, and what it may cost.

A budget is what a monitor may spend per worker and epoch; beyond, events are counted as throttled, and its answer says
so. Instructions are the verifier's worst case (execution.py), of which one event costs 42 to 83. `docs/monitors.md`
tells of their maps.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....store.errors import Usage
from ..execution import Limits
from ..program import Program

FOLDER = Path(__file__).resolve().parent
_M = 1_000_000


@dataclass(frozen=True)
class Monitor:
    """A standard monitor. limits: per worker and epoch. emit_limit: rows per worker and second, where it emits any.

    constants: names that `load` may set. units: by map, of what its values are in ns or bytes.
    """

    name: str
    answers: str
    hooks: tuple[str, ...]
    limits: Limits
    emit_limit: int | None = None
    constants: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()

    @property
    def object(self) -> Path:
        """What clang made of `source`."""
        return FOLDER / f"{self.name}.bpf.o"

    @property
    def source(self) -> Path:
        return FOLDER / f"{self.name}.bpf.c"


MONITORS = (
    Monitor(
        "latency",
        "how long tasks of each class ran, and how long they stood ready before",
        ("start", "complete"),
        Limits(64 * _M),
        units=(("execution", "ns"), ("ready_to_start", "ns")),
    ),
    Monitor(
        "waits",
        "how long workers waited, by class of task and kind of dependency",
        ("resume",),
        Limits(32 * _M),
        units=(("waited", "ns"),),
    ),
    Monitor(
        "queues",
        "how full the queues of tasks were, and how often they crossed their threshold",
        ("assign", "pressure"),
        Limits(64 * _M),
    ),
    Monitor(
        "requests",
        "what requests went through and when, and how long iterations took",
        ("request", "step"),
        Limits(8 * _M),
        units=(("seen", "ns"), ("steps", "ns")),
    ),
    Monitor(
        "comm",
        "what was sent to whom, and how long workers waited for what they received",
        ("send", "receive"),
        Limits(16 * _M),
        units=(("sent", "bytes"), ("received", "ns")),
    ),
    Monitor(
        "slow_tasks",
        "the rows of tasks that ran longer than threshold_ns, at a limited rate, and a count of all of them",
        ("complete",),
        Limits(32 * _M, 64),
        emit_limit=200,
        constants=("threshold_ns",),
        units=(("slow", "ns"),),
    ),
)
BY_NAME = {m.name: m for m in MONITORS}
RECORDER_NAME = "recorder"
"""What the built-in recorder is called, which is no program."""
RESERVED = frozenset({RECORDER_NAME, *BY_NAME})
"""Names that no other program may have, in upper case or lower: what programs saw is told under their names."""


def is_one(program: Program) -> bool:
    """Whether it is the standard monitor of its name, with whatever constants, and not just called so."""
    monitor = BY_NAME.get(program.name)
    if monitor is None:
        return False
    one = load(program.name)
    return (one.insns, one.entries) == (program.insns, program.entries)


def check_name(program: Program) -> None:
    """Raises Usage for a program that has the name of another kind of thing."""
    reserved = program.name.casefold()
    if reserved in RESERVED and not is_one(program):
        why = "the built-in recorder is called so" if reserved == RECORDER_NAME else "a standard monitor is called so"
        raise Usage(f"cannot call a program {program.name}", why, "give it another: attach --name, or its file's")


def load(name: str, constants: Mapping[str, int | str] | None = None) -> Program:
    """The program of a standard monitor; constants: by name, "20us" is 20,000 ns.

    Raises Usage for a name that none has, Refused for a constant that it has not.
    """
    from ..loader import load as load_object

    monitor = BY_NAME.get(name)
    if monitor is None:
        close = difflib.get_close_matches(name, BY_NAME, 1)
        todo = f"did you mean {close[0]}?" if close else f"there are {', '.join(BY_NAME)}"
        raise Usage(f"cannot load {name}", "no standard monitor has that name", todo)
    program = load_object(monitor.object.read_bytes(), constants, name)
    return dataclasses.replace(program, emit_limit=monitor.emit_limit, source=monitor.source.read_text())
