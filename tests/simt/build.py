"""The device code compiled for the executor of this folder: one shared object for a source and a build of the hooks.

A folder is put together of links to capture/device's files, this folder's ptx.cuh in the place of theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from megascope.capture.engines.cuda.compilation import SOURCES, Hooks

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
MISSING = "there is no C++ compiler"
ARCHITECTURE = "simt"
OPTIONS = ("-std=c++17", "-g1", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
# A call of a collective must not become two calls, nor anybody's last: it is known by where it returns to.
DEVICE_OPTIONS = ("-O1", "-fno-optimize-sibling-calls", "-ffp-contract=off", "-DMS_SIMT", "-Wno-sign-compare")
GCC_OPTIONS = ("-fno-thread-jumps", "-Wno-maybe-uninitialized")  # clang is told by an attribute (executor.h)


def _cache() -> Path:
    folder = Path(tempfile.gettempdir()) / f"megascope-simt-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _made(command: list[str], out: Path) -> Path:
    """Run a compiler whose last argument is to be its output; nobody ever sees half of that."""
    with tempfile.TemporaryDirectory(dir=out.parent) as d:
        made = Path(d) / out.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made.replace(out)
    return out


def _digest(*parts: str | Path) -> str:
    told = [p.read_bytes() if isinstance(p, Path) else p.encode() for p in parts]
    return hashlib.sha256(b"\0".join(told)).hexdigest()[:20]


def _executor(options: tuple[str, ...]) -> Path:
    assert COMPILER
    files = [HERE / name for name in ("executor.cpp", "executor.h", "fibre.h")]
    flags = [*OPTIONS, "-O2", *options]
    out = _cache() / f"executor-{_digest(COMPILER, *flags, *files)}.o"
    if out.exists():
        return out
    return _made([COMPILER, *flags, "-c", str(HERE / "executor.cpp")], out)


def compiled(source: Path | str, architecture: str = ARCHITECTURE, hooks: Hooks = Hooks.QUEUE, *options: str) -> Path:
    """A shared object of `source`: a name in capture/device, or the path of another. Kept by what it is made of."""
    assert COMPILER, MISSING
    assert architecture == f"sm_{ARCHITECTURE}" or architecture == ARCHITECTURE
    path = SOURCES / source
    own = [HERE / name for name in ("ptx.cuh", "cuda.h")]
    files = [*(f for f in sorted(SOURCES.glob("*.cu*")) if f.name != "ptx.cuh"), *own]
    executor = _executor(options)
    own_options = () if "clang" in Path(COMPILER).name else GCC_OPTIONS
    flags = [*OPTIONS, *DEVICE_OPTIONS, *own_options, *options, f"-DMS_HOOKS={hooks.value}"]
    digest = _digest(COMPILER, *flags, path.name, path, *files, executor.name)
    out = _cache() / f"{path.stem}-{hooks.name.lower()}-{digest}.so"
    with (_cache() / "lock").open("w") as lock:
        if not out.exists():
            fcntl.flock(lock, fcntl.LOCK_EX)  # test workers begin together, and one compilation is enough
        return out if out.exists() else _linked(files, path, flags, executor, out)


def _linked(files: list[Path], path: Path, flags: list[str], executor: Path, out: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=_cache()) as d:
        folder = Path(d)
        for f in [*files, path]:
            if not (folder / f.name).exists():
                (folder / f.name).symlink_to(f)
        # Included by what is beside them, which for a link is what stands beside the link.
        command = [COMPILER, *flags, f"-I{HERE}", "-shared", "-x", "c++", str(folder / path.name), "-x", "none"]
        return _made([*command, str(executor)], out)
