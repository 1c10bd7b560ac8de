"""``cgan-<set>``: the networks are Keras's, both players learn, and a collapse is told."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from badm.bench import formatting, tasks
from badm.bench.analysis.summaries import summarise
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.data import idx
from badm.bench.engine.task_data import load_splits
from badm.bench.engine.workers import Workers
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.gan import ConditionalGan, Discriminator, Generator, label_map
from badm.bench.records.plans import Plan
from badm.bench.records.runs import RunStore
from badm.bench.task import Splits
from badm.bench.tasks.cgan import (
    COLLAPSED,
    SHOWN,
    TASKS,
    ConditionalGanTask,
    Split,
    feature_spread,
    resize,
)
from tests.helpers.engine_tasks import MOMENTUM, Gan, comparable, train, variant

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests: classifiers are trained once."""
    monkeypatch.setenv("BADM_CACHE", str(tmp_path_factory.getbasetemp() / "features"))
    monkeypatch.delenv("BADM_INCEPTION", raising=False)


@pytest.fixture(scope="module")
def smoke() -> ConditionalGanTask:
    return ConditionalGanTask("mnist", "smoke")


def moved_biases(network: nn.Module) -> nn.Module:
    """Biases that are not zero, so that none is forgotten."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in network.parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return network


# The networks


@pytest.mark.slow
def test_the_networks_have_the_parameters_of_the_example(smoke: ConditionalGanTask) -> None:
    full = ConditionalGanTask("fashion", "paper").model(load_splits(smoke))
    assert isinstance(full, ConditionalGan)
    assert sum(p.numel() for p in full.discriminator.parameters()) == 80_385
    assert sum(p.numel() for p in full.generator.parameters()) == 1_491_215


def test_the_generator_is_that_of_keras(keras: ModuleType) -> None:
    layers = keras.layers
    theirs = keras.Sequential(
        [
            keras.Input((138,)),
            layers.Dense(7 * 7 * 138),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Reshape((7, 7, 138)),
            layers.Conv2DTranspose(128, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(128, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
        ]
    )
    torch.manual_seed(0)
    ours = moved_biases(Generator())
    assert isinstance(ours, Generator)
    weights = [
        ours.start.weight.T,
        ours.start.bias,
        *(x for m in (ours.middle, ours.large) for x in (m.weight.permute(2, 3, 1, 0), m.bias)),
        ours.output.weight.permute(2, 3, 1, 0),
        ours.output.bias,
    ]
    theirs.set_weights([w.detach().numpy() for w in weights])
    noise, labels = torch.randn(5, 128), torch.tensor([0, 3, 9, 3, 7])
    together = torch.cat([noise, nn.functional.one_hot(labels, 10)], 1)
    made = ours(noise, labels)
    torch.testing.assert_close(made.permute(0, 2, 3, 1), theirs(together), rtol=1e-4, atol=1e-5)
    assert made.std() > 0.01
    assert theirs.count_params() == 1_491_215


def test_the_discriminator_is_that_of_keras(keras: ModuleType) -> None:
    layers = keras.layers
    theirs = keras.Sequential(
        [
            keras.Input((28, 28, 11)),
            layers.Conv2D(64, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(128, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ]
    )
    torch.manual_seed(0)
    ours = moved_biases(Discriminator())
    assert isinstance(ours, Discriminator)
    weights = [
        *(x for m in (ours.first, ours.second) for x in (m.weight.permute(2, 3, 1, 0), m.bias)),
        ours.output.weight.T,
        ours.output.bias,
    ]
    theirs.set_weights([w.detach().numpy() for w in weights])
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 9, 4, 4])
    # As the example has it: repeat all numbers of the batch, whatever axes they are on.
    ones = keras.ops.one_hot(labels, 10)[:, :, None, None]
    maps = keras.ops.reshape(keras.ops.repeat(ones, 28 * 28), (-1, 28, 28, 10))
    together = keras.ops.concatenate([images.permute(0, 2, 3, 1), maps], -1)
    logits = ours(images, labels)
    torch.testing.assert_close(logits, theirs(together).squeeze(1), rtol=1e-4, atol=1e-5)
    assert logits.std() > 0.01
    assert theirs.count_params() == 80_385


@pytest.mark.parametrize("network", [Generator(), Discriminator()], ids=["G", "D"])
def test_networks_start_glorot_uniform_without_bias(network: nn.Module) -> None:
    for name, p in network.named_parameters():
        if name.endswith("bias"):
            assert p.abs().max() == 0
            continue
        area = math.prod(p.shape[2:])
        limit = math.sqrt(6 / (area * (p.shape[0] + p.shape[1])))
        assert p.abs().max() <= limit
        assert p.abs().max() > 0.95 * limit
        assert p.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.1)


def test_bands_light_every_channel_in_two_point_eight_rows_of_their_class() -> None:
    maps = label_map(10, "bands")
    assert maps.shape == (10, 10, 28, 28)
    assert torch.equal(maps.sum((1, 2, 3)), torch.full((10,), 784.0))  # 2.8 rows of 28 by 10
    assert torch.equal(maps.sum(0), torch.ones(10, 28, 28))  # each place belongs to one class
    rows = maps.mean((1, 3))
    for label in range(10):
        lit = rows[label].nonzero().flatten()
        assert lit.min() == math.floor(2.8 * label)
        assert lit.max() == math.ceil(2.8 * (label + 1)) - 1


@pytest.mark.parametrize("side", [16, 28])
def test_networks_of_other_sides_fit_together(side: int) -> None:
    labels = torch.tensor([3, 4])
    made = Generator(side=side, channels=(4, 4, 4))(torch.randn(2, 128), labels)
    assert made.shape == (2, 1, side, side)
    assert Discriminator(side=side, channels=(4, 4))(made, labels).shape == (2,)
    assert label_map(10, "bands", side).sum((1, 2, 3)).tolist() == [side * side] * 10
    with pytest.raises(ValueError, match="side must be a multiple of 4, got 18"):
        Generator(side=18)


def test_images_are_framed_and_shrunk_by_half() -> None:
    images = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    small = resize(images, 16)
    assert (small.shape, small.dtype) == ((3, 1, 16, 16), torch.uint8)
    assert small[:, :, [0, -1]].max() == small[..., [0, -1]].max() == 0
    expected = images[1, 0, 4:6, 6:8].float().mean()
    assert abs(small[1, 0, 3, 4].item() - expected) <= 0.5
    assert resize(images, 28) is images


def test_label_maps_differ_and_others_are_refused() -> None:
    ones = label_map(10, "one-hot")
    for label in range(10):
        assert torch.equal(ones[label].amin((1, 2)), nn.functional.one_hot(torch.tensor(label), 10))
    images, labels = torch.rand(3, 1, 28, 28), torch.tensor([1, 2, 3])
    torch.manual_seed(0)
    bands = Discriminator()
    one_hot = Discriminator(labels="one-hot")
    one_hot.load_state_dict(bands.state_dict())
    assert not torch.equal(bands(images, labels), one_hot(images, labels))
    with pytest.raises(ValueError, match="'bands' or 'one-hot', got 'stripes'"):
        Discriminator(labels="stripes")  # type: ignore[arg-type]


# The task


def test_variants_have_names_of_their_own_and_the_papers_settings() -> None:
    endings = ("", "-one-hot", "-example")
    assert list(TASKS) == [f"cgan-{s}{end}" for end in endings for s in ("mnist", "fashion")]
    for name, make in TASKS.items():
        for scale in ("smoke", "cpu", "paper"):
            task = make(scale)
            assert task.name == name
            assert task.labels == ("one-hot" if name.endswith("one-hot") else "bands")
            assert (task.batch_size, task.sub_batch_size) == (64, 16)
            assert task.paper is not None
            times = 3 if name.endswith("example") else 1
            settings = (task.paper.lr, task.paper.rho, task.paper.sigma)
            assert settings == pytest.approx((1e-4 * times, 6000 / times, 4000 / times))
            assert task.paper.scores == {}
            model = task.model(Splits(None, None, None))
            assert isinstance(model, ConditionalGan)
            maps = label_map(10, task.labels, side=28 if scale == "paper" else 16)
            assert torch.equal(model.discriminator.maps, maps)
    assert "at least 2 times" in TASKS["cgan-mnist"]("cpu").paper.note
    assert "at least 3 times" in TASKS["cgan-fashion"]("cpu").paper.note


def test_losses_are_those_of_the_example(smoke: ConditionalGanTask) -> None:
    model = smoke.model(load_splits(smoke))
    assert isinstance(model, ConditionalGan)
    batch = smoke.batch(load_splits(smoke).train, torch.arange(6))
    real, labels = batch
    assert (real.min() >= 0, real.max() <= 1, real.shape) == (True, True, (6, 1, 16, 16))
    assert real.max() > 0.9
    told, fooled = smoke.players(model)
    assert (told.name, fooled.name) == ("discriminator", "generator")
    assert (told.module, fooled.module) == (model.discriminator, model.generator)

    def drawn() -> Tensor:
        torch.manual_seed(3)
        return model.generator(torch.randn(6, 128), labels)

    probabilities = model.discriminator(drawn(), labels).sigmoid()
    of_real = model.discriminator(real, labels).sigmoid()
    expected = -(probabilities.log().sum() + (1 - of_real).log().sum()) / 12
    torch.manual_seed(3)
    torch.testing.assert_close(told.loss(model, batch), expected)
    torch.manual_seed(3)
    torch.testing.assert_close(fooled.loss(model, batch), -(1 - probabilities).log().mean())


def test_each_player_learns_from_its_own_loss_alone(smoke: ConditionalGanTask) -> None:
    model = smoke.model(load_splits(smoke))
    assert isinstance(model, ConditionalGan)
    batch = smoke.batch(load_splits(smoke).train, torch.arange(8))
    told, fooled = smoke.players(model)
    told.loss(model, batch).backward()
    assert all(p.grad is not None for p in model.discriminator.parameters())
    assert all(p.grad is None for p in model.generator.parameters())
    fooled.loss(model, batch).backward()
    assert all(p.grad is not None for p in model.generator.parameters())


class Repeats(ConditionalGan):
    """Gives out images of a set instead of making any: of each class some, again and again."""

    def __init__(self, images: Tensor, labels: Tensor, each: int) -> None:
        super().__init__(Generator(channels=(1, 1, 1)), Discriminator(channels=(1, 1)))
        chosen = [images[labels == label][:each] for label in range(10)]
        self.chosen = [c.float() / 255 for c in chosen]
        self.given = [0] * 10

    def sample(self, labels: Tensor) -> Tensor:
        made = []
        for label in labels.tolist():
            mine = self.chosen[label]
            made.append(mine[self.given[label] % len(mine)])
            self.given[label] += 1
        return torch.stack(made)


def test_metrics_tell_real_images_from_few_from_noise(smoke: ConditionalGanTask) -> None:
    splits = load_splits(smoke)
    train, validation = splits.train, splits.validation
    real = smoke.evaluate(Repeats(train.images, train.labels, 1000), validation)
    one = smoke.evaluate(Repeats(train.images, train.labels, 1), validation)
    untrained = smoke.evaluate(smoke.model(splits), validation)
    name = smoke.score.name
    assert name == "KID (classifier features)"
    assert real[name] < one[name] < untrained[name] / 2
    assert real["spread"] == pytest.approx(1, abs=0.3)
    assert one["spread"] == pytest.approx(0, abs=1e-6)
    assert real["recognised"] > 0.9
    assert one["recognised"] > 0.9
    assert untrained["recognised"] < 0.3
    for figures in (real, one, untrained):
        assert figures[f"{name}, dB"] == formatting.decibels(figures[name])
    assert smoke.warning(real) == ""
    assert smoke.warning(one).startswith("collapsed: at the end the images of a class vary")


@pytest.mark.slow
def test_kid_is_over_as_many_images_of_classes_that_are_drawn(smoke: ConditionalGanTask) -> None:
    """Perfect images have zero in the mean, which those of the very classes would not have."""
    splits = load_splits(smoke)
    asked: list[Tensor] = []

    class Watched(Repeats):
        def sample(self, labels: Tensor) -> Tensor:
            asked.append(labels)
            return super().sample(labels)

    split, values = splits.validation, []
    for seed in range(40):
        torch.manual_seed(seed)
        order = torch.randperm(len(splits.train.labels))
        model = Watched(splits.train.images[order], splits.train.labels[order], 1000)
        values.append(smoke.evaluate(model, split)[smoke.score.name])
    assert abs(np.mean(values)) < 0.06  # with the classes of the split it would be -0.13
    assert all(len(labels) == len(split.labels) for labels in asked)
    assert not torch.equal(asked[0], asked[1])
    parts = torch.cat(asked).bincount(minlength=10) / (40 * len(split.labels))
    wanted = split.labels.bincount(minlength=10) / len(split.labels)
    torch.testing.assert_close(parts, wanted, atol=0.02, rtol=0)


def test_weights_that_are_no_numbers_have_no_score(smoke: ConditionalGanTask) -> None:
    model = smoke.model(load_splits(smoke))
    with torch.no_grad():
        model.generator.output.bias.fill_(math.nan)
    assert math.isnan(smoke.evaluate(model, load_splits(smoke).validation)[smoke.score.name])


def test_spread_is_the_mean_variance_within_classes() -> None:
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(30, 4)), np.arange(30) % 3
    features[labels == 1] *= 3
    expected = np.mean([features[labels == c].var(0, ddof=1).sum() for c in range(3)])
    found = feature_spread(torch.tensor(features), torch.tensor(labels))
    assert found == pytest.approx(expected)
    lone = feature_spread(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    assert lone == 0.5  # a class of one image has none


def test_the_threshold_of_collapse_is_where_it_says(smoke: ConditionalGanTask) -> None:
    assert smoke.warning({"spread": COLLAPSED}) == ""
    assert "vary 0.0999 times as much" in smoke.warning({"spread": 0.0999})


def test_another_network_of_features_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tasks.find("cgan-mnist", "smoke")
    (tmp_path / "weights.h5").write_bytes(b"weights")
    monkeypatch.setenv("BADM_INCEPTION", str(tmp_path / "weights.h5"))
    second = tasks.find("cgan-mnist", "smoke")
    assert first.version != second.version
    assert (first.task.score.name, second.task.score.name) == ("KID (classifier features)", "KID")
    with pytest.raises(TaskError, match=r"weights\.h5 is neither HDF5 nor a state dict"):
        load_splits(second.task)


# Data


def written(folder: Path, count: int, tests: int) -> Path:
    """Files in the layout of MNIST, of made-up images, each with its number in two corners."""
    mine = folder / "mnist"
    mine.mkdir(parents=True)
    for part, (images_file, labels_file) in zip(
        (count, tests), (idx.FILES[:2], idx.FILES[2:]), strict=True
    ):
        images, labels = idx.synthetic_images(part, 10, seed=part)
        # Of 2×2 pixels each, which are one in images that are framed and shrunk by half.
        images[:, :2, :2] = (torch.arange(part) // 256)[:, None, None].byte()
        images[:, :2, -2:] = (torch.arange(part) % 256)[:, None, None].byte()
        idx.write(mine / images_file, images)
        idx.write(mine / labels_file, labels)
    return folder


def numbers(images: Tensor) -> list[int]:
    assert images.shape[1:] == (1, 16, 16)
    return (256 * images[:, 0, 1, 1].int() + images[:, 0, 1, -2].int()).tolist()


@pytest.mark.slow
def test_real_images_are_held_out_and_the_notes_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(written(tmp_path, 1_200, 300)))
    task = ConditionalGanTask("mnist", "cpu")
    splits = load_splits(task)
    assert numbers(splits.train.images) == list(range(1_200 - 1_024))
    assert numbers(splits.validation.images) == list(range(1_200 - 1_024, 1_200))
    assert numbers(splits.test.images) == list(range(300))
    assert not splits.synthetic
    assert splits.notes[0].startswith("176 images to train on, 1,024 to validate and 300 to test")
    assert "trains on all 70,000" in splits.notes[0]
    assert splits.notes[1].startswith("KID (classifier features) of as many real training images")
    assert "band of a tenth of the rows" in splits.notes[2]
    assert splits.notes[3].startswith("Images of 16×16 pixels at this scale")
    assert "64, 32, 16 in the generator, not 138, 128, 128" in splits.notes[4]
    assert "small classifier" in splits.notes[-1]
    one_hot = load_splits(ConditionalGanTask("mnist", "cpu", labels="one-hot"))
    assert not any("band" in note for note in one_hot.notes)
    assert torch.equal(splits.validation.features, one_hot.validation.features)


def test_of_the_whole_set_cpu_scale_takes_the_first_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than it takes, at sizes that are quick."""
    from badm.bench.tasks import cgan

    size = cgan.Size(16, (8, 8, 4), (8, 16), 100, 64, 80, steps=10, evaluate_every=5)
    monkeypatch.setitem(cgan.SIZES, "cpu", size)
    monkeypatch.setenv("BADM_DATA", str(written(tmp_path, 500, 90)))
    splits = load_splits(ConditionalGanTask("mnist", "cpu"))
    assert numbers(splits.train.images) == list(range(100))
    assert numbers(splits.validation.images) == list(range(100, 164))
    assert numbers(splits.test.images) == list(range(80))


