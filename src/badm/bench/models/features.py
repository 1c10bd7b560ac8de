"""Networks that map images to features, for distances between sets of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTHS = (32, 64, 128)
EPOCHS = 4
BATCH = 64
RATE = 2e-3  # of Adam, decayed to zero
# Largest noise on pixels, so that features represent shapes. Without it, noise that is hardly
# visible is further from real images than another class is.
NOISE = 0.3
SEED = 20240701
HELD_OUT = 10  # one image in ten is held out, to measure the accuracy of the classifier
PIECE = 256  # images that pass through a network at once
# Everything that :func:`train_classifier` depends on beside the images; raise the first number with
# anything else that changes its result.
RECIPE = (1, WIDTHS, EPOCHS, BATCH, RATE, NOISE, SEED, HELD_OUT)


class FeatureNetwork(nn.Module):
    """Maps images ``(N, C, H, W)`` from 0 to 1 to features ``(N, num_features)``.

    ``label`` is the name of the KID of these features, ``note`` a sentence about them.
    """

    num_features: int
    label: str
    note: str

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the features of images, ``uint8`` or from 0 to 1, on their device."""
        self.eval().to(images.device)
        return torch.cat([self(as_floats(piece)) for piece in torch.split(images, PIECE)])


class ClassifierFeatures(FeatureNetwork):
    """A small classifier, whose features are the pixel means of the last convolution.

    They are divided by their root mean square over the training images, so that the distance does
    not depend on their scale.

    >>> network = ClassifierFeatures(channels=1, classes=10)
    >>> network(torch.zeros(5, 1, 28, 28)).shape, network.num_features
    (torch.Size([5, 128]), 128)
    """

    label = "KID (classifier features)"
    num_features = WIDTHS[-1]
    scale: Tensor
    accuracy: Tensor

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        blocks, before = [], channels
        for width in WIDTHS:
            convolution = nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False)
            blocks += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(before, classes)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("accuracy", torch.zeros(()))  # on images it was not trained on

    @property
    def note(self) -> str:  # type: ignore[override]
        return (
            "KID is over the features of a small classifier that was trained on the training "
            f"images ({100 * self.accuracy.item():.1f} % right on those held out from it): its "
            "values are not those over Inception-V3"
        )

    def forward(self, images: Tensor) -> Tensor:
        return self._pooled(images) / self.scale

    def logits(self, images: Tensor) -> Tensor:
        out: Tensor = self.output(self._pooled(images))
        return out

    def classify(self, features: Tensor) -> Tensor:
        """Predict the class of each image from its features."""
        logits: Tensor = self.output(features * self.scale)
        return logits.argmax(1)

    def _pooled(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.blocks(images).mean((2, 3))
        return pooled


def train_classifier(images: Tensor, labels: Tensor, classes: int) -> ClassifierFeatures:
    """Train a classifier for those images; the result is the same for the same images.

    It has its own generator and one thread, so that it depends neither on the state of the global
    generator nor on the number of threads.
    """
    with _isolated_generators():
        network = ClassifierFeatures(images.shape[1], classes)
        order = torch.randperm(len(images))
        held, rest = order[: len(order) // HELD_OUT], order[len(order) // HELD_OUT :]
        optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
        batches = [b for _ in range(EPOCHS) for b in _batches(rest)]
        for number, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = RATE * (1 - number / len(batches))
            logits = network.logits(_noisy(as_floats(images[batch])))
            optimizer.zero_grad()
            cross_entropy(logits, labels[batch].long()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        network.scale.copy_(network.features(images).square().mean().sqrt())
        if len(held):
            network.accuracy.copy_(_accuracy(network, images[held], labels[held]))
    return network.requires_grad_(False)


def as_floats(images: Tensor) -> Tensor:
    """Convert ``uint8`` images to floats from 0 to 1; floats stay as they are.

    >>> as_floats(torch.tensor([51], dtype=torch.uint8)), as_floats(torch.tensor([0.5]))
    (tensor([0.2000]), tensor([0.5000]))
    """
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _batches(rest: Tensor) -> tuple[Tensor, ...]:
    shuffled = rest[torch.randperm(len(rest))]
    # BatchNorm needs more than one image for a variance.
    return tuple(b for b in torch.split(shuffled, BATCH) if len(b) > 1)


def _noisy(images: Tensor) -> Tensor:
    """Add noise to each image, of a random amount."""
    amounts = NOISE * torch.rand(len(images), 1, 1, 1)
    return (images + amounts * torch.randn_like(images)).clamp(0, 1)


@torch.no_grad()
def _accuracy(network: ClassifierFeatures, images: Tensor, labels: Tensor) -> Tensor:
    guesses = network.classify(network.features(images))
    return (guesses == labels).double().mean()


@contextmanager
def _isolated_generators() -> Iterator[None]:
    """A context for training: own generator, one thread, gradients; restored afterwards."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(SEED)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
