"""``mlm-pretrain`` and ``mlm-finetune``: masked words predicted, then reviews classified.

As in the public example, the loss of pre-training is the **sum** over masked words, these are drawn
once, and positions are fixed sinusoids. Variants change one of the three: ``mlm-pretrain-mean``,
``mlm-pretrain-dynamic`` (other words are masked in every batch) and ``mlm-pretrain-positions``
(learned). The sum scales plain gradient steps and hardly changes Adam's.

``mlm-finetune`` starts from the encoder of ``mlm-pretrain`` and trains all of it.
``mlm-finetune-frozen`` trains the new layers alone, and ``mlm-finetune-thawed`` continues with all
layers; together they are the two stages of the example.

``mlm-pretrain-example`` and ``mlm-finetune-example`` are both stages at the learning rate of the
example, ten times the paper's: in short runs, the paper's only learns the frequencies of
words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from badm.bench.data.reviews import Reviews
from badm.bench.data.text_encoding import FIRST, EncodingOptions, Vocabulary, encode_cached
from badm.bench.formatting import significant
from badm.bench.models.cross_entropy import summed_cross_entropy
from badm.bench.models.masked_language_model import (
    Encoder,
    MaskedLanguageModel,
    PooledClassifier,
)
from badm.bench.paper import Paper
from badm.bench.task import Scale, Score, Splits, Task, device_of, to_device
from badm.bench.tasks import review_splits
from badm.bench.tasks.review_splits import ReviewSplits
from badm.bench.tasks.scores.reviews import evenly_spaced, format_reviews, predict, review_metrics

KEPT = '"[]'  # punctuation that stays with its word, as in the example
HIDDEN, MASKED, RANDOM = (
    0.15,
    0.8,
    0.1,
)  # fraction of words masked; of these [mask], of these a random word
PIECE = 32  # reviews evaluated at once
BLANKS = (
    "This is the worst [mask] I have ever seen.",
    "The acting was [mask] and I fell asleep.",
    "One of the best [mask] of all time, a true masterpiece.",
    "I would not [mask] this film to anyone.",
)
GUESSES, AROUND, SHOWN = 5, 8, 8

PAPER = Paper(
    lr=1e-4,
    rho=8000,
    sigma=2000,
    note="The paper says that BADM needs up to 4 times less computation than Adam and RMSProp to "
    "pre-train, and shows curves only",
)
FINE_TUNING = Paper(
    lr=1e-4,
    rho=5000,
    sigma=5000,
    scores={"rmsprop": 0.9062, "adam": 0.9062, "badm-printed": 0.9062},
    note="The paper has 0.9062 for all three: 29/32, cut after four digits, so one batch of 32 "
    "reviews. Here accuracies are over the whole test split, on which the public example has "
    "0.845. The paper does not speak of the example's stage with a frozen encoder",
)


@dataclass(frozen=True)
class Size:
    """Sizes of the vocabulary, the reviews, the encoder and the held-out splits."""

    words: int
    length: int
    width: int
    heads: int
    held_out: int


SIZES = {
    "smoke": Size(60, 40, 16, 2, 80),
    # More than 10,000 words: up to that SOAP would compute a covariance of all words.
    "cpu": Size(12_000, 128, 64, 4, 400),
    "paper": Size(30_000, 256, 128, 8, 1_000),
}


class MaskedTexts(NamedTuple):
    """Reviews (N, length): ids with words masked, the original ids, and where they are masked."""

    numbers: Tensor
    words: Tensor
    places: Tensor


class Split(NamedTuple):
    """``hidden`` is fixed; the dynamic variant masks other words in every batch."""

    hidden: MaskedTexts
    vocabulary: Vocabulary


class Labelled(NamedTuple):
    """Ids of words (N, length), and labels (N) that are 1 for negative reviews."""

    numbers: Tensor
    labels: Tensor
    vocabulary: Vocabulary


class MlmPretrain(Task):
    """Scored by the loss per masked word of held-out reviews; lower is better.

    Also reported: the fraction of masked words that are predicted.

    >>> split = MlmPretrain("smoke").data().validation
    >>> split.hidden.numbers.shape, len(split.vocabulary)
    (torch.Size([80, 40]), 35)
    """

    name = "mlm-pretrain"
    dataset_name = review_splits.DATASET
    description = "IMDB reviews, masked words predicted by a small transformer; loss summed"
    score = Score("loss", best="low")
    batch_size = 32
    sub_batch_size = 8
    # The example differentiates a loss without reduction, which is its sum.
    reduction: Literal["mean", "sum"] = "sum"
    artifacts_at = (0.1, 0.4, 1.0)
    paper = PAPER
    dynamic = False
    learned_positions = False

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.sizes = SIZES[scale]
        # The paper's scale has the five epochs of the example, 1,563 steps each.
        self.steps = {"smoke": 60, "cpu": 700, "paper": 7815}[scale]
        self.evaluate_every = {"smoke": 15, "cpu": 35, "paper": 521}[scale]
        self.target = {"smoke": 3.4, "cpu": 6.75, "paper": 6.0}[scale]
        if self.reduction == "sum":  # masked words of a batch
            self.terms = {"smoke": 90, "cpu": 500, "paper": 800}[scale]

    def data(self) -> Splits:
        parts = review_splits.load(self.scale)
        three = unlabelled(parts, self.sizes.held_out)
        texts = [text for part in three for text in part.texts]
        vocabulary, numbers = encode_cached(three[0].texts, texts, encoding_options(self.sizes))
        train, validation, test = (
            Split(mask_words(rows, vocabulary), vocabulary)
            for rows in torch.split(numbers, [len(part) for part in three])
        )
        notes = (*self._notes(*three), *size_notes(self.sizes))
        return Splits(train, validation, test, synthetic=parts.synthetic, notes=notes)

    def _notes(self, train: Reviews, validation: Reviews, test: Reviews) -> Iterator[str]:
        yield (
            f"{len(train):,} reviews to train on, {len(validation):,} to validate and "
            f"{len(test):,} to test. As in the example, texts of test reviews are among those for "
            "pre-training, without their labels; these are not."
        )
        for name, split in (("validation", validation), ("test", test)):
            known = split.count_shared(train)
            if known:
                yield f"{known} of {len(split):,} {name} reviews are also among those for training."

    def model(self, splits: Splits) -> nn.Module:
        return MaskedLanguageModel(
            encoder(splits.train.vocabulary, self.sizes, self.learned_positions)
        )

    def samples(self, split: Split) -> int:
        return len(split.hidden.numbers)

    def batch(self, split: Split, indices: Tensor) -> MaskedTexts:
        if self.dynamic:
            return mask_words(split.hidden.words[indices], split.vocabulary)
        return MaskedTexts(*(part[indices] for part in split.hidden))

    def size(self, batch: MaskedTexts) -> float:
        return max(1, int(batch[2].sum()))

    def loss(self, model: nn.Module, batch: MaskedTexts) -> Tensor:
        numbers, words, places = batch
        total = summed_cross_entropy(model(numbers, places), words[places].long())
        # A small batch of short reviews may have no masked word.
        return total if self.reduction == "sum" else total / self.size(batch)

    def evaluate(self, model: nn.Module, split: Split) -> Mapping[str, float]:
        loss, right, count = 0.0, 0, 0
        for piece in zip(*(torch.split(part, PIECE) for part in split.hidden), strict=True):
            numbers, words, places = piece
            logits, truth = model(numbers, places), words[places].long()
            loss += cross_entropy(logits, truth, reduction="sum").item()
            right += int((logits.argmax(1) == truth).sum())
            count += len(truth)
        if not math.isfinite(loss):
            return {"loss": math.nan, "accuracy": math.nan}
        return {"loss": loss / count, "accuracy": right / count}

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        split: Split = splits.validation
        vocabulary = split.vocabulary
        numbers = vocabulary.encode(BLANKS, encoding_options(self.sizes))
        rows = evenly_spaced(SHOWN, self.samples(split))
        some = MaskedTexts(*(part[rows] for part in split.hidden))
        # One blank per review, the first [mask].
        blank = (some.numbers == vocabulary.mask) & some.places
        first = blank & (blank.cumsum(1) == 1)
        return {
            "Blanks filled": fill_masks(model, numbers, numbers == vocabulary.mask, vocabulary),
            "Blanks of validation reviews filled": fill_masks(
                model, some.numbers, first, vocabulary, some.words
            ),
        }


class MlmPretrainMean(MlmPretrain):
    """The loss is the mean over masked words: gradient steps are hundreds of times smaller."""

    name = "mlm-pretrain-mean"
    description = "As mlm-pretrain; loss averaged"
    reduction = "mean"


class MlmPretrainDynamic(MlmPretrain):
    """The masked words are drawn again for every batch."""

    name = "mlm-pretrain-dynamic"
    description = "As mlm-pretrain; other words masked in every batch"
    dynamic = True


class MlmPretrainPositions(MlmPretrain):
    """Positions are learned, as in the example since March 2024."""

    name = "mlm-pretrain-positions"
    description = "As mlm-pretrain; positions learned"
    learned_positions = True


class MlmPretrainExample(MlmPretrain):
    """At the learning rate of the example."""

    name = "mlm-pretrain-example"
    description = "As mlm-pretrain; ten times the paper's learning rate"
    paper = PAPER.at_example_lr(1e-3)


class MlmFinetune(Task):
    """Classify reviews as positive or negative; scored by accuracy over a whole split."""

    name = "mlm-finetune"
    dataset_name = review_splits.DATASET
    description = "IMDB reviews, good or bad, by the pre-trained transformer"
    score = Score("accuracy", percent=True)
    batch_size = 32
    sub_batch_size = 8
    after = "mlm-pretrain"
    artifacts_at = (0.1, 0.4, 1.0)
    paper = FINE_TUNING
    frozen = False

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        self.sizes = SIZES[scale]
        # An epoch has 250 steps at cpu scale. The paper's has five of 625, as the example.
        self.steps = {"smoke": 60, "cpu": 500, "paper": 3125}[scale]
        self.evaluate_every = {"smoke": 15, "cpu": 50, "paper": 125}[scale]
        self.target = {"smoke": 0.9, "cpu": 0.75, "paper": 0.83}[scale]

    def data(self) -> Splits:
        parts = review_splits.load(self.scale)
        three = (parts.train, parts.validation, parts.test)
        texts = [text for part in three for text in part.texts]
        counted = unlabelled(parts, self.sizes.held_out)[0].texts
        vocabulary, numbers = encode_cached(counted, texts, encoding_options(self.sizes))
        train, validation, test = (
            Labelled(rows, 1 - part.labels.float(), vocabulary)
            for part, rows in zip(three, torch.split(numbers, [len(p) for p in three]), strict=True)
        )
        notes = (*parts.notes, *size_notes(self.sizes))
        return Splits(train, validation, test, synthetic=parts.synthetic, notes=notes)

    def model(self, splits: Splits) -> nn.Module:
        made = PooledClassifier(encoder(splits.train.vocabulary, self.sizes))
        made.encoder.requires_grad_(not self.frozen)
        return made

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load the encoder alone; the new layers keep their initialisation."""
        own = {k: x for k, x in weights.items() if k.startswith("encoder.")}
        encoder = model.get_submodule("encoder")
        encoder.load_state_dict({k.removeprefix("encoder."): x for k, x in own.items()})

    def batch(self, split: Labelled, indices: Tensor) -> tuple[Tensor, Tensor]:
        return split.numbers[indices], split.labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        numbers, labels = batch
        return binary_cross_entropy_with_logits(model(numbers), labels)

    def evaluate(self, model: nn.Module, split: Labelled) -> Mapping[str, float]:
        return review_metrics(predict(model, split.numbers), split.labels)

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        split: Labelled = splits.validation
        numbers, labels = self.batch(split, evenly_spaced(SHOWN, len(split.labels)))
        chances = (-predict(model, numbers)).sigmoid().tolist()  # of being positive
        text = format_reviews(numbers, (labels == 0).tolist(), chances, split.vocabulary)
        return {"Validation reviews and what they were taken for": text}


