"""Compiles the C programs of objects/. `python tests/capture/programs/compiled.py` writes the stored objects anew."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
OBJECTS = HERE / "objects"
INCLUDE = HERE.parents[2] / "capture" / "device"
CLANG = next((c for v in range(19, 13, -1) if (c := shutil.which(f"clang-{v}"))), None) or shutil.which("clang")
SOURCES = sorted(OBJECTS.glob("*.bpf.c"))


def compile_bpf(source: Path, out: Path, *options: str, cpu: str = "v3", optimise: str = "-O2") -> Path:
    """Compile `source` to `out`. No path of this machine gets into the object: it names the source alone."""
    assert CLANG
    command = [CLANG, "-target", "bpf", "-g", optimise, f"-mcpu={cpu}", "-Wall", "-Werror"]
    command += ["-fdebug-compilation-dir=.", f"-fdebug-prefix-map={INCLUDE}=.", f"-fmacro-prefix-map={INCLUDE}=."]
    command += ["-I", str(INCLUDE), *options, "-c", source.name, "-o", str(out)]
    said = subprocess.run(command, cwd=source.parent, check=False, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return out


def compile_text(folder: Path, text: str, *options: str, cpu: str = "v3", optimise: str = "-O2") -> Path:
    """Compile C that includes the header by itself, to an object in `folder`."""
    source = folder / "given.bpf.c"
    source.write_text(text if "#include" in text else f'#include "megascope.bpf.h"\n{text}')
    return compile_bpf(source, folder / "given.bpf.o", *options, cpu=cpu, optimise=optimise)


if __name__ == "__main__":
    for path in SOURCES:
        compile_bpf(path, path.with_suffix(".o"))
