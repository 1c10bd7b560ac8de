"""Internal: orthogonalize a matrix, ``UVᵀ`` of ``x = UΣVᵀ``, with matrix products only.

Each step maps every singular value ``s`` to ``a·s + b·s³ + c·s⁵``. Newton–Schulz as Muon uses it
repeats one triple five times. Here the triple changes from step to step: each is the odd quintic
with the smallest maximum deviation from 1 on the interval left by the one before (Amsel et al.
2025, "The Polar Express"). Four such steps, 12 products instead of 15, bring singular values from
[0.002, 1] to [0.68, 1.32]; Muon's five bring [0.0015, 1] to [0.68, 1.20]. A tighter normalisation
makes up for the smaller range: Muon divides by ``‖x‖_F``, far above the largest singular value of a
matrix of high rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from badm.metrics.matrices import largest_entry

# Solved for [0.002, 1] by benchmarks/quintic_steps.py.
STEPS = (
    (8.426787802768807, -24.93613404163891, 18.492492862753046),
    (4.111647386710232, -3.059129636520232, 0.5749535461374844),
    (3.714569579346974, -2.7781246039612566, 0.5429390720491296),
    (2.781950472821741, -2.0749271774477687, 0.46350076019413966),
)

# Solved for [0.01, 1]. Three steps, 9 products, are enough for a direction that another metric has
# whitened: few of its singular values are below a hundredth of the largest.
STEPS_WHITENED = (
    (8.093368512548256, -23.62043032882427, 17.446151749836243),
    (3.636585554259039, -2.7219267466089065, 0.5365462883273612),
    (2.6612999857770996, -1.9771545218846243, 0.45261640699640054),
)

Steps = tuple[tuple[float, float, float], ...]

# The first triple is steep at 1: a singular value that rounding lifts above 1 would diverge.
ROOM_FOR_ROUNDING = 1.01

# So are the other triples where the one before leaves its largest values. In bfloat16, with 8 bits,
# each takes its argument as so much smaller; without, singular values reached 50.
_SHRINK_IN_BFLOAT16 = 1.01

# ``torch.set_float32_matmul_precision("medium")`` lets float32 products be computed in bfloat16. A
# CPU with instructions for it then does so if the shorter side is at least this long; smaller
# products take no less time. Not by default: results would differ between machines by far more than
# the rounding of float32. Singular values end in [0.63, 1.33], except those that were below the
# rounding themselves, a few thousandths of the largest.
_SHORTEST_IN_BFLOAT16 = 128
_NATIVE_BFLOAT16: bool = torch.cpu._is_avx512_bf16_supported()

# From this aspect ratio on, iterating on the small Gram matrix is cheaper: 13 products of rows³ and
# 2 of rows²·cols, against 4 and 8.
GRAM_ASPECT = 2.0


def orthogonalize(x: Tensor, steps: Steps = STEPS) -> Tensor:
    """Return ``UVᵀ`` for each matrix of a stack ``(..., rows, cols)``, up to the band above.

    >>> x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    >>> singular_values = torch.linalg.svdvals(orthogonalize(x))
    >>> bool((singular_values > 0.67).all() and (singular_values < 1.33).all())
    True
    """
    tall = x.shape[-2] > x.shape[-1]
    wide = x.mT if tall else x
    rows, cols = wide.shape[-2:]
    single = wide if x.dtype == torch.float64 else wide.float()
    work, gram = _normalized(single.reshape(-1, rows, cols), _work_dtype(x))
    # The Gram matrix squares the condition number, too much for the 8 bits of bfloat16.
    if cols >= GRAM_ASPECT * rows and work.dtype != torch.bfloat16:
        work = torch.bmm(_factor(gram, steps), work)
    else:
        shrink = _SHRINK_IN_BFLOAT16 if work.dtype == torch.bfloat16 else 1.0
        for index, (a, b, c) in enumerate(_at_smaller_values(steps, shrink)):
            if index > 0:
                gram = torch.bmm(work, work.mT)  # matmul copies a transposed stack of one
            polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            work = torch.baddbmm(work, polynomial, work, beta=a)
    work = work.reshape(wide.shape)
    return (work.mT if tall else work).to(x.dtype, memory_format=torch.contiguous_format)


def polar_factor(x: Tensor, steps: Steps = STEPS) -> Tensor:
    """Return the symmetric positive definite ``P`` with ``orthogonalize(x) = Px``, for rows ≤ cols.

    ``P`` is a polynomial in ``xxᵀ``: this is what makes the spectral step a step in a metric. Takes
    one matrix or a stack of them.
    """
    work, gram = _normalized(x.reshape(-1, *x.shape[-2:]), x.dtype)
    # Ratio of largest elements: their squares cannot overflow. For x = 0 any P will do, and below
    # the smallest normal number there is only rounding error.
    largest = largest_entry(x).reshape(-1, 1, 1)
    is_zero = largest < torch.finfo(x.dtype).tiny
    scale = torch.where(is_zero, torch.ones_like(largest), largest_entry(work) / largest)
    return (_factor(gram, steps) * scale).reshape(*x.shape[:-2], *gram.shape[-2:])


def _at_smaller_values(steps: Steps, factor: float) -> Steps:
    """Return the steps ``p(s/factor)``."""
    return tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in steps)


def _work_dtype(x: Tensor) -> torch.dtype:
    if x.dtype == torch.float64:
        return x.dtype
    return torch.bfloat16 if x.is_cuda or _gains_from_bfloat16(x) else torch.float32


def _gains_from_bfloat16(x: Tensor) -> bool:
    """Return whether the user lets the CPU multiply in bfloat16, and it is faster at it.

    It depends on the shape of one matrix, not of the stack, so that all paths round alike. A
    compiled step cannot ask for the user's choice and stays in float32.
    """
    return (
        not torch.compiler.is_compiling()
        and _NATIVE_BFLOAT16
        and x.is_cpu
        and min(x.shape[-2:]) >= _SHORTEST_IN_BFLOAT16
        and _float32_precision() == "bf16"
    )


def _float32_precision() -> str:
    """Return what float32 products on the CPU are computed in; torch before 2.9 does not tell."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return str(getattr(matmul, "fp32_precision", "none"))


def _normalized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale ``x`` so that no singular value exceeds 1, by a tight bound; return it and ``xxᵀ``.

    ``‖xxᵀ‖_F^½ = (Σ s⁴)^¼`` bounds the largest singular value far closer than ``‖x‖_F``. The first
    division keeps the fourth powers within range.
    """
    tiny = torch.finfo(x.dtype).tiny
    x = x / largest_entry(x).clamp(min=tiny)
    # Products of a transposed matrix in bfloat16 would take twice as long.
    x = x.to(dtype, memory_format=torch.contiguous_format)
    gram = torch.bmm(x, x.mT)
    bound = gram.norm(dim=(-2, -1), keepdim=True).sqrt() * ROOM_FOR_ROUNDING
    bound = bound.clamp(min=tiny**0.5)
    return x / bound, gram / bound.square()


def _factor(gram: Tensor, steps: Steps) -> Tensor:
    """Run the steps on ``gram = xxᵀ`` and collect ``P``, the product of their polynomials."""
    factor = None
    for a, b, c in steps:
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        factor = polynomial if factor is None else torch.bmm(polynomial, factor)
        gram = torch.bmm(torch.bmm(polynomial, gram), polynomial)
    assert factor is not None
    return factor
