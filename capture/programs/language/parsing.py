"""Text to syntax tree. Whatever the text, the result is a tree or a Problem at a place in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from . import literals, syntax
from .errors import Position, Problem

MAX_TEXT = 1 << 16
"""characters"""
MAX_DEPTH = 60
"""of the tree: walking it never nears Python's own limit"""

_NO_POINTERS = "there are no pointers: fields are named, and a map gives values"
_FRIENDLY = {
    "SEMICOLON": "`;`", "RBRACE": "`}`", "BEGIN": "`{`", "RPAR": "`)`", "LPAR": "`(`", "RSQB": "`]`", "LSQB": "`[`",
    "COMMA": "`,`", "COLON": "`:`", "EQUAL": "`=`", "_END": "`/`", "NAME": "a name", "NUMBER": "a number",
    "MAP": "a map (@name)", "ASSIGN": "`=`", "STEP": "`++`", "IF": "if", "ELSE": "else", "$END": "the end",
}  # fmt: skip
_STARTS = {"NAME", "NUMBER", "STRING", "MAP", "LOCAL", "LPAR"}


def _place(x: Any) -> Position:
    return Position(x.line or 1, x.column or 1)


class _Builder(Transformer[Token, syntax.Query]):
    """Lark's rules to nodes, called while it parses, so that no deep tree is ever walked for it."""

    @staticmethod
    def _node(kind: Any, at: Position, *fields: Any) -> Any:
        deepest = 0
        for value in fields:
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, syntax.Node):
                    deepest = max(deepest, child.depth)
        if deepest >= MAX_DEPTH:
            raise Problem(at, f"this is nested more than {MAX_DEPTH} deep", "use a $local for a part of it")
        return kind(at, *fields, depth=deepest + 1)

    def number(self, c: list[Any]) -> Any:
        return self._node(syntax.Number, _place(c[0]), literals.number(str(c[0]), _place(c[0])))

    def string(self, c: list[Any]) -> Any:
        return self._node(syntax.String, _place(c[0]), literals.string(str(c[0]), _place(c[0])))

    def name(self, c: list[Any]) -> Any:
        return self._node(syntax.Name, _place(c[0]), str(c[0]))

    def local(self, c: list[Any]) -> Any:
        return self._node(syntax.Local, _place(c[0]), str(c[0])[1:])

    def map_ref(self, c: list[Any]) -> Any:
        return self._node(syntax.MapRef, _place(c[0]), _map_name(c[0]), tuple(k for k in c[1:] if k is not None))

    def call(self, c: list[Any]) -> Any:
        return self._node(syntax.Call, _place(c[0]), str(c[0]), tuple(a for a in c[1:] if a is not None))

    def group(self, c: list[Any]) -> Any:
        return c[0]

    def unary(self, c: list[Any]) -> Any:
        return self._node(syntax.Unary, _place(c[0]), str(c[0]), c[1])

    def binary(self, c: list[Any]) -> Any:
        return self._node(syntax.Binary, _place(c[1]), str(c[1]), c[0], c[2])

    def choice(self, c: list[Any]) -> Any:
        return self._node(syntax.Choice, c[0].at, *c)

    def pointer(self, c: list[Any]) -> Any:
        raise Problem(_place(c[0]), f"`{c[0]}` has no meaning here", _NO_POINTERS)

    def assignment(self, c: list[Any]) -> Any:
        return self._node(syntax.Assignment, c[0].at, c[0], str(c[1])[:-1], c[2])

    def step(self, c: list[Any]) -> Any:
        return self._node(syntax.Assignment, c[0].at, c[0], str(c[1])[0], syntax.Number(_place(c[1]), 1))

    def action(self, c: list[Any]) -> Any:
        return self._node(syntax.Action, c[0].at, *c)

    def conditional(self, c: list[Any]) -> Any:
        _, condition, then, other = c
        if isinstance(other, syntax.If):
            other = self._node(syntax.Block, other.at, (other,))
        return self._node(syntax.If, _place(c[0]), condition, then, other)

    def block(self, c: list[Any]) -> Any:
        return self._node(syntax.Block, _place(c[0]), tuple(x for x in c if isinstance(x, syntax.Node)))

    def head(self, c: list[Any]) -> Any:
        period = None if c[1] is None else literals.number(str(c[1]), _place(c[1]))
        if c[1] is not None and not literals.duration(c[1]):
            raise Problem(_place(c[1]), f"{c[1]} is no time", f"say {c[1]}s or {c[1]}ms" if c[1].isdigit() else "")
        return self._node(syntax.Head, _place(c[0]), str(c[0]), period)

    def heads(self, c: list[Any]) -> Any:
        return tuple(c)

    def clause(self, c: list[Any]) -> Any:
        return self._node(syntax.Clause, c[0][0].at, *c)

    def constant(self, c: list[Any]) -> Any:
        return self._node(syntax.Constant, _place(c[0]), str(c[0]), c[1])

    def columns(self, c: list[Any]) -> Any:
        return tuple(str(x) for x in c)

    def declaration(self, c: list[Any]) -> Any:
        name, columns, size, shared = c
        return self._node(syntax.Declaration, _place(name), _map_name(name), columns, size, shared is not None)

    def start(self, c: list[Any]) -> Any:
        return self._node(syntax.Query, Position(1, 1), tuple(c))