class MlmFinetuneFrozen(MlmFinetune):
    """The encoder stays as it was pre-trained."""

    name = "mlm-finetune-frozen"
    description = "As mlm-finetune; the encoder frozen"
    paper = replace(FINE_TUNING, scores={})
    frozen = True


class MlmFinetuneThawed(MlmFinetune):
    """Train all layers, starting from those of the frozen stage."""

    name = "mlm-finetune-thawed"
    description = "As mlm-finetune; after a stage with the encoder frozen"
    after = "mlm-finetune-frozen"
    paper = replace(FINE_TUNING, scores={})

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        model.load_state_dict(weights)


class MlmFinetuneExample(MlmFinetune):
    """At the learning rate of the example, in both stages."""

    name = "mlm-finetune-example"
    description = "As mlm-finetune; ten times the paper's learning rate, in both stages"
    after = "mlm-pretrain-example"
    paper = FINE_TUNING.at_example_lr(1e-3)


def encoding_options(sizes: Size) -> EncodingOptions:
    return EncodingOptions(sizes.words, sizes.length, KEPT, mask=True)


def encoder(vocabulary: Vocabulary, sizes: Size, learned_positions: bool = False) -> Encoder:
    return Encoder(
        len(vocabulary),
        sizes.length,
        width=sizes.width,
        heads=sizes.heads,
        learned_positions=learned_positions,
    )


