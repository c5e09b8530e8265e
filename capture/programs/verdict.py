"""What the verifier says of a program: why it is refused, or what every execution may rely on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...store.errors import Refused
from .program import Program


class Region(Enum):
    """Whose memory an instruction touches; the same on every path."""

    CONTEXT = auto()
    STACK = auto()
    VALUE = auto()
    """a value of a map, or a global"""


@dataclass(frozen=True)
class Access:
    """What one LOAD, STORE or ATOMIC touches.

    map: index in Program.maps, for VALUE. offset, size: bytes in the context row, constant and within one column.
    """

    region: Region
    map: int = -1
    offset: int = 0
    size: int = 0


@dataclass(frozen=True)
class Verdict:
    """An accepted program.

    access: by slot of every reachable LOAD, STORE and ATOMIC. call_maps: by slot of a CALL whose r1 is a map, its
    index. reachable: slots that some path executes. columns: context columns that are read. cost: worst-case
    instructions (helpers counted with theirs) by hook; batch_cost: the same for 32 lanes in lockstep, or one after
    another if serial. simt: lanes may run in any order and interleaving; `serial_because` says why not ("" if simt),
    and `serial_pc` where. stack: bytes over all frames. frames: by function's first slot, bytes of its own frame.
    emits: it may call emit. states: how many states were looked at.
    """

    program: Program
    access: dict[int, Access]
    call_maps: dict[int, int]
    reachable: frozenset[int]
    columns: frozenset[str]
    cost: dict[int, int]
    batch_cost: dict[int, int]
    serial_because: str
    serial_pc: int
    stack: int
    frames: dict[int, int]
    emits: bool
    states: int

    @property
    def simt(self) -> bool:
        return not self.serial_because


class Rejected(Refused):
    """The program is refused: at which instruction, for which register (None: none), and why."""

    def __init__(self, program: Program, pc: int, reason: str, register: int | None = None, todo: str = "") -> None:
        line = program.line(pc)
        where = f"instruction {pc}" + (f", r{register}" if register is not None else "")
        if line and (line.line or line.text):
            where += f" ({line.file}:{line.line}: {line.text.strip()})" if line.line else f" ({line.text.strip()})"
        super().__init__(f"program {program.name}", f"{where}: {reason}", todo or "change the program")
        self.pc, self.register, self.reason = pc, register, reason