def test_data_that_are_not_there_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match="badm data fetch fashion-mnist"):
        load_splits(ConditionalGanTask("fashion", "cpu"))


# Runs


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("method", ["adam", "badm"])
def test_smoke_runs_go_to_their_end_and_both_players_learn(
    name: str, method: str, tmp_path: Path
) -> None:
    """Made-up images and forty steps are too little for a good KID, not to tell and to fool."""
    task = tasks.find(name, "smoke").task
    done = train(task, tmp_path, find_method(method), setting={"lr": 3e-3})
    assert done.result is not None
    assert done.result.status == "finished"
    steps, values = done.validation_curve(task.score.name)
    assert steps == [0, 20, 40]
    assert done.result.score == min(values)
    assert done.result.test is not None
    assert all(math.isfinite(done.result.test[figure]) for figure in (task.score.name, "spread"))
    losses = [point.losses for point in done.points if point.losses is not None]
    told = [one["discriminator"] for one in losses]
    fooled = [one["generator"] for one in losses]
    assert min(told) < 0.9 * told[0]  # it comes to tell them apart,
    assert max(fooled) > 1.1 * fooled[0]  # so that to fool it becomes harder
    shown = {point.step for point in done.points if point.exhibits}
    assert shown == {max(1, round(part * task.steps)) for part in task.artifacts_at}