def size_notes(sizes: Size) -> Iterator[str]:
    """List what is smaller than in the paper."""
    full = SIZES["paper"]
    if sizes != full:
        yield (
            f"{sizes.words:,} words, {sizes.length} of each review, an encoder of width "
            f"{sizes.width} with {sizes.heads} heads at this scale; {full.words:,}, {full.length}, "
            f"{full.width} and {full.heads} in the public example."
        )


def unlabelled(parts: ReviewSplits, held_out: int) -> tuple[Reviews, Reviews, Reviews]:
    """Collect the texts of all splits for pre-training, and hold out some for evaluation."""
    kept, held = [*parts.train.items], []
    for part in (parts.validation, parts.test):
        out = set(evenly_spaced(held_out, len(part)).tolist())
        held.append(part.pick(sorted(out)))
        kept += [review for row, review in enumerate(part.items) if row not in out]
    return Reviews(tuple(kept)), held[0], held[1]


def mask_words(words: Tensor, vocabulary: Vocabulary) -> MaskedTexts:
    """Mask 15 % of the words, drawn with torch's generator.

    Of these, 80 % become ``[mask]``, 10 % a random word and 10 % stay as they are. Padding, unknown
    words and the most frequent word, which has the id 2, are never masked, nor drawn.
    """
    places = (words > FIRST) & (torch.rand(words.shape, device=words.device) < HIDDEN)
    drawn = torch.rand(words.shape, device=words.device)
    any_word = torch.randint(
        FIRST + 1, vocabulary.mask, words.shape, dtype=words.dtype, device=words.device
    )
    numbers = torch.where(places & (drawn < MASKED), vocabulary.mask, words)
    replaced = places & (drawn >= MASKED) & (drawn < MASKED + RANDOM)
    return MaskedTexts(torch.where(replaced, any_word, numbers), words, places)


