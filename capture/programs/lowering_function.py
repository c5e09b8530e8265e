"""One eBPF function to one LLVM function: its registers, its frame, and what each instruction does."""

from __future__ import annotations

from ...store.tables import EVENT_ROW
from .helpers import HELPER_BY_ID, HELPER_BY_NAME, Arg
from .isa import R0, R1, R10, Insn, Kind, Operation, Pseudo, operation, wide
from .llvm_text import Text, narrow, sign_extend, signed, zero_extend
from .lowering_arithmetic import alu, atomic, condition, swap
from .lowering_blocks import DEAD, Blocks, CannotLower, blocks
from .lowering_pointers import FRAME, Place, State, advance, places
from .lowering_target import Code, Target
from .verdict import Access, Region

KTIME, EMIT = HELPER_BY_NAME["ktime_get_ns"].id, HELPER_BY_NAME["emit"].id
UNVERIFIED_FRAME = 512


class FunctionLowering:
    """One function. callees: first slots of the functions that it calls; helpers: (map, helper id) that it calls."""

    def __init__(self, code: Code, target: Target, start: int) -> None:
        self.code, self.target, self.start, self.text = code, target, start, Text()
        self.callees: list[int] = []
        self.helpers: list[tuple[int, int]] = []
        frames = self.code.frames
        if frames is not None and start not in frames:
            raise CannotLower(self.code.what, start, "the verdict gives this function no frame")
        self.frame = UNVERIFIED_FRAME if frames is None else (frames[start] + 7) // 8 * 8
        self.pc = start
        self.state: State = ()
        self.values: dict[int, str] = {}

    def define(self) -> str:
        """The body."""
        text, graph = self.text, blocks(self.code.insns, self.start, self.code.reachable, self.code.what)
        edges = {b: [n for n in after if n != DEAD] for b, after in graph.edges.items()}
        states = places(self.code.insns, graph.slots, edges, self.start)
        self._prologue()
        for leader, slots in graph.slots.items():
            text.label(f"b{leader}")
            self.state, self.values = states[leader], {}
            for self.pc in slots:
                self._instruction(self.code.insns[self.pc])
                self.state = advance(self.code.insns, self.pc, self.state)
            self._end(graph, leader)
        if any(DEAD in after for after in graph.edges.values()):
            text.label("dead")
            text.do("ret i64 0")
        return str(text)

    def _prologue(self) -> None:
        text = self.text
        text.label("entry")
        for r in range(R10):
            text.do(f"%r{r} = alloca i64")
            text.do(f"store i64 {f'%a{r}' if 1 <= r <= 5 else '0'}, ptr %r{r}")
        if self.frame:
            text.do(f"%frame = alloca [{self.frame} x i8], align 8")
            text.do(f"call void @llvm.memset.p0.i64(ptr align 8 %frame, i8 0, i64 {self.frame}, i1 false)")
            text.do(f"%top = getelementptr i8, ptr %frame, i64 {self.frame}")
            text.do("%r10 = ptrtoint ptr %top to i64")
        text.do(f"br label %b{self.start}")

    def _end(self, graph: Blocks, leader: int) -> None:
        """The branch out of a block; that of a jump is made from its own condition."""
        last, after = self.code.insns[graph.slots[leader][-1]], graph.edges[leader]
        names = ["dead" if n == DEAD else f"b{n}" for n in after]
        op = self._operation(last)
        if op.kind is Kind.JUMP:
            taken = condition(self.text, op, self._get(last.dst), self._operand(last, op))
            self.text.do(f"br i1 {taken}, label %{names[0]}, label %{names[1]}")
        elif names:
            self.text.do(f"br label %{names[0]}")

    def _operation(self, insn: Insn) -> Operation:
        op = operation(insn)
        if op is None:
            raise self._cannot(f"no instruction is encoded as {insn}")
        return op

    def _cannot(self, reason: str) -> CannotLower:
        return CannotLower(self.code.what, self.pc, reason)

    def _get(self, register: int) -> str:
        if register == R10:
            return "%r10" if self.frame else "8"
        if register not in self.values:
            self.values[register] = self.text.let(f"load i64, ptr %r{register}")
        return self.values[register]

    def _set(self, register: int, value: str) -> None:
        if register == R10:
            raise self._cannot("r10 is written")
        self.values[register] = value
        self.text.do(f"store i64 {value}, ptr %r{register}")

    def _operand(self, insn: Insn, op: Operation) -> str:
        return self._get(insn.src) if op.register else str(insn.imm)

    def _instruction(self, insn: Insn) -> None:
        op = self._operation(insn)
        match op.kind:
            case Kind.ALU:
                self._set(insn.dst, alu(self.text, op, self._get(insn.dst), self._operand(insn, op)))
            case Kind.SWAP:
                self._set(insn.dst, swap(self.text, op, self._get(insn.dst)))
            case Kind.WIDE:
                self._wide(insn)
            case Kind.LOAD | Kind.LOADSX:
                bits, value = 8 * op.size, self._load(insn, op.size)
                extend = zero_extend if op.kind is Kind.LOAD else sign_extend
                self._set(insn.dst, extend(self.text, value, bits))
            case Kind.STORE:
                pointer = self._access(insn.dst, insn.off, op.size)
                value = narrow(self.text, self._operand(insn, op), 8 * op.size)
                self.text.do(f"store i{8 * op.size} {value}, ptr {pointer}, align {self._align(op.size)}")
            case Kind.ATOMIC:
                pointer = self._access(insn.dst, insn.off, op.size)
                align = self._align(op.size)
                old = atomic(self.text, op, pointer, self._get(insn.src), self._get(R0), align)
                if op.fetch:
                    self._set(R0 if op.name == "cmpxchg" else insn.src, old)
            case Kind.CALL:
                self._local(insn) if op.register else self._helper(insn)
            case Kind.EXIT:
                self.text.do(f"ret i64 {self._get(R0)}")

    def _wide(self, insn: Insn) -> None:
        second = self.code.insns[self.pc + 1 : self.pc + 2]
        if not second or second[0].op:
            raise self._cannot("a 64-bit load has no second slot")
        if insn.src == Pseudo.IMMEDIATE:
            self._set(insn.dst, str(signed(wide(insn, second[0]))))
        elif not 0 <= insn.imm < len(self.code.maps):
            raise self._cannot(f"there is no map {insn.imm}")
        elif insn.src == Pseudo.MAP:
            self._set(insn.dst, str(insn.imm + 1))
        else:
            pointer = self._at(Place(insn.imm, second[0].imm), 0)
            self._set(insn.dst, self.text.let(f"ptrtoint ptr {pointer} to i64"))

    def _align(self, size: int) -> int:
        return 1 if self.code.access is None else size

    def _verified(self) -> Access | None:
        """What the verdict says of this access; None for code that nobody verified."""
        if self.code.access is None:
            return None
        if self.pc not in self.code.access:
            raise self._cannot("the verdict does not say what it touches")
        return self.code.access[self.pc]

    def _load(self, insn: Insn, size: int) -> str:
        access = self._verified()
        if access is None or access.region is not Region.CONTEXT:
            pointer = self._access(insn.src, insn.off, size)
            return self.text.let(f"load i{8 * size}, ptr {pointer}, align {self._align(size)}")
        for column in EVENT_ROW:
            inside = access.offset - EVENT_ROW.offsets[column.name]
            if inside >= 0 and inside + size <= column.bits // 8:
                value, bits = self.target.column(self.text, column), column.bits
                if inside:
                    value = self.text.let(f"lshr i{bits} {value}, {8 * inside}")
                return value if bits == 8 * size else self.text.let(f"trunc i{bits} {value} to i{8 * size}")
        raise self._cannot(f"bytes {access.offset} to {access.offset + size} of the row are not within one column")

    def _access(self, register: int, offset: int, size: int) -> str:
        """A pointer for a load, store or atomic on the stack or in a value."""
        access, place = self._verified(), self.state[register]
        if access is not None and access.region is Region.CONTEXT:
            raise self._cannot("the row is only read")
        if place and access and (place.map == FRAME) != (access.region is Region.STACK):
            raise self._cannot(f"r{register} does not point where the verdict says")
        return self._pointer(register, offset, size)

    def _pointer(self, register: int, offset: int, size: int) -> str:
        """A pointer to `size` bytes at a register and an offset."""
        place = self.state[register]
        if place:
            return self._at(Place(place.map, place.offset + offset), size)
        address = self._get(register)
        if offset:
            address = self.text.let(f"add i64 {address}, {offset}")
        return self.text.let(f"inttoptr i64 {address} to ptr")

    def _at(self, place: Place, size: int) -> str:
        if place.map == FRAME:
            low, high, base = -self.frame, 0, "%top"
        else:
            maps = self.code.maps
            if not (0 <= place.map < len(maps) and maps[place.map].max_entries == 1 and maps[place.map].indexed):
                raise self._cannot(f"map {place.map} is no global")
            low, high, base = 0, maps[place.map].value_size, self.target.global_value(self.text, place.map)
        # A pointer alone may stand anywhere near; only what is touched must be inside.
        if size and not low <= place.offset <= high - size:
            raise self._cannot(f"bytes {place.offset} to {place.offset + size} are outside of {low} to {high}")
        return self.text.let(f"getelementptr i8, ptr {base}, i64 {place.offset}") if place.offset else base

    def _local(self, insn: Insn) -> None:
        callee = self.pc + 1 + insn.imm
        if not 0 <= callee < len(self.code.insns):
            raise self._cannot(f"it calls slot {callee}, which is not there")
        self.callees.append(callee)
        arguments = ", ".join(f"i64 {self._get(r)}" for r in range(R1, R1 + 5))
        self._set(R0, self.text.let(f"call i64 @f{callee}({arguments}, {self.target.parameters})"))

    def _helper(self, insn: Insn) -> None:
        helper = HELPER_BY_ID.get(insn.imm)
        if helper is None:
            raise self._cannot(f"there is no helper {insn.imm}")
        if helper.id == KTIME:
            return self._set(R0, self.target.column(self.text, EVENT_ROW["t"]))
        if helper.id == EMIT:
            self.target.emit(self.text)
            return self._set(R0, "0")
        index = (self.code.call_maps or {}).get(self.pc, -1)
        if not 0 <= index < len(self.code.maps) or self.code.maps[index].kind not in helper.maps:
            raise self._cannot(f"the verdict gives {helper.name} no map that it works on")
        sizes = {Arg.KEY: self.code.maps[index].key_size, Arg.VALUE: self.code.maps[index].value_size}
        arguments = [self.target.helper_parameters]
        for register, kind in enumerate(helper.args[1:], R1 + 1):
            if kind is Arg.SCALAR:
                arguments.append(f"i64 {self._get(register)}")
            else:
                arguments.append(f"ptr {self._pointer(register, 0, sizes[kind])}")
        self.helpers.append((index, helper.id))
        return self._set(R0, self.text.let(f"call i64 @m{index}.{helper.name}({', '.join(arguments)})"))
