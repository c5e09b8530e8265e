"""Device code to cubins: by nvcc where it is, else by NVRTC; kept in the user's cache by the hash of the sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

from ....store.errors import MegascopeError

SOURCES = Path(__file__).resolve().parents[2] / "device"


class Hooks(IntEnum):
    """Builds of the hooks, as MS_HOOKS in engine.cuh."""

    NONE = 0
    QUEUE = 1
    NATIVE = 2
    DEVICE = 3


def cubin(source: str | Path, architecture: str, hooks: Hooks = Hooks.QUEUE) -> Path:
    """The path of a compiled `source` (of one in capture/device its name is enough) for `architecture`, as in sm_90.

    Raises MegascopeError with the compiler's first error when it does not compile, OSError when it cannot be read.
    """
    source = str(SOURCES / source)
    files = sorted({*SOURCES.glob("*.cu*"), Path(source)})
    compiler = shutil.which("nvcc")
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files))
    digest.update(f"{source} {architecture} {hooks} {compiler}".encode())
    out = _cache() / f"{Path(source).stem}-{digest.hexdigest()[:20]}.cubin"
    if not out.exists():
        data = _nvcc(compiler, source, architecture, hooks) if compiler else _nvrtc(source, architecture, hooks)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out.parent, delete=False) as f:
            f.write(data)
        Path(f.name).replace(out)
    return out


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "megascope" / "cubin"


def nvcc_command(compiler: str, source: str, architecture: str, hooks: Hooks, out: str) -> list[str]:
    """The command line that compiles a source."""
    options = ["-std=c++17", f"-arch={architecture}", "-cubin", f"-DMS_HOOKS={hooks.value}", f"-I{SOURCES}"]
    return [compiler, *options, "-Xptxas", "-v", "-o", out, str(SOURCES / source)]


def _nvcc(compiler: str, source: str, architecture: str, hooks: Hooks) -> bytes:
    with tempfile.TemporaryDirectory() as d:
        out = str(Path(d) / "out.cubin")
        done = subprocess.run(
            nvcc_command(compiler, source, architecture, hooks, out), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise _failed(source, done.stderr)
        return Path(out).read_bytes()


_STUBS = {
    "stdint.h": "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n"
    "typedef unsigned long long uint64_t; typedef int int32_t; typedef long long int64_t;\n"
    "#define static_assert(...)\n",
    "stddef.h": "#define offsetof(type, member) ((unsigned long)&((type*)0)->member)\n",
    "math.h": "#define INFINITY __int_as_float(0x7f800000)\n",
}
"""What the device code needs of the standard headers, which NVRTC does not have. Nor has it a constant offsetof, which
the static assertions ask for: they are nvcc's to check, in the tests."""


def _nvrtc(source: str, architecture: str, hooks: Hooks) -> bytes:
    from cupy.cuda import compiler

    with tempfile.TemporaryDirectory() as d:
        for name, text in _STUBS.items():
            (Path(d) / name).write_text(text)
        options: tuple[Any, ...] = ("-std=c++17", f"-DMS_HOOKS={hooks.value}", f"-I{SOURCES}", f"-I{d}")
        try:
            data, _ = compiler.compile_using_nvrtc(
                (SOURCES / source).read_text(), options, architecture.removeprefix("sm_"), source
            )
        except compiler.CompileException as e:
            raise _failed(source, str(e)) from e
    return bytes(data)


def _failed(source: str, said: str) -> MegascopeError:
    errors = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["no message"]
    return MegascopeError(f"cannot compile {source}", errors[0], "check that nvcc is of CUDA 12.4 or newer")
