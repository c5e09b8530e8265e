"""The interpreter's memory: allocations with edges. Whatever is not wholly inside one is a fault.

An address is a number, so that programs may compute with it: the allocation's serial number in the high 32 bits, the
offset in the low. Allocations are 4 GiB apart, and a freed one's number is never used again: a pointer that outlives
its memory, or that is off by less than 4 GiB, faults. 0 is no address.
"""

from __future__ import annotations

from dataclasses import dataclass

from .verdict import Region


class Fault(Exception):
    """The program did what no verified program does, and was stopped. pc: at which slot, -1 where it is not known."""

    def __init__(self, reason: str, pc: int = -1) -> None:
        super().__init__(f"instruction {pc}: {reason}" if pc >= 0 else reason)
        self.reason, self.pc = reason, pc


@dataclass
class Allocation:
    """Bytes that belong together. map: index in Program.maps, of a VALUE. region: None for memory of a raw run.

    written: which bytes have a value, None where all have.
    """

    data: bytearray
    region: Region | None = None
    writable: bool = True
    map: int = -1
    written: bytearray | None = None


class Memory:
    """All that one run of a program may touch."""

    def __init__(self) -> None:
        self._allocations: dict[int, Allocation] = {}
        self._address: dict[int, int] = {}
        self._serial = 0

    def add(self, allocation: Allocation) -> int:
        """Its address. The same bytes added again have the address that they had."""
        known = self._address.get(id(allocation.data))
        if known is not None:
            return known
        self._serial += 1
        address = self._serial << 32
        self._allocations[self._serial] = allocation
        self._address[id(allocation.data)] = address
        return address

    def free(self, address: int) -> None:
        """Make an allocation unreachable. Raises KeyError if there is none."""
        allocation = self._allocations.pop(address >> 32)
        del self._address[id(allocation.data)]

    def free_values(self, map_index: int) -> None:
        """Make every live value of a map unreachable; those of a closed epoch, which are read-only, stay."""
        for serial in [s for s, a in self._allocations.items() if a.map == map_index and a.writable]:
            self.free(serial << 32)

    def find(self, address: int, size: int) -> tuple[Allocation, int]:
        """The allocation that has all of these bytes, and the offset in it. Raises Fault."""
        allocation = self._allocations.get(address >> 32)
        offset = address & 0xFFFF_FFFF
        if allocation is None or offset + size > len(allocation.data):
            raise Fault(f"{size} bytes at {address:#x} are nobody's")
        return allocation, offset

    def load(self, address: int, size: int) -> bytes:
        """Raises Fault: outside, or never written."""
        allocation, offset = self.find(address, size)
        if allocation.written is not None and not all(allocation.written[offset : offset + size]):
            raise Fault(f"{size} bytes at {address:#x} were never written")
        return bytes(allocation.data[offset : offset + size])

    def store(self, address: int, value: bytes) -> None:
        """Raises Fault: outside, or read-only."""
        allocation, offset = self.find(address, len(value))
        if not allocation.writable:
            raise Fault(f"{len(value)} bytes at {address:#x} are read-only")
        allocation.data[offset : offset + len(value)] = value
        if allocation.written is not None:
            allocation.written[offset : offset + len(value)] = b"\1" * len(value)
