"""The benchmark on real images, in short: what its committed result rests on still holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "fashion_mnist.py"


@pytest.fixture
def benchmark_module(badm_data: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("fashion_mnist", BENCHMARK)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "STEPS", 100)
    return module


@pytest.mark.data
def test_a_hundred_steps_on_fashion_mnist_order_the_metrics(benchmark_module: ModuleType) -> None:
    """Kronecker and spectral are ahead of Adam, the printed algorithm is far behind."""
    loss = {
        method: benchmark_module.lowest_loss(benchmark_module.run(method, 3e-3, seed=0))
        for method in ("Adam", "BADM euclidean", "BADM spectral", "BADM kronecker")
    }
    assert loss["BADM kronecker"] < 0.9 * loss["Adam"]
    assert loss["BADM spectral"] < loss["Adam"]
    assert loss["BADM euclidean"] > 2 * loss["Adam"]


@pytest.mark.data
def test_a_run_on_fashion_mnist_repeats_bit_for_bit(benchmark_module: ModuleType) -> None:
    benchmark_module.STEPS = 25
    once, again = (benchmark_module.run("BADM kronecker", 3e-3, seed=1) for _ in range(2))
    assert once == again
