"""What a compiled query is: maps and their columns, entries, source lines, verdicts, selection, limits."""

from __future__ import annotations

import numpy as np
import pytest
from query_runs import TABLES, WORKERS_RUN, arrow, events, rows
from test_query_features import FEATURES

from megascope.capture.programs import image, language
from megascope.capture.programs.language import QueryRefused, printing
from megascope.capture.programs.language.answers import Answers
from megascope.capture.programs.language.codegen_conditions import sample_hash
from megascope.capture.programs.language.errors import Position, snippet
from megascope.capture.programs.language.running import HostSide
from megascope.capture.programs.maps import Map, MapKind, TypeLayout
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verifier import verify

SERIAL = {
    "state", "state with other operators", "the first few", "map read in a key", "map read in a map read",
}  # fmt: skip


def _maps(text: str) -> dict[str, Map]:
    return {m.name: m for m in language.compile(text, arrow(TABLES)).program.maps}


def _layout(layout: TypeLayout | None) -> list[tuple[str, str, int, int]]:
    assert layout is not None
    return [(m.name, m.kind, m.offset, m.size) for m in layout.members]


@pytest.mark.parametrize("name", FEATURES)
def test_only_queries_that_keep_state_are_serial(name: str) -> None:
    verdict = verify(language.compile(FEATURES[name], arrow(TABLES)).program)
    assert verdict.simt == (name not in SERIAL), verdict.serial_because


def test_a_program_survives_its_image() -> None:
    for text in FEATURES.values():
        program = language.compile(text, arrow(TABLES)).program
        again = image.unpack(image.pack(program))
        assert (again, again.lines, again.source) == (program, program.lines, text)


def test_key_columns_are_named_and_as_wide_as_their_fields() -> None:
    m = _maps("complete { @m[class, task, rank, t - aux > 5 ? exec_ns : 0] = sum(exec_ns); }")["m"]
    assert _layout(m.key) == [("class", "u", 0, 2), ("task", "i", 8, 8), ("rank", "u", 16, 1), ("key4", "i", 24, 8)]
    assert (m.key_size, m.value_size, m.kind, m.aggregate) == (32, 8, MapKind.HASH, True)
    assert _layout(m.value) == [("value", "i", 0, 8)]


def test_keys_of_several_places_are_as_wide_as_the_widest() -> None:
    m = _maps("complete { @m[class] = count(); @m[step] = count(); } start { @m[rank] = count(); }")["m"]
    assert _layout(m.key) == [("class", "u", 0, 4)]


def test_a_declaration_names_columns_and_sizes() -> None:
    text = "map @m[by, whom] size 64 shared; resume { @m[producer, class] = hist(wait_ns); }"
    m = _maps(text)["m"]
    assert ([c[0] for c in _layout(m.key)], m.max_entries, m.shared) == (["by", "whom"], 64, True)
    assert (m.kind, m.aggregate) == (MapKind.HIST, True)


def test_kinds_of_maps() -> None:
    text = """complete { @c = count(); @n = min(exec_ns); @a = avg(exec_ns); @h = hist(exec_ns); @s[task] = t;
              @l = lhist(t, 0, 10, 2); printf("%d", class); } start /p99(@h) > 5/ { @s[task] = t; }"""
    maps = _maps(text)
    kinds = {n: (m.kind, m.aggregate, m.max_entries) for n, m in maps.items()}
    assert kinds == {
        "c": (MapKind.HASH, True, 1), "n": (MapKind.HASH, True, 1), "a": (MapKind.STATS, True, 1),
        "h": (MapKind.HIST, True, 1), "l": (MapKind.HASH, True, 7), "s": (MapKind.HASH, False, 1024),
        "printf_1": (MapKind.HASH, True, 1024), "feedback_1": (MapKind.FEEDBACK, False, 1),
    }  # fmt: skip
    assert [c[:2] for c in _layout(maps["printf_1"].key)] == [("t", "i"), ("seq", "i"), ("class", "u")]
    assert [c[0] for c in _layout(maps["l"].key)] == ["bucket"]
    assert _layout(maps["c"].key) == []


