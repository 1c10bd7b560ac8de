"""The state of the random generators, as data that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def state(device: str) -> dict[str, Any]:
    """Return the states of torch, of numpy and of ``random``, and that of a GPU."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (users draw from it)
    version, own, normal = random.getstate()
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [
            str(kind),
            torch.tensor(np.asarray(keys, dtype=np.int64)),
            *rest,
        ],
        "python": [version, list(own), normal],
    }
    if device == "cuda":
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore(saved: Mapping[str, Any], device: str) -> None:
    """Set the generators to a state that was returned by :func:`state`.

    >>> before = state("cpu")
    >>> drawn = torch.rand(1).item(), random.random(), float(np.random.rand())
    >>> restore(before, "cpu")
    >>> drawn == (torch.rand(1).item(), random.random(), float(np.random.rand()))
    True
    """
    torch.set_rng_state(saved["torch"].cpu())
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, own, normal = saved["python"]
    random.setstate((version, tuple(own), normal))
    if device == "cuda":
        torch.cuda.set_rng_state(saved["cuda"].cpu())
