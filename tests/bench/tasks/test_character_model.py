"""``char-imdb``: no character sees those after it, losses are over a whole split, runs learn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from badm.bench.engine.task_data import load_splits
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.causal_transformer import CausalTransformer
from badm.bench.tasks.character_model import (
    SYMBOLS,
    CharacterModel,
    continued,
    decode,
    encode,
    windows,
)
from tests.helpers.engine_tasks import train


def network(length: int = 12) -> CausalTransformer:
    torch.manual_seed(0)
    made = CausalTransformer(SYMBOLS, length=length, width=16, heads=2, layers=2)
    for p in made.parameters():
        torch.nn.init.normal_(p)
    return made


def test_a_character_is_predicted_from_those_before_it_alone() -> None:
    model = network()
    numbers = torch.randint(0, SYMBOLS, (3, 12))
    changed = numbers.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % SYMBOLS
    before, after = model(numbers), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(2).all()


def test_a_short_text_is_read_as_the_start_of_a_long_one() -> None:
    model = network()
    numbers = torch.randint(0, SYMBOLS, (2, 12))
    torch.testing.assert_close(model(numbers[:, :5]), model(numbers)[:, :5])


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads, got 16 and 3"):
        CausalTransformer(9, length=4, width=16, heads=3, layers=1)


def test_printable_characters_come_back_as_they_were() -> None:
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert decode(torch.tensor(encode(text))) == text
    assert sorted(encode(text)) == list(range(SYMBOLS))
    assert decode(torch.tensor(encode("caf\u00e9\t<br />ok"))) == "caf\nok"


def test_windows_do_not_overlap_and_end_with_the_limit() -> None:
    texts = ["abcdefgh", "ijkl"]
    assert [decode(row) for row in windows(texts, 3, None)] == ["abcd", "efgh", "\nijk"]
    assert [decode(row) for row in windows(texts, 3, 9)] == ["abcd", "efgh"]


def test_the_loss_is_the_mean_over_all_characters_of_the_split() -> None:
    task, model = CharacterModel("smoke"), network(16).eval()
    rows = torch.randint(0, SYMBOLS, (300, 17))  # more than are evaluated at once
    logits = model(rows[:, :-1])
    metrics = task.evaluate(model, rows)
    expected = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    right = (logits.argmax(2) == rows[:, 1:]).float().mean().item()
    assert metrics["accuracy"] == pytest.approx(right)
    assert task.loss(model, rows).item() == pytest.approx(metrics["loss"], rel=1e-5)


def test_an_infinite_loss_is_not_a_number() -> None:
    model = network(16)
    torch.nn.init.constant_(model.output.bias, math.nan)
    metrics = CharacterModel("smoke").evaluate(model, torch.zeros(2, 17, dtype=torch.long))
    assert math.isnan(metrics["loss"])
    assert math.isnan(metrics["accuracy"])


def test_a_text_is_continued_with_the_most_likely_character() -> None:
    model = network(16)
    text = continued(model, "Then ", 16)
    assert len(text) == 200
    numbers = torch.tensor(encode(text))
    assert text.startswith("Then ")
    assert model(numbers[None, 50:66])[0, -1].argmax() == numbers[66]


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_a_run_has_forty_readings(scale: str) -> None:
    task = CharacterModel(scale)  # type: ignore[arg-type]
    assert task.steps // task.evaluate_every >= 40


@pytest.mark.slow
@pytest.mark.parametrize(("method", "lr"), [("adamw", 1e-2), ("badm", 1e-2)])
def test_a_run_on_synthetic_reviews_learns(tmp_path: Path, method: str, lr: float) -> None:
    task = CharacterModel("smoke")
    done = train(task, tmp_path / "runs", find_method(method), setting={"lr": lr})
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert len(done.validation_curve("loss")[0]) >= 40
    first = done.validation_curve("loss")[1][0]
    assert (done.result.score or math.inf) < 2.3 < first
    assert [point.step for point in done.points if point.exhibits] == [8, 32, 80]


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"task char-imdb: .*badm data fetch imdb"):
        load_splits(CharacterModel("cpu"))


@pytest.mark.data
def test_the_real_reviews_are_cut_into_windows(badm_data: Path) -> None:
    splits = CharacterModel("cpu").data()
    assert splits.train.shape == (1_500_000 // 65, 65)
    assert splits.validation.shape == splits.test.shape == (600, 65)
    assert not splits.synthetic
