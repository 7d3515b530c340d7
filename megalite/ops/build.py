"""Builds the native kernels of csrc/ with the compilers that are there. Nothing here imports torch: setup.py uses it.

    python -m megalite.ops.build [--cuda] [--arch 90]

Objects are kept in build/kernels by a hash of what went into them. A library has the hash of its sources in its name,
so that one of other sources is never loaded.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
HOME = Path(__file__).resolve().parent
"""Where the libraries are looked for: beside the ops."""
OBJECTS = CSRC.parent / "build" / "kernels"

LEVEL, FOR_LEVEL = ("avx2", ["-march=x86-64-v3"]) if platform.machine() in ("x86_64", "AMD64") else ("plain", [])
"""The processors that the CPU kernels are built for. One of x86 without AVX2, of before 2013, has the reference."""
ARCHITECTURES = ("80", "90", "100")
"""Generations of GPUs: Ampere, Hopper, Blackwell."""

COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", f"-I{CSRC / 'include'}"]
# Sums keep their order, infinities and NaN their meaning: vector code needs neither to go.
CPU = [*COMMON, "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Werror=return-type"]
CUDA = ["-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-Xptxas", "-v", f"-I{CSRC / 'include'}"]
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]
"""The oldest torch whose interface is used."""


class BuildError(RuntimeError):
    """Why there is no library: a tool is missing, or what the compiler said."""


def find_compiler(asked: str = "") -> str:
    """The C++ compiler asked for, or the first that is there. Raises BuildError."""
    for name in [asked] if asked else ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return found
    raise BuildError(f"there is no C++ compiler {asked or '(c++, g++ or clang++)'}")


def find_nvcc() -> str:
    """CUDA's compiler. Raises BuildError."""
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        raise BuildError("there is no CUDA compiler (nvcc)")
    return found


def find_torch() -> Path:
    """The folder of torch with its headers and libraries. Raises BuildError.

    pip hides installed packages from what it builds in isolation, but sysconfig still names their folder.
    """
    spec = find_spec("torch")
    homes = [Path(spec.origin).parent] if spec and spec.origin else []
    for home in [*homes, *(Path(sysconfig.get_path(name)) / "torch" for name in ("purelib", "platlib"))]:
        if (home / "include/torch/csrc/stable/library.h").exists():
            return home
    raise BuildError("there is no torch of version 2.10 or newer to build for")


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


@cache
def _headers() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(CSRC.rglob("*.h")))


def run(command: Sequence[str]) -> str:
    """Run a compiler; what it said. Raises BuildError with the beginning of that where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).splitlines()[:20])
        raise BuildError(f"{' '.join(command)}\n{said}")
    return done.stderr


def compiled(source: Path, compiler: str, flags: Sequence[str]) -> Path:
    """The object of a source, and beside it what the compiler said (.log): from an earlier time if nothing differs."""
    parts = [_version(compiler), *flags, source.name]
    digest = hashlib.sha256("\0".join(parts).encode() + source.read_bytes() + _headers()).hexdigest()[:16]
    made = OBJECTS / f"{source.stem}-{digest}.o"
    if not made.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        beside = made.with_suffix(f".{os.getpid()}")
        said = run([compiler, *flags, "-c", str(source), "-o", str(beside)])
        made.with_suffix(".log").write_text(said)
        os.replace(beside, made)
    return made


def link(made: Path, objects: Sequence[Path], compiler: str, flags: Sequence[str]) -> None:
    """A shared library, which appears as a whole."""
    beside = made.with_suffix(f".{os.getpid()}")
    run([compiler, "-shared", *map(str, objects), "-o", str(beside), *flags])
    os.replace(beside, made)


def sources_digest() -> str:
    """What is in the names of libraries built from these sources."""
    sources = [*(CSRC / "cpu").glob("*.cpp"), *(CSRC / "cuda").glob("*.cu"), *(CSRC / "bind").glob("*.cpp")]
    digest = hashlib.sha256(_headers())
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def libraries(kind: str) -> list[Path]:
    """Built libraries for `cpu` or `cuda`; in a clone, those of its sources only."""
    return sorted(HOME.glob(f"_{kind}-{sources_digest() if CSRC.exists() else '*'}.so"))


def _place(kind: str, home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for old in home.glob(f"_{kind}-*.so"):
        old.unlink()
    return home / f"_{kind}-{sources_digest()}.so"


def build_cpu(home: Path = HOME, *, compiler: str = "") -> Path:
    """The CPU library. Raises BuildError."""
    compiler, torch = find_compiler(compiler), find_torch()
    objects = [compiled(source, compiler, [*CPU, *FOR_LEVEL]) for source in sorted((CSRC / "cpu").glob("*.cpp"))]
    objects.append(compiled(CSRC / "bind/cpu.cpp", compiler, _binding(torch)))
    made = _place("cpu", home)
    link(made, objects, compiler, [f"-L{torch / 'lib'}", "-ltorch_cpu"])
    return made


def _binding(torch: Path) -> list[str]:
    return [*CPU, *STABLE_ABI, f"-I{torch / 'include'}", "-w"]


def cuda_object(source: Path, architectures: Sequence[str], *, defines: Sequence[str] = ()) -> Path:
    """A CUDA source for these GPUs; neither a GPU nor torch is needed. Raises BuildError."""
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures]
    return compiled(source, find_nvcc(), [*CUDA, *targets, *(f"-D{name}" for name in defines)])


def build_cuda(home: Path = HOME, *, compiler: str = "", architectures: Sequence[str] = ARCHITECTURES) -> Path:
    """The CUDA library; torch for CPUs will do to build it. Raises BuildError."""
    compiler, torch = find_compiler(compiler), find_torch()
    objects = [cuda_object(source, architectures) for source in sorted((CSRC / "cuda").glob("*.cu"))]
    objects.append(compiled(CSRC / "bind/cuda.cpp", compiler, _binding(torch)))
    # torch for CPUs has no such library: an empty one with its name stands in for it.
    stub = OBJECTS / "libtorch_cuda.so"
    run([compiler, "-shared", "-Wl,-soname,libtorch_cuda.so", "-o", str(stub), "-x", "c++", os.devnull])
    made = _place("cuda", home)
    paths = [f"-L{torch / 'lib'}", f"-L{OBJECTS}", f"-L{_toolkit(find_nvcc()) / 'lib64'}"]
    names = ["-Wl,--no-as-needed", "-ltorch_cuda", "-ltorch_cpu", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    link(made, objects, compiler, [*paths, *names])
    return made


def _toolkit(nvcc: str) -> Path:
    """The folder of the toolkit; nvcc may be a script that calls another."""
    said = subprocess.run([nvcc, "--dryrun", "-c", "-x", "cu", os.devnull], capture_output=True, text=True).stderr
    return Path(next(line.rpartition("TOP=")[2] for line in said.splitlines() if "TOP=" in line))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m megalite.ops.build", description="Build the native kernels.")
    parser.add_argument("--cuda", action="store_true", help="those for GPUs, too: needs nvcc, and no GPU")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="GPUs to build for; may be repeated")
    parser.add_argument("--compiler", default="", help="the C++ compiler")
    given = parser.parse_args()
    try:
        print(build_cpu(compiler=given.compiler))
        if given.cuda:
            print(build_cuda(compiler=given.compiler, architectures=given.arch or ARCHITECTURES))
    except BuildError as error:
        print(f"No kernels were built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
