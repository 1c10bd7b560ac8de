"""Internal: the bases of the kronecker metric, eigenvectors of averaged ``ḡḡᵀ`` and ``ḡᵀḡ``.

The metric is the diagonal one in the basis ``(U_L, U_R)``, the geometry of Shampoo and SOAP (Vyas
et al. 2024). Everything but bases and covariances is kept in that basis: the rotated gradient, the
second moment and the dual. The first step has no covariance yet and is taken in the identity basis,
as a diagonal step.

The longer side is split into blocks about as long as the shorter one, each with bases of its own.
Bases and covariances then take as much memory as four copies of the matrix, and on three of four
tasks training was as fast as with whole sides, on one, where a step took a tenth of the time,
slightly slower (results/blocks.json). A layer of 8,415 inputs and 32 outputs would otherwise
spend its time on the 8,415² entries of a covariance whose samples have rank 32. A side of more than
10,000 keeps the identity: it is usually a vocabulary, whose words each need their own scale rather
than steps along shared directions.

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

from badm.metrics.matrices import largest_entry

State = dict[str, Any]

# Steps between two updates of a basis, each by one power iteration.
REFRESH_EVERY = 5

# A side longer than the other is split into blocks of about that length, but of at least SHORTEST,
# below which splitting saves nothing, and at most LONGEST, whose covariance takes 64 MB.
SHORTEST, LONGEST = 256, 4096

# A longer side keeps the identity.
LIMIT = 10_000

# Relative to the largest eigenvalue: far above rounding, so that the basis does not depend on it,
# and far below differences that matter to the metric. The square root of float32's epsilon.
SHIFT = 2**-11.5

SIDES = ("left", "right")

# Keys that the first step adds to a state.
KEYS = frozenset(f"{side}_{what}" for side in SIDES for what in ("covariance", "basis"))


def new_state(index: int) -> State:
    """Return the initial state: only the number of steps until the next refresh.

    It depends on the ``index`` of the parameter, so that no single step refreshes all matrices.
    Multiples of the golden ratio spread any regular pattern of layers evenly. A tensor on the CPU:
    to read it waits for no device, and a compiled step does not specialize on its value.
    """
    phase = int(REFRESH_EVERY * (index * 0.6180339887498949 % 1))
    return {"refresh_in": torch.tensor(2 + phase)}


def place_by_weights(w: Tensor) -> int:
    """Return a number to spread refreshes by that depends on the weights alone.

    However an optimizer shares the parameters out, as ZeRO does among ranks, each keeps its place.
    """
    middle = float(w.detach().reshape(-1)[w.numel() // 2])
    mantissa = math.frexp(middle)[0] if math.isfinite(middle) else 0.0
    return w.shape[0] + int(abs(mantissa) * 2**24)


def upgrade(state: State) -> None:
    """Make the count of a state a tensor on the CPU; it was a number once."""
    if "refresh_in" in state:
        state["refresh_in"] = torch.as_tensor(state["refresh_in"], device="cpu")


def grid(rows: int, cols: int) -> tuple[int, int]:
    """Return the number of blocks along each side.

    >>> grid(768, 3072), grid(32, 8415), grid(50_000, 768)
    ((1, 4), (1, 33), (1, 1))
    """
    length = max(SHORTEST, min(rows, cols))
    down, across = (
        max(1, round(side / length), math.ceil(side / LONGEST)) if gets_basis(side) else 1
        for side in (rows, cols)
    )
    return down, across


def gets_basis(side: int) -> bool:
    """Return whether a side of that length gets a basis; otherwise it keeps the identity."""
    return side <= LIMIT


def to_blocks(x: Tensor) -> Tensor:
    """Split a stack of matrices into a stack of their blocks, padded with zeros.

    Matrices of one block are not copied.
    """
    n, height, width = x.shape
    down, across = grid(height, width)
    if down == across == 1:
        return x
    rows, cols = math.ceil(height / down), math.ceil(width / across)
    x = pad(x, (0, across * cols - width, 0, down * rows - height))
    return x.view(n, down, rows, across, cols).transpose(2, 3).reshape(-1, rows, cols)


def block_shape(height: int, width: int) -> tuple[int, int, int]:
    """Return the shape of ``to_blocks`` for one matrix of that size."""
    down, across = grid(height, width)
    return down * across, math.ceil(height / down), math.ceil(width / across)


def from_blocks(blocks: Tensor, height: int, width: int) -> Tensor:
    """Join blocks to a stack of matrices of that size.

    >>> x = torch.randn(2, 600, 7)
    >>> to_blocks(x).shape, from_blocks(to_blocks(x), 600, 7).equal(x)
    (torch.Size([4, 300, 7]), True)
    """
    return _join(blocks, *grid(height, width))[:, :height, :width]


def joined(blocks: Tensor, height: int, width: int) -> Tensor | None:
    """Join the blocks of one matrix, whatever their size; ``None`` if they do not make it up.

    >>> joined(torch.ones(2, 3, 4), 6, 4).shape, joined(torch.ones(2, 3, 4), 9, 4)
    (torch.Size([1, 6, 4]), None)
    """
    count, rows, cols = blocks.shape
    down, across = math.ceil(height / rows), math.ceil(width / cols)
    equal = (rows, cols) == (math.ceil(height / down), math.ceil(width / across))
    if not equal or down * across != count:
        return None
    return _join(blocks, down, across)[:, :height, :width]


def _join(blocks: Tensor, down: int, across: int) -> Tensor:
    if down == across == 1:
        return blocks
    rows, cols = blocks.shape[1:]
    x = blocks.view(-1, down, across, rows, cols).transpose(2, 3)
    return x.reshape(-1, down * rows, across * cols)


def scale_into_range(g: Tensor) -> Tensor:
    """Scale matrices down whose products would overflow.

    Adam's second moment becomes infinite under gradients of 1e20 and its steps 0; an infinite
    covariance would have no eigenvectors at all.
    """
    limit = torch.finfo(g.dtype).max ** (1 / 3)
    within: Tensor = g * (limit / largest_entry(g)).clamp(max=1.0)
    return within


def concat(tensors: list[Tensor]) -> Tensor:
    """Concatenate stacks; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def has_bases(state: State) -> bool:
    return any(f"{side}_basis" in state for side in SIDES)


