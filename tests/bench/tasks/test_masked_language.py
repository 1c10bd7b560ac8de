"""``mlm-*``: the model that Keras would make, words hidden by the rule, logits where they count."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench.data.reviews import Review, Reviews
from badm.bench.data.text_encoding import Vocabulary
from badm.bench.engine.task_data import load_splits
from badm.bench.methods import find as find_method
from badm.bench.models.masked_language_model import (
    Encoder,
    MaskedLanguageModel,
    PooledClassifier,
    waves,
)
from badm.bench.records.runs import RunConfig, RunStore
from badm.bench.tasks import find, review_splits
from badm.bench.tasks.masked_language import (
    TASKS,
    MaskedTexts,
    MlmFinetune,
    MlmFinetuneFrozen,
    MlmFinetuneThawed,
    MlmPretrain,
    MlmPretrainDynamic,
    MlmPretrainMean,
    Split,
    fill_masks,
    mask_words,
    unlabelled,
)
from badm.bench.tasks.review_splits import ReviewSplits
from tests.helpers.engine_tasks import train

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "cache"))


def array(x: Tensor) -> Any:
    return x.detach().numpy()


def shaken(module: nn.Module) -> nn.Module:
    """With biases and gains that are not what they start from, so that none is forgotten."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.2 * torch.randn_like(p)) if p.ndim == 1 else None
    return module.eval()


def numbers(count: int, length: int, words: int) -> Tensor:
    return torch.randint(0, words, (count, length), generator=torch.Generator().manual_seed(0))


# The model


def like_keras(keras: ModuleType, ours: Encoder, x: Tensor, positions: Tensor) -> Tensor:
    """The encoder of the public example, layer by layer of Keras, with our weights."""
    layers = keras.layers

    def made(layer: Any, weights: list[Tensor], *shape: Any) -> Any:
        layer.build(*shape)
        layer.set_weights([*map(array, weights)])
        return layer

    shape = (None, *positions.shape)
    embedding = layers.Embedding(ours.words, 128)
    x = made(embedding, [ours.embedding.weight], (None, None))(x) + positions
    attention, weights = ours.attention, []
    for dense in (attention.query, attention.key, attention.value):
        weights += [dense.weight.T.reshape(128, 8, 16), dense.bias.reshape(8, 16)]
    weights += [attention.merge.weight.T.reshape(8, 16, 128), attention.merge.bias]
    heard = made(layers.MultiHeadAttention(8, 16), weights, shape, shape)(x, x)

    def norm(x: Any, of: nn.LayerNorm) -> Any:
        layer = layers.LayerNormalization(epsilon=1e-6)
        return made(layer, [of.weight, of.bias], shape)(x)

    def dense(x: Any, of: nn.Linear, activation: str | None) -> Any:
        layer = layers.Dense(128, activation=activation)
        return made(layer, [of.weight.T, of.bias], shape)(x)

    x = norm(x + heard, ours.first_norm)
    out: Tensor = norm(
        x + dense(dense(x, ours.hidden, "relu"), ours.project, None), ours.second_norm
    )
    return out


@pytest.mark.parametrize("learned", [False, True])
def test_the_encoder_is_the_one_of_keras(keras: ModuleType, learned: bool) -> None:
    torch.manual_seed(0)
    ours = Encoder(50, 30, learned_positions=learned)
    shaken(ours)
    positions = ours.positions.weight if learned else waves(30, 128)
    x = numbers(3, 30, 50)
    expected = like_keras(keras, ours, x, positions)
    torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("learned", "expected"), [(False, 7_809_584), (True, 7_842_352)])
def test_the_model_has_the_parameters_of_the_example(learned: bool, expected: int) -> None:
    encoder = Encoder(30_000, 256, learned_positions=learned)
    assert sum(p.numel() for p in MaskedLanguageModel(encoder).parameters()) == expected
    own = sum(p.numel() for p in encoder.parameters())
    assert sum(p.numel() for p in PooledClassifier(encoder).parameters()) - own == 8_321