@pytest.mark.slow
def test_a_generator_learns_from_a_discriminator_that_stays_as_it_is() -> None:
    """What it is for: its loss falls when the other player takes no step."""
    task = ConditionalGanTask("mnist", "smoke")
    torch.manual_seed(0)
    model = task.model(load_splits(task))
    _, generator = task.players(model)
    optimizer = torch.optim.Adam(generator.module.parameters(), lr=1e-2)
    batch = task.batch(load_splits(task).train, torch.arange(64))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = generator.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_a_run_is_the_same_again_and_differs_by_seed(tmp_path: Path) -> None:
    runs = [
        train(ConditionalGanTask("fashion", "smoke"), tmp_path / str(n), seed=seed, steps=6)
        for n, seed in enumerate((0, 0, 1))
    ]
    first, again, other = runs
    assert comparable(first) == comparable(again)
    assert first.result is not None
    assert other.result is not None
    assert first.result.weights != other.result.weights


def test_both_players_have_a_trainer_with_a_state_of_its_own(tmp_path: Path) -> None:
    task = ConditionalGanTask("mnist", "smoke")
    done = train(task, tmp_path, find_method("adam"), steps=2)
    assert done.result is not None
    parameters = sum(p.numel() for p in task.model(load_splits(task)).parameters())
    # Two moments of each parameter, four bytes each; beside them only counters.
    assert 8 * parameters <= done.result.state_bytes <= 8 * parameters + 1000
    assert done.result.gradients == 4  # of two players in two steps


