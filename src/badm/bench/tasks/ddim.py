"""``ddim-flowers``: photographs of flowers from noise, by a diffusion model.

``ddim-flowers-32`` has images of 32×32 pixels at cpu scale instead of 16×16, and fewer steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from badm.bench import formatting
from badm.bench.data import flowers102, path
from badm.bench.data.images import Images
from badm.bench.data.synthetic_images import synthetic_images
from badm.bench.models.diffusion import DECAY, Diffusion
from badm.bench.models.features import as_floats
from badm.bench.models.unet import WIDTHS
from badm.bench.paper import Paper
from badm.bench.task import Player, Scale, Score, Splits, Task, device_of
from badm.bench.tasks.scores import kid
from badm.bench.tasks.scores.image_grids import sample_grid
from badm.bench.tasks.scores.kid import FeatureNetwork

EPOCH = 511  # steps per epoch of the public example, which has each training image five times
EPOCHS = 50  # the least it recommends
SHOW_STEPS = 20  # diffusion steps of the samples in a report
SHOWN = 32
# KID over the classifier's features that good methods reach in half the steps at cpu scale. An
# untrained model has 1.8, and one that has just begun to learn ten times as much.
TARGET = 0.8
SMOKE_CLASSES = 4
PIECE = 64  # images generated at once
PAPER = Paper(
    lr=1e-3,
    rho=600,
    sigma=400,
    note="The paper states the batch size, 64, and that BADM reaches a given KID in the fewest "
    "steps; it has no figures, nor any settings. The learning rate is the public example's, "
    "without its weight decay. Ours are: sub-batches of 16 and ρ : σ = 6 : 4, both of the paper's "
    "other generative task, with ρ + σ = 1/lr as wherever it states them",
)


@dataclass(frozen=True)
class Size:
    """Sizes at one scale: images, network, run, and images and diffusion steps for KID."""

    side: int
    widths: tuple[int, ...]
    steps: int
    evaluate_every: int
    scored: int | None  # images for KID; None: as many as a split has
    kid_steps: int


SIZES: dict[Scale, Size] = {
    "smoke": Size(16, (8, 8, 16), steps=40, evaluate_every=20, scored=64, kid_steps=5),
    "cpu": Size(
        16,
        tuple(width // 2 for width in WIDTHS),
        steps=600,
        evaluate_every=40,
        scored=192,
        kid_steps=20,
    ),
    "paper": Size(64, WIDTHS, EPOCHS * EPOCH, evaluate_every=EPOCH, scored=None, kid_steps=5),
}


class ScoredSplit(NamedTuple):
    """Real images (N, 3, side, side), ``uint8``, their features, and the network of these."""

    images: Tensor
    features: Tensor
    network: FeatureNetwork


class DdimFlowers(Task):
    """Predict the noise in photographs of flowers; scored by the KID of generated images.

    Also reported: KID in dB, as the paper plots it, and the mean absolute error of the noise.
    """

    name = "ddim-flowers"
    dataset_name = "flowers102"
    batch_size = 64
    sub_batch_size = 16
    paper = PAPER
    artifacts_at = (0.1, 0.25, 0.5, 1.0)
    all_sizes: Mapping[Scale, Size] = SIZES
    cpu_target: float | None = TARGET

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.sizes = self.all_sizes[scale]
        self.steps, self.evaluate_every = self.sizes.steps, self.sizes.evaluate_every
        self.score = Score(kid.label(), best="low")
        self.version = f"1-{kid.version()}"
        if scale == "cpu" and self.score.name != kid.INCEPTION_LABEL:
            self.target = self.cpu_target
        side = self.sizes.side
        self.description = f"Oxford Flowers 102, {side}×{side}: a diffusion model with a U-Net"

    def data(self) -> Splits:
        """
        >>> splits = DdimFlowers("smoke").data()
        >>> splits.synthetic, splits.train.shape, splits.test.images.shape
        (True, torch.Size([256, 3, 16, 16]), torch.Size([64, 3, 16, 16]))
        """
        if self.scale == "smoke":
            parts = [
                synthetic_images(count, SMOKE_CLASSES, self.sizes.side, seed=seed)
                for seed, count in enumerate((256, 64, 64))
            ]
            classes = SMOKE_CLASSES
        else:
            found = flowers102.split_parts(path(self.dataset_name))
            parts = [part.decoded(self.sizes.side, crop=True) for part in found]
            classes = len(found[0].classes)
        train, *held_out = map(_channels_first, parts)
        network = kid.feature_network(train, parts[0].labels, classes)
        validation, test = (self._scored_split(images, network) for images in held_out)
        # The KID of other real images: generated ones cannot be expected to do better.
        floor = kid.kid(validation.features, network.features(train[: len(validation.images)]))
        whole = len(train) - len(train) % self.batch_size
        notes = (*self._notes(whole, floor, *map(len, parts)), network.note)
        return Splits(train[:whole], validation, test, synthetic=self.scale == "smoke", notes=notes)

    def _scored_split(self, images: Tensor, network: FeatureNetwork) -> ScoredSplit:
        images = images[: self.sizes.scored]
        return ScoredSplit(images, network.features(images), network)

    def _notes(
        self, whole: int, floor: float, train: int, validation: int, test: int
    ) -> Iterator[str]:
        """List what differs from the public example."""
        if self.scale != "smoke":
            yield (
                f"{train:,} images to train on, four fifths of each official part of the set, all "
                f"shuffled once; {validation:,} to validate and {test:,} to test, where the "
                "example validates with both and has no test split"
            )
        if whole < train:
            yield f"The last {train - whole} training images make no whole batch and are left out"
        size = self.sizes
        if size.scored:
            yield f"KID is over {size.scored} images made and the first {size.scored} of a split"
        name = self.score.name
        yield f"{name} of as many real training images from the validation split: {floor:.4f}"
        if self.scale == "cpu":
            yield (
                f"Images of {size.side}×{size.side} pixels and half the channels at this scale, "
                "64×64 in the example"
            )
            yield (
                f"KID is over images made in {size.kid_steps} steps, not in 5 as in the example: "
                "what is said of pure noise is divided by 0.02, and 5 steps carry over so much of "
                "the error that KID goes up and down with it until the noise is told to 2 %"
            )
        yield (
            f"Samples are drawn with a running average of the weights (decay {DECAY}) that starts "
            "as the network does; the example starts it at random, so its early KID says little"
        )
        if self.warm_up:
            yield (
                "The decays of this average and of BatchNorm's are (1 + k)/(10 + k) at step k "
                "until that is more than they have in the example, whose averages take longer to "
                "forget their start than a run has steps at this scale"
            )

    @property
    def warm_up(self) -> bool:
        """Whether running averages start with a low decay, as short runs need."""
        return self.scale != "paper"

    def model(self, splits: Splits) -> nn.Module:
        return Diffusion(as_floats(splits.train), self.sizes.widths, warm_up=self.warm_up)

    def players(self, model: nn.Module) -> list[Player]:
        """The network alone; its averaged copy is not trained."""
        assert isinstance(model, Diffusion)
        return [Player("model", model.network, self.loss)]

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        assert isinstance(model, Diffusion)
        return model.loss(as_floats(batch))

    def after_step(self, model: nn.Module) -> None:
        assert isinstance(model, Diffusion)
        model.update_average()

    def evaluate(self, model: nn.Module, split: ScoredSplit) -> Mapping[str, float]:
        assert isinstance(model, Diffusion)
        noise = torch.randn(split.images.shape, device=split.images.device)
        made = model.sample(noise, self.sizes.kid_steps)
        distance = kid.kid(split.features, split.network.features(made))
        pieces = torch.split(split.images, PIECE)
        errors = [len(piece) * model.loss(as_floats(piece)).item() for piece in pieces]
        return {
            self.score.name: distance,
            f"{self.score.name}, dB": formatting.decibels(distance),
            "noise error": sum(errors) / len(split.images),
        }

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        assert isinstance(model, Diffusion)
        side, device = self.sizes.side, device_of(model)
        noise = torch.randn(SHOWN, 3, side, side, device=device)
        title = f"Samples in {SHOW_STEPS} steps, of the same noise for every method"
        return {title: sample_grid(model.sample(noise, SHOW_STEPS))}


class DdimFlowers32(DdimFlowers):
    """At cpu scale, images of four times as many pixels and fewer steps.

    >>> DdimFlowers32().sizes.side, DdimFlowers32("paper").sizes.side
    (32, 64)
    """

    name = "ddim-flowers-32"
    all_sizes: Mapping[Scale, Size] = {
        **SIZES,
        "cpu": replace(SIZES["cpu"], side=32, steps=400, evaluate_every=80),
    }
    cpu_target = None  # the target of 16×16 is for the features of another classifier


TASKS = {task.name: task for task in (DdimFlowers, DdimFlowers32)}


def _channels_first(images: Images) -> Tensor:
    return images.pixels.permute(0, 3, 1, 2).contiguous()