def test_positions_are_the_waves_of_the_example_or_start_as_in_keras(keras: ModuleType) -> None:
    expected = [
        [
            math.sin(p / 10_000 ** (j / 6)) if j % 2 == 0 else math.cos(p / 10_000 ** ((j - 1) / 6))
            for j in range(6)
        ]
        for p in range(5)
    ]
    expected[0] = [0.0] * 6
    torch.testing.assert_close(waves(5, 6), torch.tensor(expected))
    torch.manual_seed(0)
    ours = Encoder(9, 256, learned_positions=True).positions.weight
    theirs = keras.initializers.GlorotUniform(seed=0)((256, 128))
    assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=1e-2)
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=2e-2)


def test_fixed_positions_are_no_weights_and_learned_ones_are() -> None:
    fixed, learned = Encoder(9, 4, width=8), Encoder(9, 4, width=8, learned_positions=True)
    more = {*learned.state_dict()} - {*fixed.state_dict()}
    assert more == {"positions.weight"}
    assert not [name for name, _ in fixed.named_parameters() if "wave" in name]


def test_heads_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads, got 10 and 4"):
        Encoder(9, 4, width=10, heads=4)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_logits_at_hidden_places_alone_give_the_values_and_gradients_of_all(reduction: str) -> None:
    """As the public example has it: logits everywhere, weights of zero where nothing is hidden."""
    torch.manual_seed(0)
    model = MaskedLanguageModel(Encoder(60, 20, width=16, heads=2)).double().eval()
    words = numbers(5, 20, 60)
    hidden = mask_words(words, Vocabulary((*(b"%d" % n for n in range(57)), b"[mask]")))
    places = hidden.places
    assert 0 < places.sum() < places.numel()
    everywhere = torch.ones_like(places)
    logits = model(hidden.numbers, everywhere).view(5, 20, 60)
    torch.testing.assert_close(model(hidden.numbers, places), logits[places], rtol=1e-12, atol=0)

    each = cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none").view(5, 20)
    whole = (each * places).sum() / (places.sum() if reduction == "mean" else 1)
    expected = torch.autograd.grad(whole, [*model.parameters()])
    task = MlmPretrain("smoke") if reduction == "sum" else MlmPretrainMean("smoke")
    loss = task.loss(model, hidden)
    torch.testing.assert_close(loss, whole, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(loss, [*model.parameters()]), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


# Hidden words

KNOWN = Vocabulary((*(b"%d" % n for n in range(97)), b"[mask]"))


def test_words_are_hidden_by_the_rule_of_the_example() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, KNOWN.mask, (400, 500), dtype=torch.int32)
    words[:, :100] = torch.tensor([0, 1, 2, 7]).repeat(25)
    found = mask_words(words, KNOWN)
    assert torch.equal(found.words, words)
    assert not found.places[words <= 2].any()
    may = (words > 2).sum().item()
    assert found.places.sum().item() / may == pytest.approx(0.15, abs=0.005)
    assert torch.equal(found.numbers[~found.places], words[~found.places])
    now, then = found.numbers[found.places], words[found.places]
    masked = (now == KNOWN.mask).double().mean().item()
    same = (now == then).double().mean().item()
    assert masked == pytest.approx(0.8, abs=0.01)
    assert same == pytest.approx(0.1 + 0.1 / 96, abs=0.01)
    others = now[(now != KNOWN.mask) & (now != then)]
    assert others.min() == 3
    assert others.max() == KNOWN.mask - 1
    counts = torch.bincount(others, minlength=len(KNOWN))[3 : KNOWN.mask].double()
    assert counts.std() < 2 * counts.mean().sqrt()  # every word as often as any other


