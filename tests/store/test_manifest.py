"""Manifests that are refused, each by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_traces import record

from megascope.store import manifest
from megascope.store.errors import Refused
from megascope.store.tables import schema_hash
from megascope.store.trace import Trace

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    record(tmp_path / "a.mscope", 10)
    return tmp_path / "a.mscope"


EDITS: dict[str, Edit] = {
    "has format 2, this version reads 1": lambda m: m.update(format=2),
    "has format True": lambda m: m.update(format=True),
    "has hook ABI 9.0, this version reads 1.x": lambda m: m.update(abi=[9, 0]),
    "which is no version": lambda m: m.update(abi="1.0"),
    "has schema hash 'abc'": lambda m: m.update(schema_hash="abc"),
    "32 hexadecimal digits": lambda m: m.update(id="../x"),
    "has state 'fine'": lambda m: m.update(state="fine"),
    "says writer.pid is -1": lambda m: m["writer"].update(pid=-1),
    "has an end without a reason": lambda m: m.update(end={"t": 1}),
    "disk budget of -5": lambda m: m["budget"].update(max_bytes=-5),
    "exports hooks that the ABI does not have": lambda m: m["engine"].update(exported_hooks=["start", "finish"]),
    "has no int at engine.pid": lambda m: m["engine"].update(pid="1"),
    "has no int at clock.fits.error_ns": lambda m: m["clock"].update(fits=[{"host_ns": 1, "device_ns": 1}]),
    "has a program that is no row": lambda m: m.update(programs=[{"program": 1}]),
    "lists other streams": lambda m: m["streams"].pop("loss"),
    "names a file '../../etc/passwd'": lambda m: part(m).update(file="../../etc/passwd"),
    "names a file '/etc/passwd'": lambda m: part(m).update(file="/etc/passwd"),
    "names a file 'events-000001.parquet/'": lambda m: part(m).update(file="events-000001.parquet/"),
    "names a file 'coverage-000001.parquet' for events": lambda m: part(m).update(file="coverage-000001.parquet"),
    r"names a file 'events-000001.parquet\n'": lambda m: part(m).update(file="events-000001.parquet\n"),
    "says events.rows is 1152921504606846976": lambda m: part(m).update(rows=1 << 60),
    "says events.bytes is -1": lambda m: part(m).update(bytes=-1),
    "has no int at events.crc32": lambda m: part(m).update(crc32=None),
    "has no time range for events-000001": lambda m: part(m).update(t_min=5, t_max=4),
    "lists a part of events twice": lambda m: m["streams"]["events"]["parts"].append(part(m)),
    "lists a table 'secrets'": lambda m: m["tables"].update(secrets={}),
    "no spool_sealed for every stream": lambda m: m["spool_sealed"].pop("events"),
    "says spool_sealed.events is -1": lambda m: m["spool_sealed"].update(events=-1),
    "pending loss": lambda m: m.update(repair=[{"kind": "x"}]),
    "has no list at repair": lambda m: m.update(repair=5),
    "beyond 64 bits at .engine.params.x": lambda m: m["engine"]["params"].update(x=1 << 64),
    "no Unicode at .name": lambda m: m.update(name="\ud800"),
}


def part(m: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = m["streams"]["events"]["parts"][0]
    return first


@pytest.mark.parametrize("why", EDITS)
def test_refused_by_name(trace: Path, why: str) -> None:
    """With its checksum made right: what it says is checked all the same."""
    m = json.loads((trace / manifest.FILE).read_text())
    EDITS[why](m)
    m["crc32"] = manifest.checksum(m)
    (trace / manifest.FILE).write_text(json.dumps(m))
    with pytest.raises(Refused) as caught:
        Trace.open(trace)
    assert why in caught.value.why
    assert "\n" not in str(caught.value)


TEXTS = {
    "is not JSON": "{",
    "is not a JSON object": "[1]",
    "a key stands twice": '{"format": 1, "format": 1}',
    "NaN is no number": '{"format": NaN}',
    "Exceeds the limit": '{"format": ' + "9" * 5000 + "}",
    "nested too deeply": '{"format": 1, "abi": [1, 0], "schema_hash": "%s", "x": ' + "[" * 50 + "]" * 50 + "}",
    "recursion": "[" * 200_000,
}


@pytest.mark.parametrize("why", TEXTS)
def test_text_that_is_no_manifest(trace: Path, why: str) -> None:
    (trace / manifest.FILE).write_text(TEXTS[why].replace("%s", schema_hash()))
    with pytest.raises(Refused, match=why):
        Trace.open(trace)


def test_any_change_breaks_the_checksum(trace: Path) -> None:
    text = (trace / manifest.FILE).read_text()
    (trace / manifest.FILE).write_text(text.replace('"t_max": 1288', '"t_max": 1289'))
    assert text != (trace / manifest.FILE).read_text()
    with pytest.raises(Refused, match="fails its own checksum"):
        Trace.open(trace)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "link", "large", "binary"])
def test_what_stands_in_its_place(trace: Path, kind: str) -> None:
    file = trace / manifest.FILE
    text = file.read_bytes()
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        (trace.parent / "elsewhere").write_bytes(text)
        file.symlink_to(trace.parent / "elsewhere")
    elif kind == "large":
        with file.open("wb") as sparse:
            sparse.truncate(1 << 40)
    elif kind == "binary":
        file.write_bytes(os.urandom(1000))
    with pytest.raises(Refused) as caught:
        Trace.open(trace)
    assert "\n" not in str(caught.value)


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"there is no .*nothing; give the path of a NAME\.mscope"):
        Trace.open(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"file is not a directory; give the path of a NAME\.mscope"):
        Trace.open(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refused, match=r"has no manifest\.json"):
        Trace.open(tmp_path / "empty")


def test_a_commit_that_could_not_be_opened_again_is_refused(trace: Path) -> None:
    book = manifest.Manifest(trace, manifest.read(trace))
    before = book.snapshot()
    with pytest.raises(Refused):
        book.commit(lambda m: m.update(state="fine"))
    assert book.snapshot() == before == manifest.read(trace)