def sheet(picture: bytes | str) -> Any:
    assert isinstance(picture, bytes)
    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"))


def test_artifacts_have_a_row_for_each_class_and_the_same_noise_for_all(
    smoke: ConditionalGanTask,
) -> None:
    splits = load_splits(smoke)
    train_split: Split = splits.train
    repeats = Repeats(train_split.images, train_split.labels, SHOWN)
    ((title, picture),) = smoke.artifacts(repeats, splits).items()
    assert "the same noise for every method" in title
    found = sheet(picture)
    rows, columns = (found.shape[0] + 2) // 10, (found.shape[1] + 2) // SHOWN
    assert rows == columns
    side = rows - 2
    for label in range(10):
        for number in range(SHOWN):
            top, left = label * rows, number * columns
            tile = found[top : top + side : side // 16, left : left + side : side // 16]
            image = train_split.images[train_split.labels == label][number, 0]
            assert np.array_equal(tile, image.numpy())
    model = smoke.model(splits)
    pictures = []
    for _ in range(2):
        torch.manual_seed(5)
        pictures.append(next(iter(smoke.artifacts(model, splits).values())))
    assert pictures[0] == pictures[1]


# What is recorded of a run that goes wrong


class Collapsing(ConditionalGanTask):
    """A generator that sees no noise can make one image of each class only."""

    def model(self, splits: Splits) -> nn.Module:
        model = super().model(splits)
        assert isinstance(model, ConditionalGan)
        with torch.no_grad():
            model.generator.start.weight[:, :128] = 0
        model.generator.start.weight.register_hook(self._without_noise)
        return model

    @staticmethod
    def _without_noise(gradient: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(gradient[:, :128]), gradient[:, 128:]], 1)