def test_words_are_hidden_once_or_anew_in_every_batch() -> None:
    rows = torch.arange(8)
    for kind, anew in ((MlmPretrain, False), (MlmPretrainDynamic, True)):
        task = kind("smoke")
        split = load_splits(task).train
        first, second = task.batch(split, rows), task.batch(split, rows)
        assert torch.equal(first.words, second.words)
        assert torch.equal(first.places, second.places) is not anew
        held = load_splits(task).validation.hidden
        torch.manual_seed(3)
        model = task.model(load_splits(task)).eval()
        assert task.evaluate(model, load_splits(task).validation) == task.evaluate(
            model, Split(held, split.vocabulary)
        )


def test_words_are_hidden_alike_for_every_method_and_seed() -> None:
    first, second = (load_splits(MlmPretrain("smoke")) for _ in range(2))
    for a, b in zip(first.train.hidden, second.train.hidden, strict=True):
        assert torch.equal(a, b)


def test_a_batch_without_a_hidden_word_has_no_loss() -> None:
    words = torch.ones(2, 40, dtype=torch.int32)
    batch = MaskedTexts(words, words, words == 0)
    for kind in (MlmPretrain, MlmPretrainMean):
        task = kind("smoke")
        model = task.model(load_splits(task))
        loss = task.loss(model, batch)
        loss.backward()
        assert loss.item() == 0


def test_a_mean_is_the_weighted_mean_of_sub_batches_and_a_sum_their_sum() -> None:
    for kind in (MlmPretrainMean, MlmPretrain):
        task = kind("smoke")
        splits = load_splits(task)
        torch.manual_seed(0)
        model = task.model(splits).double().eval()
        batch = task.batch(splits.train, torch.arange(32))
        parts = task.split_batch(batch, 4)
        sizes = [task.size(part) for part in parts]
        assert sum(sizes) == batch.places.sum()
        assert len({*sizes}) > 1
        weights = [size / sum(sizes) if task.reduction == "mean" else 1.0 for size in sizes]
        together = sum(
            weight * task.loss(model, part) for weight, part in zip(weights, parts, strict=True)
        )
        torch.testing.assert_close(together, task.loss(model, batch), rtol=1e-9, atol=0)


# Figures and artifacts


class Sure(nn.Module):
    """Always says the same word."""

    def __init__(self, word: int, words: int) -> None:
        super().__init__()
        self.logits = torch.zeros(words)
        self.logits[word] = 2.0

    def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
        return self.logits.expand(int(places.sum()), -1)


def test_metrics_are_over_every_masked_word_of_a_split() -> None:
    words = torch.full((70, 4), 5)
    words[:, 0] = 3
    places = torch.zeros(70, 4, dtype=torch.bool)
    places[:, 0] = places[:35, 2] = True  # 70 of the word 3, 35 of the word 5
    split = Split(MaskedTexts(words, words, places), KNOWN)
    found = MlmPretrain("smoke").evaluate(Sure(3, 8), split)
    assert found["accuracy"] == pytest.approx(2 / 3)
    total = math.log(math.exp(2) + 7)
    assert found["loss"] == pytest.approx(total - 2 * 2 / 3, rel=1e-6)


def test_a_loss_that_is_no_number_is_reported() -> None:
    model = Sure(3, 8)
    model.logits[0] = math.nan
    split = Split(MaskedTexts(*[torch.full((2, 4), 5)] * 2, torch.ones(2, 4) == 1), KNOWN)
    assert math.isnan(MlmPretrain("smoke").evaluate(model, split)["loss"])


def test_blanks_are_filled_with_words_and_probabilities() -> None:
    known = Vocabulary((b"the", b"film", b"plot", b"[mask]"))
    rows = torch.tensor([[2, known.mask, 1, 0], [3, 3, 3, known.mask]])
    words = torch.tensor([[2, 4, 1, 0], [3, 3, 3, 2]])
    text = fill_masks(Sure(3, len(known)), rows, rows == known.mask, known, words)
    chance = 100 * math.exp(2) / (math.exp(2) + 5)
    rest = (100 - chance) / 5
    first, second = text.split("\n\n")
    assert first.startswith(f"the [mask] [unknown]\n    film {chance:.0f} %, ")
    assert first.count(f" {rest:.1f} %") == 4
    assert first.endswith("(was: plot)")
    assert first.count("%") == 5
    assert second.startswith("film film film [mask]\n    film ")
    assert second.endswith("(was: the)")
    assert "was:" not in fill_masks(Sure(3, len(known)), rows, rows == known.mask, known)


