"""Streams of maps: which map has which, and that a full one is told of once for each export."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np

from megascope.capture.attachments import Attachments
from megascope.capture.map_tables import MapTables
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Program
from megascope.capture.segment import map_ring
from megascope.capture.segment.drain import Loss
from megascope.capture.segment.map_ring import Span

DECLARED = Map("m", MapKind.HASH, 4, 8, 64, aggregate=True)


def export(epoch: int, refused: int, limit: int) -> list[Any]:
    """The records of one export of 64 entries, as the drainer takes them."""
    seen = (100, 100, 0, 0, 0)
    span = Span(2, 0, 0, None, 1, epoch, 1, epoch * 10, epoch * 10 + 10, seen, refused)
    keys = np.arange(64, dtype="<u4").view(np.uint8).reshape(64, 4)
    values = np.ones(64, "<u8").view(np.uint8).reshape(64, 8)
    pieces = map_ring.encode(span, DECLARED, keys, values, limit)
    return [found for piece in pieces for found in map_ring.records(piece)]


def test_an_export_in_several_records_counts_its_refusals_once() -> None:
    segment: Any = SimpleNamespace(layout=SimpleNamespace(program_slots=1, ranks=1))
    attachments = Attachments(segment)
    attachments.programs[2] = Program("p", (), (), (DECLARED,))
    records = [*export(0, 7, 400), *export(1, 5, 400), *export(2, 0, 400)]
    assert len(records) > 6
    told = [x.count for x in attachments.rows(records) if isinstance(x, Loss) and x.kind == "map_full"]
    assert told == [7, 5]


def test_no_two_maps_share_a_stream_because_sql_takes_their_names_for_one() -> None:
    """Names that differ in case, or in where the program's ends; generations of one program go on in one stream."""
    tables = MapTables()

    def stream(number: int, program: str, *maps: str) -> list[str]:
        declared = tuple(dataclasses.replace(DECLARED, name=name) for name in maps)
        return [tables.of(number, Program(program, (), (), declared), i).table.name for i in range(len(maps))]

    assert stream(2, "lat", "n", "N") == ["maps.lat_n", "maps.lat_n_2"]
    assert stream(3, "LAT", "n") == ["maps.lat_n_3"]
    assert stream(4, "lat", "n", "N") == ["maps.lat_n", "maps.lat_n_2"]
    assert stream(5, "a", "b_n") + stream(6, "a_b", "n") == ["maps.a_b_n", "maps.a_b_n_2"]