def test_a_collapsed_run_is_finished_and_says_so(tmp_path: Path) -> None:
    done = train(Collapsing("mnist", "smoke"), tmp_path, find_method("adam"), steps=4)
    assert done.result is not None
    assert done.result.status == "finished"
    assert done.result.message.startswith("collapsed: at the end the images of a class vary")
    assert done.result.test is not None
    assert done.result.test["spread"] < 1e-6


def test_the_warning_is_about_the_last_evaluation_not_the_best(tmp_path: Path) -> None:
    read: list[Mapping[str, float]] = []

    def warning(self: Any, figures: Mapping[str, float]) -> str:
        read.append(figures)
        return "seen"

    task = variant(Gan, warning=warning, keep="best", evaluate_every=1)
    done = train(task, tmp_path, setting={"lr": 0.5}, steps=12)
    assert done.result is not None
    assert done.result.message == "seen"
    _, values = done.validation_curve("distance")
    assert read == [{"distance": values[-1]}]
    assert done.result.score == min(values) < values[-1]


TASK_FILE = """
from tests.bench.tasks.test_gan import Collapsing
from badm.bench import Paper

class Both(Collapsing):
    name = "both"

    def __init__(self, scale="smoke"):
        super().__init__("mnist", "smoke")
        self.name = "both"
        self.paper = Paper(lr=1e-3, rho=1e-30, sigma=1e-30)  # steps far too long, as printed
"""