def test_pre_training_shows_blanks_of_its_own_and_of_validation_reviews() -> None:
    task = MlmPretrain("smoke")
    splits = load_splits(task)
    shown = task.artifacts(task.model(splits).eval(), splits)
    assert [*shown] == ["Blanks filled", "Blanks of validation reviews filled"]
    own, others = (str(text) for text in shown.values())
    assert len(own.split("\n\n")) == 4
    assert "[mask]" in own
    assert 0 < others.count("(was: ") <= 8


# Splits


def some(part: str, count: int) -> Reviews:
    return Reviews(tuple(Review(f"neg/{n}_1", f"{part} {n}") for n in range(count)))


def test_every_text_is_for_pre_training_but_those_held_out() -> None:
    parts = ReviewSplits(some("train", 6), some("validation", 5), some("test", 4))
    kept, validation, test = unlabelled(parts, 2)
    assert validation.texts == ("validation 0", "validation 2")
    assert test.texts == ("test 0", "test 2")
    held = {*validation.texts, *test.texts}
    every = {text for part in (parts.train, parts.validation, parts.test) for text in part.texts}
    assert {*kept.texts} == every - held
    assert len(kept) == 11


def test_fine_tuning_has_the_words_of_pre_training_and_labels_turned_around() -> None:
    before, after = load_splits(MlmPretrain("smoke")), load_splits(MlmFinetune("smoke"))
    assert before.train.vocabulary == after.train.vocabulary
    # 1 is a bad review, as in the example.
    assert torch.equal(after.train.labels, 1.0 - review_splits.load("smoke").train.labels)


# The tasks


def test_the_paper_is_as_stated() -> None:
    first, second = (find(name, "paper").task for name in ("mlm-pretrain", "mlm-finetune"))
    for task, penalties in ((first, (8000, 2000)), (second, (5000, 5000))):
        assert (task.batch_size, task.sub_batch_size) == (32, 8)
        assert task.paper is not None
        assert (task.paper.lr, task.paper.rho, task.paper.sigma) == (1e-4, *penalties)
    assert second.paper is not None
    assert set(second.paper.scores.values()) == {0.9062}
    assert (first.reduction, first.steps) == ("sum", 5 * 1563)
    assert find("mlm-pretrain-mean").task.reduction == "mean"
    afters = {name: task.after for name, task in TASKS.items() if task.after}
    assert afters == {
        "mlm-finetune": "mlm-pretrain",
        "mlm-finetune-frozen": "mlm-pretrain",
        "mlm-finetune-thawed": "mlm-finetune-frozen",
        "mlm-finetune-example": "mlm-pretrain-example",
    }


def test_the_examples_learning_rate_is_ten_times_the_papers_and_penalties_a_tenth() -> None:
    for name, penalties in (("mlm-pretrain", (800, 200)), ("mlm-finetune", (500, 500))):
        paper = find(f"{name}-example", "paper").task.paper
        assert paper is not None
        assert (paper.lr, paper.rho, paper.sigma) == (1e-3, *penalties)
        assert not paper.scores


