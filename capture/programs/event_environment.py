"""What a program reaches while it sees one event: the row, its worker's maps, and the helpers of `helpers.HELPERS`.

What the verifier refuses is a fault here: a helper on a map of another kind, a write to a read-only map, map_closed of
state, emit of something that is not the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...store.tables import EVENT_ROW
from .helpers import HELPER_BY_ID, Arg, Helper
from .map_state import MapState
from .maps import MapKind
from .memory import Allocation, Fault, Memory
from .verdict import Region, Verdict

_T = EVENT_ROW.offsets["t"]


class Environment:
    """The interpreter's environment for one row. emitted: the program called emit; context: the row's address.

    Instrumented, a call that reaches another map than the verdict says is a fault.
    """

    def __init__(
        self, verdict: Verdict, memory: Memory, maps: Mapping[int, MapState], row: bytes, *, instrumented: bool
    ) -> None:
        self._verdict, self._memory, self._maps, self._instrumented = verdict, memory, maps, instrumented
        self._t = int.from_bytes(row[_T : _T + 8], "little")
        self._handles: dict[int, int] = {}
        self.context = memory.add(Allocation(bytearray(row), Region.CONTEXT, writable=False))
        self.emitted = False

    def map_address(self, index: int) -> int:
        if index not in self._maps:
            raise Fault(f"there is no map {index}")
        known = next((a for a, i in self._handles.items() if i == index), None)
        if known is None:
            known = self._memory.add(Allocation(bytearray(), writable=False))
            self._handles[known] = index
        return known

    def value_address(self, index: int, offset: int) -> int:
        value = self._maps[index].lookup(bytes(4)) if index in self._maps else None
        if value is None or not 0 <= offset < len(value) or self._maps[index].declared.kind != MapKind.ARRAY:
            raise Fault(f"map {index} has no global at {offset}")
        return self._value(index, value) + offset

    def call(self, pc: int, helper: int, arguments: Sequence[int]) -> int:
        known = HELPER_BY_ID[helper]
        if Arg.MAP in known.args:
            return self._call_map(pc, known, arguments)
        if known.name == "ktime_get_ns":
            return self._t
        if arguments[0] != self.context:
            raise Fault(f"{known.name} of something that is not the context")
        self.emitted = True
        return 0

    def _call_map(self, pc: int, helper: Helper, arguments: Sequence[int]) -> int:
        index = self._handles.get(arguments[0])
        if index is None or self._maps[index].declared.kind not in helper.maps:
            raise Fault(f"{helper.name} of something that is no map of its kind")
        if self._instrumented and self._verdict.call_maps.get(pc) != index:
            raise Fault(f"{helper.name} of map {index}, which the verdict does not name")
        state = self._maps[index]
        key = self._memory.load(arguments[1], state.declared.key_size)
        match helper.name:
            case "map_lookup_elem":
                return self._value(index, state.lookup(key))
            case "map_closed":
                return self._value(index, self._closed(state, key), closed=True)
            case "map_update_elem":
                value = self._memory.load(arguments[2], state.value_size)
                return self._written(state).update(key, value, arguments[3])
            case "map_delete_elem":
                out = self._written(state).delete(key)
                self._memory.free_values(index)
                return out
            case "map_add":
                self._of_words(state).add(key, arguments[2])
            case "map_min":
                self._of_words(state).min(key, arguments[2])
            case "map_max":
                self._of_words(state).max(key, arguments[2])
            case "hist_add":
                state.hist_add(key, arguments[2])
            case "stats_add":
                state.stats_add(key, arguments[2])
            case _:
                raise Fault(f"helper {helper.name} has no meaning here")
        return 0

    def _closed(self, state: MapState, key: bytes) -> bytearray | None:
        if not state.aggregates:
            raise Fault(f"map {state.declared.name} is state and has no closed epochs")
        return state.lookup_closed(key)

    def _written(self, state: MapState) -> MapState:
        if state.declared.read_only:
            raise Fault(f"map {state.declared.name} is read-only")
        return state

    def _of_words(self, state: MapState) -> MapState:
        if state.value_size != 8:
            raise Fault(f"the values of map {state.declared.name} are no u64")
        return self._written(state)

    def _value(self, index: int, value: bytearray | None, *, closed: bool = False) -> int:
        """Its address in this run; 0 where there is none."""
        if value is None:
            return 0
        declared = self._maps[index].declared
        writable = not (closed or declared.read_only or declared.kind == MapKind.FEEDBACK)
        return self._memory.add(Allocation(value, Region.VALUE, writable, index))