def bases(states: list[State]) -> tuple[Tensor | None, Tensor | None]:
    """Return ``U_L`` and ``U_R``; ``None`` is the identity."""
    left, right = (
        concat([state[name] for state in states]) if name in states[0] else None
        for name in (f"{side}_basis" for side in SIDES)
    )
    return left, right


def rotate(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return ``U_Lᵀ x U_R``: into the basis."""
    x = x if left is None else torch.bmm(left.mT, x)
    return x if right is None else torch.bmm(x, right)


def rotate_back(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return ``U_L x U_Rᵀ``: out of the basis."""
    x = x if left is None else torch.bmm(left, x)
    return x if right is None else torch.bmm(x, right.mT)


# Python integers decide which matrix is due; a compiled step would specialize on each of them.
@not_compiled
def update_bases(states: list[State], g: Tensor, beta2: float) -> None:
    """Update covariances and bases after a step with gradients ``g``, where they are due.

    Either all matrices of a stack have taken their first step or none has.
    """
    of_each = torch.split(g, len(g) // len(states))
    first = not has_bases(states[0])
    if first:
        for state, blocks in zip(states, of_each, strict=True):
            _init_bases(state, blocks)
    # A CUDA graph replays the branches taken at capture, so all of them are taken.
    always = first or (g.is_cuda and torch.cuda.is_current_stream_capturing())

    _update_covariances(states, g, beta2)
    is_due = _count_down(states)
    refreshed = [state for state, due in zip(states, is_due, strict=True) if always or due]
    if refreshed:
        _refresh_bases(refreshed)
    if first:
        # The second moment of the first step belongs to the identity basis: compute it in the new
        # one. Otherwise an entry with a dual but no further gradient would take wrong steps.
        rotated = rotate(g, *bases(states)).square_().mul_(1 - beta2)
        copy_into([state["second_moment"] for state in states], rotated)


def _count_down(states: list[State]) -> list[bool]:
    """Count a step, and return for each matrix whether its bases are due."""
    counts = [state["refresh_in"] for state in states]
    torch._foreach_sub_(counts, 1)
    is_due = [count == 0 for count in torch.stack(counts).tolist()]
    for count, due in zip(counts, is_due, strict=True):
        if due:
            count.fill_(REFRESH_EVERY)
    return is_due


def _init_bases(state: State, g: Tensor) -> None:
    for side, length in zip(SIDES, g.shape[1:], strict=True):
        if not gets_basis(length):
            continue
        identity = torch.eye(length, dtype=g.dtype, device=g.device).repeat(len(g), 1, 1)
        state[f"{side}_covariance"] = torch.zeros_like(identity)
        state[f"{side}_basis"] = identity


def _update_covariances(states: list[State], g: Tensor, beta2: float) -> None:
    """Update ``C ← β₂C + (1−β₂)ggᵀ``, and with ``gᵀg`` on the right."""
    for side, x in zip(SIDES, (g, g.mT), strict=True):
        if not gets_basis(x.shape[1]):
            continue
        covariances = [state[f"{side}_covariance"] for state in states]
        if len(states) == 1:
            covariances[0].baddbmm_(x, x.mT, beta=beta2, alpha=1 - beta2)
        else:
            products = torch.split(torch.bmm(x, x.mT), len(covariances[0]))
            torch._foreach_lerp_(covariances, list(products), 1 - beta2)


def _refresh_bases(states: list[State]) -> None:
    """Take one step of orthogonal iteration per side and move second moment and dual along."""
    moments = [state["second_moment"] for state in states]
    moment = concat(moments)
    old = bases(states)
    new = list(old)
    for index, (side, basis) in enumerate(zip(SIDES, old, strict=True)):
        if basis is None:
            continue
        covariance = concat([state[f"{side}_covariance"] for state in states])
        product = torch.bmm(covariance, basis)
        eigenvalues = (basis * product).sum(1)
        # Where the covariance is zero the product is rounding noise: a shift keeps the old basis.
        shift = SHIFT * eigenvalues.amax(1)
        product = torch.addcmul(product, shift[:, None, None], basis)
        # Orthogonal iteration needs the large eigenvalues first.
        order = eigenvalues.argsort(descending=True, stable=True)
        new[index] = _orthonormal(_permute(product, order, 2), covariance.diagonal(dim1=1, dim2=2))
        moment = _permute(moment, order, index + 1)
    copy_into(moments, moment)
    duals = [state["dual"] for state in states if "dual" in state]  # Algorithm 1 keeps its own
    if duals:
        copy_into(duals, rotate(rotate_back(concat(duals), *old), *new))
    for side, q in zip(SIDES, new, strict=True):
        if q is not None:
            copy_into([state[f"{side}_basis"] for state in states], q)


def _orthonormal(x: Tensor, activity: Tensor) -> Tensor:
    """Return the Q of QR, in which axes without activity stay axes bit for bit.

    A reflection mixes its axis into all later ones. So axes that have seen no gradient come last:
    then nothing is left to reflect, and there is no rounding error for the metric to scale up.
    """
    rows = activity.argsort(descending=True, stable=True)
    # torch.linalg.qr would compute R as well.
    q = torch.linalg.householder_product(*torch.geqrf(_permute(x, rows, 1)))
    return _permute(q, rows.argsort(), 1)


def copy_into(tensors: list[Tensor], x: Tensor) -> None:
    """Copy the concatenation ``x`` back into its stacks."""
    torch._foreach_copy_(tensors, list(torch.split(x, len(tensors[0]))))


def _permute(x: Tensor, order: Tensor, axis: int) -> Tensor:
    index = order[:, None, :] if axis == 2 else order[:, :, None]
    return x.gather(axis, index.expand_as(x))
