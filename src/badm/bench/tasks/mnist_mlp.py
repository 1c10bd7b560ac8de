"""``mnist-mlp``, ``fashion-mlp`` and variants with sigmoids: the perceptrons of dlADMM's paper.

A 784–1000–1000–10 perceptron on pixels from 0 to 1. With ReLU and cross-entropy it is what dlADMM
was published for; with sigmoids and half the squared distance to one-hot labels it is what
sigmoid-ADMM was published for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from badm.bench.data import idx, path
from badm.bench.task import Scale, Score, Splits, Task
from badm.bench.tasks.scores.prediction import predict

INPUTS, CLASSES = idx.SIDE**2, 10
CPU_TRAIN, CPU_TEST = 20_000, 5_000  # the first images of each file
SMOKE_TRAIN, SMOKE_TEST = 600, 200
ALL_TRAIN = 60_000


class MnistMlp(Task):
    """A perceptron on MNIST; a tenth of the training images is held out for validation."""

    name = "mnist-mlp"
    dataset_name = "mnist"
    title = "MNIST"
    activation: type[nn.Module] = nn.ReLU
    score = Score("accuracy", percent=True)
    batch_size = 128
    sub_batch_size = 32
    target = 0.97

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.width = 100 if scale == "smoke" else 1000
        units = self.activation.__name__.replace("Sigmoid", "sigmoid")
        self.description = (
            f"{self.title}, {INPUTS}–{self.width}–{self.width}–{CLASSES} perceptron with {units}"
        )
        # Ten epochs of 18,000 images; at the paper's scale the 200 of dlADMM's public code.
        self.steps = {"smoke": 20, "cpu": 10 * 141, "paper": 200 * 422}[scale]
        self.evaluate_every = {"smoke": 5, "cpu": 47, "paper": 422}[scale]

    def data(self) -> Splits:
        """
        >>> splits = MnistMlp("smoke").data()
        >>> splits.synthetic, [x.shape for x, y in (splits.train, splits.validation)]
        (True, [torch.Size([540, 784]), torch.Size([60, 784])])
        """
        if self.scale == "smoke":
            train, test = (
                idx.synthetic_images(SMOKE_TRAIN, seed=0),
                idx.synthetic_images(SMOKE_TEST, seed=1),
            )
            return _splits(*train, *test, synthetic=True)
        images = idx.load(path(self.dataset_name))
        if self.scale == "paper":
            missing = ALL_TRAIN - len(images.train)
            notes = (f"{len(images.train):,} of {ALL_TRAIN:,} training images",) if missing else ()
            return _splits(*images, notes=notes)
        return _splits(
            images.train[:CPU_TRAIN],
            images.train_labels[:CPU_TRAIN],
            images.test[:CPU_TEST],
            images.test_labels[:CPU_TEST],
        )

    def model(self, splits: Splits) -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, self.width),
            self.activation(),
            nn.Linear(self.width, self.width),
            self.activation(),
            nn.Linear(self.width, CLASSES),
        )

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return self.criterion(model(x), y)

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        outputs, y = predict(model, split[0].split(1000)), split[1].cpu()
        accuracy = (outputs.argmax(1) == y).double().mean().item()
        return {"accuracy": accuracy, "loss": self.criterion(outputs, y).item()}

    def criterion(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y)


class FashionMlp(MnistMlp):
    name = "fashion-mlp"
    dataset_name = "fashion-mnist"
    title = "Fashion-MNIST"
    target = 0.87


class MnistMlpSigmoid(MnistMlp):
    """With sigmoids, and half the squared distance to the one-hot label as the loss."""

    name = "mnist-mlp-sigmoid"
    activation = nn.Sigmoid
    target = 0.95

    def criterion(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (outputs - one_hot(y, CLASSES)).square().sum(1).mean()


class FashionMlpSigmoid(MnistMlpSigmoid):
    name = "fashion-mlp-sigmoid"
    dataset_name = "fashion-mnist"
    title = "Fashion-MNIST"
    target = 0.84


def _splits(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    synthetic: bool = False,
    notes: tuple[str, ...] = (),
) -> Splits:
    x, y = _pixels(train), train_labels.long()
    held_out = len(y) // 10  # the last ones: neither dataset is sorted
    return Splits(
        train=(x[:-held_out], y[:-held_out]),
        validation=(x[-held_out:], y[-held_out:]),
        test=(_pixels(test), test_labels.long()),
        synthetic=synthetic,
        notes=notes,
    )


def _pixels(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255
