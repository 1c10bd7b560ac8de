"""``text-imdb``: the network that Keras would make, figures over all reviews, runs that learn."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from badm.bench.data.text_encoding import Vocabulary
from badm.bench.engine.task_data import load_splits
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.text_cnn import TextCnn
from badm.bench.tasks import find
from badm.bench.tasks.scores.reviews import format_reviews, predict, review_metrics
from badm.bench.tasks.text_classification import Split, TextClassification
from tests.helpers.engine_tasks import train

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "cache"))


def array(x: Tensor) -> Any:
    return x.detach().numpy()


def numbers(count: int, length: int, words: int) -> Tensor:
    return torch.randint(0, words, (count, length), generator=torch.Generator().manual_seed(0))


# The network


def test_the_network_is_the_one_of_keras(keras: ModuleType) -> None:
    torch.manual_seed(0)
    ours = TextCnn(500).eval()
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.2 * torch.randn_like(p)) if p.ndim == 1 else None
    layers = keras.layers
    theirs = keras.Sequential(
        [
            layers.Embedding(500, 128),
            layers.Dropout(0.5),
            layers.Conv1D(128, 7, padding="valid", activation="relu", strides=3),
            layers.Conv1D(128, 7, padding="valid", activation="relu", strides=3),
            layers.GlobalMaxPooling1D(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    theirs.build((None, 500))
    kernels = [p for c in (ours.first, ours.second) for p in (c.weight.permute(2, 1, 0), c.bias)]
    dense = [p for d in (ours.hidden, ours.output) for p in (d.weight.T, d.bias)]
    theirs.set_weights([*map(array, [ours.embedding.weight, *kernels, *dense])])
    x = numbers(6, 500, 500)
    torch.testing.assert_close(ours(x), theirs(x)[:, 0], rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in TextCnn(20_000).parameters()) == 2_806_273
    assert theirs.count_params() == 2_806_273 - 19_500 * 128


def test_the_weights_start_where_those_of_keras_start(keras: ModuleType) -> None:
    torch.manual_seed(0)
    network = TextCnn(2000)
    glorot = keras.initializers.GlorotUniform(seed=0)
    for weight, theirs in (
        (network.embedding.weight, keras.layers.Embedding(2000, 128)),
        (network.first.weight, glorot((7, 128, 128))),
        (network.second.weight, glorot((7, 128, 128))),
        (network.hidden.weight, glorot((128, 128))),
        (network.output.weight, glorot((128, 1))),
    ):
        if not isinstance(theirs, Tensor):
            theirs.build((None, None))
            theirs = theirs.embeddings.value
        assert weight.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=5e-2)
        assert weight.std().item() == pytest.approx(theirs.std().item(), rel=0.1)
    assert not any(p.any() for name, p in network.named_parameters() if "bias" in name)


def test_both_dropouts_are_at_work_in_training_alone() -> None:
    torch.manual_seed(0)
    network, x = TextCnn(50, width=16), numbers(4, 60, 50)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))
    assert network.dropout(torch.ones(9)).equal(torch.ones(9))


# Figures and artifacts


class Fixed(nn.Module):
    """Gives out logits that were put in, review by review."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.left = torch.tensor(logits)

    def forward(self, numbers: Tensor) -> Tensor:
        now, self.left = self.left[: len(numbers)], self.left[len(numbers) :]
        return now


def split(labels: list[float]) -> Split:
    return Split(torch.full((len(labels), 4), 2), torch.tensor(labels), Vocabulary((b"dull",)))


def test_metrics_are_over_the_whole_split() -> None:
    task, many = TextClassification("smoke"), 75
    logits, labels = many * [2.0, -1.0, 0.5], many * [1.0, 0.0, 0.0]
    found = task.evaluate(Fixed(logits), split(labels))
    assert found["accuracy"] == pytest.approx(2 / 3)
    softplus = [math.log1p(math.exp(x)) for x in (-2.0, -1.0, 0.5)]
    assert found["loss"] == pytest.approx(sum(softplus) / 3, rel=1e-6)
    batch = task.batch(split([1.0, 0.0, 0.0]), torch.tensor([0, 2]))
    expected = (softplus[0] + math.log1p(math.exp(-1.0 + 0.0))) / 2
    assert task.loss(Fixed([2.0, -1.0]), batch).item() == pytest.approx(expected, rel=1e-6)


