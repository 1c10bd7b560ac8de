"""The bases of the kronecker metric: eigenvectors of averaged ``ḡḡᵀ`` and ``ḡᵀḡ``.

The metric is the diagonal one in the basis ``(U_L, U_R)``, the geometry of Shampoo and SOAP (Vyas
et al. 2024). Everything but the bases and covariances therefore lives in that basis: the rotated
gradient, the second moment and the dual. The first step knows no covariance yet and is taken in
the identity basis, as a diagonal step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]

# A basis is renewed by one power iteration every so many steps.
REFRESH_EVERY = 10

# Covariances drift slowly and cost as much as a rotation: sampled, not taken at every step.
SAMPLE_EVERY = 5

# The first bases start from the identity and need more than one iteration.
FIRST_ITERATIONS = 4

# A longer side keeps the identity: its covariance would take 400 MB.
MAX_SIDE = 10_000

SIDES = ("left", "right")


def new_state(index: int) -> State:
    """Before the first step there is only the date of the next refresh.

    It depends on the ``index`` of the parameter, so that no step pays for all matrices. Multiples
    of the golden ratio spread any regular pattern of layers evenly.
    """
    phase = int(REFRESH_EVERY * (index * 0.6180339887498949 % 1))
    return {"refresh_in": REFRESH_EVERY + phase}


def bases(state: State) -> tuple[Tensor | None, Tensor | None]:
    """``U_L`` and ``U_R``; ``None`` is the identity."""
    return state.get("left_basis"), state.get("right_basis")


def rotate(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``U_Lᵀ x U_R``: a matrix, or each of a stack, into the basis."""
    x = x if left is None else left.mT @ x
    return x if right is None else x @ right


def rotate_back(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``U_L x U_Rᵀ``: out of the basis."""
    x = x if left is None else left @ x
    return x if right is None else x @ right.mT


# Which matrix is due is a matter of Python integers; a compiled step would specialise on each.
@torch.compiler.disable
def follow(state: State, g: Tensor, *, beta2: float) -> None:
    """After a step with the matrix gradient ``g``: covariances, and bases when it is time."""
    first = bases(state) == (None, None)
    if first:
        _start(state, g)
    # A captured graph replays the branches taken at capture, so it has to take them all.
    always = first or (g.is_cuda and torch.cuda.is_current_stream_capturing())

    state["refresh_in"] -= 1
    if always or state["refresh_in"] % SAMPLE_EVERY == 0:
        for side, x in zip(SIDES, (g, g.mT)):
            if (covariance := state.get(f"{side}_covariance")) is not None:
                covariance.addmm_(x, x.mT, beta=beta2, alpha=1 - beta2)
    if always or state["refresh_in"] == 0:
        for _ in range(FIRST_ITERATIONS if first else 1):
            _refresh(state)
    if first:
        # The second moment of the first step belongs to the identity basis: start anew.
        state["second_moment"].zero_()
        state["step"].zero_()
    if state["refresh_in"] == 0:
        state["refresh_in"] = REFRESH_EVERY


def _start(state: State, g: Tensor) -> None:
    for side, length in zip(SIDES, g.shape):
        if length <= MAX_SIDE:
            state[f"{side}_covariance"] = torch.zeros(length, length, dtype=g.dtype, device=g.device)
            state[f"{side}_basis"] = torch.eye(length, dtype=g.dtype, device=g.device)


def _refresh(state: State) -> None:
    """One step of orthogonal iteration for each side, the rest of the state moved along."""
    dual = state.get("dual")  # Algorithm 1 keeps its own duals, out of the basis
    moment = state["second_moment"]
    in_place = moment.reshape(moment.shape[0], -1)
    outside = None if dual is None else rotate_back(dual.reshape(in_place.shape), *bases(state))
    for axis, side in enumerate(SIDES):
        if (basis := state.get(f"{side}_basis")) is None:
            continue
        product = state[f"{side}_covariance"] @ basis
        # Orthogonal iteration wants the large eigenvalues first.
        order = (basis * product).sum(0).argsort(descending=True)
        basis.copy_(torch.linalg.qr(product.index_select(1, order)).Q)
        in_place = in_place.index_select(axis, order)
    moment.copy_(in_place.reshape(moment.shape))
    if dual is not None and outside is not None:
        dual.copy_(rotate(outside, *bases(state)).reshape(dual.shape))
