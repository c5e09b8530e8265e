"""Whatever the text: a query, or a refusal with a place in it. Never another exception, never a hang."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark.grammar import NonTerminal, Symbol
from query_runs import TABLES, arrow
from query_texts import queries
from test_query_errors import REFUSED
from test_query_features import FEATURES

from megascope.capture.programs import language
from megascope.capture.programs.language import QueryRefused, parsing

HANG_S = 20
"""of the processor's time, for one text"""
_ARROW = arrow(TABLES)
_GOOD = list(FEATURES.values())
_SEEDS = [*FEATURES.values(), *REFUSED]
_WORDS = (
    "complete", "start", "interval 1s", "begin", "end", "epoch", "map", "size", "shared", "const", "if", "else",
    "while", "count()", "hist(", "lhist(t, 0, 10, 2)", "sum(", "p99(@x)", "total(@x", "sample(1/4)", "belongs_to(",
    "emit()", "limit(5/s)", "delete(@x)", "clear(@x)", "print(@x)", "top(@x, 3)", 'printf("%d", t)', "exec_ns",
    "queue_ns", "class", "operator", "expert", "tile.tile", "@x", "@x[class]", "@", "$a", "$a = 1", "20us", "0xff",
    "9999999999999999999", "1.5", '"l00.attn"', '"', "'", "/", "//", "/*", "*/", "{", "}", "(", ")", "[", "]", ";",
    ",", "?", ":", "=", "==", "+=", "++", "<<", ">>", "->", "&", "&&", "|", "||", "^", "~", "!", "-", "%", "*", "\n",
    "\t", "\0", "\u2028", "é", "𝕏", "#", "\\",
)  # fmt: skip
_PIECES = re.compile(r"[@$]?\w+|\s+|[<>=!&|+-]{1,2}|.", re.DOTALL)


def _kind(piece: str) -> str:
    """Pieces of one kind may stand for each other."""
    return (
        "space"
        if piece.isspace()
        else "number"
        if piece[:1].isdigit()
        else "word"
        if piece[:1].isalpha()
        else piece[:1]
    )


_KNOWN = {"": [""]}
for _seed in _SEEDS:
    for _piece in _PIECES.findall(_seed):
        _KNOWN.setdefault(_kind(_piece), []).append(_piece)


def _compiled(text: str) -> bool:
    """Whether it is a query; a refusal has a place in the text and one line."""

    def hung(*_: object) -> None:
        raise TimeoutError(text)

    before = signal.signal(signal.SIGPROF, hung)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        language.compile(text, _ARROW)
    except QueryRefused as e:
        lines = text.split("\n")
        assert 1 <= e.line <= len(lines), (text, e.line)
        assert 1 <= e.column <= len(lines[e.line - 1]) + 1, (text, e.column)
        assert e.why, text
        assert "\n" not in str(e), text
        assert e.excerpt.count("\n") == 1, text
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return True


def _mutated(rng: random.Random) -> str:
    """A query with something cut, doubled, put in, exchanged or joined with another's part."""
    text = rng.choice(_SEEDS if rng.random() < 0.2 else _GOOD)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        match rng.randrange(10):
            case 0:
                text = text[:a] + text[min(b, a + 8) :]
            case 1:
                text = text[:b] + text[a:b][:60] + text[b:]
            case 2:
                text = text[:a] + rng.choice(_WORDS) + text[a:]
            case 3:
                text = text[:a] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xD800)))) + text[a + 1 :]
            case 4:
                other = rng.choice(_SEEDS)
                text = text[:a] + other[rng.randrange(len(other) + 1) :]
            case 5:
                text = text[:a] + " " + rng.choice(_WORDS) + " " + text[b:]
            case _:
                pieces = _PIECES.findall(text) or [""]
                at = rng.randrange(len(pieces))
                pieces[at] = rng.choice(_KNOWN.get(_kind(pieces[at]), _WORDS) if rng.random() < 0.8 else _WORDS)
                text = "".join(pieces)
    return text[:4000]


def _made(rng: random.Random) -> str:
    """A text of the grammar's rules, of about as many pieces as a query has; it may make no sense."""
    least = _least_pieces()
    out: list[str] = []
    open_ = [NonTerminal("start")]
    room = rng.randrange(10, 150)
    while open_:
        symbol = open_.pop()
        if symbol.is_term:
            out.append(rng.choice(_TERMINALS.get(symbol.name) or [_literal(symbol.name)]))
            continue
        choices = _rules()[symbol.name]
        if len(out) + len(open_) > room:
            few = min(sum(least[s.name] for s in c) for c in choices)
            choices = [c for c in choices if sum(least[s.name] for s in c) == few]
        open_ += reversed(rng.choice(choices))
    return " ".join(out)


_TERMINALS = {
    "NAME": ["t", "class", "exec_ns", "worker", "complete", "start", "count", "hist", "emit", "print", "expert", "x"],
    "MAP": ["@", "@a", "@b", "@lat"],
    "LOCAL": ["$a", "$b"],
    "NUMBER": ["0", "1", "20us", "64", "0x10"],
    "STRING": ['"l00.attn"', '"%d"', '"data"'],
    "ASSIGN": ["=", "=", "+=", "<<="],
    "STEP": ["++", "--"],
    "COMPARE": ["==", "<", ">="],
    "SHIFT": ["<<", ">>"],
    "LOOP": ["while ("],
    "FUNCTION": ["fn f"],
    "_END": ["/"],
}


def _literal(name: str) -> str:
    pattern = next(t for t in parsing.grammar().terminals if t.name == name).pattern
    return pattern.value


@cache
def _rules() -> dict[str, list[list[Symbol]]]:
    rules: dict[str, list[list[Symbol]]] = {}
    for rule in parsing.grammar().rules:
        rules.setdefault(rule.origin.name, []).append(rule.expansion)
    return rules


@cache
def _least_pieces() -> dict[str, int]:
    """Of every symbol, the fewest terminals that it comes to."""
    least = {t.name: 1 for t in parsing.grammar().terminals}
    for _ in range(len(_rules())):
        for name, choices in _rules().items():
            known = [sum(least[s.name] for s in c) for c in choices if all(s.name in least for s in c)]
            if known:
                least[name] = min(known)
    return least


def _texts(seed: int, n: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(n):
        yield _made(rng) if rng.random() < 0.2 else _mutated(rng)


def test_mutated_queries() -> None:
    kinds = [_compiled(text) for text in _texts(1, 2400)]
    assert 100 < sum(kinds) < 2300, "the mutations no longer tell anything"


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(_WORDS), max_size=20).map(" ".join))
def test_whatever_text(text: str) -> None:
    _compiled(text)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(text=queries(), at=st.integers(0, 2000), word=st.sampled_from(_WORDS))
def test_good_queries_with_one_thing_put_in(text: str, at: int, word: str) -> None:
    _compiled(text[:at] + word + text[at:])


@pytest.mark.parametrize(
    "piece", ["(", "!", "-", "1+", "1?", "@x[", "{", "if(1){", "/", "/*", "//\n", "@", '"', "a.", "[", "$"]
)
def test_long_repetitions_end_soon(piece: str) -> None:
    for before in ("complete ", "complete /", "complete { $x = "):
        assert not _compiled(before + piece * (15_000 // len(piece)))
    assert not _compiled(piece * (70_000 // len(piece)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_mutated_queries() -> None:
    kinds = [_compiled(text) for text in _texts(2, 1_000_000)]
    assert 40_000 < sum(kinds) < 900_000
