"""``ddim-flowers``: the same noise for every method, an average that a kill does not lose."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from badm.bench import tasks
from badm.bench.engine.evaluation import Evaluator
from badm.bench.engine.options import RunOptions
from badm.bench.engine.task_data import load_splits
from badm.bench.engine.training import Interrupted
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.diffusion import Diffusion
from badm.bench.models.keras_layers import parameter_counts
from badm.bench.records.runs import RunStore
from badm.bench.task import Splits
from badm.bench.tasks.ddim import DdimFlowers
from badm.bench.tasks.scores import kid
from badm.bench.tasks.scores.image_grids import sample_grid
from tests.helpers.engine_tasks import comparable, config_of, train

TASK = DdimFlowers("smoke")
KID = TASK.score.name


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests: images are decoded, and the classifier trained, once."""
    monkeypatch.setenv("BADM_CACHE", str(tmp_path_factory.getbasetemp() / "decoded"))
    monkeypatch.delenv("BADM_INCEPTION", raising=False)


@pytest.fixture
def model() -> Diffusion:
    torch.manual_seed(0)
    made = TASK.model(load_splits(TASK))
    assert isinstance(made, Diffusion)
    with torch.no_grad():
        made.average.noise.weight.normal_(0, 0.1)  # so that it depends on what it is given
    return made.eval()


def batch(count: int = 16) -> Tensor:
    return TASK.batch(load_splits(TASK).train, torch.arange(count))


# Models, settings and what is told


@pytest.mark.parametrize(
    ("name", "scale", "numbers", "side"),
    [
        ("ddim-flowers", "cpu", (489_843, 488_403), 16),
        ("ddim-flowers-32", "cpu", (489_843, 488_403), 32),
        ("ddim-flowers", "paper", (1_953_507, 1_950_627), 64),
    ],
)
def test_the_network_of_each_scale(
    name: str, scale: Any, numbers: tuple[int, int], side: int
) -> None:
    task = tasks.find(name, scale).task
    assert f"{side}×{side}" in task.description
    images = torch.zeros(2, 3, side, side, dtype=torch.uint8)
    images[1] = 255
    model = task.model(Splits(images, None, None))
    assert isinstance(model, Diffusion)
    assert parameter_counts(model.network) == numbers
    assert parameter_counts(model.average) == (numbers[0], 0)
    assert model.warm_up == (scale == "cpu")
    torch.testing.assert_close(model.mean.flatten(), torch.full((3,), 0.5))
    torch.testing.assert_close(model.deviation.flatten(), torch.full((3,), 0.5))


def test_the_settings_are_those_that_the_notes_tell() -> None:
    paper = TASK.paper
    assert paper is not None
    assert (paper.lr, paper.rho, paper.sigma) == (1e-3, 600, 400)
    assert paper.scores == {}
    for words in ("fewest steps", "Ours are: sub-batches of 16 and ρ : σ = 6 : 4"):
        assert words in paper.note
    assert find_method("adam").paper_setting(paper)["lr"] == 1e-3
    printed = find_method("badm-printed").paper_setting(paper)
    assert (printed["lr"], printed["beta"]) == (1 / 400, 0.6)
    for scale in ("smoke", "cpu", "paper"):
        task = DdimFlowers(scale)  # type: ignore[arg-type]
        assert (task.batch_size, task.sub_batch_size) == (64, 16)
    assert DdimFlowers("paper").steps == 50 * 511


def test_the_notes_tell_how_averages_start_and_what_kid_is_over() -> None:
    splits = load_splits(TASK)
    told = " ".join(splits.notes)
    assert splits.synthetic
    for words in (
        "the example starts it at random",
        "(1 + k)/(10 + k) at step k",
        "KID is over 64 images made",
        "real training images from the validation split: ",
        "small classifier",
    ):
        assert words in told
    assert KID == "KID (classifier features)"
    of_cpu = " ".join(DdimFlowers("cpu")._notes(64, 0.0, 70, 9, 9))
    for words in ("16×16 pixels and half the channels", "made in 20 steps, not in 5 as in the"):
        assert words in of_cpu
    assert DdimFlowers("cpu").sizes.kid_steps == 20
    assert DdimFlowers("paper").sizes.kid_steps == 5
    assert "(1 + k)" not in " ".join(DdimFlowers("paper")._notes(64, 0.0, 70, 9, 9))


def test_runs_with_other_features_are_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inception.pth").write_bytes(b"weights")
    monkeypatch.setenv("BADM_INCEPTION", str(tmp_path / "inception.pth"))
    other = DdimFlowers("cpu")
    assert other.score.name == "KID"
    assert other.target is None  # it is of other features
    monkeypatch.delenv("BADM_INCEPTION")
    usual = DdimFlowers("cpu")
    assert usual.target is not None
    assert other.version != usual.version


