"""Build an sdist and a wheel with the kernel, and try the wheel in an empty environment.

    python tools/build_wheel.py dist           # or: make wheel

The wheel is built from the sdist, without a network: setuptools and build are there already. The
environment in which it is tried has no compiler, so that a kernel that runs there came with the
wheel. torch is borrowed from the environment of this script.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRIAL = """
import torch, badm
from badm.metrics import kernel

assert kernel.available(), "the wheel has no kernel"
weight = torch.nn.Parameter(torch.ones(4))
weight.grad = torch.ones(4)
badm.BADM([weight], lr=0.5, metric="diagonal", fused=True).step()
assert (weight < 1).all(), weight
print(badm.__file__)
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Build both into an empty folder and return the sdist and the wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def try_wheel(wheel: Path) -> None:
    """Install a wheel into an empty environment without a compiler, and take a fused step."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home, with_pip=True)
        python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
        environment = {**os.environ, "CC": "/bin/false"}
        environment.pop("PYTHONPATH", None)
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
        subprocess.run(install, env=environment, check=True)
        (packages,) = home.rglob("site-packages")
        (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
        trial = [python, "-W", "ignore", "-c", TRIAL]
        found = subprocess.run(trial, env=environment, cwd=home, check=True, stdout=subprocess.PIPE)
        assert Path(found.stdout.decode().strip()).is_relative_to(home.resolve()), found.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        built = build(Path(made))
        try_wheel(built[1])
        for file in built:
            print(f"written: {shutil.move(file, folder / file.name)}")


if __name__ == "__main__":
    main()
