"""``char-imdb``: the next character of film reviews, by a small causal transformer.

Not a task of the paper: language models are what many people train, and at this size two cores
repeat a run in a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench.models.causal_transformer import CausalTransformer
from badm.bench.task import Scale, Score, Splits, Task, device_of, to_device
from badm.bench.tasks import review_splits

SYMBOLS = 96  # a line break and the printable characters of ASCII
FIRST_PRINTABLE, LAST_PRINTABLE = 32, 126
PIECE = 128  # windows evaluated at once
SHOWN = 200  # characters of the text that is continued
OPENING = "This film is "


@dataclass(frozen=True)
class Size:
    """Sizes of the network, and how many characters and windows of the splits are used."""

    context: int
    width: int
    heads: int
    layers: int
    characters: int | None  # of the training split; None: all
    held_out: int  # windows to validate with, and as many to test with


SIZES = {
    "smoke": Size(16, 32, 2, 1, None, 200),
    "cpu": Size(64, 96, 4, 3, 1_500_000, 600),
    "paper": Size(128, 256, 8, 6, None, 2_000),
}


class CharacterModel(Task):
    """Scored by the loss per character of held-out reviews, in nats; lower is better.

    >>> splits = CharacterModel("smoke").data()
    >>> splits.validation.shape, decode(splits.validation[1])[:13]
    (torch.Size([200, 17]), 'reads lovely.')
    """

    name = "char-imdb"
    dataset_name = review_splits.DATASET
    description = "IMDB reviews, next character predicted by a small causal transformer"
    score = Score("loss", best="low")
    batch_size = 32
    sub_batch_size = 8
    artifacts_at = (0.1, 0.4, 1.0)

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.sizes = SIZES[scale]
        self.steps = {"smoke": 80, "cpu": 600, "paper": 10_000}[scale]
        self.evaluate_every = self.steps // 40

    def data(self) -> Splits:
        parts = review_splits.load(self.scale)
        sizes = self.sizes
        train = windows(parts.train.texts, sizes.context, sizes.characters)
        validation, test = (
            windows(part.texts, sizes.context, sizes.held_out * (sizes.context + 1))
            for part in (parts.validation, parts.test)
        )
        notes = (*parts.notes, *self._notes(train))
        return Splits(train, validation, test, synthetic=parts.synthetic, notes=notes)

    def _notes(self, train: Tensor) -> Iterator[str]:
        sizes = self.sizes
        yield (
            f"{train.numel():,} characters to train on, {sizes.held_out:,} windows of "
            f"{sizes.context} to validate and as many to test; {sizes.layers} layers of width "
            f"{sizes.width}. Not a task of the paper."
        )

    def model(self, splits: Splits) -> nn.Module:
        sizes = self.sizes
        return CausalTransformer(
            SYMBOLS,
            length=sizes.context,
            width=sizes.width,
            heads=sizes.heads,
            layers=sizes.layers,
        )

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(self, model: nn.Module, split: Tensor) -> Mapping[str, float]:
        loss, right = 0.0, 0
        for rows in torch.split(split, PIECE):
            logits, truth = model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
            loss += cross_entropy(logits, truth, reduction="sum").item()
            right += int((logits.argmax(1) == truth).sum())
        count = split[:, 1:].numel()
        if not math.isfinite(loss):
            return {"loss": math.nan, "accuracy": math.nan}
        return {"loss": loss / count, "accuracy": right / count}

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        return {"A text continued": continued(model, OPENING, self.sizes.context)}


def encode(text: str) -> list[int]:
    """Number the characters of a text; those that are not printable ASCII are left out.

    >>> encode("Né<br />a~"), decode(torch.tensor(encode("Né<br />a~")))
    ([47, 0, 66, 95], 'N\\na~')
    """
    codes = text.replace("<br />", "\n").encode("ascii", "ignore")
    known = (c for c in codes if c == ord("\n") or FIRST_PRINTABLE <= c <= LAST_PRINTABLE)
    return [0 if c == ord("\n") else c - FIRST_PRINTABLE + 1 for c in known]


def decode(numbers: Tensor) -> str:
    """Turn numbers back into characters."""
    return "".join("\n" if n == 0 else chr(n + FIRST_PRINTABLE - 1) for n in numbers.tolist())


def windows(texts: Sequence[str], context: int, characters: int | None) -> Tensor:
    """Cut texts, one after the other, into windows of ``context`` characters and the next one.

    >>> windows(["abcdef", "gh"], 3, None).shape
    torch.Size([2, 4])
    """
    numbers: list[int] = []
    for text in texts:
        numbers += [*encode(text), 0]
        if characters is not None and len(numbers) >= characters:
            del numbers[characters:]
            break
    count = len(numbers) // (context + 1)
    return torch.tensor(numbers[: count * (context + 1)]).view(count, context + 1)


def continued(model: nn.Module, opening: str, context: int) -> str:
    """Continue a text with the most likely character, again and again."""
    numbers = encode(opening)
    device = device_of(model)
    while len(numbers) < SHOWN:
        seen = to_device(torch.tensor([numbers[-context:]]), device)
        numbers.append(int(model(seen)[0, -1].argmax()))
    return decode(torch.tensor(numbers))