def fill_masks(
    model: nn.Module,
    numbers: Tensor,
    places: Tensor,
    vocabulary: Vocabulary,
    words: Tensor | None = None,
) -> str:
    """Show a model's predictions for masked places, with probabilities and the true words."""
    logits = model(*to_device((numbers, places), device_of(model)))
    chances, guesses = logits.softmax(1).topk(min(GUESSES, len(vocabulary)))
    shown = []
    for (row, place), top, which in zip(
        places.nonzero().tolist(), chances.tolist(), guesses.tolist(), strict=True
    ):
        nearby = numbers[row, max(0, place - AROUND) : place + AROUND + 1].tolist()
        said = ", ".join(
            f"{vocabulary.word(guess)} {significant(100 * chance, 2)} %"
            for guess, chance in zip(which, top, strict=True)
        )
        truth = "" if words is None else f" (was: {vocabulary.word(int(words[row, place]))})"
        shown.append(f"{vocabulary.show(nearby)}\n    {said}{truth}")
    return "\n\n".join(shown)


TASKS = {
    task.name: task
    for task in (
        MlmPretrain,
        MlmPretrainMean,
        MlmPretrainDynamic,
        MlmPretrainPositions,
        MlmPretrainExample,
        MlmFinetune,
        MlmFinetuneFrozen,
        MlmFinetuneThawed,
        MlmFinetuneExample,
    )
}
