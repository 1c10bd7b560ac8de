"""The models that layer-wise methods can train: plain perceptrons for classification.

These methods split a network into its layers and never call the task's loss. Each minimises its
own: softmax cross-entropy of the logits (dladmm) or the squared distance to one-hot labels
(sigmoid-admm), whatever the loss of the task is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from badm.bench import formatting
from badm.bench.method import CannotTrain, TrainingSetup


@dataclass(frozen=True)
class Perceptron:
    """The layers of a plain perceptron, and the training set: rows are samples."""

    layers: tuple[nn.Linear, ...]
    x: Tensor  # N × inputs
    y: Tensor  # N class numbers

    def epochs(self, first: float, others: float) -> float:
        """Convert a number of products per layer to epochs of gradients.

        A product is one of activations and weights over all samples. An epoch of gradients has
        two in the first layer, forward and for the weights, and one more in the others, for the
        gradient of their input.

        >>> mlp = Perceptron((nn.Linear(3, 4), nn.Linear(4, 2)), torch.zeros(1, 3), torch.zeros(1))
        >>> mlp.epochs(2, 3), mlp.epochs(4, 6)
        (1.0, 2.0)
        """
        p, *rest = [layer.in_features * layer.out_features for layer in self.layers]
        return (first * p + others * sum(rest)) / (2 * p + 3 * sum(rest))


def perceptron(
    setup: TrainingSetup, method: str, activation: type[nn.Module] = nn.ReLU
) -> Perceptron:
    """Return the perceptron to train; :class:`CannotTrain` says why the model is none.

    >>> x, y = torch.zeros(5, 2, 2), torch.tensor([0, 1, 2, 1, 0])
    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mlp = perceptron(TrainingSetup(module, 1, supervised=lambda: (x, y)), "dladmm")
    >>> [layer.out_features for layer in mlp.layers], mlp.x.shape
    ([8, 3], torch.Size([5, 4]))
    >>> perceptron(TrainingSetup(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 1), "dladmm")
    Traceback (most recent call last):
    badm.bench.method.CannotTrain: dladmm trains plain perceptrons of linear layers and ReLU, \
and this model has BatchNorm1d
    """

    def refuse(why: str) -> CannotTrain:
        kind = f"{method} trains plain perceptrons of linear layers and {activation.__name__}"
        return CannotTrain(f"{kind}, and this model {why}")

    if not isinstance(setup.module, nn.Sequential):
        raise refuse(f"is a {type(setup.module).__name__}")
    parts = list(_parts(setup.module))
    flatten = bool(parts) and isinstance(parts[0], nn.Flatten)
    parts = parts[flatten:]
    for part in parts:
        if type(part) not in (nn.Linear, activation):
            raise refuse(f"has {type(part).__name__}")
    layers = tuple(part for part in parts if isinstance(part, nn.Linear))
    turns = [isinstance(part, nn.Linear) for part in parts]
    if not turns or not (turns[0] and turns[-1]) or any(a == b for a, b in pairwise(turns)):
        raise refuse("does not alternate between the two from a first to a last linear layer")
    if any(layer.bias is None for layer in layers):
        raise refuse("has a layer without bias")
    if len(set(layers)) < len(layers) or not all(
        p.requires_grad for p in setup.module.parameters()
    ):
        raise refuse("has shared or frozen layers")
    return Perceptron(layers, *_training_set(setup, method, layers, flatten))


def _parts(module: nn.Sequential) -> Iterator[nn.Module]:
    for part in module:
        if isinstance(part, nn.Sequential):
            yield from _parts(part)
        else:
            yield part


def _training_set(
    setup: TrainingSetup, method: str, layers: tuple[nn.Linear, ...], flatten: bool
) -> tuple[Tensor, Tensor]:
    found = setup.supervised()
    if found is None:
        raise CannotTrain(
            f"{method} trains on the whole training set at once, and this task does not provide it "
            "as inputs and labels"
        )
    x, y = found
    x = x.to_dense().to(layers[0].weight.dtype)
    x = x.flatten(1) if flatten else x
    width, classes = layers[0].in_features, layers[-1].out_features
    if x.ndim != 2 or x.shape[1] != width:
        raise CannotTrain(
            f"{method} needs samples × {width} inputs, got {formatting.shape(x.shape)}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        shape = formatting.shape(y.shape)
        raise CannotTrain(
            f"{method} needs one class number for each sample, got labels "
            f"{shape} of type {str(y.dtype).removeprefix('torch.')}"
        )
    if len(y) == 0 or y.min() < 0 or y.max() >= classes:
        raise CannotTrain(f"{method} needs labels from 0 to {classes - 1}, one for each output")
    return x, y.long()
