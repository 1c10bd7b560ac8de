"""Classified reviews: predictions of a model, their metrics, and a few to read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from badm.bench.data.text_encoding import PAD, Vocabulary
from badm.bench.tasks.scores import prediction

PIECE = 64  # reviews evaluated at once
SHOWN_WORDS = 40


def predict(model: nn.Module, numbers: Tensor) -> Tensor:
    """Compute the logits of reviews from the ids of their words."""
    return prediction.predict(model, torch.split(numbers, PIECE))


def review_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute accuracy and loss, for labels of 0 and 1.

    >>> review_metrics(torch.tensor([2.0, -1.0, 3.0]), torch.tensor([1.0, 0.0, 0.0]))["accuracy"]
    0.6666666666666666
    """
    labels = labels.cpu()  # as logits that were predicted are
    if not logits.isfinite().all():
        return {"accuracy": math.nan, "loss": math.nan}
    return {
        "accuracy": ((logits > 0) == (labels == 1)).double().mean().item(),
        "loss": binary_cross_entropy_with_logits(logits, labels).item(),
    }


def evenly_spaced(count: int, among: int) -> Tensor:
    """Choose rows spread over a split, which may be sorted by class.

    >>> evenly_spaced(3, 10).tolist()
    [0, 3, 6]
    """
    count = min(count, among)
    return torch.arange(count) * among // count


def format_reviews(
    numbers: Tensor, good: Sequence[bool], chances: Sequence[float], vocabulary: Vocabulary
) -> str:
    """Format the beginnings of reviews, their labels and a model's probability for each.

    >>> vocabulary = Vocabulary((b"a", b"bore"))
    >>> print(format_reviews(torch.tensor([[2, 3, 0]]), [False], [0.75], vocabulary))
    WRONG: a bad review, good with 75 %
        a bore
    """
    shown = []
    for row, is_good, chance in zip(numbers.tolist(), good, chances, strict=True):
        right = "right" if (chance > 0.5) == is_good else "WRONG"
        left = sum(number != PAD for number in row[SHOWN_WORDS:])
        more = f" … and {left} words more" if left else ""
        shown.append(
            f"{right}: a {'good' if is_good else 'bad'} review, good with {100 * chance:.0f} %\n"
            f"    {vocabulary.show(row[:SHOWN_WORDS])}{more}"
        )
    return "\n\n".join(shown)