def test_logits_that_are_no_numbers_give_a_score_that_is_none() -> None:
    assert math.isnan(review_metrics(torch.tensor([math.nan, 1.0]), torch.ones(2))["accuracy"])


def test_many_reviews_are_classified_in_their_order() -> None:
    logits = torch.arange(150).tolist()
    assert predict(Fixed(logits), torch.zeros(150, 3)).tolist() == logits


def test_artifacts_say_which_reviews_are_taken_for_what() -> None:
    known = Vocabulary((b"dull", b"superb"))
    rows = torch.tensor([[2, 1, 0], [3, 3, 3]]).repeat(1, 20)
    text = format_reviews(rows, [False, True], [0.2, 0.4], known)
    first, second = text.split("\n\n")
    assert first.startswith("right: a bad review, good with 20 %\n    dull [unknown] dull")
    assert second.startswith("WRONG: a good review, good with 40 %\n    superb superb")
    assert second.endswith("superb … and 20 words more")
    task = TextClassification("smoke")
    splits = load_splits(task)
    shown = task.artifacts(task.model(splits).eval(), splits)
    (text,) = shown.values()
    assert isinstance(text, str)
    good = text.count("a good review")
    assert 0 < good < 8
    assert good + text.count("a bad review") == 8


# The task


def test_the_paper_is_as_stated() -> None:
    task = find("text-imdb", "paper").task
    assert (task.batch_size, task.sub_batch_size, task.order) == (32, 8, "fixed")
    assert task.steps == 3 * 625
    assert task.paper is not None
    assert (task.paper.lr, task.paper.rho, task.paper.sigma) == (2e-4, 1000, 4000)
    assert task.paper.scores == {"rmsprop": 0.9375, "adam": 0.9062, "badm-printed": 0.9375}
    assert task.size_of.words == 20_000
    assert task.size_of.length == 500
    assert task.size_of.width == 128


def test_labels_of_good_reviews_are_1_and_words_are_of_the_training_split() -> None:
    splits = load_splits(TextClassification("smoke"))
    train, test = splits.train, splits.test
    assert train.labels.mean() == 0.5
    known = train.vocabulary
    assert known is test.vocabulary
    texts = [known.show(row) for row in train.numbers.tolist()]
    good = [label for label, text in zip(train.labels, texts, strict=True) if "superb" in text]
    assert sum(good) > 0.8 * len(good)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "lr"),
    [("adam", 1e-2), ("badm", 3e-2), ("badm-kronecker", 1e-2), ("soap", 1e-2), ("rmsprop", 1e-2)],
)
def test_a_run_on_made_up_reviews_learns(tmp_path: Path, method: str, lr: float) -> None:
    done = train(
        TextClassification("smoke"), tmp_path / "runs", find_method(method), setting={"lr": lr}
    )
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert set(done.result.test or {}) == {"accuracy", "loss"}
    assert (done.result.score or 0) > 0.85
    assert [point.step for point in done.points if point.exhibits] == [6, 24, 60]


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"task text-imdb: .*badm data fetch imdb"):
        load_splits(TextClassification("cpu"))


@pytest.mark.data
def test_the_real_reviews_are_numbered(badm_data: Path) -> None:
    task = TextClassification("cpu")
    splits = task.data()
    assert splits.train.numbers.shape == (8000, 384)
    assert splits.test.labels.sum() == 2500
    assert len(splits.train.vocabulary) == 20_000
    assert splits.train.vocabulary.words[:3] == (b"the", b"and", b"a")
    assert not splits.synthetic
    assert any("4 of 5,000 test reviews are also among" in note for note in splits.notes)
    assert any("384 words of each review" in note for note in splits.notes)