# The figures


@pytest.mark.slow
def test_the_score_is_the_distance_of_what_is_sampled(model: Diffusion) -> None:
    split = load_splits(TASK).validation
    torch.manual_seed(3)
    figures = TASK.evaluate(model, split)
    torch.manual_seed(3)
    made = model.sample(torch.randn(64, 3, 16, 16), 5)
    real = split.network.features(split.images)
    distance = kid.kid(real, split.network.features(made))
    assert figures[KID] == distance
    assert figures[f"{KID}, dB"] == pytest.approx(10 * math.log10(distance))
    error = model.loss(split.images.float() / 255).item()
    assert figures["noise error"] == pytest.approx(error, rel=1e-5)
    assert set(figures) == {KID, f"{KID}, dB", "noise error"}
    other = TASK.evaluate(model, load_splits(TASK).test)
    assert other[KID] != distance


def test_pixels_are_from_0_to_1_in_training(model: Diffusion) -> None:
    model.train()
    torch.manual_seed(0)
    loss = TASK.loss(model, batch())
    torch.manual_seed(0)
    torch.testing.assert_close(loss, model.loss(batch().float() / 255))
    assert batch().dtype == torch.uint8
    assert batch().shape == (16, 3, 16, 16)


def test_images_that_are_real_are_near_and_noise_is_far(model: Diffusion) -> None:
    splits = load_splits(TASK)
    network = splits.validation.network
    near = kid.kid(splits.validation.features, splits.test.features)
    far = kid.kid(splits.validation.features, network.features(torch.rand(64, 3, 16, 16)))
    assert abs(near) < 0.2 < 0.5 < far


def test_weights_that_are_no_numbers_give_a_score_that_is_none(model: Diffusion) -> None:
    with torch.no_grad():
        model.average.image.weight.fill_(math.nan)
    assert math.isnan(TASK.evaluate(model, load_splits(TASK).validation)[KID])


def test_only_the_network_is_trained(model: Diffusion) -> None:
    (player,) = TASK.players(model)
    assert player.module is model.network
    assert player.loss == TASK.loss


# Samples


@pytest.mark.slow
def test_metrics_and_pictures_are_the_same_for_a_seed_and_others_for_another(
    model: Diffusion,
) -> None:
    splits = load_splits(TASK)
    evaluator, other = (Evaluator(TASK, model, splits, seed) for seed in (0, 1))
    with evaluator.evaluation_mode([]):
        first = evaluator.metrics(splits.validation), evaluator.artifacts()
        torch.manual_seed(5)
        assert (evaluator.metrics(splits.validation), evaluator.artifacts()) == first
        assert other.metrics(splits.validation) != first[0]
        assert other.artifacts() != first[1]


def test_two_models_are_shown_with_the_same_noise(
    model: Diffusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, int]] = []

    def sample(self: Diffusion, noise: Tensor, steps: int) -> Tensor:
        seen.append((noise, steps))
        return torch.zeros_like(noise)

    monkeypatch.setattr(Diffusion, "sample", sample)
    splits = load_splits(TASK)
    torch.manual_seed(1)
    for one in (model, TASK.model(splits)):
        Evaluator(TASK, one, splits, 0).artifacts()
        Evaluator(TASK, one, splits, 0).metrics(splits.validation)
    assert [steps for _, steps in seen] == [20, 5, 20, 5]
    assert torch.equal(seen[0][0], seen[2][0])
    assert torch.equal(seen[1][0], seen[3][0])


def test_a_sheet_shows_every_sample_in_its_place() -> None:
    images = torch.linspace(0.1, 1, 10).view(10, 1, 1, 1).expand(10, 3, 16, 16).clone()
    images[3, 0] = 0
    shown = np.array(Image.open(io.BytesIO(sample_grid(images, columns=4))))
    assert shown.shape == (3 * 64 + 2 * 2, 4 * 64 + 3 * 2, 3)
    for place in range(10):
        top, left = (66 * i for i in divmod(place, 4))
        tile = shown[top : top + 64, left : left + 64]
        expected = (255 * images[place, :, 0, 0]).round().to(torch.uint8).numpy()
        assert (tile == expected).all(), place
    assert (shown[64:66] == 255).all()
    assert (shown[132:, 132:] == 255).all()  # where there is no sample
    grey = np.array(Image.open(io.BytesIO(sample_grid(torch.full((1, 1, 80, 80), 0.2)))))
    assert grey.shape == (80, 80, 3)
    assert (grey == 51).all()


