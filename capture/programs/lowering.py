"""Verified eBPF to LLVM assembly: one LLVM function per eBPF function.

Registers are 64-bit slots that LLVM promotes to values; a function has a frame of its own. What surrounds the program
(the row, the maps) is the target's: it gives the functions their parameters, the columns of the context and the
functions `@m<map>.<helper>` that stand for helpers, so that one lowering serves the host and a device.

Every access is as the verdict says. The lowering of unverified code (verdict's parts None) takes every address as it
comes and serves the conformance tests only.
"""

from __future__ import annotations

from collections import Counter

from .llvm_text import function
from .lowering_function import FunctionLowering
from .lowering_target import Code, Target

ARGUMENTS = ", ".join(f"i64 %a{i}" for i in range(1, 6))


class Lowering:
    """Functions of one program, lowered as they are asked for, with all that they call.

    helpers: how often the code calls `@m<map>.<name>`, by (map, helper id).
    """

    def __init__(self, code: Code, target: Target) -> None:
        self.code, self.target = code, target
        self.helpers: Counter[tuple[int, int]] = Counter()
        self._bodies: dict[int, str] = {}
        self._calls: Counter[int] = Counter()

    def call(self, pc: int) -> str:
        """The LLVM name of the function at slot `pc`, for one call of it. Raises CannotLower."""
        self._calls[pc] += 1
        queue = [pc]
        while queue:
            start = queue.pop()
            if start not in self._bodies:
                body = FunctionLowering(self.code, self.target, start)
                self._bodies[start] = body.define()
                self.helpers.update(body.helpers)
                self._calls.update(body.callees)
                queue += body.callees
        return f"@f{pc}"

    def definitions(self) -> str:
        """LLVM assembly of all functions. What is called from one place only is made part of that place."""
        return "\n".join(
            function(
                f"i64 @f{pc}({ARGUMENTS}, {self.target.parameters})",
                body,
                "alwaysinline" if self._calls[pc] == 1 else "noinline",
            )
            for pc, body in self._bodies.items()
        )
