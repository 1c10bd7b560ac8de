"""``cgan-mnist`` and ``cgan-fashion``: images of a class from noise, by a conditional GAN.

The discriminator gets the class as in the public example, where a wrong reshape turns it into
bands; ``cgan-mnist-one-hot`` and ``cgan-fashion-one-hot`` have what was meant, a channel of ones
for each class. ``cgan-mnist-example`` and ``cgan-fashion-example`` are at the learning rate of the
example, three times the paper's, at which runs of this length get further.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits, pad

from badm.bench import formatting
from badm.bench.data import idx, path
from badm.bench.models.features import ClassifierFeatures, as_floats
from badm.bench.models.gan import ConditionalGan, Discriminator, Generator, LabelMap
from badm.bench.paper import Paper
from badm.bench.task import Player, Scale, Score, Splits, Task, device_of
from badm.bench.tasks.scores import kid
from badm.bench.tasks.scores.image_grids import sample_grid
from badm.bench.tasks.scores.kid import FeatureNetwork

CLASSES = 10
EPOCH = 1094  # steps of the public example: 70,000 images in batches of 64
EPOCHS = 20
EXAMPLE_RATE = 3e-4
PIECE = 256  # images generated at once
SHOWN = 8  # samples per class
COLLAPSED = 0.1  # spread below which a generator counts as collapsed
PAPER_NOTE = (
    "The paper shows curves of KID only and states no figures; it says that at -8 dB (0.158) BADM "
    "is at least {times} times as fast as Adam and RMSProp. It does not say over which features or "
    "how many images its KID is, speaks of 32×32 pixels where the set has 28×28, and does not name "
    "the map of labels"
)


@dataclass(frozen=True)
class ImageSet:
    """A dataset, its title, and how much faster BADM is on it in the paper."""

    dataset: str
    title: str
    times: int


@dataclass(frozen=True)
class Size:
    """Sizes at one scale: pixels, channels of both networks, images of each split."""

    side: int
    generator: tuple[int, int, int] | None
    discriminator: tuple[int, int]
    train: int | None  # None: all
    validation: int
    test: int | None
    steps: int
    evaluate_every: int
    target: float | None = None


IMAGE_SETS = {
    "mnist": ImageSet("mnist", "MNIST, handwritten digits", times=2),
    "fashion": ImageSet("fashion-mnist", "Fashion-MNIST, garments", times=3),
}
SIZES: dict[Scale, Size] = {
    "smoke": Size(16, (8, 8, 4), (8, 16), 640, 128, 128, steps=40, evaluate_every=20),
    # Good methods reach -4 dB in half of the steps, and the paper's -8 dB at the end. The
    # discriminator has a quarter of the example's channels: with half of them it soon beats a
    # generator as narrow as this one, which then stops learning.
    "cpu": Size(16, (64, 32, 16), (16, 32), 18_976, 1_024, 2_048, 3000, 100, target=0.4),
    "paper": Size(28, None, (64, 128), None, 5_120, None, EPOCHS * EPOCH, EPOCH // 2, 10**-0.8),
}


@dataclass(frozen=True)
class Split:
    """Images (N, 1, side, side), ``uint8``, their classes and, for KID, their features."""

    images: Tensor
    labels: Tensor
    network: FeatureNetwork
    features: Tensor | None = None


class ConditionalGanTask(Task):
    """A conditional GAN on one dataset; the method trains both networks, each with its own state.

    Scored by KID between the images of a split and as many generated ones, of equally frequent
    classes. Also reported: KID in dB; the spread, which is the variance of features within a class
    relative to that of real images, 0 for a generator that makes one image per class; and, with
    the features of a classifier, the fraction of images that it assigns to the intended class.

    >>> task = ConditionalGanTask("mnist", "smoke")
    >>> task.name, task.data().synthetic
    ('cgan-mnist', True)
    """

    batch_size = 64
    sub_batch_size = 16
    artifacts_at = (0.05, 0.15, 0.4, 1.0)
    keep = "best"

    def __init__(
        self,
        images: str,
        scale: Scale = "cpu",
        *,
        labels: LabelMap = "bands",
        example_rate: bool = False,
    ) -> None:
        super().__init__(scale)
        self.images, self.labels = images, labels
        about, self.sizes = IMAGE_SETS[images], SIZES[scale]
        self.dataset_name = about.dataset
        self.name = f"cgan-{images}"
        self.description = f"{about.title}: a conditional GAN"
        if labels == "one-hot":
            self.name += "-one-hot"
            self.description += ", the class as a channel of ones"
        if example_rate:
            self.name += "-example"
            self.description += ", three times the paper's learning rate"
        self.score = Score(kid.label(), best="low")
        self.version = f"1-{kid.version()}"
        self.steps, self.evaluate_every = self.sizes.steps, self.sizes.evaluate_every
        self.target = self.sizes.target
        paper = Paper(lr=1e-4, rho=6000, sigma=4000, note=PAPER_NOTE.format(times=about.times))
        self.paper = paper.at_example_lr(EXAMPLE_RATE) if example_rate else paper

    def data(self) -> Splits:
        train, validation, test = self._parts()
        network = kid.feature_network(*train, CLASSES)
        seen = [network.features(images) for images, _ in (validation, test)]
        # The KID of other real images: generated ones cannot be expected to do better.
        floor = kid.kid(seen[0], network.features(train[0][: len(seen[0])]))
        notes = (*self._notes(len(train[0]), len(seen[0]), len(seen[1]), floor), network.note)
        return Splits(
            Split(*train, network),
            Split(*validation, network, seen[0]),
            Split(*test, network, seen[1]),
            synthetic=self.scale == "smoke",
            notes=notes,
        )

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        """Load images and labels for training, validation and test."""
        size = self.sizes
        if self.scale == "smoke":
            assert size.train is not None
            assert size.test is not None
            made = (
                idx.synthetic_images(count, CLASSES, seed=seed)
                for seed, count in enumerate((size.train, size.validation, size.test))
            )
            return [(resize(x[:, None], size.side), y.long()) for x, y in made]
        found = idx.load(path(self.dataset_name))
        known, labels = resize(found.train[:, None], size.side), found.train_labels.long()
        if size.train:
            known, labels = (part[: size.train + size.validation] for part in (known, labels))
        last = len(known) - size.validation
        return [
            (known[:last], labels[:last]),
            (known[last:], labels[last:]),
            (
                resize(found.test[: size.test, None], size.side),
                found.test_labels[: size.test].long(),
            ),
        ]

    def _notes(self, train: int, validation: int, test: int, floor: float) -> Iterator[str]:
        """List what differs from the public example and the paper, or is unknown."""
        yield (
            f"{train:,} images to train on, {validation:,} to validate and {test:,} to test; the "
            "public example trains on all 70,000 and measures nothing"
        )
        name = self.score.name
        yield f"{name} of as many real training images from the validation split: {floor:.4f}"
        if self.labels == "bands":
            yield (
                "The class is shown to the discriminator as in the public example, where a slip in "
                "reshaping makes it a band of a tenth of the rows across all ten channels"
            )
        if self.scale == "cpu":
            narrow, wide = self.sizes, SIZES["paper"]
            yield (
                f"Images of {narrow.side}×{narrow.side} pixels at this scale: framed in 32×32 and "
                "shrunk by half"
            )
            yield (
                f"Narrow networks at this scale: channels of {_widths(narrow.generator)} in the "
                f"generator, not 138, 128, 128, and {_widths(narrow.discriminator)} in the "
                f"discriminator, not {_widths(wide.discriminator)}"
            )

    def model(self, splits: Splits) -> nn.Module:
        size = self.sizes
        return ConditionalGan(
            Generator(CLASSES, size.side, size.generator),
            Discriminator(CLASSES, size.side, size.discriminator, self.labels),
        )

    def samples(self, split: Split) -> int:
        return len(split.images)

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        return as_floats(split.images[indices]), split.labels[indices]

    def players(self, model: nn.Module) -> list[Player]:
        """The discriminator first, so that the generator meets one that has just been updated."""
        assert isinstance(model, ConditionalGan)
        return [
            Player("discriminator", model.discriminator, self.loss),
            Player("generator", model.generator, self._generator_loss),
        ]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The discriminator's loss: tell generated images (1) from as many real ones (0)."""
        assert isinstance(model, ConditionalGan)
        real, labels = batch
        with torch.no_grad():
            made = model.sample(labels)
        logits = model.discriminator(torch.cat([made, real]), labels.repeat(2))
        truth = torch.zeros_like(logits)
        truth[: len(made)] = 1
        return binary_cross_entropy_with_logits(logits, truth)

    def _generator_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The generator's loss: have new images of those classes classified as real."""
        assert isinstance(model, ConditionalGan)
        _, labels = batch
        logits = model.discriminator(model.sample(labels), labels)
        return binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))

    def evaluate(self, model: nn.Module, split: Split) -> Mapping[str, float]:
        assert isinstance(model, ConditionalGan)
        assert split.features is not None
        # Draw classes again: with those of the split, batch by batch, two batches would be more
        # alike than independent ones, and KID below zero for perfect images.
        labels = split.labels[torch.randint(len(split.labels), split.labels.shape)]
        pieces = torch.split(labels.to(device_of(model)), PIECE)
        features = split.network.features(torch.cat([model.sample(piece) for piece in pieces]))
        distance = kid.kid(split.features, features)
        metrics = {
            self.score.name: distance,
            f"{self.score.name}, dB": formatting.decibels(distance),
            "spread": feature_spread(features.cpu(), labels)
            / feature_spread(split.features, split.labels),
        }
        if isinstance(split.network, ClassifierFeatures):
            guesses = split.network.classify(features).cpu()
            metrics["recognised"] = (guesses == labels).double().mean().item()
        return metrics

    def warning(self, metrics: Mapping[str, float]) -> str:
        """Say whether the generator has collapsed."""
        ratio = metrics["spread"]
        if ratio >= COLLAPSED:
            return ""
        return (
            f"collapsed: at the end the images of a class vary {ratio:.3g} times as much as real "
            f"ones, less than {COLLAPSED:g}"
        )

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        assert isinstance(model, ConditionalGan)
        labels = torch.arange(CLASSES, device=device_of(model)).repeat_interleave(SHOWN)
        title = "A row for each class, of the same noise for every method"
        return {title: sample_grid(model.sample(labels), columns=SHOWN)}


