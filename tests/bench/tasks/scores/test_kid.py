"""KID against other computations of it, and the features it is over."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from badm.bench.data import idx
from badm.bench.formatting import decibels
from badm.bench.models import features
from badm.bench.models.features import ClassifierFeatures
from badm.bench.tasks.scores import kid
from badm.bench.tasks.scores.kid import feature_network, label, version


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, and no weights of Inception."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BADM_CACHE", str(folder))
    monkeypatch.delenv("BADM_INCEPTION", raising=False)
    return folder


def normal(count: int, mean: Tensor, std: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + std * torch.randn(count, len(mean), generator=generator, dtype=torch.float64)


# The estimate


def by_loops(real: Tensor, fake: Tensor) -> float:
    """The unbiased estimate as it is defined: sums over pairs, no vector of one with itself."""
    d = real.shape[1]

    def k(x: Tensor, y: Tensor) -> float:
        return (math.fsum((x * y).tolist()) / d + 1) ** 3

    def within(xs: Tensor) -> float:
        n = len(xs)
        total = math.fsum(k(xs[i], xs[j]) for i in range(n) for j in range(n) if i != j)
        return total / (n * (n - 1))

    between = math.fsum(k(x, y) for x in real for y in fake) / (len(real) * len(fake))
    return within(real) + within(fake) - 2 * between


@pytest.mark.slow
def test_a_batch_agrees_with_the_definition_written_as_loops() -> None:
    real = normal(24, torch.zeros(5), 1.0, seed=0)
    fake = normal(24, torch.full((5,), 0.4), 0.7, seed=1)
    assert kid.kid(real, fake) == pytest.approx(by_loops(real, fake), rel=1e-12)


def test_several_batches_are_the_mean_of_each_and_what_is_left_over_does_not_count() -> None:
    real = normal(40, torch.zeros(4), 1.0, seed=0)
    fake = normal(37, torch.ones(4), 1.0, seed=1)
    pairs = [(real[i : i + 16], fake[i : i + 16]) for i in (0, 16)]
    expected = sum(by_loops(*pair) for pair in pairs) / 2
    assert kid.kid(real, fake, batch_size=16) == pytest.approx(expected, rel=1e-12)
    changed = torch.cat([real[:32], 100 + real[32:]])
    assert kid.kid(changed, fake, batch_size=16) == kid.kid(real, fake, batch_size=16)


def moments(mean: Tensor, std: float) -> tuple[Tensor, Tensor, Tensor]:
    """First, second and third moments of a normal distribution with equal, independent axes."""
    eye, d = torch.eye(len(mean), dtype=torch.float64), len(mean)
    second = torch.outer(mean, mean) + std**2 * eye
    third = torch.einsum("i,j,k->ijk", mean, mean, mean)
    third += std**2 * sum(
        torch.einsum(how, mean, eye) for how in ("i,jk->ijk", "j,ik->ijk", "k,ij->ijk")
    )
    assert third.shape == (d, d, d)
    return mean, second, third


def exact(means: tuple[Tensor, Tensor], stds: tuple[float, float]) -> float:
    """The distance itself, without sampling.

    (x·y/d + 1)³ = Σₚ C(3, p) (x·y/d)ᵖ, and the mean of (x·y)ᵖ over independent x and y is the inner
    product of their p-th moments: so the squared distance is the sum of the squared differences of
    moments with the weights C(3, p)/dᵖ.
    """
    d = len(means[0])
    pairs = zip(moments(means[0], stds[0]), moments(means[1], stds[1]), strict=True)
    return sum(
        math.comb(3, p) / d**p * (a - b).square().sum().item()
        for p, (a, b) in enumerate(pairs, start=1)
    )


@pytest.mark.slow
def test_the_estimate_tends_to_the_distance_of_two_normal_distributions() -> None:
    means = torch.zeros(6, dtype=torch.float64), torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    stds = 1.0, 0.8
    truth = exact(means, stds)
    real, fake = (
        normal(64 * 400, *one, seed=seed) for seed, one in enumerate(zip(means, stds, strict=True))
    )
    batches = [kid.kid(real[i : i + 64], fake[i : i + 64]) for i in range(0, len(real), 64)]
    error = np.std(batches) / math.sqrt(len(batches))
    assert error < truth / 10  # otherwise the test would say nothing
    assert abs(kid.kid(real, fake) - truth) < 4 * error
    assert kid.kid(real, fake) == pytest.approx(float(np.mean(batches)), rel=1e-12)


@pytest.mark.slow
def test_equal_distributions_have_distance_zero_in_the_mean_and_sometimes_less() -> None:
    mean = torch.full((6,), 0.5, dtype=torch.float64)
    real, fake = (normal(64 * 200, mean, 1.0, seed=seed) for seed in (0, 1))
    batches = [kid.kid(real[i : i + 64], fake[i : i + 64]) for i in range(0, len(real), 64)]
    error = np.std(batches) / math.sqrt(len(batches))
    assert abs(np.mean(batches)) < 4 * error
    assert min(batches) < 0 < max(batches)


def test_single_precision_is_not_where_the_digits_are_lost() -> None:
    real = normal(64, torch.full((32,), 30.0), 1.0, seed=0)
    fake = normal(64, torch.full((32,), 30.0), 1.0, seed=1)
    single = kid.kid(real.float(), fake.float())
    assert single == pytest.approx(kid.kid(real.float().double(), fake.float().double()), rel=1e-9)


def test_nothing_is_drawn_and_equal_features_give_equal_values() -> None:
    real, fake = torch.randn(130, 8), torch.randn(130, 8)
    before = torch.random.get_rng_state()
    first = kid.kid(real, fake)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(3)
    assert kid.kid(real, fake) == first


def test_features_that_are_no_numbers_give_nan() -> None:
    real = torch.randn(10, 3)
    for wrong in (math.nan, math.inf):
        fake = real.clone()
        fake[4, 1] = wrong
        assert math.isnan(kid.kid(real, fake))
        assert math.isnan(kid.kid(fake, real))


@pytest.mark.parametrize(
    ("real", "fake", "says"),
    [
        ((10, 3), (10, 4), r"\(10, 3\) and \(10, 4\)"),
        ((10, 3, 1), (10, 3, 1), r"\(10, 3, 1\)"),
        ((1, 3), (10, 3), "1 real, 10 fake"),
    ],
)
def test_what_is_no_set_of_features_is_named(
    real: tuple[int, ...], fake: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kid.kid(torch.zeros(real), torch.zeros(fake))


def test_decibels_keep_the_order_and_have_a_word_for_no_distance() -> None:
    assert decibels(10 ** (-0.8)) == pytest.approx(-8)
    values = [-0.5, 0.0, 1e-9, 0.2, 30.0]
    assert sorted(values, key=decibels) == values
    assert decibels(0.0) == decibels(-0.5) == -math.inf
    assert math.isnan(decibels(math.nan))
    assert decibels(math.inf) == math.inf


# Features of a classifier


def made_up(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    images, labels = idx.synthetic_images(count, classes=4, seed=seed)
    return images[:, None], labels


@pytest.mark.slow
def test_the_classifier_learns_the_classes_and_its_features_tell_more_from_less_like() -> None:
    images, labels = made_up(600)
    network = feature_network(images, labels, 4)
    others, truths = made_up(256, seed=1)
    seen = network.features(others)
    assert isinstance(network, ClassifierFeatures)
    assert (network.classify(seen) == truths).double().mean() > 0.9
    assert network.accuracy > 0.9
    assert f"{100 * network.accuracy:.1f} % right" in network.note
    real = network.features(images[:256])
    noise = torch.randn(others.shape, generator=torch.Generator().manual_seed(0))
    spoiled = [(features.as_floats(others) + s * noise).clamp(0, 1) for s in (0.4, 1.0)]
    distances = [kid.kid(real, network.features(x)) for x in (others, *spoiled)]
    assert distances == sorted(distances)
    assert distances[0] < 0.1 < distances[-1]


@pytest.mark.slow
def test_features_have_a_mean_square_of_one_over_the_images_trained_on() -> None:
    images, labels = made_up(200)
    network = feature_network(images, labels, 4)
    seen = network.features(images)
    assert seen.shape == (200, network.num_features)
    assert seen.square().mean().item() == pytest.approx(1, rel=1e-5)


def test_bytes_and_floats_are_the_same_images() -> None:
    images, labels = made_up(64)
    network = feature_network(images, labels, 4)
    assert torch.equal(network.features(images), network.features(images.float() / 255))


@pytest.mark.slow
def test_the_classifier_depends_on_its_images_alone_and_leaves_no_trace(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = made_up(130)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    with torch.no_grad():  # as a task is evaluated
        first = feature_network(images, labels, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == 1
    torch.manual_seed(2)
    monkeypatch.setenv("BADM_CACHE", str(cache / "another"))
    again = feature_network(images, labels, 4)
    assert _same(first, again)
    assert not any(p.requires_grad for p in first.parameters())


def _same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each classifier was trained on that was not in the cache."""
    seen: list[int] = []
    plain = features.train_classifier

    def watched(images: Tensor, labels: Tensor, classes: int) -> ClassifierFeatures:
        seen.append(len(images))
        return plain(images, labels, classes)

    monkeypatch.setattr(features, "train_classifier", watched)
    return seen


