"""Layers with the initialisation, normalisation and parameter counts of Keras.

Where Keras and torch differ, the tasks of the paper follow Keras: kernels are initialised Glorot
uniform and biases to zero, BatchNorm has Keras's constants and averages the biased variance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from badm.bench.models.running_averages import warmup_share


class Dense(nn.Linear):
    """A dense layer initialised as in Keras.

    >>> layer = Dense(1000, 10)
    >>> bool(layer.weight.abs().max() <= (6 / 1010) ** 0.5), layer.bias.abs().max().item()
    (True, 0.0)
    """

    def reset_parameters(self) -> None:
        keras_init(self)


def keras_init(layer: nn.Linear) -> nn.Linear:
    """Initialise a layer as Keras does: kernel Glorot uniform, bias zero."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Embedding(nn.Embedding):
    """An embedding initialised as in Keras: uniform, within 0.05 of zero.

    >>> bool(Embedding(100, 8).weight.abs().max() <= 0.05)
    True
    """

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.05, 0.05)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation with Keras's constants, over all axes but the second.

    The momentum of running averages is 0.01, the variance is the biased one (torch averages the
    unbiased estimate), and a batch of one sample is allowed. With ``warm_up`` the averages follow
    the batches closely at first: otherwise a third of the initial value is left after a hundred
    steps, and a short run is evaluated with that.

    >>> norm = BatchNorm(1)
    >>> norm(torch.tensor([[0.0], [2.0]])).flatten().tolist()
    [-0.9995003938674927, 0.9995003938674927]
    >>> round(norm.running_mean.item(), 4), round(norm.running_var.item(), 4)  # from 0 and 1
    (0.01, 1.0)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, features: int, *, affine: bool = True, warm_up: bool = False) -> None:
        super().__init__(features, eps=1e-3, momentum=0.01, affine=affine)
        self.warm_up = warm_up

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        # functional.batch_norm would not return the statistics of the batch.
        out, mean, inverse_std = torch.native_batch_norm(
            x, self.weight, self.bias, None, None, True, 0.0, self.eps
        )
        self.observe(mean.detach(), (inverse_std.detach() ** -2 - self.eps).clamp_(min=0))
        return out

    def observe(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running averages with the statistics of a batch."""
        with torch.no_grad():
            self.num_batches_tracked += 1
            share: float | Tensor
            if self.momentum is None:  # in torch, the plain mean over all batches
                share = 1 / self.num_batches_tracked.item()
            elif self.warm_up:
                share = warmup_share(1 - self.momentum, self.num_batches_tracked)
            else:
                share = self.momentum
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance, share)


def parameter_counts(module: nn.Module) -> tuple[int, int]:
    """Count all and the trainable parameters, as ``keras.Model.summary`` does.

    The running averages of BatchNorm are among all, its batch counter is not.

    >>> parameter_counts(nn.Sequential(Dense(3, 2), BatchNorm(2)))
    (16, 12)
    """
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    averages = sum(
        norm.running_mean.numel() + norm.running_var.numel()
        for norm in module.modules()
        if isinstance(norm, BatchNorm)
    )
    return trained + frozen + averages, trained
