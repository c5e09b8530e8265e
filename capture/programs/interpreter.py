"""The reference interpreter: one step per instruction, through `isa.operation`. The oracle; clear before fast.

Whatever the code, it ends: every step is counted, and memory has edges (see `memory`). *Instrumented*, it also stops
what a verifier must not accept though it would do no harm here: reading a register or stack byte that was never
written, access that is not aligned, and whatever a `Watch` objects to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .arithmetic import alu, holds, signed, swap, unsigned
from .helpers import HELPER_BY_ID
from .isa import R0, R1, R5, R6, R9, R10, REGISTERS, Insn, Kind, Operation, Pseudo, operation, target, wide
from .memory import Allocation, Fault, Memory
from .program import MAX_FRAMES, STACK_BYTES
from .verdict import Region


class Environment(Protocol):
    """What a program reaches beyond its own registers and stack. Each may raise Fault."""

    def map_address(self, index: int) -> int:
        """What stands for a map in a register."""

    def value_address(self, index: int, offset: int) -> int:
        """An address in the only value of a map of globals."""

    def call(self, pc: int, helper: int, arguments: Sequence[int]) -> int:
        """What a helper, called at slot `pc`, returns: the arguments are as many as it takes."""


class Result(NamedTuple):
    """r0 at the exit, and what was spent: 1 an instruction, a helper's cost for its call."""

    r0: int
    spent: int


class Watch(Protocol):
    """Looks over the program's shoulder. Each may raise Fault."""

    def step(self, pc: int) -> None:
        """Before the instruction at slot `pc`."""

    def access(self, pc: int, allocation: Allocation, offset: int, size: int) -> None:
        """Before a load, store or atomic."""


@dataclass
class _Frame:
    """A function that waits for another's exit."""

    pc: int
    kept: list[int | None]
    """r6 to r10"""


class Interpreter:
    """Code, ready to run. frames: stack bytes by a function's first slot; where it is silent, STACK_BYTES."""

    def __init__(self, insns: Sequence[Insn], frames: Mapping[int, int] | None = None, *, instrumented: bool = False):
        self.insns = insns
        self.operations = [operation(i) for i in insns]
        self.frames = frames or {}
        self.instrumented = instrumented

    def run(
        self,
        pc: int,
        arguments: Sequence[int],
        memory: Memory,
        environment: Environment,
        budget: int,
        watch: Watch | None = None,
    ) -> Result:
        """Run from slot `pc` to its exit, with r1 … = arguments. budget: what may be spent. Raises Fault."""
        run = _Run(self, memory, environment, watch)
        run.enter(pc)
        run.registers[R1 : R1 + len(arguments)] = arguments
        while run.pc is not None:
            at = run.pc
            try:
                run.step(at)
                if run.spent > budget:
                    raise Fault(f"more than {budget} instructions")
            except Fault as e:
                raise Fault(e.reason, at) from None
        return Result(run.read(R0), run.spent)


