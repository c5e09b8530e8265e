"""`megascope program compile|check|show` with queries: what is printed, where names come from, what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from megascope.__main__ import main, run
from megascope.capture.programs import image, language
from megascope.capture.programs.sources import query_text, tables_of
from megascope.capture.segment.layout import Layout
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.errors import Exit, Refused, Usage
from megascope.store.tables import REQUEST_SETS, REQUESTS, WORKERS

GOLDEN = Path(__file__).parent / "golden" / "query_compiled.txt"
SAMPLE = Path(__file__).parents[3] / "sample_traces" / "host.mscope"
QUERY = (
    'const limit = 20us; map @lat[class] size 64; complete /operator == "attn" && exec_ns > limit/ '
    "{ @lat[class] = hist(exec_ns); emit() limit(10/s); } "
    "start /sample(1/64) && p99(@lat, 2s) > 5us/ { @n = count(); } "
    "interval 1s { print(top(@n, 1)); clear(@lat); }"
)


def _printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert run(["program", *map(str, words)]) == Exit.DONE
    return capsys.readouterr().out


def test_compile_shows_what_a_query_becomes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, "compile", "-e", QUERY, SAMPLE, "--set", "limit=5us") == GOLDEN.read_text(encoding="utf-8")


def test_a_file_is_taken_before_a_query_but_for_e(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "complete { @n = count(); }"
    Path(text).write_text("start { @other = count(); }\n")
    assert "@other" in _printed(capsys, "compile", text)
    assert "@n" in _printed(capsys, "compile", "-e", text)
    assert query_text(text) == "start { @other = count(); }\n"
    assert query_text(text, query=True) == text


@pytest.mark.parametrize("action", ["check", "show"])
def test_check_and_show_take_queries(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = _printed(capsys, action, 'complete /operator == "attn"/ { @s[task] = t; }', SAMPLE)
    assert "runs      serial: map_update_elem of map s" in said
    assert ("call map_update_elem" in said) == (action == "show")


def test_what_is_no_program(tmp_path: Path) -> None:
    binary, packed = tmp_path / "binary", tmp_path / "image"
    binary.write_bytes(b"\xff\xfe\x00{")
    packed.write_bytes(image.pack(language.compile("complete { emit(); }").program))
    assert query_text(str(packed)) is None
    with pytest.raises(Refused, match="neither an object, an image nor text"):
        query_text(str(binary))
    for nothing in ("nothing", "no\0thing", "x" * 5000):
        with pytest.raises(Usage, match="no such file, and it is no query"):
            query_text(nothing)
    with pytest.raises(Usage, match="compiled already"):
        run(["program", "compile", str(packed)])
    with pytest.raises(Usage, match="no constant 'limt'"):
        run(["program", "compile", "-e", QUERY, str(SAMPLE), "--set", "limt=5"])


def test_a_refusal_is_shown_with_its_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["megascope", *shlex.split("program check 'complete { @n = hist(exec_nz); }'")])
    assert main() == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "complete { @n = hist(exec_nz); }\n                     ^\n"
        "megascope: query: column 22: there is no field exec_nz; did you mean exec_ns? "
        "if it is a coordinate: say which trace or segment gives the names\n"
    )


def test_names_of_a_live_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.mseg"
    worker = {"worker": 0, "monitor": 0, "sm": 0, "role": "compute", "rank": 0}
    workers = pa.Table.from_pylist([worker], schema=WORKERS.schema)
    sizes = {"workers": 1, "monitors": 1, "block_rows": 64, "blocks": 3, "host_bytes": 4096}
    writer = SegmentWriter.create(path, Layout(**sizes), side_tables={"workers": workers})  # type: ignore[arg-type]
    writer.say(REQUESTS.name, [(7, 0, "slow-one", "m", "t", 5, 1, 1), (7, 1, "slow-one", "m", "t", 5, 1, 1)])
    writer.say(REQUEST_SETS.name, [(3, 7), (4, 6)])
    tables = tables_of(path)
    assert tables["requests"]["slot"].to_pylist() == [1]
    assert tables["step_requests"].num_rows == 0
    said = _printed(capsys, "compile", 'start /belongs_to("slow-one")/ { emit(); }', path)
    assert "jeq %r0, 7" in said
    assert ", 3," in said
    with pytest.raises(Refused, match="did you mean slow-one"):
        run(["program", "compile", 'start /request == "slowone"/ { emit(); }', str(path)])