@pytest.mark.slow
def test_a_comparison_goes_on_past_collapse_and_divergence(tmp_path: Path) -> None:
    """One method diverges, the others collapse, which is told by seed; all are compared."""
    (tmp_path / "both.py").write_text(TASK_FILE)
    methods = ("adam", "badm-printed", "badm")
    source = str(tmp_path / "both.py")
    plan = Plan((source,), methods, protocol="paper", scale="smoke", seeds=2, steps=4)
    store = RunStore(tmp_path / "runs")
    runner = ComparisonRunner(plan, store)
    with Workers(1, store) as workers:
        runner.run(workers, lambda *_: None)
    found = summarise(runner.record, store)
    rows = {row.method: row for row in found.rows}
    assert {name: row.status for name, row in rows.items()} == {
        "adam": "finished",
        "badm-printed": "diverged",
        "badm": "finished",
    }
    assert rows["badm-printed"].diverged == 2
    assert rows["adam"].test is not None
    told = [note for note in found.notes if "collapsed: at the end" in note]
    assert [note.partition(":")[0] for note in told] == [
        f"{method} on both, seed {seed}" for method in ("adam", "badm") for seed in (0, 1)
    ]


def test_tasks_without_a_warning_end_without_a_message(tmp_path: Path) -> None:
    done = train(Gan(), tmp_path, MOMENTUM)
    assert done.result is not None
    assert done.result.message == ""
