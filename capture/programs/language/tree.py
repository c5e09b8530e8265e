"""A resolved query: what is computed for an event, with every name gone. Between the syntax tree and the code.

Every value is a signed 64-bit integer. An expression may be *missing* (the row does not carry it): a condition that
reaches a missing value is false, a statement that reaches one is not executed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Position


@dataclass(frozen=True)
class Const:
    value: int


@dataclass(frozen=True)
class Load:
    """`size` bytes of the row at `offset`, without sign (eight bytes: as they are)."""

    offset: int
    size: int


@dataclass(frozen=True)
class Bits:
    """(row >> shift) & (2^bits - 1)"""

    of: Load
    shift: int
    bits: int


@dataclass(frozen=True)
class Since:
    """t - aux; missing where aux is 0, and unless one of `flags` is set, where there are any."""

    flags: int = 0


@dataclass(frozen=True)
class Looked:
    """An entry of a constant table by `of`: `width` bytes each; missing where it is all ones, or beyond the table."""

    of: Expr
    table: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of the tile. which: by task class, index into `layouts` from 1, 0: it has no such coordinate.

    layouts: (shift, bits). Missing where the class has it not, and in a row that stands for several tasks.
    """

    which: tuple[int, ...]
    layouts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Member:
    """1 where a number is one of `ids` (ascending, not negative)."""

    of: Expr
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """1 for one in n tasks, and for rows that stand for several."""

    n: int


@dataclass(frozen=True)
class Unary:
    """op: - ~ !"""

    op: str
    value: Expr


@dataclass(frozen=True)
class Binary:
    """op: | ^ & << >> + - * / %"""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Compare:
    """op: == != < > <= >="""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Logic:
    """op: && ||; the right side is looked at only if the left does not decide"""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Choice:
    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True)
class Local:
    """Number of a local of the clause. unsure: it may be missing."""

    index: int
    unsure: bool


@dataclass(frozen=True)
class Read:
    """State under a key; 0 where the key is not there."""

    map: str
    keys: tuple[Expr, ...]


@dataclass(frozen=True)
class Feedback:
    """An engine-wide value; missing until the host has written it. index: which cell, None: the only one."""

    map: str
    index: Expr | None


Expr = (
    Const | Load | Bits | Since | Looked | Coordinate | Member | Sample | Unary | Binary | Compare | Logic | Choice
    | Local | Read | Feedback
)  # fmt: skip
BOOLEAN = (Member, Sample, Compare, Logic)


@dataclass(frozen=True)
class Aggregate:
    """what: count, sum, min, max, avg, stats, hist, lhist, row. value: None for count and row."""

    at: Position
    map: str
    keys: tuple[Expr, ...]
    what: str
    value: Expr | None = None
    linear: tuple[int, int, int] = (0, 0, 0)
    """lhist: min, max, step"""


@dataclass(frozen=True)
class Store:
    at: Position
    map: str
    keys: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Add:
    """The value under a key goes up by `value`, from 0 where it is not there."""

    at: Position
    map: str
    keys: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Delete:
    at: Position
    map: str
    keys: tuple[Expr, ...]


@dataclass(frozen=True)
class SetLocal:
    at: Position
    local: Local
    value: Expr


@dataclass(frozen=True)
class If:
    at: Position
    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Emit:
    at: Position


Statement = Aggregate | Store | Add | Delete | SetLocal | If | Emit


@dataclass(frozen=True)
class Body:
    """One clause at one hook. locals: by number, whether it may be missing."""

    at: Position
    predicate: Expr | None
    predicate_at: Position
    statements: tuple[Statement, ...]
    locals: tuple[bool, ...]


def never_negative(e: Expr) -> bool:
    """Is it known that the value is not below 0?"""
    match e:
        case Const(value):
            return value >= 0
        case Load(size=size):
            return size < 8
        case Bits() | Looked() | Coordinate() | Member() | Sample() | Compare() | Logic():
            return True
        case Unary(op):
            return op == "!"
        case Binary("&", a, b):
            return never_negative(a) or never_negative(b)
        case Binary(">>" | "%", a, _):
            return never_negative(a)
        case Binary("|" | "^" | "/", a, b) | Choice(_, a, b):
            return never_negative(a) and never_negative(b)
    return False


def may_be_missing(e: Expr) -> bool:
    """Can an event have no such value? A condition inside it that is missing is false, and no reason."""
    match e:
        case Since() | Looked() | Coordinate() | Feedback():
            return True
        case Local(_, unsure):
            return unsure
        case Member(of) | Unary(_, of):
            return may_be_missing(of)
        case Binary(_, a, b) | Compare(_, a, b) | Logic(_, a, b):
            return may_be_missing(a) or may_be_missing(b)
        case Choice(_, a, b):
            return may_be_missing(a) or may_be_missing(b)
        case Read(_, keys):
            return any(may_be_missing(k) for k in keys)
    return False


def width(e: Expr) -> tuple[str, int]:
    """How a key holds the value: ("u", 1, 2 or 4 bytes), or ("i", 8): eight bytes are signed, as all values are."""
    match e:
        case Const(value) if value >= 0:
            return _held(value.bit_length())
        case Load(_, size) | Looked(_, _, size):
            return _held(8 * size)
        case Bits(_, _, bits):
            return _held(bits)
        case Coordinate(_, layouts):
            return _held(max(bits for _, bits in layouts))
        case Unary("!", _):
            return "u", 1
        case Choice(_, a, b):
            return wider(width(a), width(b))
    return ("u", 1) if isinstance(e, BOOLEAN) else ("i", 8)


def wider(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
    """One way to hold what either holds."""
    return a if a == b else ("i", 8) if "i" in a[0] + b[0] else ("u", max(a[1], b[1]))


def _held(bits: int) -> tuple[str, int]:
    return next((("u", size) for size in (1, 2, 4) if bits <= 8 * size), ("i", 8))
