"""Random numbers that depend on the seed, the purpose and the step alone.

So a resumed run draws what it would have drawn, one evaluation more or less changes nothing, and
every method sees the same batches, dropout masks and noise.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

# Never to be changed: another number is another random stream.
MODEL, ORDER, STEP, EVALUATE, ARTIFACTS, DATA = range(6)
HAS_MPS = torch.backends.mps.is_available()


def seed_everything(seed: int, purpose: int, step: int = 0, player: int = 0, rank: int = 0) -> None:
    """Seed torch, numpy and ``random``; the first rank draws what a single process would."""
    entropy = (seed, purpose, step, player, *([rank] if rank else []))
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    number = int(state[0])
    # Not torch.manual_seed: it looks for all kinds of devices, in a tenth of a small step's time.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    if HAS_MPS:
        torch.mps.manual_seed(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002 (users' tasks draw from it)


def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch.

    >>> torch.equal(order(10, seed=0, epoch=3), order(10, seed=0, epoch=3))
    True
    >>> sorted(order(5, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    state = np.random.SeedSequence((seed, ORDER, epoch)).generate_state(1, np.uint64)
    return torch.randperm(samples, generator=torch.Generator().manual_seed(int(state[0])))