# Runs


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adam", "badm", "badm-printed"])
def test_a_run_on_made_up_images_learns_their_noise(tmp_path: Path, method: str) -> None:
    setting = {} if method == "badm-printed" else {"lr": 5e-3}
    done = train(TASK, tmp_path, find_method(method), setting=setting, test=True)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert done.result.test is not None
    read = [point.validation for point in done.points if point.validation]
    assert read[0]["noise error"] == pytest.approx(math.sqrt(2 / math.pi), rel=0.02)
    # As printed it takes steps of 1/800 of the gradient, which do not come far.
    assert read[-1]["noise error"] < (0.5 if setting else read[0]["noise error"] - 0.005)
    shown = [point.step for point in done.points if point.exhibits]
    assert shown == [4, 10, 20, 40]


def test_a_run_that_diverges_is_recorded_as_such(tmp_path: Path) -> None:
    done = train(TASK, tmp_path, find_method("sgd"), setting={"lr": 1e12}, steps=10)
    assert done.result is not None
    assert done.result.status == "diverged"


def stopped_at(step: int) -> RunOptions:
    """Options of a run that is asked to stop after so many steps."""
    done = 0

    def watch(k: int, loss: float) -> None:
        nonlocal done
        done = k

    return RunOptions(on_step=watch, should_stop=lambda: done >= step)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adam", "badm"])
def test_after_a_stop_the_run_goes_on_with_its_average_bit_for_bit(
    tmp_path: Path, method: str
) -> None:
    how = find_method(method)
    whole = train(TASK, tmp_path / "whole", how, steps=7, test=True)
    with pytest.raises(Interrupted):
        train(TASK, tmp_path / "cut", how, stopped_at(3), steps=7, test=True)
    kept = torch.load(
        RunStore(tmp_path / "cut").checkpoint(config_of(TASK, how, steps=7, test=True)),
        weights_only=True,
    )
    weights = kept["model"]
    assert weights["steps"].item() == 3
    assert not torch.equal(weights["average.noise.weight"], weights["network.noise.weight"])
    again = train(TASK, tmp_path / "cut", how, steps=7, test=True)
    assert comparable(again) == comparable(whole)


# Real data


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"task ddim-flowers: .*badm data fetch flowers102"):
        load_splits(DdimFlowers("cpu"))


@pytest.fixture(scope="module")
def real(badm_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Splits:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BADM_CACHE", str(tmp_path_factory.getbasetemp() / "decoded"))
        return load_splits(tasks.find("ddim-flowers", "cpu").task)


@pytest.mark.data
def test_real_photographs_are_whole_batches_in_small(real: Splits) -> None:
    count = len(real.train)
    assert count % 64 == 0
    assert count in (3200, 6528)
    assert real.train.shape[1:] == (3, 16, 16)
    assert real.train.dtype == torch.uint8
    assert not real.synthetic
    scored = DdimFlowers("cpu").sizes.scored
    for split in (real.validation, real.test):
        assert len(split.images) == len(split.features) == scored
    assert any("four fifths of each official part" in note for note in real.notes)
    assert any("no whole batch" in note for note in real.notes)


@pytest.mark.data
def test_real_photographs_are_nearer_to_each_other_than_to_their_mean_or_noise(
    real: Splits,
) -> None:
    network, features = real.validation.network, real.validation.features
    mean = (real.train.float() / 255).mean(0, keepdim=True).expand(128, -1, -1, -1)
    near = kid.kid(features, real.test.features)
    assert abs(near) < 0.3
    for far in (mean, torch.rand(128, 3, 16, 16)):
        assert kid.kid(features, network.features(far)) > 1


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_a_few_steps_on_real_photographs_lower_the_loss(tmp_path: Path) -> None:
    task = DdimFlowers("cpu")
    done = train(task, tmp_path, find_method("adam"), setting={"lr": 3e-3}, steps=20)
    assert done.result is not None
    losses = [point.losses["model"] for point in done.points if point.losses]
    assert np.mean(losses[-4:]) < 0.6 * np.mean(losses[:4])


def test_no_part_of_the_model_is_left_out_of_its_state(model: Diffusion) -> None:
    """What a checkpoint holds is all there is: a model with it is the same model."""
    torch.manual_seed(9)
    other = TASK.model(load_splits(TASK)).eval()
    other.load_state_dict(model.state_dict())
    assert isinstance(other, nn.Module)
    torch.manual_seed(0)
    first = TASK.evaluate(model, load_splits(TASK).validation)
    torch.manual_seed(0)
    assert TASK.evaluate(other, load_splits(TASK).validation) == first
