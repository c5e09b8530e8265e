"""docs/programs.md: every program compiles, is what the text says of it, and every command prints what stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from compiled import CLANG, compile_bpf

from megascope.__main__ import run
from megascope.capture.programs import loader
from megascope.capture.programs.c_header import map_kind_name
from megascope.capture.programs.maps import MapKind

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "programs.md").read_text()
SOURCES = {b.split()[1]: b for b in re.findall(r"```c\n(.*?)```", TEXT, re.DOTALL)}
CONSOLES = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)


def test_every_kind_of_map_is_described() -> None:
    assert {f"| `{map_kind_name(k)}` |" for k in MapKind} <= set(re.findall(r"^\| `\w+` \|", TEXT, re.MULTILINE))


@pytest.mark.skipif(CLANG is None, reason="no clang here")
def test_what_the_page_shows_is_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in SOURCES.items():
        Path(name).write_text(text)
        compile_bpf(tmp_path / name, tmp_path / name.replace(".c", ".o"))
    assert len(SOURCES) == 4
    shown, happened = [], []
    for console in CONSOLES:
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
            words = shlex.split(command)
            if words[0] == "clang":
                assert command.endswith("-c latency.bpf.c -o latency.bpf.o")
                continue
            code = run(words[1:])
            out = capsys.readouterr().out
            assert (code == 3) == out.startswith("rejected")
            shown.append(f"$ {command}\n{output}")
            happened.append(f"$ {command}\n{out}")
    assert shown == happened
    p = loader.load(tmp_path / "later.bpf.o")
    assert [m.name for m in p.maps] == ["started"]
