"""Builds the native kernels of csrc/ where there is a compiler and a torch to build for; the rest is in pyproject.toml.

MEGALITE_KERNELS=none builds nothing, =require fails where nothing can be built, =cuda builds those for GPUs, too.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent))

from megalite.ops import build

ASKED = os.environ.get("MEGALITE_KERNELS", "")
COMPILER = os.environ.get("CXX", "")


class BuildKernels(build_ext):
    """Libraries for torch to load, beside the ops: no modules of Python, and of no version of it."""

    def run(self) -> None:
        home = build.HOME if self.inplace else Path(self.build_lib) / "megalite/ops"
        try:
            build.build_cpu(home, compiler=COMPILER)
            if ASKED == "cuda":
                build.build_cuda(home, compiler=COMPILER)
        except build.BuildError as error:
            if ASKED:
                raise
            print(f"megalite is installed without native kernels: {error}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        return [str(path) for path in (Path(self.build_lib) / "megalite/ops").glob("_c*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


KERNELS = Extension("megalite.ops._kernels", sources=[])
setup(ext_modules=[] if ASKED == "none" else [KERNELS], cmdclass={"build_ext": BuildKernels})
