"""The bases of the kronecker metric: eigenvectors of averaged ``ḡḡᵀ`` and ``ḡᵀḡ``.

The metric is the diagonal one in the basis ``(U_L, U_R)``, the geometry of Shampoo and SOAP (Vyas
et al. 2024). Everything but the bases and covariances therefore lives in that basis: the rotated
gradient, the second moment and the dual. The first step knows no covariance yet and is taken in
the identity basis, as a diagonal step.

Functions take stacks: tensors ``(k, rows, cols)`` and the states of ``k`` matrices of one shape.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late

from badm.matrices import stack, unstack

State = dict[str, Any]

# A basis is renewed by one power iteration every so many steps.
REFRESH_EVERY = 10

# Covariances drift slowly and cost as much as a rotation: sampled, not taken at every step.
SAMPLE_EVERY = 5

# A longer side keeps the identity: its covariance would take 400 MB.
MAX_SIDE = 10_000

# Of the largest eigenvalue: far above rounding, so that two ways of rounding find one basis, and
# far below what the metric tells apart. The square root of float32's epsilon.
_SHIFT = 2**-11.5

SIDES = ("left", "right")


def new_state(index: int) -> State:
    """Before the first step there is only the date of the next refresh.

    It depends on the ``index`` of the parameter, so that no step pays for all matrices. Multiples
    of the golden ratio spread any regular pattern of layers evenly.
    """
    phase = int(REFRESH_EVERY * (index * 0.6180339887498949 % 1))
    return {"refresh_in": 2 + phase}


def has_bases(state: State) -> bool:
    return "left_basis" in state or "right_basis" in state


def bases(states: list[State]) -> tuple[Tensor | None, Tensor | None]:
    """``U_L`` and ``U_R``; ``None`` is the identity."""
    left, right = (
        stack([state[f"{side}_basis"] for state in states])
        if f"{side}_basis" in states[0]
        else None
        for side in SIDES
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
    first = not has_bases(states[0])
    if first:
        for state in states:
            _start(state, g)
    # A captured graph replays the branches taken at capture, so it has to take them all.
    always = first or (g.is_cuda and torch.cuda.is_current_stream_capturing())

    for state in states:
        state["refresh_in"] -= 1
    sampled = [
        i for i, state in enumerate(states) if always or state["refresh_in"] % SAMPLE_EVERY == 0
    ]
    if sampled:
        _sample([states[i] for i in sampled], stack([g[i] for i in sampled]), beta2)
    refreshed = [state for state in states if always or state["refresh_in"] == 0]
    if refreshed:
        _refresh(refreshed)
    for state in states:
        if state["refresh_in"] == 0:
            state["refresh_in"] = REFRESH_EVERY
        if first:
            # The second moment of the first step belongs to the identity basis: start anew.
            state["second_moment"].zero_()
            state["step"].zero_()


def _start(state: State, g: Tensor) -> None:
    for side, length in zip(SIDES, g.shape[1:], strict=True):
        if length <= MAX_SIDE:
            state[f"{side}_covariance"] = torch.zeros(
                length, length, dtype=g.dtype, device=g.device
            )
            state[f"{side}_basis"] = torch.eye(length, dtype=g.dtype, device=g.device)


def _sample(states: list[State], g: Tensor, beta2: float) -> None:
    """``C ← β₂C + (1−β₂)ggᵀ``, and ``gᵀg`` on the right."""
    for side, x in zip(SIDES, (g, g.mT), strict=True):
        if f"{side}_covariance" not in states[0]:
            continue
        covariances = [state[f"{side}_covariance"] for state in states]
        if len(states) == 1:
            covariances[0].addmm_(x[0], x[0].mT, beta=beta2, alpha=1 - beta2)
        else:
            torch._foreach_lerp_(covariances, (x @ x.mT).unbind(), 1 - beta2)


def _refresh(states: list[State]) -> None:
    """One step of orthogonal iteration for each side, the rest of the state moved along."""
    moments = [state["second_moment"] for state in states]
    duals = [state["dual"] for state in states if "dual" in state]  # Algorithm 1 keeps its own
    outside = rotate_back(stack(duals), *bases(states)) if duals else None
    moment = stack(moments)
    for axis, side in ((1, "left"), (2, "right")):
        if f"{side}_basis" not in states[0]:
            continue
        basis = stack([state[f"{side}_basis"] for state in states])
        product = stack([state[f"{side}_covariance"] for state in states]) @ basis
        eigenvalues = (basis * product).sum(1)
        # Where the covariance is zero the product is rounding noise: a shift keeps what was there.
        shift = _SHIFT * eigenvalues.amax(1)
        product = product + shift[:, None, None] * basis
        # Orthogonal iteration wants the large eigenvalues first.
        order = eigenvalues.argsort(descending=True)
        # The Q of QR; torch.linalg.qr would make R too.
        new = torch.linalg.householder_product(*torch.geqrf(_reordered(product, order, 2)))
        torch._foreach_copy_([state[f"{side}_basis"] for state in states], new.unbind())
        moment = _reordered(moment, order, axis)
    torch._foreach_copy_(moments, unstack(moment, moments[0].shape))
    if outside is not None:
        torch._foreach_copy_(duals, unstack(rotate(outside, *bases(states)), duals[0].shape))


def _reordered(x: Tensor, order: Tensor, axis: int) -> Tensor:
    index = order[:, None, :] if axis == 2 else order[:, :, None]
    return x.gather(axis, index.expand_as(x))