def test_a_classifier_is_trained_once_and_read_from_the_cache_as_it_was(
    trainings: list[int], cache: Path
) -> None:
    images, labels = made_up(130)
    first = feature_network(images, labels, 4)
    again = feature_network(images, labels, 4)
    assert trainings == [130]
    assert _same(first, again)
    assert first.note == again.note
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())
    assert torch.equal(first.features(images), again.features(images))
    (kept,) = cache.iterdir()  # no part of a file is left behind
    assert kept.suffix == ".pt"


@pytest.mark.slow
def test_other_images_labels_classes_or_settings_are_another_classifier(
    trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = made_up(70)
    other, swapped = images.clone(), labels.clone()
    other[3, 0, 5, 5] += 1
    swapped[0] = (swapped[0] + 1) % 4
    feature_network(images, labels, 4)
    feature_network(other, labels, 4)
    feature_network(images, swapped, 4)
    feature_network(images, labels, 5)
    assert len(trainings) == 4
    before = version()
    monkeypatch.setattr(features, "RECIPE", (*features.RECIPE, "changed"))
    feature_network(images, labels, 4)
    assert len(trainings) == 5
    assert version() != before


@pytest.mark.parametrize("damage", ["cut off", "bits flipped", "of another network", "no file"])
def test_a_damaged_cache_only_means_another_training(
    damage: str, trainings: list[int], cache: Path
) -> None:
    images, labels = made_up(70)
    first = feature_network(images, labels, 4)
    (kept,) = cache.iterdir()
    content = bytearray(kept.read_bytes())
    if damage == "cut off":
        kept.write_bytes(content[: len(content) // 2])
    elif damage == "bits flipped":
        content[len(content) // 2] ^= 0xFF
        kept.write_bytes(content)
    elif damage == "of another network":
        torch.save({"weight": torch.zeros(3)}, kept)
    else:
        kept.unlink()
        kept.mkdir()
    assert _same(first, feature_network(images, labels, 4))
    assert len(trainings) == 2


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="permissions do not bind root")
def test_a_cache_that_cannot_be_written_only_costs_time(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    images, labels = made_up(40)
    assert feature_network(images, labels, 4).num_features == 128


def test_a_cache_whose_place_is_a_file_only_costs_time(cache: Path, trainings: list[int]) -> None:
    cache.write_text("not a folder")
    images, labels = made_up(40)
    feature_network(images, labels, 4)
    feature_network(images, labels, 4)
    assert trainings == [40, 40]


def test_images_that_are_none_are_refused_with_their_shape() -> None:
    with pytest.raises(ValueError, match=r"\(5, 28, 28\) and 5 labels"):
        feature_network(torch.zeros(5, 28, 28), torch.zeros(5), 10)
    with pytest.raises(ValueError, match="4 labels"):
        feature_network(torch.zeros(5, 1, 28, 28), torch.zeros(4), 10)


def test_the_name_says_which_features(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert label() == ClassifierFeatures.label == "KID (classifier features)"
    classifier = version()
    weights = tmp_path / "inception.h5"
    monkeypatch.setenv("BADM_INCEPTION", str(weights))
    assert label() == "KID"
    absent = version()
    weights.write_bytes(b"one")
    first = version()
    weights.write_bytes(b"three")
    assert len({classifier, absent, first, version()}) == 4


@pytest.mark.data
@pytest.mark.slow
def test_real_digits_are_nearer_to_digits_than_what_is_none(badm_data: Path) -> None:
    found = idx.load(badm_data / "mnist")
    images, labels = found.train[:6000, None], found.train_labels[:6000]
    network = feature_network(images, labels, 10)
    assert isinstance(network, ClassifierFeatures)
    assert network.accuracy > 0.9
    real, others = network.features(images[:1024]), found.train[6000:7024, None]
    same = kid.kid(real, network.features(others))
    fewer = found.train[6000:9000, None][found.train_labels[6000:9000] != 4][:1024]
    blurred = torch.nn.functional.avg_pool2d(features.as_floats(others), 3, 1, 1)
    one = others[:1].expand(1024, -1, -1, -1)
    distances = [same] + [kid.kid(real, network.features(x)) for x in (fewer, blurred, one)]
    assert distances == sorted(distances)
    assert abs(same) < 0.05  # half of them it was trained on
