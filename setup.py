"""The optional C kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "badm.metrics._kernel",
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
    ]
)
