"""Streams of programs' maps: declared once, kept like any other, refused when the manifest says nonsense of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from megascope.store import manifest, map_streams
from megascope.store.check import check, repair
from megascope.store.errors import Refused
from megascope.store.tables import Column, Table
from megascope.store.trace import Trace, TraceWriter

LAT = map_streams.table("p_lat", "a map", [Column("task_class", "i32", "key"), Column("lower", "i64s", "buckets")])
OTHER = map_streams.table("p_other", "another", [Column("key", "str", "key"), Column("on", "bool", "value")])


def rows(table: Table, n: int, first: int = 0) -> pa.RecordBatch:
    values: dict[str, Any] = {"i16": 1, "i32": 2, "i64": 3, "i64s": [4, 5], "str": "x", "bool": True}
    made = [{c.name: values[c.type] for c in table} | {"t_begin": i, "t_end": i + 1} for i in range(first, first + n)]
    return pa.RecordBatch.from_pylist(made, schema=table.schema)


def read(trace: Trace, stream: str) -> pa.Table:
    import pyarrow.parquet as pq

    parts = [pq.read_table(p.path) for p in trace.verified(stream)]
    return pa.concat_tables([*parts, trace.tail(stream)]).replace_schema_metadata(None)


def begun(path: Path) -> TraceWriter:
    writer = TraceWriter.create(path, {}, {})
    for table in (LAT, OTHER):
        writer.declare(table)
    writer.append(LAT.name, rows(LAT, 40))
    writer.append(OTHER.name, rows(OTHER, 3))
    writer.flush()
    return writer


def test_what_is_declared_is_spooled_sealed_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    writer = begun(path)
    writer.declare(LAT)
    with Trace.open(path) as trace:
        assert trace.maps == {LAT.name: LAT, OTHER.name: OTHER}
        assert trace.tail(LAT.name).num_rows == 40
    writer.append(LAT.name, rows(LAT, 2, 40))
    writer.finish("ended")
    with Trace.open(path) as trace:
        assert trace.state == "sealed"
        (part,) = trace.parts(LAT.name)
        assert part.path == path / "maps" / "p_lat" / "p_lat-000001.parquet"
        assert (part.rows, part.t_min, part.t_max) == (42, 0, 42)
        assert read(trace, LAT.name).to_pylist() == rows(LAT, 42).to_pylist()
    report = check(path)
    assert report.clean, report.findings
    assert not report.findings
    assert (report.rows[LAT.name], report.rows[OTHER.name]) == (42, 3)


def test_a_recorder_that_was_killed_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    begun(path).close()
    with Trace.open(path) as trace:
        assert trace.state == "unsealed"
        assert read(trace, OTHER.name).num_rows == 3
    assert repair(path).clean
    with Trace.open(path) as trace:
        assert trace.state == "sealed"
        assert [p.rows for p in trace.parts(LAT.name)] == [40]


def test_a_flipped_byte_is_found_and_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    begun(path).finish("ended")
    part = path / "maps" / "p_lat" / "p_lat-000001.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0x40
    part.write_bytes(data)
    (found,) = [f for f in check(path).findings if f.severity == "damaged"]
    assert found.file == "maps/p_lat/p_lat-000001.parquet"
    repair(path)
    with Trace.open(path) as trace:
        assert trace.parts(LAT.name) == []
        assert [r["kind"] for r in read(trace, "loss").to_pylist()] == ["part_unreadable"]
    (path / "maps" / "stranger").mkdir()
    assert [f.file for f in check(path).findings if "no file of a trace" in f.what] == ["maps/stranger"]


def test_another_stream_of_that_name_is_refused(tmp_path: Path) -> None:
    writer = begun(tmp_path / "a.mscope")
    with pytest.raises(Refused, match="another stream of that name"):
        writer.declare(map_streams.table("p_lat", "a map", [Column("key", "i64", "key")]))
    with pytest.raises(Refused, match="other columns than the stream"):
        writer.append(LAT.name, rows(OTHER, 1))
    with pytest.raises(Refused, match="there is no such stream"):
        writer.append("maps.nobody", rows(LAT, 1))
    writer.finish("ended")


@pytest.mark.parametrize("name", ["../x", "", "X", "a/b", "a.b", "x" * 200])
def test_names_that_are_no_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names a stream"):
        map_streams.table(name, "", [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["maps"].update({"maps.../etc": m["maps"]["maps.p_lat"]}), "names a stream"),
        (lambda m: m["maps"]["maps.p_lat"]["columns"][0].update(type="blob"), "of type 'blob'"),
        (lambda m: m["maps"]["maps.p_lat"]["columns"][0].update(name="epoch"), "has a column 'epoch'"),
        (lambda m: m["maps"]["maps.p_lat"]["columns"][0].update(name='x"; DROP'), "has a column"),
        (lambda m: m["maps"]["maps.p_lat"]["columns"].append(7), "is no object"),
        (lambda m: m["maps"]["maps.p_lat"].pop("meaning"), "has no columns of maps.p_lat"),
        (lambda m: m["maps"].pop("maps.p_lat"), "lists other streams"),
        (lambda m: m["streams"].pop("maps.p_lat"), "lists other streams"),
        (lambda m: m["spool_sealed"].pop("maps.p_lat"), "no spool_sealed for every stream"),
        (lambda m: m["streams"]["maps.p_lat"]["parts"][0].update(file="../../x.parquet"), "names a file"),
        (lambda m: m.update(maps=[]), "no object of at most"),
    ],
)
def test_a_manifest_that_says_nonsense_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    path = tmp_path / "a.mscope"
    begun(path).finish("ended")
    content = json.loads((path / manifest.FILE).read_text())
    change(content)
    content["crc32"] = manifest.checksum(content)
    (path / manifest.FILE).write_text(json.dumps(content))
    with pytest.raises(Refused, match=says):
        Trace.open(path)
