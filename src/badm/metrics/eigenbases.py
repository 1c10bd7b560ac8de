"""The bases of the kronecker metric: eigenvectors of averaged ``ḡḡᵀ`` and ``ḡᵀḡ``.

The metric is the diagonal one in the basis ``(U_L, U_R)``, the geometry of Shampoo and SOAP (Vyas
et al. 2024). Everything but the bases and covariances therefore lives in that basis: the rotated
gradient, the second moment and the dual. The first step knows no covariance yet and is taken in
the identity basis, as a diagonal step.

A long side is cut, and each block of the matrix has bases of its own: a layer of 8,415 inputs and
32 outputs would spend its time on the 8,415² entries of a covariance whose samples have rank 32. A
side of more than 10,000 keeps the identity: such are the words of a vocabulary, each of which wants
a scale of its own, and no steps that are shared out over directions in the space of all words.

Functions take stacks: tensors ``(k, rows, cols)`` and the states whose blocks these are, in order.
All matrices of a stack have one shape.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late
from torch.nn.functional import pad

State = dict[str, Any]

# A basis is renewed by one power iteration every so many steps.
REFRESH_EVERY = 10

# Covariances drift slowly and cost as much as a rotation: sampled, not taken at every step.
SAMPLE_EVERY = 5

# A side may be so many times as long as the other before it is cut; no block is shorter than
# SHORTEST for that, and none longer than LONGEST, whose covariance takes 64 MB.
ASPECT, SHORTEST, LONGEST = 8, 256, 4096

# A longer side keeps the identity.
LIMIT = 10_000

# Of the largest eigenvalue: far above rounding, so that two ways of rounding find one basis, and
# far below what the metric tells apart. The square root of float32's epsilon.
_SHIFT = 2**-11.5

SIDES = ("left", "right")

# What the first step adds to a state.
KEYS = frozenset(f"{side}_{what}" for side in SIDES for what in ("covariance", "basis"))


def new_state(index: int) -> State:
    """Before the first step there is only the date of the next refresh.

    It depends on the ``index`` of the parameter, so that no step pays for all matrices. Multiples
    of the golden ratio spread any regular pattern of layers evenly.
    """
    phase = int(REFRESH_EVERY * (index * 0.6180339887498949 % 1))
    return {"refresh_in": 2 + phase}


def grid(rows: int, cols: int) -> tuple[int, int]:
    """Into how many blocks each side is cut.

    >>> grid(768, 3072), grid(32, 8415), grid(50_000, 768)
    ((1, 1), (1, 33), (1, 1))
    """
    longest = min(LONGEST, max(SHORTEST, ASPECT * min(rows, cols)))
    down, across = (math.ceil(side / longest) if turns(side) else 1 for side in (rows, cols))
    return down, across


def turns(side: int) -> bool:
    """Whether a side of that length gets a basis; otherwise it keeps the identity."""
    return side <= LIMIT


def cut(x: Tensor) -> Tensor:
    """A stack of matrices as the stack of their blocks, the ends filled up with zeros.

    Matrices that stay whole are not copied.
    """
    n, height, width = x.shape
    down, across = grid(height, width)
    if down == across == 1:
        return x
    rows, cols = math.ceil(height / down), math.ceil(width / across)
    x = pad(x, (0, across * cols - width, 0, down * rows - height))
    return x.view(n, down, rows, across, cols).transpose(2, 3).reshape(-1, rows, cols)


def blocks_shape(height: int, width: int) -> tuple[int, int, int]:
    """The shape of ``cut`` of one matrix of that size."""
    down, across = grid(height, width)
    return down * across, math.ceil(height / down), math.ceil(width / across)


def join(blocks: Tensor, height: int, width: int) -> Tensor:
    """The stack of matrices of that size of which these are the blocks.

    >>> x = torch.randn(2, 600, 7)
    >>> cut(x).shape, join(cut(x), 600, 7).equal(x)
    (torch.Size([6, 200, 7]), True)
    """
    down, across = grid(height, width)
    if down == across == 1:
        return blocks
    rows, cols = blocks.shape[1:]
    x = blocks.view(-1, down, across, rows, cols).transpose(2, 3)
    return x.reshape(-1, down * rows, across * cols)[:, :height, :width]


def within_range(g: Tensor) -> Tensor:
    """Gradients scaled down, each matrix as a whole, where products of them would overflow.

    Adam's second moment becomes infinite under gradients of 1e20 and its steps 0; an infinite
    covariance would have no eigenvectors at all.
    """
    limit = torch.finfo(g.dtype).max ** (1 / 3)
    largest: Tensor = torch.linalg.vector_norm(g, math.inf, dim=(-2, -1), keepdim=True)
    within: Tensor = g * (limit / largest).clamp(max=1.0)
    return within


def whole(tensors: list[Tensor]) -> Tensor:
    """Stacks as one; one alone is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def has_bases(state: State) -> bool:
    return any(f"{side}_basis" in state for side in SIDES)


def bases(states: list[State]) -> tuple[Tensor | None, Tensor | None]:
    """``U_L`` and ``U_R``; ``None`` is the identity."""
    left, right = (
        whole([state[name] for state in states]) if name in states[0] else None
        for name in (f"{side}_basis" for side in SIDES)
    )
    return left, right


