"""Internal: the bases of the kronecker metric, as ``badm.metrics.eigenbases``, in pure functions.

Bases start as the identity, in which the first step is taken. A step count and a phase take the
place of the countdown to the next refresh: both are known without looking at the state.
"""

from __future__ import annotations

import math

from badm.adapters.arrays import Array, Arrays
from badm.metrics import eigenbases
from badm.metrics.eigenbases import REFRESH_EVERY, SHIFT, SIDES, block_shape, gets_basis, grid

State = dict[str, Array]

Entries = dict[str, tuple[tuple[int, ...], str]]  # shape and "zeros" or "identity", by key


def entries(rows: int, cols: int) -> Entries:
    """Return the entries of a new state: covariance and basis of each side that gets one.

    >>> sorted(entries(3, 20_000))
    ['left_basis', 'left_covariance']
    """
    blocks, *sides = block_shape(rows, cols)
    found: Entries = {}
    for side, length in zip(SIDES, sides, strict=True):
        if gets_basis(length):
            found[f"{side}_covariance"] = ((blocks, length, length), "zeros")
            found[f"{side}_basis"] = ((blocks, length, length), "identity")
    return found


def is_due(arrays: Arrays, step: Array, index: int) -> Array:
    """Return whether the ``index``-th matrix updates its bases after a step, counted from 1."""
    first = int(eigenbases.new_state(index)["refresh_in"])
    later = (step >= first) & ((step - first) % REFRESH_EVERY == 0)
    return (step == 1) | later


def to_blocks(arrays: Arrays, x: Array) -> Array:
    """Split a matrix into a stack of its blocks, padded with zeros."""
    height, width = x.shape
    down, across = grid(height, width)
    rows, cols = math.ceil(height / down), math.ceil(width / across)
    x = arrays.xp.pad(x, ((0, down * rows - height), (0, across * cols - width)))
    x = arrays.xp.reshape(x, (down, rows, across, cols))
    return arrays.xp.reshape(arrays.xp.transpose(x, (0, 2, 1, 3)), (-1, rows, cols))


def from_blocks(arrays: Arrays, blocks: Array, height: int, width: int) -> Array:
    """Join blocks to a matrix of that size."""
    down, across = grid(height, width)
    rows, cols = blocks.shape[1:]
    x = arrays.xp.reshape(blocks, (down, across, rows, cols))
    x = arrays.xp.reshape(arrays.xp.transpose(x, (0, 2, 1, 3)), (down * rows, across * cols))
    return x[:height, :width]


def rotate(arrays: Arrays, x: Array, state: State) -> Array:
    """Return ``U_Lᵀ x U_R``: into the basis."""
    if "left_basis" in state:
        x = _transposed(arrays, state["left_basis"]) @ x
    return x @ state["right_basis"] if "right_basis" in state else x


def rotate_back(arrays: Arrays, x: Array, state: State) -> Array:
    """Return ``U_L x U_Rᵀ``: out of the basis."""
    if "left_basis" in state:
        x = state["left_basis"] @ x
    return x @ _transposed(arrays, state["right_basis"]) if "right_basis" in state else x


def updated(arrays: Arrays, state: State, g: Array, beta2: Array, step: Array, index: int) -> State:
    """Return the state after a step with gradients ``g``: new covariances, and bases if due."""
    state = _with_covariances(arrays, state, g, beta2)
    refreshed = arrays.cond(
        is_due(arrays, step, index), lambda: _refreshed(arrays, state), lambda: dict(state)
    )

    def anew() -> Array:
        rotated = rotate(arrays, g, refreshed)
        return (rotated * rotated) * (1 - beta2)

    # The second moment of the first step belongs to the identity basis: compute it in the new one.
    moment = arrays.cond(step == 1, anew, lambda: refreshed["second_moment"])
    return {**refreshed, "second_moment": moment}


def _with_covariances(arrays: Arrays, state: State, g: Array, beta2: Array) -> State:
    """Update ``C ← β₂C + (1−β₂)ggᵀ``, and with ``gᵀg`` on the right."""
    new = dict(state)
    for side, x in zip(SIDES, (g, _transposed(arrays, g)), strict=True):
        if (key := f"{side}_covariance") in state:
            new[key] = beta2 * state[key] + (1 - beta2) * (x @ _transposed(arrays, x))
    return new


def _refreshed(arrays: Arrays, state: State) -> State:
    """Take one step of orthogonal iteration per side and move second moment and dual along."""
    xp, new = arrays.xp, dict(state)
    for axis, side in enumerate(SIDES, start=1):
        if f"{side}_basis" not in state:
            continue
        covariance, basis = state[f"{side}_covariance"], state[f"{side}_basis"]
        product = covariance @ basis
        eigenvalues = xp.sum(basis * product, axis=1)
        # Where the covariance is zero the product is rounding noise: a shift keeps the old basis.
        product = product + (SHIFT * xp.max(eigenvalues, axis=1))[:, None, None] * basis
        # Orthogonal iteration needs the large eigenvalues first.
        order = xp.argsort(-eigenvalues, axis=1)
        activity = xp.sum(covariance * xp.eye(basis.shape[1], dtype=basis.dtype), axis=2)
        new[f"{side}_basis"] = _orthonormal(arrays, _permute(arrays, product, order, 2), activity)
        new["second_moment"] = _permute(arrays, new["second_moment"], order, axis)
    new["dual"] = rotate(arrays, rotate_back(arrays, state["dual"], state), new)
    return new


def _orthonormal(arrays: Arrays, x: Array, activity: Array) -> Array:
    """Return the Q of QR, in which axes without activity, which come last, stay axes."""
    rows = arrays.xp.argsort(-activity, axis=1)
    q, _ = arrays.xp.linalg.qr(_permute(arrays, x, rows, 1))
    return _permute(arrays, q, arrays.xp.argsort(rows, axis=1), 1)


def _permute(arrays: Arrays, x: Array, order: Array, axis: int) -> Array:
    index = order[:, None, :] if axis == 2 else order[:, :, None]
    return arrays.xp.take_along_axis(x, arrays.xp.broadcast_to(index, x.shape), axis=axis)


def _transposed(arrays: Arrays, x: Array) -> Array:
    return arrays.xp.transpose(x, (0, 2, 1))
