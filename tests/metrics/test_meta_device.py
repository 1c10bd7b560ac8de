"""Every metric and path steps on the meta device: nothing waits for a device or mixes in a CPU.

A meta tensor has no values: whatever would read one, or combine it with a CPU tensor, raises.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from badm import BADM
from tests.helpers.support import METRICS, PATHS

SHAPES = ((), (5,), (4, 4), (3, 7), (8, 2), (3, 2, 2, 2), (600, 3))


@pytest.fixture(scope="module", autouse=True)
def meta_qr() -> Iterator[None]:
    """torch has shapes without values for most operations, and not for this one."""
    library = torch.library.Library("aten", "IMPL", "Meta")

    def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(a), a.new_empty(*a.shape[:-2], min(a.shape[-2:]))

    library.impl("geqrf", geqrf)
    yield
    library._destroy()


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("metric", METRICS)
def test_a_step(metric: str, path: str, dtype: torch.dtype, tensor_lr: bool) -> None:
    make = {"dtype": dtype, "device": "meta", "requires_grad": True}
    params = [torch.empty(shape, **make) for shape in SHAPES]
    lr: float | Tensor = torch.tensor(1e-3, device="meta") if tensor_lr else 1e-3
    optimizer = BADM(params, lr=1e-3, metric=metric, weight_decay=0.1, **PATHS[path])
    optimizer.param_groups[0]["lr"] = lr
    for _ in range(12):  # past the first refresh of the kronecker bases
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    for state in optimizer.state.values():
        # The steps to the next refresh are counted on the CPU, so that nothing waits to read them.
        kept = {key: x for key, x in state.items() if isinstance(x, Tensor)}
        assert kept.pop("refresh_in", torch.tensor(0)).is_cpu
        assert all(x.device.type == "meta" for x in kept.values())