def rotate(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``U_Lᵀ x U_R``: into the basis."""
    x = x if left is None else left.mT @ x
    return x if right is None else x @ right


def rotate_back(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``U_L x U_Rᵀ``: out of the basis."""
    x = x if left is None else left @ x
    return x if right is None else x @ right.mT


# Which matrix is due is a matter of Python integers; a compiled step would specialise on each.
@not_compiled
def follow(states: list[State], g: Tensor, beta2: float) -> None:
    """After a step with the gradients ``g``: covariances, and bases where it is time.

    Of one stack either all matrices have made their first step or none has.
    """
    of_each = torch.split(g, len(g) // len(states))
    first = not has_bases(states[0])
    if first:
        for state, blocks in zip(states, of_each, strict=True):
            _start(state, blocks)
    # A captured graph replays the branches taken at capture, so it has to take them all.
    always = first or (g.is_cuda and torch.cuda.is_current_stream_capturing())

    for state in states:
        state["refresh_in"] -= 1
    sampled = [
        i for i, state in enumerate(states) if always or state["refresh_in"] % SAMPLE_EVERY == 0
    ]
    if sampled:
        _sample([states[i] for i in sampled], whole([of_each[i] for i in sampled]), beta2)
    refreshed = [state for state in states if always or state["refresh_in"] == 0]
    if refreshed:
        _refresh(refreshed)
    for state in states:
        if state["refresh_in"] == 0:
            state["refresh_in"] = REFRESH_EVERY
    if first:
        # The second moment of the first step belongs to the identity basis: here is that of the
        # new one. Without it, what has a dual and never another gradient would go astray.
        turned = rotate(g, *bases(states)).square_().mul_(1 - beta2)
        _write([state["second_moment"] for state in states], turned)


def _start(state: State, g: Tensor) -> None:
    for side, length in zip(SIDES, g.shape[1:], strict=True):
        if not turns(length):
            continue
        identity = torch.eye(length, dtype=g.dtype, device=g.device).repeat(len(g), 1, 1)
        state[f"{side}_covariance"] = torch.zeros_like(identity)
        state[f"{side}_basis"] = identity


def _sample(states: list[State], g: Tensor, beta2: float) -> None:
    """``C ← β₂C + (1−β₂)ggᵀ``, and ``gᵀg`` on the right."""
    for side, x in zip(SIDES, (g, g.mT), strict=True):
        if not turns(x.shape[1]):
            continue
        covariances = [state[f"{side}_covariance"] for state in states]
        if len(states) == 1:
            covariances[0].baddbmm_(x, x.mT, beta=beta2, alpha=1 - beta2)
        else:
            products = torch.split(x @ x.mT, len(covariances[0]))
            torch._foreach_lerp_(covariances, list(products), 1 - beta2)


def _refresh(states: list[State]) -> None:
    """One step of orthogonal iteration for each side that turns, the rest moved along."""
    moments = [state["second_moment"] for state in states]
    duals = [state["dual"] for state in states if "dual" in state]  # Algorithm 1 keeps its own
    outside = rotate_back(whole(duals), *bases(states)) if duals else None
    moment = whole(moments)
    for axis, side in ((1, "left"), (2, "right")):
        if not turns(moment.shape[axis]):
            continue
        basis = whole([state[f"{side}_basis"] for state in states])
        covariance = whole([state[f"{side}_covariance"] for state in states])
        product = covariance @ basis
        eigenvalues = (basis * product).sum(1)
        # Where the covariance is zero the product is rounding noise: a shift keeps what was there.
        shift = _SHIFT * eigenvalues.amax(1)
        product = product + shift[:, None, None] * basis
        # Orthogonal iteration wants the large eigenvalues first.
        order = eigenvalues.argsort(descending=True, stable=True)
        new = _orthonormal(_reordered(product, order, 2), covariance.diagonal(dim1=1, dim2=2))
        _write([state[f"{side}_basis"] for state in states], new)
        moment = _reordered(moment, order, axis)
    _write(moments, moment)
    if outside is not None:
        _write(duals, rotate(outside, *bases(states)))


def _orthonormal(x: Tensor, activity: Tensor) -> Tensor:
    """The Q of QR, in which axes without activity stay axes, to the last bit.

    A reflection mixes the axis it is at into all the others. So those that have seen no gradient
    come last: there is nothing left to reflect then, and no rounding for the metric to scale up.
    """
    rows = activity.argsort(descending=True, stable=True)
    # torch.linalg.qr would make R too.
    q = torch.linalg.householder_product(*torch.geqrf(_reordered(x, rows, 1)))
    return _reordered(q, rows.argsort(), 1)


def _write(tensors: list[Tensor], x: Tensor) -> None:
    """Into the stacks of which ``x`` is the whole."""
    torch._foreach_copy_(tensors, list(torch.split(x, len(tensors[0]))))


def _reordered(x: Tensor, order: Tensor, axis: int) -> Tensor:
    index = order[:, None, :] if axis == 2 else order[:, :, None]
    return x.gather(axis, index.expand_as(x))
