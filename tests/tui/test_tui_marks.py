"""Marks on the timeline: where they are, and what they say under the cursor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tui_driver import opened

from megascope.store import manifest, parquet
from megascope.store.tables import MARKS
from megascope.store.trace import Trace
from megascope.tui.lanes import Lanes

pytestmark = pytest.mark.asyncio


@pytest.fixture
def marked(host: Path, tmp_path: Path) -> Path:
    """The sample trace with two marks: at its beginning, and half-way."""
    path = tmp_path / "marked.mscope"
    shutil.copytree(host, path)
    with Trace.open(path) as trace:
        times = [(p.t_min, p.t_max) for p in trace.parts("events") if p.t_min is not None and p.t_max is not None]
    begin, end = min(t for t, _ in times), max(t for _, t in times)
    row = {"kind": "mark", "program": None, "firings": 1, "t_from": None, "t_to": None}
    fired = {"kind": "trigger", "text": "trigger", "firings": 12, "program": 2}
    rows = [
        row | {"mark": 1, "t": begin, "text": "deployed v2"},
        row | {"mark": 2, "t": (begin + end) // 2} | fired,
    ]
    content = manifest.read(path)
    table = pa.Table.from_pylist(rows, schema=MARKS.schema)
    content["tables"][MARKS.name] = parquet.write_side_table(path, MARKS, table)
    manifest.write(path, content)
    return path


async def test_marks_stand_on_the_timeline_and_speak(marked: Path) -> None:
    async with opened(marked, size=(140, 40)) as bench:
        await bench.press("2")
        (marks,) = [line for line in bench.lines if "◆" in line and "worker" not in line]
        # The cursor stands on the first of the two.
        assert marks.count("◆") == 1
        label = bench.widget(Lanes).label_width
        assert abs(marks.index("◆") - label - (140 - label) // 2) < (140 - label) // 4
        assert "◆ deployed v2" in bench.text
        await bench.press("right")
        assert "◆ deployed v2" not in bench.text
        (marks,) = [line for line in bench.lines if "◆" in line and "worker" not in line]
        assert marks.count("◆") == 2
        for _ in range(marks.rindex("◆") - label - 1):
            await bench.pilot.press("right")
        await bench.settle()
        assert "◆ trigger (12 firings)" in bench.text


async def test_a_trace_without_marks_has_none(host: Path) -> None:
    async with opened(host, size=(140, 40)) as bench:
        await bench.press("2")
        assert "◆" not in bench.text
