"""Code that nobody verified, as machine code: for the conformance tests, and nothing else.

What it addresses is touched as it comes, so that wrong code ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ...store.tables import Column
from .isa import Insn
from .llvm_text import Text
from .lowering import Lowering
from .lowering_arithmetic import DECLARATIONS as SWAPS
from .lowering_blocks import CannotLower
from .lowering_target import Code
from .native_compile import Compiled
from .native_helpers import DECLARATIONS

_WORD = ctypes.c_uint64


class _Bare:
    """No row and no maps: a lowering.Target on which the time is 0."""

    parameters = helper_parameters = "i64 %nothing"

    def column(self, text: Text, column: Column) -> str:  # noqa: ARG002
        return "0"

    def global_value(self, text: Text, map_index: int) -> str:  # noqa: ARG002
        raise CannotLower("raw code", -1, f"there is no map {map_index}")

    def emit(self, text: Text) -> None:  # noqa: ARG002
        raise CannotLower("raw code", -1, "there is no row to emit")


def run_raw(insns: Sequence[Insn], memory: bytearray, *, thorough: bool = False) -> int:
    """r0 of code with r1 pointing to `memory` (0 if it is empty) and r2 its length. Raises CannotLower."""
    lowering = Lowering(Code("raw code", tuple(insns)), _Bare())
    name = lowering.call(0)
    enter = f"""
define i64 @enter(i64 %address, i64 %length) {{
  %r0 = call i64 {name}(i64 %address, i64 %length, i64 0, i64 0, i64 0, i64 0)
  ret i64 %r0
}}
"""
    code = Compiled("raw code", "\n".join((DECLARATIONS + SWAPS, lowering.definitions(), enter)), thorough=thorough)
    data = np.frombuffer(memory, np.uint8)
    address = data.ctypes.data if len(data) else 0
    return int(code.function("enter", _WORD, _WORD, _WORD)(address, len(data)))
