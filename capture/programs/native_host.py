"""What lowered code runs in on the host: rows by places, globals in tables or, where they never change, constants."""

from __future__ import annotations

from ...store.tables import Column
from .llvm_text import Text
from .native_context import Places, load
from .native_helpers import PARAMETERS, table_address
from .program import Program


class Host:
    """A lowering.Target."""

    helper_parameters = PARAMETERS

    def __init__(self, program: Program, places: Places) -> None:
        self.program, self.places = program, places
        self._used: set[int] = set()
        self.bases = 1 + max(p.base for p in places.values())
        bases = ", ".join(f"ptr %base{i}" for i in range(self.bases))
        self.parameters = f"{PARAMETERS}, {bases}, i64 %row, ptr %emit"

    def column(self, text: Text, column: Column) -> str:
        return load(text, column, self.places)

    def emit(self, text: Text) -> None:
        text.do("store i8 1, ptr %emit")

    def global_value(self, text: Text, map_index: int) -> str:
        self._used.add(map_index)
        if self._is_constant(map_index):
            return f"@m{map_index}.initial"
        return text.let(f"call ptr @m{map_index}.global(ptr %tables, ptr %common, i64 %worker)")

    def _is_constant(self, map_index: int) -> bool:
        declared = self.program.maps[map_index]
        return declared.read_only and bool(declared.initial)

    def definitions(self) -> str:
        """Of the globals that were asked for. LLVM reads the constants when it compiles."""
        return "\n".join(self._define(m) for m in sorted(self._used))

    def _define(self, m: int) -> str:
        declared = self.program.maps[m]
        if self._is_constant(m):
            data = "".join(f"\\{b:02x}" for b in declared.initial)
            return f'@m{m}.initial = internal constant [{len(declared.initial)} x i8] c"{data}", align 8\n'
        table = table_address(m, declared, len(self.program.maps))
        return f"""define internal ptr @m{m}.global(ptr %tables, ptr %common, i64 %worker) alwaysinline {{
{table}
  %value = load ptr, ptr %table
  ret ptr %value
}}
"""