def resize(images: Tensor, side: int) -> Tensor:
    """Pad ``uint8`` images ``(N, 1, 28, 28)`` to 32×32 and shrink them to 16×16, or return them.

    >>> resize(torch.full((1, 1, 28, 28), 200, dtype=torch.uint8), 16)[0, 0, 1, :3]
    tensor([  0, 200, 200], dtype=torch.uint8)
    """
    if side == images.shape[-1]:
        return images
    framed = pad(images.float(), (2, 2, 2, 2))
    return avg_pool2d(framed, framed.shape[-1] // side).round().to(torch.uint8)


def feature_spread(features: Tensor, labels: Tensor) -> float:
    """Compute the variance of features within a class, summed over features, averaged over classes.

    Classes of fewer than two samples are left out.

    >>> feature_spread(torch.tensor([[1.0], [3.0], [7.0], [7.0]]), torch.tensor([0, 0, 1, 1]))
    1.0
    """
    groups = [features[labels == label].double() for label in torch.unique(labels)]
    variances = [group.var(0).sum().item() for group in groups if len(group) > 1]
    return math.fsum(variances) / len(variances) if variances else math.nan


def _widths(channels: Any) -> str:
    return ", ".join(map(str, channels))


VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "-one-hot": {"labels": "one-hot"},
    "-example": {"example_rate": True},
}
TASKS = {
    f"cgan-{images}{ending}": partial(ConditionalGanTask, images, **variant)
    for ending, variant in VARIANTS.items()
    for images in IMAGE_SETS
}
