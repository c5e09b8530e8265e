"""The maps of a query: what each is for, its keys and columns, found from its uses and its declaration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..maps import FIXED_VALUE_BYTES, MAX_ENTRIES, MAX_KEY_BYTES, Map, MapKind, Member, TypeLayout
from . import syntax, tree
from .errors import Position, Problem
from .names import Names

MAX_KEYS = 4
DEFAULT_ENTRIES = 1024
RESERVED = ("printf_", "feedback_", "table_")
_KINDS = {"hist": MapKind.HIST, "avg": MapKind.STATS, "stats": MapKind.STATS}
_HELD = {MapKind.HIST: "histogram", MapKind.STATS: "stats", MapKind.HASH: "value"}


@dataclass
class KeyColumn:
    """A key's name, and how it is held: u or i, bytes. field: the field it is, if it is one, for names."""

    name: str
    kind: str
    bytes: int
    field: str = ""


@dataclass
class MapUse:
    """One map. what: state, row, or an aggregation. at: where it first stands."""

    name: str
    what: str
    at: Position
    columns: list[KeyColumn]
    linear: tuple[int, int, int] = (0, 0, 0)
    declared: syntax.Declaration | None = None
    size: int | None = None
    written: bool = False
    read: bool = False
    """by the query itself: scratch, that nobody needs to see"""
    signed: bool = False
    """values of a sum may be below 0"""

    @property
    def offsets(self) -> list[int]:
        """Of each key, in the key's bytes."""
        out, at = [], 0
        for c in self.columns:
            at = -(-at // c.bytes) * c.bytes
            out.append(at)
            at += c.bytes
        return out

    @property
    def key_bytes(self) -> int:
        """Eight bytes a step, or four: what is left over is zero."""
        end = self.offsets[-1] + self.columns[-1].bytes if self.columns else 4
        return 4 if end <= 4 else -(-end // 8) * 8


@dataclass
class MapUses:
    names: Names
    uses: dict[str, MapUse] = field(default_factory=dict)
    declared: dict[str, tuple[syntax.Declaration, int | None]] = field(default_factory=dict)

    def declare(self, d: syntax.Declaration, size: int | None) -> None:
        """A map declaration. Raises Problem."""
        _not_reserved(d.name, d.at)
        if d.name in self.declared:
            raise Problem(d.at, f"@{d.name} is declared twice")
        if size is not None and not 1 <= size <= MAX_ENTRIES:
            raise Problem(d.size.at if d.size else d.at, f"a size of {size:,} is none", f"it is 1 to {MAX_ENTRIES:,}")
        if d.columns and len(set(d.columns)) < len(d.columns):
            raise Problem(d.at, f"two keys of @{d.name} have one name")
        self.declared[d.name] = d, size

    def use(
        self,
        name: str,
        what: str,
        ref: syntax.MapRef,
        keys: tuple[tree.Expr, ...],
        *,
        linear: tuple[int, int, int] = (0, 0, 0),
        reads: bool = False,
        negative: bool = False,
    ) -> None:
        """A map is used with these keys. Raises Problem where it does not go with its other uses."""
        at = ref.at
        if len(keys) > MAX_KEYS:
            raise Problem(ref.keys[MAX_KEYS].at, f"@{name} has {len(keys)} keys", f"at most {MAX_KEYS}")
        columns = [_column(i, s, k) for i, (s, k) in enumerate(zip(ref.keys, keys, strict=True), 1)]
        use = self.uses.get(name)
        if use is None:
            _not_reserved(name, at)
            use = self.uses[name] = MapUse(name, what, at, columns, linear)
            use.declared, use.size = self.declared.get(name, (None, None))
            if use.declared and use.declared.columns is not None and len(use.declared.columns) != len(keys):
                raise Problem(
                    at, f"@{name} has {len(keys)} keys here and {len(use.declared.columns)} where it is declared"
                )
        self._agrees(use, what, columns, linear, at)
        use.written |= not reads
        use.read |= reads
        use.signed |= negative

    def _agrees(
        self, use: MapUse, what: str, columns: list[KeyColumn], linear: tuple[int, int, int], at: Position
    ) -> None:
        before = f"in line {use.at.line}, column {use.at.column}"
        if use.what != what:
            if what == "state":
                why = f"@{use.name} is filled by {use.what}() {before}, and aggregations are for the host to read"
                raise Problem(
                    at, why, f"keep a second map as state, or ask for the engine-wide value: total(@{use.name})"
                )
            was = "keeps a number" if use.what == "state" else f"is filled by {use.what}()"
            raise Problem(at, f"@{use.name} {was} {before}, so it cannot be filled by {what}()", "use two maps")
        if use.linear != linear:
            raise Problem(at, f"@{use.name} has other bounds {before}", "use two maps, or the same bounds")
        if len(use.columns) != len(columns):
            raise Problem(at, f"@{use.name} has {len(columns)} keys here and {len(use.columns)} {before}")
        for old, new in zip(use.columns, columns, strict=True):
            old.kind, old.bytes = tree.wider((old.kind, old.bytes), (new.kind, new.bytes))
            old.field = old.field if old.field == new.field else ""

    def rows(self, name: str, at: Position, keys: list[KeyColumn]) -> None:
        """The map of typed rows of a printf. Raises Problem where they are too long for a key."""
        use = self.uses.setdefault(name, MapUse(name, "row", at, keys, written=True))
        for old, new in zip(use.columns, keys, strict=True):
            old.kind, old.bytes = tree.wider((old.kind, old.bytes), (new.kind, new.bytes))
        if use.key_bytes > MAX_KEY_BYTES:
            raise Problem(at, f"a row of it has {use.key_bytes} bytes, more than {MAX_KEY_BYTES}", "print fewer values")

    def finish(self) -> None:
        """When all uses are known: names of columns, buckets, and what was declared or read for nothing."""
        for name, (d, _) in self.declared.items():
            if name not in self.uses:
                raise Problem(d.at, f"@{name} is declared and never used")
        for use in self.uses.values():
            if not use.written:
                raise Problem(use.at, f"@{use.name} is read and never written")
            if use.declared and use.declared.shared and use.what == "state":
                raise Problem(
                    use.declared.at, f"@{use.name} keeps state, which is each worker's own", "leave shared out"
                )
            if use.declared and use.declared.columns:
                for column, label in zip(use.columns, use.declared.columns, strict=True):
                    column.name = label
            taken: set[str] = set()
            for column in use.columns:
                while column.name in taken:
                    column.name += "_"
                taken.add(column.name)
            if use.what == "lhist":
                use.columns.append(KeyColumn("bucket", "i", 8))

    def map(self, use: MapUse) -> Map:
        """The declaration of a map for the program. Raises Problem for too large a one."""
        kind = _KINDS.get(use.what, MapKind.HASH)
        value_size = FIXED_VALUE_BYTES.get(kind, 8)
        entries = use.size or self._entries(use)
        if use.what == "lhist":
            low, high, step = use.linear
            entries *= (high - low) // step + 2
            if entries > MAX_ENTRIES:
                raise Problem(
                    use.at, f"@{use.name} would have {entries:,} buckets", "take a larger step or a smaller size"
                )
        key = TypeLayout(
            f"{use.name}_key",
            use.key_bytes,
            tuple(Member(c.name, at, c.bytes, c.kind) for c, at in zip(use.columns, use.offsets, strict=True)),
        )
        sign = "i" if use.what == "state" or use.signed else "u"
        value = TypeLayout(_HELD[kind], value_size, _members(kind, sign))
        aggregate, shared = use.what != "state", bool(use.declared and use.declared.shared)
        return Map(use.name, kind, use.key_bytes, value_size, entries, shared, aggregate, key=key, value=value)

    def _entries(self, use: MapUse) -> int:
        """1024, or fewer where the keys have not so many values: then with room for some that no table knows yet."""
        if use.what == "row":
            return DEFAULT_ENTRIES
        entries = 1
        for column in use.columns[: -1 if use.what == "lhist" else None]:
            highest = self.names.highest(column.field)
            entries *= DEFAULT_ENTRIES if highest is None else 1 << highest.bit_length()
        return min(max(entries, 1), DEFAULT_ENTRIES)


def _members(kind: MapKind, sign: str) -> tuple[Member, ...]:
    if kind == MapKind.HASH:
        return (Member("value", 0, 8, sign),)
    head = tuple(Member(n, 8 * i, 8) for i, n in enumerate(("count", "sum", "min", "max")))
    if kind == MapKind.STATS:
        return head
    return (*head, Member("buckets", 32, 8, "u", FIXED_VALUE_BYTES[kind] // 8 - 4))


def _column(number: int, key: syntax.Expr, resolved: tree.Expr) -> KeyColumn:
    label = key.name.rpartition(".")[2] if isinstance(key, syntax.Name) else ""
    return KeyColumn(label or f"key{number}", *tree.width(resolved), field=label)


def _not_reserved(name: str, at: Position) -> None:
    if name.startswith(RESERVED):
        raise Problem(at, f"@{name} has a name that queries make themselves", "take another name")