def test_hooks_with_the_same_code_share_an_entry_and_others_have_their_own() -> None:
    program = language.compile("start,complete,wait { @n = count(); } complete { emit(); }").program
    assert [(e.name, e.hooks) for e in program.entries] == [("start_wait", (3, 5)), ("complete", (4,))]
    assert [f.pc for f in program.functions] == [e.pc for e in program.entries]
    program = language.compile("assign,pressure { @d[depth] = count(); }").program
    assert len(program.entries) == 2


def test_source_lines_point_at_the_statements() -> None:
    text = 'complete /exec_ns > 5us/ {\n  $x = class;\n  if ($x == 3) { emit(); }\n  printf("a;b{%d}", $x);\n}'
    program = language.compile(text).program
    assert [(x.line, x.column, x.text) for x in program.lines] == [
        (1, 11, "exec_ns > 5us"), (2, 3, "$x = class"), (3, 3, "if ($x == 3)"), (3, 18, "emit()"),
        (4, 3, 'printf("a;b{%d}", $x)'),
    ]  # fmt: skip
    for line in program.lines:
        assert text.split("\n")[line.line - 1][line.column - 1 :].startswith(line.text)


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("start,complete /sample(1/64)/ { emit(); @n = count(); }", 64),
        ("start /sample(1/64)/ { emit(); } complete /sample(1/64)/ { emit(); }", 64),
        ("start /sample(1/64)/ { emit(); } complete /sample(1/32)/ { emit(); }", 1),
        ("start /sample(1/64)/ { emit(); } complete { emit(); }", 1),
        ("complete /sample(1/64) && exec_ns > 5/ { emit(); }", 1),
        ("complete /sample(1/64)/ { if (exec_ns > 5) { emit(); } }", 1),
        ("complete /sample(1/64)/ { emit() limit(5/s); }", 1),
        ("complete /sample(1/64)/ { @n = count(); }", 1),
        ("complete { emit(); }", 1),
    ],
)
def test_rows_are_a_sample_only_where_nothing_else_decides(text: str, sample: int) -> None:
    assert language.compile(text).program.sample == sample


def test_limits_and_cells_are_declared() -> None:
    query = language.compile(
        "complete { @h[class] = hist(exec_ns); @n = count(); }"
        "start /p999(@h, 2s) > 1ms || p50(@h[class]) > 5 || total(@n) > 7 || p999(@h, 2s) > 2ms/"
        "{ emit() limit(2k/s); }",
        arrow(TABLES),
    )
    assert query.program.emit_limit == 2000
    cells = [(c.map, c.source, c.quantile, c.window_ns, c.keyed) for c in query.feedback]
    assert cells == [
        ("feedback_1", "h", 0.999, 2 * 10**9, False), ("feedback_2", "h", 0.5, 10**10, True),
        ("feedback_3", "n", None, 10**10, False),
    ]  # fmt: skip
    assert {m.name: m.max_entries for m in query.program.maps if m.kind == MapKind.FEEDBACK} == {
        "feedback_1": 1, "feedback_2": 18, "feedback_3": 1,
    }  # fmt: skip


def test_large_sets_and_long_tables_are_looked_up_in_pieces() -> None:
    deps = [{"id": i, "name": f"d{i}", "kind": 1, "producer_class": i % 7} for i in range(1, 9000)]
    tables = arrow({**TABLES, "dependencies": deps})
    program = language.compile('resume /dep == "d*7"/ { @n[producer] = count(); }', tables).program
    assert sum(m.read_only for m in program.maps) == 1 + 5
    execution = Reference(verify(program), WORKERS_RUN, instrumented=True)
    base = events(np.random.default_rng(1), 1)[0] | {"hook": 6, "worker": 0}
    seen = [
        base | {"seq": i, "dep": d} for i, d in enumerate((7, 8, 17, 2047, 2048, 4087, 8997, 8999, 9000, 1 << 31), 1)
    ]
    execution.run(rows(seen), np.zeros(len(seen), np.uint32), 0)
    export = execution.entries(0, 0)
    counted = {int(k.view("<u2")[0]): int(v.view("<u8")[0]) for k, v in zip(export.keys, export.values, strict=True)}
    wanted: dict[int, int] = {}
    for d in (7, 17, 2047, 4087, 8997):
        wanted[d % 7] = wanted.get(d % 7, 0) + 1
    assert counted == wanted


