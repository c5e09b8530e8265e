"""LLVM assembly as text: lines of one function body, its values numbered as they are made.

Text, because LLVM's parser checks all of it before anything is compiled, and because a reader can print it.
"""

from __future__ import annotations


class Text:
    """A function body in the making. Values are operands: `%v7`, or a decimal constant."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values = 0
        self._labels = 0

    def let(self, expression: str) -> str:
        """A new value."""
        name = f"%v{self._values}"
        self._values += 1
        self.lines.append(f"  {name} = {expression}")
        return name

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def fresh(self, stem: str) -> str:
        """The name of a new label."""
        self._labels += 1
        return f"{stem}{self._labels}"

    def __str__(self) -> str:
        return "\n".join(self.lines)


def is_constant(value: str) -> bool:
    return value[0] != "%"


def signed(number: int, bits: int = 64) -> int:
    """The number that the low `bits` bits of `number` are in two's complement, as LLVM writes constants."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def narrow(text: Text, value: str, bits: int) -> str:
    """The low bits of a 64-bit value."""
    if bits == 64:
        return value
    if is_constant(value):
        return str(signed(int(value), bits))
    return text.let(f"trunc i64 {value} to i{bits}")


def zero_extend(text: Text, value: str, bits: int) -> str:
    """A value of `bits` bits as 64 bits."""
    if bits == 64:
        return value
    if is_constant(value):
        return str(int(value) & ((1 << bits) - 1))
    return text.let(f"zext i{bits} {value} to i64")


def sign_extend(text: Text, value: str, bits: int) -> str:
    if bits == 64:
        return value
    if is_constant(value):
        return str(signed(int(value), bits))
    return text.let(f"sext i{bits} {value} to i64")


def function(signature: str, body: str, attributes: str = "") -> str:
    """A definition that only its module sees."""
    return f"define internal {signature} {attributes} {{\n{body.strip(chr(10))}\n}}\n"
