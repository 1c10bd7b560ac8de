"""The optional C kernel and the name of its wheel; everything else is in pyproject.toml."""

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNEL = "badm.metrics._kernel"


class BuildKernel(build_ext):
    """Build a library that every version of Python finds: ctypes loads it, it has no headers."""

    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + EXTENSION_SUFFIXES[-1]  # plain .so or .pyd

    def run(self) -> None:
        if self.inplace:  # one built for a single version would be found first
            for older in Path("src/badm/metrics").glob("_kernel.*.*"):
                older.unlink()
        super().run()


class PlatformWheel(bdist_wheel):
    """Name the wheel py3-none-PLATFORM, or py3-none-any where the kernel could not be built."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        kernel = self.get_finalized_command("build_ext").get_ext_fullpath(KERNEL)
        return "py3", "none", platform if os.path.exists(kernel) else "any"


setup(
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            KERNEL,
            ["src/badm/metrics/kernel.c"],
            # errno and traps would keep the square root out of the vector loop; contraction to FMA
            # would round its tail otherwise than its body, and results depend on the threads.
            extra_compile_args=[
                "-O3",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-ffp-contract=off",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            optional=True,  # without a compiler the package installs all the same
        )
    ],
)
