"""``text-imdb``: sentiment of film reviews, by a convolutional network trained from scratch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from badm.bench.data.text_encoding import EncodingOptions, Vocabulary, encode_cached
from badm.bench.models.text_cnn import TextCnn
from badm.bench.paper import Paper
from badm.bench.task import Scale, Score, Splits, Task
from badm.bench.tasks import review_splits
from badm.bench.tasks.scores.reviews import evenly_spaced, format_reviews, predict, review_metrics

SHOWN = 8
NOTE = (
    "The paper's test accuracies are 30/32, 29/32 and 30/32, cut after four digits: one batch of "
    "32 reviews, with a gap of one review. Here they are over the whole test split, on which the "
    "public example has 0.863"
)
PAPER = Paper(
    lr=2e-4,
    rho=1000,
    sigma=4000,
    scores={"rmsprop": 0.9375, "adam": 0.9062, "badm-printed": 0.9375},
    note=NOTE,
)


@dataclass(frozen=True)
class Size:
    """Sizes of the vocabulary, the reviews and the layers."""

    words: int
    length: int
    width: int


SIZES = {"smoke": Size(60, 60, 16), "cpu": Size(20_000, 384, 64), "paper": Size(20_000, 500, 128)}


class Split(NamedTuple):
    """Ids of words (N, length), labels (N) that are 1 for positive reviews, and the vocabulary."""

    numbers: Tensor
    labels: Tensor
    vocabulary: Vocabulary


class TextClassification(Task):
    """Scored by accuracy over all reviews of a split; the loss is reported too.

    >>> task = TextClassification("smoke")
    >>> task.data().train.numbers.shape
    torch.Size([480, 60])
    """

    name = "text-imdb"
    dataset_name = review_splits.DATASET
    description = "IMDB reviews, good or bad, by two convolutions over words"
    score = Score("accuracy", percent=True)
    batch_size = 32
    sub_batch_size = 8
    order = "fixed"  # the example reuses the batches of the first epoch
    artifacts_at = (0.1, 0.4, 1.0)
    paper = PAPER

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.size_of = SIZES[scale]
        # Three epochs of 625 steps, as in the example. As many steps at cpu scale, where an epoch
        # has 250: at the paper's learning rate the loss does not begin to fall before 600.
        self.steps = {"smoke": 60, "cpu": 1875, "paper": 1875}[scale]
        self.evaluate_every = {"smoke": 15, "cpu": 75, "paper": 125}[scale]
        self.target = {"smoke": 0.9, "cpu": 0.84, "paper": 0.85}[scale]

    def data(self) -> Splits:
        parts = review_splits.load(self.scale)
        form = EncodingOptions(self.size_of.words, self.size_of.length)
        three = (parts.train, parts.validation, parts.test)
        texts = [text for part in three for text in part.texts]
        vocabulary, numbers = encode_cached(parts.train.texts, texts, form)
        train, validation, test = (
            Split(rows, part.labels.float(), vocabulary)
            for part, rows in zip(three, torch.split(numbers, [len(p) for p in three]), strict=True)
        )
        notes = (*parts.notes, *self._notes())
        return Splits(train, validation, test, synthetic=parts.synthetic, notes=notes)

    def _notes(self) -> Iterator[str]:
        here, full = self.size_of, SIZES["paper"]
        if here != full:
            yield (
                f"{here.length} words of each review and layers of {here.width} units at this "
                f"scale, {full.length} and {full.width} in the paper."
            )

    def model(self, splits: Splits) -> nn.Module:
        return TextCnn(len(splits.train.vocabulary), self.size_of.width)

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        return split.numbers[indices], split.labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        numbers, labels = batch
        return binary_cross_entropy_with_logits(model(numbers), labels)

    def evaluate(self, model: nn.Module, split: Split) -> Mapping[str, float]:
        return review_metrics(predict(model, split.numbers), split.labels)

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        split: Split = splits.validation
        numbers, labels = self.batch(split, evenly_spaced(SHOWN, len(split.labels)))
        chances = predict(model, numbers).sigmoid().tolist()
        text = format_reviews(numbers, (labels == 1).tolist(), chances, split.vocabulary)
        return {"Validation reviews and what they were taken for": text}
