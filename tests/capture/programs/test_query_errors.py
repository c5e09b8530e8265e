"""What a query's author reads when it is refused: one line with the column, a caret, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from query_runs import TABLES, arrow

from megascope.capture.programs import language
from megascope.capture.programs.language import QueryRefused, literals
from megascope.capture.programs.language.errors import Position
from megascope.store.errors import Exit, Usage

GOLDEN = Path(__file__).parent / "golden" / "query_errors.txt"
RULE = "-" * 40 + "\n"
DEEP = "complete { @x = " + "(1 + " * 70 + "1" + ")" * 70 + "; }"
REFUSED = [
    # What cannot be read
    "",
    "// nothing but a comment",
    "complete",
    "complete {",
    "complete { emit() ",
    "complete { emit() emit() }",
    "complete { @n = count()) }",
    "complete { @n = ; }",
    "complete /exec_ns > 5 { emit(); }",
    "complete { if (exec_ns > 5 { emit(); } }",
    "complete /exec_ns == 5 == 6/ { emit(); }",
    "complete { $x = 'a'; }",
    'complete /class == "attn/ { emit(); }',
    "complete { $x = 1.5; }",
    "complete { $x = 1.5ns; }",
    "complete { $x = exec_ns.5; }",
    "complete { $x = 20uss; }",
    "complete { $x = 12abc34; }",
    "complete { $x = 99999999999999999999; }",
    "complete { $x = 0x1ffffffffffffffff; }",
    "complete { $x # 5; }",
    DEEP,
    "const a = 1;\ncomplete {\n  @n = count();\n  @m = cuont();\n}",
    # What the language has not
    "complete { while (exec_ns > 5) { emit(); } }",
    "complete { for ($i = 0; $i < 5; $i++) { emit(); } }",
    "complete { unroll (5) { emit(); } }",
    "complete { return; }",
    "fn slow(x) { x > 5 } complete { emit(); }",
    "complete { $x = *aux; }",
    "complete { $x = &aux; }",
    "complete { $x = task->index; }",
    "complete { @[kstack] = count(); }",
    "complete { @[pid] = count(); }",
    "complete { @x = kstack(); }",
    "complete { @x = str(aux); }",
    "complete { barrier(); }",
    'complete { @x["slow"] = count(); }',
    'complete { $x = "slow"; }',
    "complete { @x[class, worker, rank, sm, step] = count(); }",
    "map @x size 2M; complete { @x = count(); }",
    # Names
    "complte { emit(); }",
    "BEGIN { } complete { emit(); }",
    "kprobe { emit(); }",
    "complete { @x = hist(exec_nz); }",
    "complete { @x = count(nsecs); }",
    "complete { @x = hist(nsecs); }",
    "start { @x = hist(exec_ns); }",
    "start,complete { @x = hist(exec_ns); }",
    "complete { @x[operator] = count(); }",
    'complete /class == "l00.atn"/ { emit(); }',
    'complete /class > "l00.attn"/ { emit(); }',
    'complete /worker == "fast"/ { emit(); }',
    'complete /exec_ns + 1 == "fast"/ { emit(); }',
    'wait /dep_class == "comunication"/ { emit(); }',
    'complete /request == "req-999"/ { emit(); }',
    "complete { @x[expret] = count(); }",
    "complete { @x = $y; }",
    "complete { $total = 1; @x = $totl; }",
    "complete { emti(); }",
    "complete { @x = p99(@lat) > 5; }",
    # Maps
    "complete { @x = count(); @x = sum(t); }",
    "complete { @x = 5; @x = count(); }",
    "complete { @x = count(); if (@x > 5) { emit(); } }",
    "complete { @x[class] = count(); @x[class, worker] = count(); }",
    "complete { @x = count(); delete(@x); }",
    "complete { @h = lhist(t, 0, 10, 3); }",
    "complete { @h = lhist(t, 0, 100k, 1); }",
    "complete { @h = lhist(t, 0, task, 1); }",
    "complete { @h = hist(); }",
    "complete { hist(exec_ns); }",
    "complete { $x = hist(exec_ns); }",
    "complete { @a = @b; }",
    "map @lost size 5; complete { emit(); }",
    "map @x[class] size 5; complete { @x[class, worker] = count(); }",
    "map @x size 0; complete { @x = count(); }",
    "map @x; map @x; complete { @x = count(); }",
    "map @x shared; complete { @x++; }",
    "complete { @printf_1 = count(); }",
    "map @x size 4k; complete { @x[task] = lhist(t, 0, 1000, 1); }",
    # Functions and actions
    "complete /sample(64)/ { emit(); }",
    "complete /sample(1/0)/ { emit(); }",
    "complete { emit(exec_ns); }",
    "complete { emit() limit(5); }",
    "complete { emit() limit(5/s); emit() limit(6/s); }",
    "complete { delete(5); }",
    "complete { print(@x); }",
    "complete { @x = 1; clear(@x); }",
    'complete { printf("%d"); }',
    'complete { printf("%f", exec_ns); }',
    'complete { printf("\\q"); }',
    "complete { printf(exec_ns); }",
    'complete { printf("%d %d %d %d %d %d %d", t, t, t, t, t, t, t); }',
    "complete { belongs_to(2); }",
    "complete /belongs_to(0)/ { emit(); }",
    "complete { @x = hist(exec_ns); } start /p99(@x, 4000s)/ { emit(); }",
    "complete { @x = hist(exec_ns); } start /p99(@x, 0)/ { emit(); }",
    "complete { @x = count(); } start /p99(@x) > 5/ { emit(); }",
    "complete { @x[task] = hist(exec_ns); } start /p99(@x[task]) > 5/ { emit(); }",
    "complete { @x[class] = hist(exec_ns); } start /p99(@x[class, rank]) > 5/ { emit(); }",
    # Clauses
    "begin { }",
    "interval 1s { }",
    "interval { } complete { emit(); }",
    "interval 5 { } complete { emit(); }",
    "interval 5ns { } complete { emit(); }",
    "complete 5s { emit(); }",
    "begin, complete { emit(); }",
    "begin /1/ { } complete { emit(); }",
    "begin { @x = 1; } complete { @x = 2; }",
    "end { prnt(@x); } complete { @x = count(); }",
    "end { print(@y); } complete { @yy = count(); }",
    "end { print(@x[1]); } complete { @x[class] = count(); }",
    "end { print(top(@x, 0)); } complete { @x[class] = count(); }",
    "end { print(top(@x, 5)); } complete { @x[class] = hist(t); }",
    "end { clear(@x); } complete { @x = 5; }",
    'end { printf("%d", @x); } complete { @x[class] = count(); }',
    "end { print(5); } complete { emit(); }",
    # Constants
    "const a = b; complete { emit(); }",
    "const a = t; complete { emit(); }",
    "const t = 5; complete { emit(); }",
    "const a = 1; const a = 2; complete { emit(); }",
    # Too much
    "complete { " + " ".join(f"$v{i} = {i};" for i in range(9)) + " }",
    "complete { " + "@x[t] = count(); " * 600 + " }",
]


def _said(text: str) -> str:
    with pytest.raises(QueryRefused) as e:
        language.compile(text, arrow(TABLES))
    assert "\n" not in str(e.value)
    assert e.value.code == Exit.REFUSED
    line = text.split("\n")[e.value.line - 1]
    assert 1 <= e.value.column <= len(line) + 1
    return f"{e.value}\n{e.value.excerpt}\n"


def test_what_is_said_of_each_refusal() -> None:
    said = RULE.join(_said(text) for text in REFUSED)
    assert said == GOLDEN.read_text(encoding="utf-8")


def test_the_caret_stands_under_the_column() -> None:
    with pytest.raises(QueryRefused) as e:
        language.compile("start {\n\n   @x = hist(exec_nz); }")
    shown, caret = e.value.excerpt.split("\n")
    assert (e.value.line, e.value.column) == (3, 14)
    assert shown[len(caret) - 1 :].startswith("exec_nz")


def test_a_long_line_is_cut_around_the_column() -> None:
    with pytest.raises(QueryRefused) as e:
        language.compile("start { " + "@n = count(); " * 50 + "@x = hist(exec_nz); " + "@n = count(); " * 50 + "}")
    shown, caret = e.value.excerpt.split("\n")
    assert len(shown) <= 100
    assert shown[len(caret) - 1 :].startswith("exec_nz")


def test_names_without_tables_say_so() -> None:
    for text in (
        'complete /class == "attn"/ { emit(); }',
        'complete /belongs_to("a")/ { emit(); }',
        "complete /belongs_to(2)/ { emit(); }",
        "complete { @x[layer] = count(); }",
        "complete { @x[tile.expert] = count(); }",
        "complete { @x[expert] = count(); }",
    ):
        with pytest.raises(QueryRefused, match="say which trace or segment"):
            language.compile(text)


@pytest.mark.parametrize(
    ("constants", "why"),
    [
        ({"limt": 5}, "did you mean limit"),
        ({"limit": "5 parsecs"}, "is no number"),
        ({"limit": 1 << 64}, "64 bits"),
        ({"limit": "1.5"}, "is no whole number"),
        ({"limit": "0.1ns"}, "is no whole number of ns"),
    ],
)
def test_constants_that_cannot_be_set(constants: dict[str, int | str], why: str) -> None:
    with pytest.raises(Usage, match=why):
        language.compile("const limit = 1; complete /exec_ns > limit/ { emit(); }", constants=constants)


def test_a_name_that_is_none() -> None:
    with pytest.raises(Usage, match="no name"):
        language.compile("complete { emit(); }", name="my query")


def test_a_fraction_of_a_unit_is_a_whole_number() -> None:
    """As on the command line: what counts is what it comes to."""
    at = Position(1, 1)
    found = [literals.number(text, at) for text in ("1.5us", "0.25ms", "1_000.5s", "2.50k", "1.5Ki", "3.0")]
    assert found == [1500, 250_000, 1_000_500_000_000, 2500, 1536, 3]
    assert literals.duration("1.5us")
    one, other = (language.compile(f"complete /exec_ns > {t}/ {{ emit(); }}").program for t in ("1.5us", "1500"))
    assert one.insns == other.insns
