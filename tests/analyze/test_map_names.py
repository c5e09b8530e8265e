"""Maps are views by name in Python too, as `SHOW TABLES` lists them."""

from __future__ import annotations

from pathlib import Path

import pytest
import recordings

import megascope
from megascope.store import map_streams
from megascope.store.errors import Usage
from megascope.store.tables import Column


def test_every_map_is_a_view(tmp_path: Path) -> None:
    """`views` has what SHOW TABLES has, and `view` gives each under its name; of a closed recording, nothing."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    table = map_streams.table("latency_execution", "a map", [Column("key", "i64", "key")])
    writer.declare(table)
    writer.append(table.name, recordings.rows(table, {"program": 1, "key": 7}, {"program": 1, "key": 8}))
    writer.finish("ended")
    with megascope.open(writer.path, threads=1) as run:
        assert "maps.latency_execution" in run.views
        shown = run.sql("SHOW TABLES").polars().to_series(0).to_list()
        assert set(shown) == set(run.views)
        query = run.view("maps.latency_execution")
        assert sorted(query.polars()["key"].to_list()) == [7, 8]
        assert query.lazy().collect().height == 2
        with pytest.raises(Usage, match="there is no such view"):
            run.view("maps.none")
    with pytest.raises(Usage, match="the recording was closed"):
        run.view("maps.latency_execution").arrow()
