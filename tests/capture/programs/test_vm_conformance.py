"""Every case of the bpf_conformance suite through the device VM, under the sanitizers: memory is the value of a map."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance import EXCLUDED, Case, cases
from conformance import MISSING as NO_CASES
from hand_made import a_map, program, trusted
from vm_process import COMPILER, MISSING, DeviceVm, VmProcess

from megascope.capture.programs import vmcode
from megascope.capture.programs.maps import MapKind

pytestmark = [
    pytest.mark.skipif(not cases(), reason=NO_CASES),
    pytest.mark.skipif(COMPILER is None, reason=MISSING),
]
RUN = [pytest.param(c, id=c.name) for c in cases() if c.name not in EXCLUDED]
LIVE = 3


@pytest.fixture(scope="module")
def process() -> Iterator[VmProcess]:
    p = VmProcess()
    yield p
    p.close()


@pytest.mark.parametrize("case", RUN)
def test_result(process: VmProcess, case: Case) -> None:
    size = len(case.memory)
    memory = (a_map(MapKind.ARRAY, value=size, entries=1),) if size else ()
    vm = DeviceVm(process, trusted(program(case.text, *memory)), 1)
    r1 = vmcode.pointer(LIVE) if size else 0
    for lane in (0, 31):
        assert vm.raw(lane=lane, r1=r1, r2=size, memory=case.memory) == (0, 0, case.result)


def test_all_cases_are_run_or_excluded_with_a_reason() -> None:
    assert len(cases()) == 313
    assert len(RUN) == 313 - len(EXCLUDED)