def test_a_sample_is_spread_evenly() -> None:
    inside = sum(sample_hash(i << 32 | t) % 64 == 0 for i in range(64) for t in range(1, 1001))
    assert 850 < inside < 1150


def test_what_finds_a_map_full_is_shown() -> None:
    query = language.compile("map @m size 2; complete { @m[task] = count(); }")
    execution, host = Reference(verify(query.program), 1), HostSide(query)
    seen = [e | {"hook": 4, "worker": 0, "task": i % 5} for i, e in enumerate(events(np.random.default_rng(2), 10))]
    execution.run(rows(seen), np.zeros(10, np.uint32), 0)
    host.closed(execution.close(np.arange(1)), 1)
    assert host.end() == "@m[0]: 2\n@m[1]: 2\n@m was full: 6 more were not counted\n"


def test_state_is_printed_as_it_is_now() -> None:
    query = language.compile(
        "complete { @last[class] = seq; } start { delete(@last[class]); } interval 1ms { print(@last); }"
    )
    execution, host = Reference(verify(query.program), 2), HostSide(query)
    base = events(np.random.default_rng(2), 1)[0] | {"worker": 1, "task_class": 3}
    assert host.begin(0) == ""
    said = []
    for seq, hook in enumerate((4, 4, 3), 1):
        execution.run(rows([base | {"seq": seq, "hook": hook}]), np.zeros(1, np.uint32), 0)
        state = [execution.entries(0, w) for w in range(2)]
        said.append(host.closed(execution.close(np.arange(2)), seq * 1_000_000, state))
    assert said == ["@last[3] of worker 1: 1\n", "@last[3] of worker 1: 2\n", ""]


def test_numbers_below_zero_are_printed_so() -> None:
    query = language.compile("complete { @s[t - 5] = sum(t - 5); @l = lhist(t - 5, -2, 2, 2); }")
    execution, answers = Reference(verify(query.program), 1), Answers(query)
    base = events(np.random.default_rng(2), 1)[0] | {"worker": 0, "hook": 4}
    execution.run(rows([base | {"seq": t, "t": t} for t in (1, 4, 9)]), np.zeros(3, np.uint32), 0)
    answers.add(execution.close(np.arange(1)))
    assert printing.printed(answers, "s") == ["@s[-4]: -4", "@s[-1]: -1", "@s[4]: 4"]
    assert [line.split("|")[0].split() for line in printing.printed(answers, "l")[1:]] == [
        ["(…,", "-2)", "1"], ["[-2,", "0)", "1"], ["[0,", "2)", "0"], ["[2,", "…)", "1"],
    ]  # fmt: skip


def test_a_snippet_ends_with_its_statement() -> None:
    text = 'complete /a / 2 > 1/ { @x = "a;}" ; }'
    assert snippet(text, Position(1, 11)) == "a / 2 > 1"
    assert snippet(text, Position(1, 24)) == '@x = "a;}"'
    assert snippet(text, Position(9, 1)) == ""


def test_too_large_a_table_is_refused() -> None:
    sets = [{"request_set": 3 * i, "request": 1} for i in range(1, 400_000)]
    with pytest.raises(QueryRefused, match="takes a table"):
        language.compile("start /belongs_to(1)/ { emit(); }", arrow({**TABLES, "request_sets": sets}))
