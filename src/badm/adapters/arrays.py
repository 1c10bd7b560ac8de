"""Internal: the array library in which the metrics compute: that of JAX, or Keras's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Array = Any  # of jax, torch or tensorflow: all have operators and the same names of functions


@dataclass(frozen=True)
class Arrays:
    """What the metrics need besides operators.

    Some of Keras's functions lose digits of float64, among them ``mean``, and ``maximum`` of an
    array and a number; ``clip`` keeps them.

    Attributes:
        xp: ``jax.numpy`` or ``keras.ops``, which share the names of numpy.
        cast: Convert an array to a dtype, given by name.
        cond: Return the result of one of two functions, by a condition; in one array program.
        whole: Return an array that every device has whole; products of shards may be undefined.
    """

    xp: Any
    cast: Callable[[Array, str], Array]
    cond: Callable[[Array, Callable[[], Any], Callable[[], Any]], Any]
    whole: Callable[[Array], Array] = lambda x: x


def finfo(dtype: str) -> torch.finfo:
    """Return the limits of a dtype by its name.

    >>> finfo("float32").max > 3e38
    True
    """
    return torch.finfo(getattr(torch, dtype))


def state_dtype(dtype: str) -> str:
    """Return the dtype of a parameter's state: float32 for half precision, else its own.

    >>> state_dtype("bfloat16"), state_dtype("float64")
    ('float32', 'float64')
    """
    return "float32" if dtype in ("bfloat16", "float16") else dtype
