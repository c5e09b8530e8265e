"""A program from what an operator has: an object of clang's, or a program image. Not verified: the verifier is next.

    program = load("latency.bpf.o", {"threshold_ns": "20us"})

An object follows libbpf's conventions: functions in sections hook/NAME[,NAME…] are entries, or one in section pick;
maps are described by BTF in .maps; .rodata, .data and .bss are maps of one value; fields of the context are corrected
to this ABI (CO-RE).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...store.errors import MegascopeError, Refused
from ...store.tables import HOOKS, Table
from . import image
from .objects import constants as settable
from .objects import elf as elf_file
from .objects.btf import Btf, Kind
from .objects.btf_ext import BtfExt
from .objects.core_relocation import CONTEXTS, FLAVOUR, Relocator
from .objects.elf import Elf
from .objects.linker import Code, Linker, functions
from .objects.unfit import Unfit, nearest
from .program import PICK, Entry, Program

_HOOKS = {h.name: h.id for h in HOOKS}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COMPILE = "compile it with clang -target bpf -g -O2 -c"


def load(
    path_or_bytes: Path | str | bytes,
    constants: Mapping[str, int | str] | None = None,
    name: str | None = None,
    *,
    contexts: dict[str, Table] | None = None,
) -> Program:
    """The program of an object or image. constants: `volatile const` variables by name ("20us" is 20,000 ns);
    name: what to call it, else the file's name, else the first entry's; contexts: an ABI other than this one's.

    Raises Refused, in one line, for anything that is no sound program, and MegascopeError for a file that cannot be
    read.
    """
    if isinstance(path_or_bytes, bytes):
        what, data, called = f"program {name}" if name else "program", path_or_bytes, name
    else:
        path = Path(path_or_bytes)
        what, data, called = str(path), _contents(path), name or _stem(path)
    if data[:6] == b"MSPROG":
        if constants:
            raise Refused(f"cannot load {what}", "constants of an image are settled", "set them in its object")
        return image.unpack(data, what, "write it again with megascope program compile -o")
    try:
        return _object(data, constants or {}, called, contexts)
    except Unfit as e:
        raise Refused(f"cannot load {what}", e.why, e.todo) from e


def constants_of(path: Path) -> list[str]:
    """Names of what can be set in the object at `path`; none for anything that is no sound object."""
    try:
        elf = elf_file.read(_contents(path))
        types = elf.relocated(".BTF")
        return settable.names(elf, Btf(types)) if types is not None else []
    except (Unfit, MegascopeError):
        return []


def _contents(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(elf_file.MAX_BYTES + 1)
    except OSError as e:
        raise MegascopeError(f"cannot load {path}", e.strerror or str(e), "name an object or a program image") from e


def _stem(path: Path) -> str:
    """latency.bpf.o → latency; what SQL would not take as a name becomes an underscore."""
    stem = re.sub(r"\W", "_", path.name.removesuffix(".o").removesuffix(".bpf"), flags=re.ASCII)[:64]
    return stem if _NAME.fullmatch(stem) else f"p_{stem}"[:64]


def _object(
    data: bytes, constants: Mapping[str, int | str], name: str | None, contexts: dict[str, Table] | None
) -> Program:
    if not data.startswith(b"\x7fELF"):
        source = data[:2] in (b"/*", b"//", b"#i") or b"SEC(" in data[: 1 << 16]
        found = "LLVM bitcode" if data[:2] == b"BC" else "source" if source else "neither an object nor an image"
        raise Unfit(f"it is {found}", _COMPILE)
    elf = elf_file.read(data)
    types = elf.relocated(".BTF")
    if types is None:
        raise Unfit("it has no BTF", "compile with -g")
    btf = Btf(types)
    ext = BtfExt(elf.relocated(".BTF.ext") or b"", btf)
    settable.apply(elf, btf, constants)
    code = functions(elf)
    entries = _entries(elf, code)
    for entry, _ in entries:
        _check_context(elf, btf, ext, entry, contexts or CONTEXTS)
    linked = Linker(elf, btf, ext, Relocator(btf, contexts), code).link([entry for entry, _ in entries])
    return Program(
        name or entries[0][0].name,
        tuple(linked.insns),
        tuple(Entry(code.name, hooks, linked.begins[code]) for code, hooks in entries),
        tuple(linked.maps),
        linked.functions,
        "advise" if entries[0][1] == (PICK,) else "observe",
        tuple(linked.lines),
    )


def _entries(elf: Elf, code: Sequence[Code]) -> list[tuple[Code, tuple[int, ...]]]:
    """Functions that run at hooks, and which. Raises Unfit for none, for a hook twice, and for sections unknown.

    Static functions are only called; where a section has no others, somebody meant one to be an entry.
    """
    out: list[tuple[Code, tuple[int, ...]]] = []
    owner: dict[int, str] = {}
    attached = [c for c in code if elf.sections[c.section].name != ".text"]
    for c in attached:
        hooks = _hooks(elf.sections[c.section].name)
        if c.local:
            if all(other.local for other in attached if other.section == c.section):
                raise Unfit(f"{c.name} in {elf.sections[c.section].name} is static", "an entry is not static")
            continue
        for h in hooks:
            if h in owner:
                which = next((n for n, i in _HOOKS.items() if i == h), "pick")
                raise Unfit(f"{owner[h]} and {c.name} are both for {which}", "let one call the other")
            owner[h] = c.name
        out.append((c, hooks))
    if not out:
        raise Unfit("no function of it runs at a hook", 'mark one with SEC("hook/complete"), or another hook')
    if PICK in owner and len(owner) > 1:
        raise Unfit(f"{owner[PICK]} advises, the others observe", "keep pick in an object of its own")
    return out


def _hooks(section: str) -> tuple[int, ...]:
    """'hook/wait,resume' → (5, 6)."""
    if section == "pick":
        return (PICK,)
    known = f"hooks are {', '.join(_HOOKS)}"
    if not section.startswith("hook/"):
        todo = nearest(section, [f"hook/{h}" for h in _HOOKS] + ["pick"], "sections are hook/NAME[,NAME…] and pick")
        raise Unfit(f"section {section} is no attach point", todo)
    out = []
    for name in section.removeprefix("hook/").split(","):
        if name not in _HOOKS:
            raise Unfit(
                f"section {section} names hook {name!r}, which the ABI does not have", nearest(name, _HOOKS, known)
            )
        if _HOOKS[name] in out:
            raise Unfit(f"section {section} names {name} twice", "name each hook once")
        out.append(_HOOKS[name])
    return tuple(out)


def _check_context(elf: Elf, btf: Btf, ext: BtfExt, code: Code, contexts: Mapping[str, Table]) -> None:
    """An entry that takes some other struct would read the context's bytes as what they are not."""
    types = ext.functions.get(elf.sections[code.section].name, {})
    func = btf[types.get(code.begin * 8, 0)]
    if func.kind != Kind.FUNC or btf[func.word].kind != Kind.FUNC_PROTO:
        return
    parameters = btf[func.word].parts
    if len(parameters) > 1:
        raise Unfit(f"{code.name} has {len(parameters)} parameters", "an entry has one: struct megascope_event *")
    for _, type_id in parameters:
        _, pointer = btf.plain(type_id)
        pointee, t = btf.plain(pointer.word) if pointer.kind == Kind.PTR else (type_id, pointer)
        name = btf.name(pointee).partition(FLAVOUR)[0]
        if t.kind in (Kind.STRUCT, Kind.UNION, Kind.FWD) and name not in contexts:
            raise Unfit(f"{code.name} takes {btf.describe(pointee)} *", "an entry takes struct megascope_event *")
