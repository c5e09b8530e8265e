"""What is said of programs before and while they run; one query over a recording; maps recorded without raw rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.capture import control
from megascope.capture.programs import standard
from megascope.capture.programs.language.units import units
from megascope.store.errors import MegascopeError, Refused
from megascope.store.trace import Trace

HOST = Path(__file__).parents[2] / "sample_traces" / "host.mscope"


def test_an_accepted_query_says_what_it_costs_and_what_its_maps_hold() -> None:
    text = (
        "complete { @l[class] = hist(exec_ns); @n = count(); @m[worker] = max(exec_ns / 1us); @s[task] = t; emit(); }"
    )
    said = control.judge(text, control.tables_of(HOST))
    assert isinstance(said, control.Judged)
    assert said.hooks == ("complete",)
    assert said.cost[4] > 0
    assert said.emits
    assert said.query
    assert "map s" in said.serial_because
    assert [(s.map, s.what, s.unit) for s in said.shapes] == [
        ("l", "hist", "ns"), ("n", "count", ""), ("m", "max", ""), ("s", "last", ""),
    ]  # fmt: skip
    shape = said.shape("l")
    assert shape is not None
    assert "l00.attn" in shape.names[0].values()


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("complete { @l = hist(exec_n); }", 22, "did you mean exec_ns?"),
        ("complet { @n = count(); }", 1, "did you mean complete?"),
        ("", 1, "it has no clause"),
    ],
)
def test_a_refused_query_says_where_and_why(text: str, column: int, why: str) -> None:
    said = control.judge(text, None)
    assert isinstance(said, control.Rejection)
    assert why in said.problem
    assert said.column == column
    assert said.excerpt.split("\n")[1] == " " * (column - 1) + "^"


@pytest.mark.parametrize("name", standard.BY_NAME)
def test_a_standard_monitor_is_known_by_its_hash(name: str) -> None:
    program = standard.load(name)
    said = control.of_record(name, program.source, program.hash)
    assert said is not None
    assert said.hooks == standard.BY_NAME[name].hooks
    assert not said.query
    assert all(s.what for s in said.shapes)
    declared = {m.name for m in program.maps}
    assert {m for m, _ in standard.BY_NAME[name].units} <= declared
    assert control.of_record(name, program.source, "another") is None


def test_a_query_is_known_only_if_it_compiles_to_what_was_attached() -> None:
    said = control.judge("complete { @n = count(); }", None, "mine")
    assert isinstance(said, control.Judged)
    from megascope.capture import attaching

    program = attaching.load(said.source, {}, name="mine", query=True)
    assert control.of_record("mine", said.source, program.hash) is not None
    assert control.of_record("mine", said.source.replace("complete", "start"), program.hash) is None
    assert control.of_record("mine", "int main() {}", program.hash) is None


def test_units_are_read_off_the_text() -> None:
    several = "complete { @a = hist(exec_ns); @b = hist(exec_ns / 1us); @c = sum(exec_ns + 5us); @d = count(); }"
    assert units(several) == {"a": "ns", "c": "ns"}
    assert units("send { @s = sum(bytes); } complete { if (1) { @x = max(t - aux); } else { @x = max(worker); } }") == {
        "s": "bytes"
    }
    assert units("no query") == {}


def test_a_replay_writes_a_trace_or_leaves_nothing(tmp_path: Path) -> None:
    out, seen = tmp_path / "o.mscope", list[tuple[int, int]]()
    done = control.replay(HOST, "complete { @n = count(); }", out, progress=lambda *p: seen.append(p))
    assert (done.name, done.missing, done.selection) == ("query", 0, "all")
    with Trace.open(out) as trace:
        assert list(trace.maps) == ["maps.query_n"]
    with pytest.raises(MegascopeError, match="stopped"):
        control.replay(HOST, "complete { @n = count(); }", tmp_path / "p.mscope", stopped=lambda: True)
    assert not (tmp_path / "p.mscope").exists()
    with pytest.raises(Refused, match="chosen"):
        control.replay(out, "complete { @n = count(); }", tmp_path / "q.mscope")