def _left_out(why: str, todo: str) -> Callable[[Token], Token]:
    """Refuses a token as soon as it is read, whatever would follow."""

    def refuse(token: Token) -> Token:
        raise Problem(_place(token), why.format(token), todo)

    return refuse


_LEFT_OUT = {
    "LOOP": _left_out("there is no `{}`", "a query runs once an event, straight through; use if and ?:"),
    "FUNCTION": _left_out("there are no user functions", "write a clause, or a program in C"),
    "ARROW": _left_out("`{}` has no meaning here", _NO_POINTERS),
}


def _map_name(token: Token) -> str:
    """`@` alone is the map named `map`."""
    return str(token)[1:] or "map"


@cache
def grammar() -> Lark:
    """The parser."""
    rules = files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        rules,
        parser="lalr",
        lexer="contextual",
        maybe_placeholders=True,
        transformer=_Builder(),
        lexer_callbacks=_LEFT_OUT,
    )


def parse(text: str) -> syntax.Query:
    """The tree of a query. Raises Problem."""
    if len(text) > MAX_TEXT:
        raise Problem(
            Position(1, 1), f"it has {len(text)} characters, more than {MAX_TEXT}", "make several queries of it"
        )
    try:
        tree: Any = grammar().parse(text)
    except UnexpectedInput as e:
        raise _explained(e, text) from None
    query: syntax.Query = tree
    if not any(isinstance(item, syntax.Clause) for item in query.items):
        raise Problem(Position(1, 1), "it has no clause", "write HOOK { … }, as in: complete { @n = count(); }")
    return query


def _explained(e: UnexpectedInput, text: str) -> Problem:
    if isinstance(e, UnexpectedCharacters):
        at, char = Position(e.line, e.column), text[e.pos_in_stream or 0]
        if char == '"':
            return Problem(at, "a string is not closed", 'end it with " on the same line')
        if char in "'`":
            return Problem(at, f"{char} begins nothing here", 'strings stand between " and "')
        if char == ".":
            return Problem(at, "there is no floating point, and no member of a field", "numbers are whole")
        return Problem(at, f"{char!r} has no meaning here")
    expected = _expected(e)
    if not isinstance(e, UnexpectedToken) or e.token.type == "$END":
        lines = text.rstrip().split("\n")
        at = Position(len(lines), len(lines[-1]) + 1)
        return Problem(at, "the query ends too early", f"expected {expected}" if expected else "")
    token = e.token
    # What an LALR state expects includes what only another context would take.
    accepted = e.accepts or e.expected
    if token.type == "BEGIN" and "RPAR" in accepted:
        return Problem(_place(token), "a parenthesis is not closed", "end it with ) before {")
    if token.type == "BEGIN" and "_END" in accepted:
        return Problem(_place(token), "the predicate is not closed", "end it with / before {")
    if token.type == "COMPARE" and "COMPARE" not in e.accepts | e.expected:
        why = "a comparison of a comparison has no meaning"
        return Problem(_place(token), why, "join comparisons with && or ||, or set parentheses")
    return Problem(
        _place(token), f"`{str(token)[:40]}` was not expected here", f"expected {expected}" if expected else ""
    )


def _expected(e: UnexpectedInput) -> str:
    """What could stand there, in words, where that is few enough to help."""
    kinds = set(getattr(e, "accepts", None) or getattr(e, "expected", None) or ())
    words = ["a value"] if kinds >= _STARTS else []
    kinds -= _STARTS if words else set()
    words += sorted({_FRIENDLY[k] for k in kinds if k in _FRIENDLY})
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) if len(words) <= 6 else ""
