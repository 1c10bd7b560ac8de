"""``digits``: handwritten digits of 8 × 8 pixels, which ship inside scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench.task import Scale, Score, Splits, Task

TEST, VALIDATION = 400, 300  # of 1,797


class Digits(Task):
    """A 64–128–128–10 perceptron; 1,097 images to train on."""

    name = "digits"
    description = "1,797 digits of 8 × 8 pixels, 64–128–128–10 perceptron"
    score = Score("accuracy", percent=True)
    batch_size = 64
    sub_batch_size = 16
    target = 0.97
    dataset_name = "digits"

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.steps = 30 if scale == "smoke" else 200
        self.evaluate_every = 5

    def data(self) -> Splits:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        x = torch.tensor(pixels, dtype=torch.float32) / 16
        y = torch.tensor(labels, dtype=torch.long)
        # The dataset is sorted by writer: shuffle once, so that every split has all writers.
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        test, validation, train = order.tensor_split((TEST, TEST + VALIDATION))
        return Splits(
            train=(x[train], y[train]),
            validation=(x[validation], y[validation]),
            test=(x[test], y[test]),
        )

    def model(self, splits: Splits) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        x, y = split
        logits, y = model(x).cpu(), y.cpu()
        accuracy = (logits.argmax(1) == y).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, y).item()}