def stage(
    name: str, folder: Path, method: str = "adam", after: RunConfig | None = None, **setting: Any
) -> tuple[RunConfig, Any]:
    from badm.bench.engine.options import RunOptions
    from badm.bench.engine.run import run

    task, chosen = find(name, "smoke").task, find_method(method)
    setting = chosen.setting({"lr": 1e-2, **setting})
    config = RunConfig(name, "1", "smoke", task.steps, method, setting, 0, after=after)
    done = run(config, task, chosen, RunStore(folder), RunOptions(keep_weights=True))
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    return config, done


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["adam", "badm", "badm-printed", "badm-kronecker", "muon", "soap"]
)
def test_pre_training_on_made_up_reviews_learns(tmp_path: Path, method: str) -> None:
    _, done = stage("mlm-pretrain", tmp_path, method)
    _, losses = done.validation_curve("loss")
    assert losses[-1] < losses[0] - 0.3
    assert done.facts["synthetic"] is True
    assert done.facts["reduction"] == "sum"
    assert [point.step for point in done.points if point.exhibits] == [6, 24, 60]
    # Hundreds of hidden words: the loss that is trained is their sum.
    first = next(point.losses["model"] for point in done.points if point.losses)
    assert first > 20 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.after is None])
def test_every_variant_of_pre_training_runs(tmp_path: Path, name: str) -> None:
    done = train(find(name, "smoke").task, tmp_path, find_method("adam"), setting={"lr": 1e-2})
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert set(done.result.test or {}) == {"loss", "accuracy"}


@pytest.mark.slow
def test_the_stages_hand_on_their_weights(tmp_path: Path) -> None:
    first, _ = stage("mlm-pretrain", tmp_path)
    frozen, _ = stage("mlm-finetune-frozen", tmp_path, after=first)
    thawed, done = stage("mlm-finetune-thawed", tmp_path, after=frozen)
    weights = [
        torch.load(RunStore(tmp_path).weights(config), weights_only=True)
        for config in (first, frozen, thawed)
    ]
    encoder = [name for name in weights[0] if name.startswith("encoder.")]
    assert len(encoder) > 10
    for name in encoder:
        assert torch.equal(weights[0][name], weights[1][name]), name
        assert not torch.equal(weights[1][name], weights[2][name]), name
    _, one = stage("mlm-finetune", tmp_path, after=first)
    assert (one.result.score or 0) > 0.8
    # The third stage starts with what the second one came to.
    assert done.validation_curve("accuracy")[1][0] == max(_accuracies(tmp_path, frozen))


def _accuracies(folder: Path, config: RunConfig) -> list[float]:
    run = RunStore(folder).read(config)
    assert run is not None
    accuracies: list[float] = run.validation_curve("accuracy")[1]
    return accuracies


@pytest.mark.parametrize(("kind", "taken"), [(MlmFinetune, False), (MlmFinetuneThawed, True)])
def test_a_stage_takes_the_encoder_or_all_that_the_one_before_has(
    kind: type[MlmFinetune], taken: bool
) -> None:
    task = kind("smoke")
    splits = load_splits(task)
    before, model = task.model(splits), task.model(splits)
    own = {name: x.clone() for name, x in model.state_dict().items()}
    task.load_pretrained(model, before.state_dict())
    for name, x in model.state_dict().items():
        if name.endswith("weight") and "norm" not in name:
            assert torch.equal(x, before.state_dict()[name]) is (taken or "encoder" in name), name
            assert torch.equal(x, own[name]) is not (taken or "encoder" in name), name


def test_a_frozen_encoder_wants_no_gradients() -> None:
    task = MlmFinetuneFrozen("smoke")
    model = task.model(load_splits(task))
    wanted = {name for name, p in model.named_parameters() if p.requires_grad}
    assert wanted == {"hidden.weight", "hidden.bias", "output.weight", "output.bias"}


@pytest.mark.data
def test_the_real_reviews_are_as_stated(badm_data: Path) -> None:
    splits = MlmPretrain("cpu").data()
    counts = [len(s.hidden.numbers) for s in (splits.train, splits.validation, splits.test)]
    assert counts == [14_200, 400, 400]
    known = splits.train.vocabulary
    assert len(known) == 12_000
    assert known.mask == 11_999
    assert known.words[0] == b"the"
    assert any(word.startswith(b'"') for word in known.words)
    notes = " ".join(splits.notes)
    assert "As in the example, texts of test reviews are among those for pre-training" in notes
    assert "12,000 words, 128 of each review" in notes
