"""One path under way: its state, where it is, how it ends in a rejection. And what all paths together have shown."""

from __future__ import annotations

from ..program import Program
from ..verdict import Access, Region, Rejected
from .needs import FRAME
from .registers import Content, Dead, Pointer, describe
from .simt import Effects
from .state import State
from .structure import Code
from .values import Scalar, linked


class Facts:
    """Of the whole program, what each instruction touches and what was touched at all; see verdict.Verdict.

    depth: by function's first slot, how far below r10 its frame is used, bytes.
    """

    def __init__(self, program: Program) -> None:
        self.access: dict[int, tuple[Access, bool]] = {}
        self.call_maps: dict[int, int] = {}
        self.reachable: set[int] = set()
        self.columns: set[str] = set()
        self.depth: dict[int, int] = {}
        self.effects = Effects(program.maps)
        self.emits = False


class Walk:
    """The state at slot `pc`, and what may be asked of it. Every method may raise Rejected."""

    __slots__ = ("base", "code", "facts", "maps", "names", "pc", "program", "registers", "state")

    def __init__(self, program: Program, code: Code, facts: Facts) -> None:
        self.program, self.code, self.facts, self.maps = program, code, facts, program.maps
        self.names = 0
        self.pc = 0

    def go(self, state: State) -> None:
        """Go on from a state, or from its innermost frame after a call or exit."""
        self.state = state
        self.registers = state.frames[-1].registers
        self.base = FRAME * (len(state.frames) - 1)

    def place(self, register: int) -> int:
        """The bit of a register of the innermost frame; see `needs`."""
        return 1 << self.base + register

    def fresh(self) -> int:
        """A name for a link or a lookup that no other has."""
        self.names += 1
        return self.names

    def rejected(self, reason: str, register: int | None = None, todo: str = "") -> Rejected:
        """To be raised."""
        return Rejected(self.program, self.pc, reason, register, todo)

    def describe(self, register: int) -> str:
        return describe(self.registers[register], self.maps)

    def read(self, register: int) -> Scalar | Pointer:
        """What the register holds."""
        content = self.registers[register]
        if isinstance(content, (Scalar, Pointer)):
            return content
        raise self.unset(content, "it", register)

    def unset(self, content: Content, what: str, register: int) -> Rejected:
        """To be raised: `what` holds nothing that may be read."""
        if isinstance(content, Dead):
            return self.rejected(f"{what} {content.why}", register)
        return self.rejected(f"{what} is read before it is set", register)

    def number(self, register: int, use: str) -> Scalar:
        """The number in a register; `use` says of a pointer what was done with it: `is multiplied`."""
        content = self.read(register)
        if isinstance(content, Scalar):
            return content
        raise self.rejected(f"{self.describe(register)} {use}; what a pointer is must not show", register)

    def copied(self, register: int, number: Scalar) -> Scalar:
        """The number of a register, linked so that what is learnt of a copy is learnt of all."""
        if number.mask and not number.link:
            number = linked(number, self.fresh())
            self.registers[register] = number
        return number

    def touch(self, access: Access, closed: bool = False) -> None:
        """The instruction touches this; on every path the same, so that no execution need ask at run time."""
        said, was_closed = self.facts.access.setdefault(self.pc, (access, closed))
        if (said, was_closed) != (access, closed):
            one, other = self._named(said, was_closed), self._named(access, closed)
            raise self.rejected(f"on one path it touches {one}, on another {other}", todo="use an instruction for each")

    def _named(self, access: Access, closed: bool) -> str:
        if access.region == Region.CONTEXT:
            return f"bytes {access.offset} to {access.offset + access.size - 1} of the context"
        if access.region == Region.STACK:
            return "the stack"
        return f"{'closed' if closed else 'live'} values of map {self.maps[access.map].name}"
