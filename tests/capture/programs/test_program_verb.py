"""`megascope program`: what is printed, where, and the exit code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import CLANG, OBJECTS, SOURCES, compile_text

from megascope.__main__ import run
from megascope.capture.programs import image, loader
from megascope.store.errors import Exit, Refused, Usage

with_clang = pytest.mark.skipif(CLANG is None, reason="no clang here")
NULL = """
struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u32); __type(value, __u64); __uint(max_entries, 8); }
m SEC(".maps");
SEC("hook/start") int f(struct megascope_event *e) {
  __u32 k = 1;
  __u64 *v = bpf_map_lookup_elem(&m, &k);
  return *v;
}
"""


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, list[str]], str]:
    """(exit code, lines of stdout by heading, all of stdout); nothing may be on stderr."""
    code = run(["program", *args])
    out, err = capsys.readouterr()
    assert err == ""
    lines: dict[str, list[str]] = {}
    for line in out.partition("\n\n")[0].splitlines():
        head, text = line.split(maxsplit=1)
        lines.setdefault(head, []).append(text)
    return code, lines, out


def test_check_says_everything_in_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = said(capsys, "check", str(OBJECTS / "class_latency.bpf.o"))
    assert code == Exit.DONE
    assert list(lines) == ["accepted", "runs", "cost", "stack", "emits", "reads", "map"]
    assert lines["accepted"][0].startswith("program class_latency: observe, 22 slots")
    assert lines["runs"] == ["simt"]
    assert re.fullmatch(
        r"complete → complete: at most \d+ instructions an event, \d+ for 32 in lockstep", lines["cost"][0]
    )
    assert lines["emits"] == ["yes"]
    assert lines["reads"] == ["aux, t, task_class, worker"]
    assert lines["map"] == [
        "latency: hist by 4 bytes (struct place: task_class, worker), 256 entries, 2.01 MB per worker, each epoch anew",
        ".rodata: constants, 8 bytes (threshold_ns)",
    ]


def test_a_serial_program_says_why_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = said(capsys, "check", str(OBJECTS / "pairing.bpf.o"))
    assert code == Exit.DONE
    assert re.match(r"serial: .*running.*\(pairing.bpf.c:\d+: .*\)$", lines["runs"][0])
    assert len(lines["cost"]) == 2
    assert all(c.endswith("one after another") for c in lines["cost"])


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.name)
def test_show_has_every_instruction_and_its_source(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, out = said(capsys, "show", str(source.with_suffix(".o")))
    assert code == Exit.DONE
    p = loader.load(source.with_suffix(".o"))
    listing = out.partition("\n\n")[2]
    numbers = [int(n) for n in re.findall(r"^ *(\d+): ", listing, re.MULTILINE)]
    wide = [pc + 1 for pc in numbers if p.insns[pc].op == 0x18]
    assert sorted(numbers + wide) == list(range(len(p.insns)))
    text = source.read_text().splitlines()
    shown = re.findall(r"^; (\S+):(\d+): (.*)$", listing, re.MULTILINE)
    assert shown
    assert all(file == source.name and text[int(n) - 1].strip() == line for file, n, line in shown)
    assert {h.partition(":")[0] for h in lines.get("helper", ())} == {
        name
        for name in re.findall(r": call (\w+)$", listing, re.MULTILINE)
        if name not in {f.name for f in p.functions}
    }


def test_an_image_is_a_program_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = OBJECTS / "calls.bpf.o"
    (tmp_path / "calls.msprog").write_bytes(image.pack(loader.load(path)))
    assert said(capsys, "show", str(tmp_path / "calls.msprog"))[2] == said(capsys, "show", str(path))[2]


def test_constants_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(OBJECTS / "globals.bpf.o")
    assert said(capsys, "check", path, "--set", "factor=3", "--set", "level=LEVEL_HIGH")[0] == Exit.DONE
    for options, error, says in (
        (["--set", "factor"], Usage, "'factor' is not NAME=VALUE"),
        (["--set", "=3"], Usage, "'=3' is not NAME=VALUE"),
        (["--set", "factor=3", "--set", "factor=4"], Usage, "factor is set twice"),
        (["--set", "facto=3"], Refused, "did you mean factor?"),
    ):
        with pytest.raises(error, match=re.escape(says)):
            run(["program", "check", path, *options])


@with_clang
def test_a_rejected_program_says_why_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(compile_text(tmp_path, NULL))
    code, lines, out = said(capsys, "check", made)
    assert code == Exit.REFUSED
    assert list(lines) == ["rejected", "map"]
    assert re.match(r"program given: instruction \d+, r0 \(given.bpf.c:8: return \*v;\): ", lines["rejected"][0])
    code, lines, out = said(capsys, "show", made)
    assert code == Exit.REFUSED
    assert "; given.bpf.c:8: return *v;" in out


def test_include_is_where_the_header_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["program", "include"]) == Exit.DONE
    assert (Path(capsys.readouterr().out.strip()) / "megascope.bpf.h").is_file()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "the following arguments are required: ACTION"),
        (["chekc", "x.o"], "invalid choice: 'chekc'"),
        (["check"], "the following arguments are required: P"),
    ],
)
def test_a_mistake_is_a_usage_error(args: list[str], says: str) -> None:
    with pytest.raises(Usage, match=re.escape(says)):
        run(["program", *args])


def test_an_image_is_written_and_goes_wherever_its_program_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.img"
    given = [str(OBJECTS / "class_latency.bpf.o"), "--set", "threshold_ns=20us"]
    assert said(capsys, "compile", *given, "-o", str(out))[0] == Exit.DONE
    assert loader.load(out) == loader.load(Path(given[0]), {"threshold_ns": "20us"})
    query = tmp_path / "q.img"
    assert said(capsys, "compile", "complete { @n[class] = count(); }", "-o", str(query))[0] == Exit.DONE
    assert loader.load(query).source == "complete { @n[class] = count(); }"
    _, lines, _ = said(capsys, "check", str(query))
    assert lines["map"][0].startswith("n: ")


def test_an_image_replaces_nothing_and_is_of_no_rejected_program(tmp_path: Path) -> None:
    out = tmp_path / "p.img"
    out.write_text("mine")
    given = ["program", "compile", str(OBJECTS / "class_latency.bpf.o"), "-o", str(out)]
    with pytest.raises(Refused, match="it exists; give another name or --force"):
        run(given)
    assert out.read_text() == "mine"
    bad = tmp_path / "bad.img"
    rejected = replace(loader.load(OBJECTS / "class_latency.bpf.o"), maps=())
    (tmp_path / "in.img").write_bytes(image.pack(rejected))
    assert run(["program", "compile", str(tmp_path / "in.img"), "-o", str(bad)]) == Exit.REFUSED
    assert not bad.exists()
    assert run([*given, "--force"]) == Exit.DONE
    assert loader.load(out).name == "class_latency"
