"""Networks that turn an image into features, which distances between sets of images are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTHS = (32, 64, 128)
EPOCHS = 4
BATCH = 64
RATE = 2e-3  # of Adam, falling to zero
# Of the pixels, up to so much: features are to see shapes. Without it a speckle that can hardly be
# seen is further from real images than another class is.
NOISE = 0.3
SEED = 20240701
HELD_OUT = 10  # one image in so many is not trained on, to say how good the classifier is
PIECE = 256  # images that pass through a network at once
# All that :func:`trained` depends on beside the images; the first number is raised by whatever
# else changes what it makes.
RECIPE = (1, WIDTHS, EPOCHS, BATCH, RATE, NOISE, SEED, HELD_OUT)


class FeatureNetwork(nn.Module):
    """Takes images ``(N, C, H, W)`` from 0 to 1, gives features ``(N, num_features)``.

    ``label`` is what a distance between these features is called, ``note`` a sentence on them.
    """

    num_features: int
    label: str
    note: str

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Of any number of images, in bytes or from 0 to 1; in evaluation mode, where they are."""
        self.eval().to(images.device)
        return torch.cat([self(as_floats(piece)) for piece in torch.split(images, PIECE)])


class ClassifierFeatures(FeatureNetwork):
    """A small classifier, of which the mean over the last convolution's pixels is taken.

    Its features are divided by their root mean square over the images it was trained on: the
    distance does not depend on the scale they happen to have.

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
        """The class that each image is taken for, from its features."""
        logits: Tensor = self.output(features * self.scale)
        return logits.argmax(1)

    def _pooled(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.blocks(images).mean((2, 3))
        return pooled


def train_classifier(images: Tensor, labels: Tensor, classes: int) -> ClassifierFeatures:
    """A classifier for those images, the same for the same images wherever it is called from.

    It draws from a generator of its own and works in one thread: neither what was drawn before nor
    the number of threads changes it.
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
    """From 0 to 1, whether they are bytes or have been so already.

    >>> as_floats(torch.tensor([51], dtype=torch.uint8)), as_floats(torch.tensor([0.5]))
    (tensor([0.2000]), tensor([0.5000]))
    """
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _batches(rest: Tensor) -> tuple[Tensor, ...]:
    shuffled = rest[torch.randperm(len(rest))]
    # One image alone has no variance for BatchNorm to divide by.
    return tuple(b for b in torch.split(shuffled, BATCH) if len(b) > 1)


def _noisy(images: Tensor) -> Tensor:
    """Each image with its own amount of noise."""
    amounts = NOISE * torch.rand(len(images), 1, 1, 1)
    return (images + amounts * torch.randn_like(images)).clamp(0, 1)


@torch.no_grad()
def _accuracy(network: ClassifierFeatures, images: Tensor, labels: Tensor) -> Tensor:
    guesses = network.classify(network.features(images))
    return (guesses == labels).double().mean()


@contextmanager
def _isolated_generators() -> Iterator[None]:
    """With the generator, the thread and the gradients that training wants, and then as before."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(SEED)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
