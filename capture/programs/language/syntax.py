"""What a query says, as a tree: nothing is resolved or checked here beyond the grammar."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import Position


@dataclass(frozen=True)
class Node:
    """at: where it begins. depth: of the tree under it, kept so that no tree is too deep to walk."""

    at: Position
    depth: int = field(default=1, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Number(Node):
    """A literal; units are already multiplied in. Times are ns."""

    value: int


@dataclass(frozen=True)
class String(Node):
    """Text between quotes, escapes undone."""

    value: str


@dataclass(frozen=True)
class Name(Node):
    """A field, a coordinate or a constant."""

    name: str


@dataclass(frozen=True)
class Local(Node):
    """$name"""

    name: str


@dataclass(frozen=True)
class MapRef(Node):
    """@name or @name[keys]"""

    name: str
    keys: tuple[Expr, ...]


@dataclass(frozen=True)
class Call(Node):
    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Unary(Node):
    """op: ! - ~"""

    op: str
    value: Expr


@dataclass(frozen=True)
class Binary(Node):
    """op: || && == != < > <= >= | ^ & << >> + - * / %; `at` is the operator's place"""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Choice(Node):
    """condition ? yes : no"""

    condition: Expr
    yes: Expr
    no: Expr


Expr = Number | String | Name | Local | MapRef | Call | Unary | Binary | Choice


@dataclass(frozen=True)
class Assignment(Node):
    """op: "" or the operator before = ; ++ and -- are + and - of 1"""

    target: MapRef | Local
    op: str
    value: Expr


@dataclass(frozen=True)
class Action(Node):
    """A call as a statement. limit: what stands in `limit(…)` after it."""

    call: Call
    limit: Expr | None


@dataclass(frozen=True)
class If(Node):
    condition: Expr
    then: Block
    otherwise: Block | None


@dataclass(frozen=True)
class Block(Node):
    statements: tuple[Statement, ...]


Statement = Assignment | Action | If


@dataclass(frozen=True)
class Head(Node):
    """A hook, or begin, end, interval. period: what stands after interval, ns."""

    name: str
    period: int | None


@dataclass(frozen=True)
class Clause(Node):
    heads: tuple[Head, ...]
    predicate: Expr | None
    block: Block


@dataclass(frozen=True)
class Constant(Node):
    """const name = value;"""

    name: str
    value: Expr


@dataclass(frozen=True)
class Declaration(Node):
    """map @name[columns] size N shared; columns: None where no brackets stand"""

    name: str
    columns: tuple[str, ...] | None
    size: Expr | None
    shared: bool


@dataclass(frozen=True)
class Query(Node):
    items: tuple[Constant | Declaration | Clause, ...]


def first(e: Expr) -> Position:
    """Where an expression's text begins, but for parentheses before it."""
    while isinstance(e, Binary):
        e = e.left
    return e.at
