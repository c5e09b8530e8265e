"""Text to instructions, in the syntax of the bpf_conformance suite, with helpers and maps by name.

    start:  mov %r6, %r1            # a comment, also after ; or //
            ldxw %r2, [%r6+32]
            jeq %r2, 0, out         # a label, or slots to go: +3
            lddw %r1, map:lat       # also map:0, value:rodata+8, 0x1122334455667788
            call hist_add           # also call 1004, call local function
    out:    exit
            .slot 0x0000000000000095

`exit` as a target is the last exit of the text unless a label has that name. A number before a colon is the slot that
its line stands at, as listings have it, and is checked. `.slot` gives a slot's 64 bits as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ...store.errors import Refused
from .helpers import HELPER_BY_NAME
from .isa import REGISTERS, Insn, Kind, Operation, Pseudo, decode
from .mnemonics import ENCODINGS, MNEMONICS

NAME = r"[A-Za-z_.@$][\w.@$]*"
"""What a label, a map or a function may be called."""
_DIGITS = "(?:0[xX][0-9a-fA-F]{1,32}|[0-9]{1,32})"
_NUMBER = f"[+-]?{_DIGITS}"
_COMMENT = re.compile(r"(#|;|//).*")
_LABEL = re.compile(rf"\s*({NAME}|[0-9]{{1,9}}):")
_WORDS = re.compile(r"\s*(lock\s+fetch\s+[\w]+|lock\s+\w+|call\s+local|\.?\w+)(?:\s+|$)")
_REGISTER = re.compile(r"%?r([0-9]{1,9})")
_MEMORY = re.compile(rf"\[\s*(%?r[0-9]{{1,9}})\s*([+-]\s*{_DIGITS})?\s*\]")
_MAP = re.compile(rf"(map|value):({NAME}|[0-9]{{1,9}})({_NUMBER})?")
_ALIASES = {"swap16": "bswap16", "swap32": "bswap32", "swap64": "bswap64"}


class AssemblyError(Refused):
    """Text that is no program: line and column count from 1."""

    def __init__(self, line: int, column: int, reason: str, todo: str = "") -> None:
        super().__init__("assembly", f"line {line}, column {column}: {reason}", todo)
        self.line, self.column, self.reason = line, column, reason


@dataclass(frozen=True)
class Assembly:
    """Slots, and the slot of every label."""

    insns: tuple[Insn, ...]
    labels: dict[str, int]


@dataclass(frozen=True)
class _Operand:
    text: str
    line: int
    column: int

    def error(self, reason: str, todo: str = "") -> AssemblyError:
        return AssemblyError(self.line, self.column, reason, todo)


@dataclass
class _Text:
    """What has been assembled so far. jumps: slots whose target is yet to be filled in."""

    maps: Mapping[str, int]
    insns: list[Insn] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    jumps: list[tuple[int, Operation, _Operand]] = field(default_factory=list)
    last_exit: int | None = None


def assemble(text: str, maps: Mapping[str, int] | None = None) -> tuple[Insn, ...]:
    """The slots of `text`. maps: index by name, for `map:NAME` and `value:NAME`. Raises AssemblyError."""
    return assemble_labelled(text, maps).insns


def assemble_labelled(text: str, maps: Mapping[str, int] | None = None) -> Assembly:
    """Like `assemble`, and where the labels are: what functions and entries are made of."""
    out = _Text(maps or {})
    for number, line in enumerate(text.splitlines(), 1):
        _line(out, _COMMENT.sub("", line), number)
    for at, op, operand in out.jumps:
        out.insns[at] = _aimed(out, at, op, operand)
    return Assembly(tuple(out.insns), out.labels)


def _line(out: _Text, line: str, number: int) -> None:
    at = 0
    while label := _LABEL.match(line, at):
        where = _Operand(label[1], number, label.start(1) + 1)
        if label[1].isdigit():
            if int(label[1]) != len(out.insns):
                raise where.error(f"this is slot {len(out.insns)}", "correct the number, or leave it out")
        elif label[1] in out.labels:
            raise where.error(f"label {label[1]} is there already", "choose another name")
        else:
            out.labels[label[1]] = len(out.insns)
        at = label.end()
    if not line[at:].strip():
        return
    words = _WORDS.match(line, at)
    first = len(line) - len(line[at:].lstrip())
    if not words:
        raise AssemblyError(number, first + 1, f"{line[first:].strip()!r} is no instruction")
    name = _Operand(" ".join(words[1].split()), number, first + 1)
    _instruction(out, name, _operands(line, words.end(), number))


def _operands(line: str, at: int, number: int) -> list[_Operand]:
    out: list[_Operand] = []
    if not line[at:].strip():
        return out
    for part in line[at:].split(","):
        out.append(_Operand(part.strip(), number, at + len(part) - len(part.lstrip()) + 1))
        at += len(part) + 1
    return out


def _instruction(out: _Text, name: _Operand, operands: list[_Operand]) -> None:
    word = _ALIASES.get(name.text, name.text)
    if word == ".slot":
        (operand,) = _counted(name, operands, 1)
        out.insns += decode(_number(operand, 0, (1 << 64) - 1).to_bytes(8, "little"))
        return
    if word not in MNEMONICS:
        raise name.error(f"there is no instruction {name.text}", _close(word, [*MNEMONICS, *_ALIASES, ".slot"]))
    register = len(operands) > 1 and bool(_REGISTER.fullmatch(operands[1].text))
    op, insn = ENCODINGS.get((word, register)) or ENCODINGS[word, not register]
    out.insns += _filled(out, op, insn, name, operands)


def _filled(out: _Text, op: Operation, insn: Insn, name: _Operand, operands: list[_Operand]) -> tuple[Insn, ...]:
    """The slots of one instruction: `insn` with its operands filled in."""
    here = len(out.insns)
    match op.kind:
        case Kind.EXIT:
            _counted(name, operands, 0)
            out.last_exit = here
        case Kind.SWAP:
            insn = insn._replace(dst=_register(_counted(name, operands, 1)[0]))
        case Kind.ALU if op.name == "neg":
            insn = insn._replace(dst=_register(_counted(name, operands, 1)[0]))
        case Kind.ALU:
            dst, second = _counted(name, operands, 2)
            insn = _operand(insn._replace(dst=_register(dst)), op, second)
        case Kind.WIDE:
            dst, second = _counted(name, operands, 2)
            return _wide(out, insn._replace(dst=_register(dst)), second)
        case Kind.LOAD | Kind.LOADSX:
            dst, second = _counted(name, operands, 2)
            base, off = _memory(second)
            insn = insn._replace(dst=_register(dst), src=base, off=off)
        case Kind.STORE | Kind.ATOMIC:
            first, second = _counted(name, operands, 2)
            base, off = _memory(first)
            insn = _operand(insn._replace(dst=base, off=off), op, second)
        case Kind.JUMP:
            dst, second, to = _counted(name, operands, 3)
            out.jumps.append((here, op, to))
            insn = _operand(insn._replace(dst=_register(dst)), op, second)
        case Kind.GOTO:
            out.jumps.append((here, op, _counted(name, operands, 1)[0]))
        case Kind.CALL if op.register:
            out.jumps.append((here, op, _counted(name, operands, 1)[0]))
        case Kind.CALL:
            insn = insn._replace(imm=_helper(_counted(name, operands, 1)[0], out.labels))
    return (insn,)


def _counted(name: _Operand, operands: list[_Operand], wanted: int) -> list[_Operand]:
    if len(operands) != wanted or not all(o.text for o in operands):
        were = sum(bool(o.text) for o in operands)
        raise name.error(f"{name.text} takes {wanted} operand{'s' * (wanted != 1)}, not {were}")
    return operands


def _register(operand: _Operand) -> int:
    found = _REGISTER.fullmatch(operand.text)
    if not found:
        raise operand.error(f"{operand.text!r} is no register", "write %r0 to %r10")
    if int(found[1]) >= REGISTERS:
        raise operand.error(f"there is no register {operand.text}", "write %r0 to %r10")
    return int(found[1])


def _number(operand: _Operand, low: int, high: int, text: str | None = None) -> int:
    text = operand.text if text is None else text.replace(" ", "")
    if not re.fullmatch(_NUMBER, text):
        raise operand.error(f"{text!r} is no number")
    value = int(text, 16 if "x" in text.lower() else 10)
    if not low <= value <= high:
        raise operand.error(f"{text} does not fit: {low} to {high}")
    return value


def _immediate(operand: _Operand) -> int:
    """32 bits, given signed or not; kept signed."""
    return _signed(_number(operand, -(1 << 31), (1 << 32) - 1))


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _operand(insn: Insn, op: Operation, operand: _Operand) -> Insn:
    if op.register:
        return insn._replace(src=_register(operand))
    return insn._replace(imm=_immediate(operand))


def _memory(operand: _Operand) -> tuple[int, int]:
    found = _MEMORY.fullmatch(operand.text)
    if not found:
        raise operand.error(f"{operand.text!r} is no memory operand", "write [%r1], [%r1+8] or [%r10-8]")
    base = _register(_Operand(found[1], operand.line, operand.column))
    return base, _number(operand, -(1 << 15), (1 << 15) - 1, found[2]) if found[2] else 0


def _wide(out: _Text, insn: Insn, operand: _Operand) -> tuple[Insn, Insn]:
    found = _MAP.fullmatch(operand.text)
    if not found:
        if operand.text.startswith(("map:", "value:")):
            raise operand.error(f"{operand.text!r} is no map", "write map:NAME or value:NAME+8")
        value = _number(operand, -(1 << 63), (1 << 64) - 1)
        return insn._replace(imm=_signed(value & 0xFFFF_FFFF)), Insn(0, imm=_signed(value >> 32 & 0xFFFF_FFFF))
    kind, name, offset = found.groups()
    if kind == "map" and offset:
        raise operand.error("a map has no offset", f"write value:{name}{offset}")
    if not name.isdigit() and name not in out.maps:
        raise operand.error(f"there is no map {name}", _close(name, out.maps))
    index = int(name) if name.isdigit() else out.maps[name]
    insn = insn._replace(src=Pseudo.MAP if kind == "map" else Pseudo.VALUE, imm=index)
    return insn, Insn(0, imm=_number(operand, -(1 << 31), (1 << 31) - 1, offset) if offset else 0)


def _helper(operand: _Operand, labels: Mapping[str, int]) -> int:
    if operand.text in HELPER_BY_NAME:
        return HELPER_BY_NAME[operand.text].id
    if _REGISTER.fullmatch(operand.text):
        raise operand.error("calls through a register are not part of the instruction set", "call a helper by name")
    if re.fullmatch(_NUMBER, operand.text):
        return _immediate(operand)
    todo = f"write call local {operand.text}" if operand.text in labels else _close(operand.text, HELPER_BY_NAME)
    raise operand.error(f"there is no helper {operand.text}", todo)


def _aimed(out: _Text, at: int, op: Operation, operand: _Operand) -> Insn:
    """The instruction at `at`, now that the labels are known."""
    insn = out.insns[at]
    far = op.kind == Kind.CALL or (op.bits == 32 and op.kind == Kind.GOTO)
    low = -(1 << 31 if far else 1 << 15)
    if operand.text in out.labels:
        to = out.labels[operand.text] - at - 1
    elif operand.text == "exit" and out.last_exit is not None:
        to = out.last_exit - at - 1
    elif re.fullmatch(_NUMBER, operand.text):
        to = _number(operand, low, -low - 1)
    else:
        raise operand.error(f"there is no label {operand.text}", _close(operand.text, out.labels))
    if not low <= to < -low:
        raise operand.error(f"{operand.text} is {to} slots away, more than 16 bits hold", "use ja32")
    return insn._replace(imm=to) if far else insn._replace(off=to)


def _close(word: str, words: Iterable[str]) -> str:
    found = get_close_matches(word, list(words), 1)
    return f"did you mean {found[0]}?" if found else ""