class _Run:
    """One execution: registers, frames, and what was spent."""

    def __init__(self, code: Interpreter, memory: Memory, environment: Environment, watch: Watch | None) -> None:
        self.code, self.memory, self.environment, self.watch = code, memory, environment, watch
        self.registers: list[int | None] = [None if code.instrumented else 0] * REGISTERS
        self.frames: list[_Frame] = []
        self.pc: int | None = None
        self.spent = 0

    def enter(self, pc: int) -> None:
        """Begin a function on a stack frame of its own."""
        size = self.code.frames.get(pc, STACK_BYTES)
        written = bytearray(size) if self.code.instrumented else None
        self.registers[R10] = self.memory.add(Allocation(bytearray(size), Region.STACK, written=written)) + size
        self.pc = pc

    def read(self, register: int) -> int:
        value = self.registers[register]
        if value is None:
            raise Fault(f"r{register} has no value")
        return value

    def forget(self, first: int, last: int) -> None:
        """These registers have no value that a program may rely on."""
        if self.code.instrumented:
            self.registers[first : last + 1] = [None] * (last + 1 - first)

    def step(self, pc: int) -> None:
        op = self.code.operations[pc] if 0 <= pc < len(self.code.insns) else None
        if op is None:
            raise Fault("there is no instruction here")
        if self.watch:
            self.watch.step(pc)
        insn = self.code.insns[pc]
        self.spent += 1
        self.pc = pc + op.slots
        match op.kind:
            case Kind.ALU:
                self.write(insn.dst, self.alu(insn, op))
            case Kind.SWAP:
                self.write(insn.dst, swap(op.name, op.bits, self.read(insn.dst)))
            case Kind.WIDE:
                self.write(insn.dst, self.wide(pc, insn))
            case Kind.LOAD:
                self.write(insn.dst, self.load(pc, insn.src, insn.off, op.size))
            case Kind.LOADSX:
                value = self.load(pc, insn.src, insn.off, op.size)
                self.write(insn.dst, unsigned(signed(value, 8 * op.size)))
            case Kind.STORE:
                self.store(pc, insn.dst, insn.off, op.size, self.operand(insn, op))
            case Kind.ATOMIC:
                self.atomic(pc, insn, op)
            case Kind.JUMP:
                if holds(op.name, op.bits, self.read(insn.dst), self.operand(insn, op)):
                    self.pc += target(insn)
            case Kind.GOTO:
                self.pc += target(insn)
            case Kind.CALL if op.register:
                self.call_local(self.pc, insn.imm)
            case Kind.CALL:
                self.call_helper(pc, insn.imm)
            case Kind.EXIT:
                self.leave()

    def write(self, register: int, value: int) -> None:
        if register == R10:
            raise Fault("r10 is read-only")
        self.registers[register] = value

    def operand(self, insn: Insn, op: Operation) -> int:
        return self.read(insn.src) if op.register else unsigned(insn.imm)

    def alu(self, insn: Insn, op: Operation) -> int:
        if op.name == "neg":
            return alu("neg", op.bits, self.read(insn.dst), 0)
        second = self.operand(insn, op)
        if op.name == "movsx":
            return unsigned(signed(second, 8 * op.size), op.bits)
        return alu(op.name, op.bits, 0 if op.name == "mov" else self.read(insn.dst), second)

    def wide(self, pc: int, insn: Insn) -> int:
        if pc + 1 >= len(self.code.insns) or any(self.code.insns[pc + 1][:4]):
            raise Fault("a 64-bit load without its second slot")
        second = self.code.insns[pc + 1]
        if insn.src == Pseudo.MAP:
            return self.environment.map_address(insn.imm)
        if insn.src == Pseudo.VALUE:
            return self.environment.value_address(insn.imm, second.imm)
        return wide(insn, second)

    def address(self, pc: int, register: int, off: int, size: int) -> int:
        """Where an access goes, having been looked at."""
        address = unsigned(self.read(register) + off)
        allocation, offset = self.memory.find(address, size)
        if self.code.instrumented and allocation.region is not None:
            # A frame is aligned at its end, everything else at its begin.
            base = len(allocation.data) if allocation.region == Region.STACK else 0
            if (offset - base) % size:
                raise Fault(f"{size} bytes at {address:#x} are not aligned")
        if self.watch:
            self.watch.access(pc, allocation, offset, size)
        return address

    def load(self, pc: int, register: int, off: int, size: int) -> int:
        return int.from_bytes(self.memory.load(self.address(pc, register, off, size), size), "little")

    def store(self, pc: int, register: int, off: int, size: int, value: int) -> None:
        self.memory.store(self.address(pc, register, off, size), unsigned(value, 8 * size).to_bytes(size, "little"))

    def atomic(self, pc: int, insn: Insn, op: Operation) -> None:
        old = self.load(pc, insn.dst, insn.off, op.size)
        new = self.read(insn.src)
        if op.name == "cmpxchg":
            new = new if unsigned(self.read(R0), op.bits) == old else old
        elif op.name != "xchg":
            new = alu(op.name, op.bits, old, new)
        self.store(pc, insn.dst, insn.off, op.size, new)
        if op.fetch:
            self.write(R0 if op.name == "cmpxchg" else insn.src, old)

    def call_local(self, after: int, distance: int) -> None:
        if len(self.frames) + 1 >= MAX_FRAMES:
            raise Fault(f"more than {MAX_FRAMES} calls deep")
        self.frames.append(_Frame(after, self.registers[R6 : R10 + 1]))
        self.forget(R0, R0)
        self.forget(R6, R9)
        self.enter(after + distance)

    def call_helper(self, pc: int, number: int) -> None:
        helper = HELPER_BY_ID.get(number)
        if helper is None:
            raise Fault(f"there is no helper {number}")
        arguments = [self.read(R1 + i) for i in range(len(helper.args))]
        self.spent += helper.cost - 1
        result = unsigned(self.environment.call(pc, number, arguments))
        self.forget(R1, R5)
        self.registers[R0] = result

    def leave(self) -> None:
        frame_end = self.read(R10)
        self.memory.free(frame_end)
        if not self.frames:
            self.pc = None
            return
        frame = self.frames.pop()
        self.registers[R6 : R10 + 1] = frame.kept
        self.forget(R1, R5)
        self.pc = frame.pc


class NoMaps:
    """The environment of a raw run: the time is 0, and there are no maps."""

    def map_address(self, index: int) -> int:
        raise Fault(f"there is no map {index}")

    def value_address(self, index: int, offset: int) -> int:
        raise Fault(f"there is no map {index} (at offset {offset})")

    def call(self, pc: int, helper: int, arguments: Sequence[int]) -> int:
        if arguments:
            raise Fault(f"helper {helper} needs a program with maps or a context", pc)
        return 0


def run_raw(insns: Sequence[Insn], memory: bytearray, *, budget: int = 1_000_000, instrumented: bool = False) -> int:
    """r0 of code that is no hook program: r1 points to `memory` (0 if it is empty), r2 is its length. Raises Fault."""
    reach = Memory()
    address = reach.add(Allocation(memory)) if memory else 0
    code = Interpreter(insns, instrumented=instrumented)
    return code.run(0, (address, len(memory)), reach, NoMaps(), budget).r0
