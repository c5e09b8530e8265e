"""LLVM assembly to machine code of this processor, quickly or thoroughly.

LLVM ends the process over some of what it cannot do, so nothing reaches code generation that its own parser and
verifier did not accept, and the processor is always named.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ...store.errors import MegascopeError

_QUICK = ("always_inliner", "global_dead_code_eliminate", "sroa", "simplify_cfg")
"""Passes without which the code generator that does not optimise has several times the work."""


@cache
def _processor() -> tuple[Any, dict[str, Any]]:
    """The target, and what its machines are made with."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_triple(llvm.get_process_triple()), {"cpu": llvm.get_host_cpu_name(), "features": features}


class Compiled:
    """Machine code of one module. Functions must not be called after this object is gone."""

    def __init__(self, what: str, assembly: str, *, thorough: bool) -> None:
        """thorough: all that LLVM does for speed, at about four times the time to compile.

        Raises MegascopeError, naming `what`, if LLVM refuses the assembly: a defect of the lowering.
        """
        target, processor = _processor()
        # One for each engine, which deletes its own.
        machine = target.create_target_machine(**processor, opt=2 if thorough else 0)
        try:
            module = llvm.parse_assembly(assembly)
            module.verify()
        except RuntimeError as e:
            raise MegascopeError(what, f"LLVM refuses its lowering ({e})", "report this program") from e
        module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        passes = builder.getModulePassManager() if thorough else llvm.create_new_module_pass_manager()
        for name in () if thorough else _QUICK:
            getattr(passes, f"add_{name}_pass")()
        passes.run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Of a function that the module has: LLVM ends the process over another name."""
        return int(self._engine.get_function_address(name))

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A C function of the module, by its ctypes types. The interpreter lock is not held in it."""
        call: Callable[..., Any] = ctypes.CFUNCTYPE(result, *arguments)(self.address(name))
        return call


def publish(code: Compiled, *names: str) -> None:
    """Let modules that are compiled later call these functions of `code` by their names. It must never be dropped."""
    for name in names:
        llvm.add_symbol(name, code.address(name))
