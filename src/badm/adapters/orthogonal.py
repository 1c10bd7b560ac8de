"""Internal: orthogonalize a matrix as ``badm.metrics.orthogonal`` does, in any array library."""

from __future__ import annotations

import math

from badm.adapters.arrays import Array, Arrays, finfo
from badm.metrics.orthogonal import GRAM_ASPECT, ROOM_FOR_ROUNDING, STEPS, Steps


def orthogonalize(arrays: Arrays, x: Array, dtype: str, steps: Steps = STEPS) -> Array:
    """Return ``UVᵀ`` of a matrix ``x = UΣVᵀ``, up to the band of the steps."""
    rows, cols = x.shape
    tall = rows > cols
    wide = arrays.xp.transpose(x, (1, 0)) if tall else x
    work, gram = _normalized(arrays, wide, dtype)
    if max(rows, cols) >= GRAM_ASPECT * min(rows, cols):
        work = _factor(arrays, gram, steps) @ work
    else:
        for index, (a, b, c) in enumerate(steps):
            if index > 0:
                gram = work @ arrays.xp.transpose(work, (1, 0))
            work = a * work + (b * gram + c * (gram @ gram)) @ work
    return arrays.xp.transpose(work, (1, 0)) if tall else work


def _normalized(arrays: Arrays, x: Array, dtype: str) -> tuple[Array, Array]:
    """Scale ``x`` so that no singular value exceeds 1, by ``‖xxᵀ‖_F^½``; return it and ``xxᵀ``."""
    xp, tiny = arrays.xp, finfo(dtype).tiny
    x = x / xp.clip(xp.max(xp.abs(x)), tiny, math.inf)
    gram = x @ xp.transpose(x, (1, 0))
    bound = xp.sqrt(xp.sqrt(xp.sum(gram * gram))) * ROOM_FOR_ROUNDING
    bound = xp.clip(bound, tiny**0.5, math.inf)
    return x / bound, gram / (bound * bound)


def _factor(arrays: Arrays, gram: Array, steps: Steps) -> Array:
    """Run the steps on ``gram = xxᵀ`` and collect the product of their polynomials."""
    identity = arrays.xp.eye(gram.shape[0], dtype=gram.dtype)
    factor = None
    for a, b, c in steps:
        polynomial = b * gram + c * (gram @ gram) + a * identity
        factor = polynomial if factor is None else polynomial @ factor
        gram = polynomial @ gram @ polynomial
    return factor
