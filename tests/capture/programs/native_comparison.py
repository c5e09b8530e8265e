"""What it means that two executions agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megascope.capture.programs.execution import Execution, Export
from megascope.capture.programs.native import Native


def same_exports(got: Sequence[Export], want: Sequence[Export]) -> None:
    assert [(e.map, e.worker, e.refused) for e in got] == [(e.map, e.worker, e.refused) for e in want]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.keys, b.keys, strict=True)
        np.testing.assert_array_equal(a.values, b.values, err_msg=f"map {a.map} of worker {a.worker}", strict=True)


def same(native: Native, other: Execution) -> None:
    """Counters, and every map of every worker."""
    np.testing.assert_array_equal(native.counters, other.counters)
    for m in range(len(native.verdict.program.maps)):
        for worker in range(native.workers):
            same_exports([native.entries(m, worker)], [other.entries(m, worker)])
