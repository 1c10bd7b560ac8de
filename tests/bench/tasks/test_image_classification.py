"""``image-*``: the network of Keras, splits that stay, whole test splits, runs that learn."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

from badm.bench.data import photographs
from badm.bench.data.camelyon import Patches
from badm.bench.engine.task_data import load_splits
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.augmentation import augment
from badm.bench.models.convolutional import ConvolutionalNetwork
from badm.bench.task import Scale, check_task
from badm.bench.tasks import TASKS, find, image_splits
from badm.bench.tasks.image_classification import IMAGE_SETS, ImageClassification
from badm.bench.tasks.image_classification import TASKS as IMAGE_TASKS
from badm.bench.tasks.image_paper import STATED
from badm.bench.tasks.image_splits import Split, duplicate_notes, hold_out
from badm.bench.tasks.scores.image_grids import classified_grid
from tests.helpers.engine_tasks import comparable, train

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path_factory.mktemp("cache")))


def made(images: str = "cifar10", **variant: bool) -> ImageClassification:
    return ImageClassification(images, "smoke", **variant)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


# The tasks


def test_every_set_has_a_task_at_every_scale() -> None:
    assert set(IMAGE_TASKS) == {
        "image-cifar10",
        "image-cifar10-tutorial",
        "image-svhn",
        "image-deepweeds",
        "image-cmaterdb",
        "image-cmaterdb-devanagari",
        "image-cmaterdb-telugu",
        "image-camelyon",
        "image-flowers",
        "image-flowers-augmented",
    }
    assert set(IMAGE_TASKS) <= set(TASKS)
    for name in IMAGE_TASKS:
        for scale in ("smoke", "cpu", "paper"):
            task = find(name, scale).task
            check_task(task)
            assert task.name == name
            assert task.evaluate_every <= task.steps
            assert task.target is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_TASKS)
def test_every_task_learns_made_up_images(tmp_path: Path, name: str) -> None:
    task = TASKS[name]("smoke")
    done = train(task, tmp_path, find_method("adam"), setting={"lr": 3e-3})
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert set(done.result.test or {}) == {"accuracy", "loss"}
    assert done.result.test is not None
    assert done.result.test["accuracy"] > 0.8
    assert done.result.score is not None
    assert done.result.score >= (task.target or 0)
    losses = [point.losses["model"] for point in done.points if point.losses]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["badm", "badm-printed", "badm-kronecker", "muon", "rmsprop"])
def test_other_methods_take_kernels_of_convolutions(tmp_path: Path, method: str) -> None:
    done = train(made(), tmp_path, find_method(method), steps=3)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message


def test_methods_that_train_layer_by_layer_say_that_they_cannot(tmp_path: Path) -> None:
    done = train(made(), tmp_path, find_method("dladmm"), steps=3)
    assert done.result is not None
    assert done.result.status == "cannot"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image-cifar10", "image-flowers-augmented"])
def test_equal_runs_are_equal_and_others_are_not(tmp_path: Path, name: str) -> None:
    runs = [
        train(TASKS[name]("smoke"), tmp_path / folder, find_method("adam"), seed=seed, steps=4)
        for folder, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert comparable(runs[0]) == comparable(runs[1])
    assert runs[0].result != runs[2].result


def test_settings_and_scores_are_those_of_the_paper() -> None:
    table = {
        "cifar10": (256, 64, 8500, 1500),
        "svhn": (128, 32, 7000, 3000),
        "deepweeds": (64, 16, 8000, 2000),
        "cmaterdb": (128, 32, 5000, 5000),
        "cmaterdb-devanagari": (128, 32, 5000, 5000),
        "cmaterdb-telugu": (128, 32, 5000, 5000),
        "camelyon": (128, 32, 7000, 3000),
        "flowers": (64, 16, 7000, 3000),
    }
    assert set(table) == set(STATED) == set(IMAGE_SETS)
    for images, (batch, sub_batch, rho, sigma) in table.items():
        for scale in ("cpu", "paper"):
            task = ImageClassification(images, scale)
            assert (task.batch_size, task.sub_batch_size) == (batch, sub_batch)
            assert task.paper is not None
            assert (task.paper.rho, task.paper.sigma, task.paper.lr) == (rho, sigma, None)
    flowers = ImageClassification("flowers").paper
    assert flowers is not None
    assert [int(10_000 * n / 64) / 10_000 for n in (54, 55, 59)] == list(flowers.scores.values())
    assert "one batch" in flowers.note
    for variant in (
        ImageClassification("cifar10", last_pool=False),
        ImageClassification("flowers", augmented=True),
        ImageClassification("cmaterdb-telugu"),
    ):
        assert variant.paper is not None
        assert variant.paper.scores == {}
        assert "one batch" not in variant.paper.note


def test_without_a_stated_rate_methods_keep_the_defaults_of_keras() -> None:
    task = ImageClassification("cifar10")
    assert task.paper is not None
    for method, lr in {
        "adam": 1e-3,
        "rmsprop": 1e-3,
        "sgd": 1e-2,
        "badm-printed": 1 / 1500,
    }.items():
        assert find_method(method).paper_setting(task.paper)["lr"] == pytest.approx(lr)


# The network


def test_the_networks_have_the_parameters_of_keras() -> None:
    assert count(ImageClassification("cifar10").model(None)) == 73_418  # type: ignore[arg-type]
    tutorial = ImageClassification("cifar10", last_pool=False)
    assert count(tutorial.model(None)) == 122_570  # type: ignore[arg-type]


def naive(network: ConvolutionalNetwork, images: Tensor) -> Tensor:
    """The same, step by step as it is described."""
    x = images.permute(0, 3, 1, 2).contiguous().float() / 255
    for block in network.blocks:
        x = block.convolution(x).relu()
        x = max_pool2d(x, 2) if block.pooled else x
    x = x.permute(0, 2, 3, 1).reshape(len(x), -1)
    logits: Tensor = network.output(network.hidden(x).relu())
    return logits


@pytest.mark.parametrize("last_pool", [True, False])
def test_pooling_before_relu_changes_neither_values_nor_gradients(last_pool: bool) -> None:
    torch.manual_seed(0)
    network = ConvolutionalNetwork(32, (8, 16, 16), 10, last_pool=last_pool)
    images, labels = noise(6, 32, 32, 3), torch.arange(6)
    gradients = []
    for logits in (network(images), naive(network, images)):
        network.zero_grad()
        cross_entropy(logits, labels).backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(network(images), naive(network, images))
    assert len(gradients[0]) == 10
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("last_pool", [True, False])
def test_the_network_is_the_one_of_keras(keras: ModuleType, last_pool: bool) -> None:
    torch.manual_seed(0)
    ours = ConvolutionalNetwork(32, (32, 64, 64), 10, last_pool=last_pool)
    with torch.no_grad():
        for name, p in ours.named_parameters():
            if "bias" in name:
                p.add_(0.2 * torch.randn_like(p))
    layers: list[Any] = [keras.layers.Rescaling(1 / 255)]
    for width in (32, 64, 64):
        layers += [keras.layers.Conv2D(width, 3, activation="relu"), keras.layers.MaxPooling2D()]
    if not last_pool:
        del layers[-1]
    layers += [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    theirs = keras.Sequential([keras.Input((32, 32, 3)), *layers])
    assert theirs.count_params() == count(ours)
    for layer, own in zip(
        [layer for layer in theirs.layers if layer.weights],
        [m for m in ours.modules() if isinstance(m, nn.Conv2d | nn.Linear)],
        strict=True,
    ):
        kernel = own.weight.detach()
        turned = kernel.permute(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        layer.set_weights([turned.numpy(), own.bias.detach().numpy()])
    images = noise(5, 32, 32, 3)
    torch.testing.assert_close(
        ours(images), theirs(images.float()), rtol=1e-4, atol=1e-5, check_device=False
    )


def test_kernels_start_where_those_of_keras_start(keras: ModuleType) -> None:
    torch.manual_seed(0)
    network = ConvolutionalNetwork(32, (32, 64, 64), 10)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert not module.bias.any()
    for block, shape in zip(network.blocks, [(3, 3, 3, 32), (3, 3, 32, 64)], strict=False):
        ours = block.convolution.weight  # type: ignore[union-attr]
        theirs = keras.initializers.GlorotUniform(seed=0)(shape)
        assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=2e-2)
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=5e-2)


def test_images_that_the_blocks_would_use_up_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 32×32 are too small for 4 blocks"):
        ConvolutionalNetwork(32, (8, 8, 8, 8), 10)


def test_parameters_and_gradients_keep_the_layout_that_methods_expect() -> None:
    network = ConvolutionalNetwork(32, (8, 16), 10)
    network(noise(4, 32, 32, 3)).sum().backward()
    for p in network.parameters():
        assert p.is_contiguous()
        assert p.grad is not None
        assert p.grad.is_contiguous()


def test_the_gradient_of_a_batch_is_that_of_its_sub_batches() -> None:
    task = made()
    splits = task.data()
    batch = task.batch(splits.train, torch.arange(27))
    torch.manual_seed(0)
    model = task.model(splits)
    task.loss(model, batch).backward()
    whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for part in task.split_batch(batch, 4):
        (task.size(part) / 27 * task.loss(model, part)).backward()
    parts = [p.grad for p in model.parameters()]
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


# Augmentation


def test_augmentation_is_drawn_from_the_seeded_generator() -> None:
    images = noise(8, 16, 16, 3)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(augment(images))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == images.shape
    assert drawn[0].min() >= 0
    assert drawn[0].max() <= 255


def test_augmentation_mirrors_half_of_the_images_and_turns_them_a_little() -> None:
    # A line of one bright half: the left one, or after mirroring the right one.
    images = torch.zeros(400, 16, 16, 3, dtype=torch.uint8)
    images[:, :, :8] = 200
    torch.manual_seed(0)
    changed = augment(images)
    left, right = changed[:, :, :8].mean((1, 2, 3)), changed[:, :, 8:].mean((1, 2, 3))
    assert 160 < (right > left).sum() < 240
    # Up to a tenth of a turn, the halves stay told apart, and are not what they were.
    brighter = torch.maximum(left, right)
    assert brighter.min() > 130
    assert brighter.max() > 195
    assert brighter.mean() < 190


def test_augmentation_is_of_training_alone_and_only_where_the_name_says() -> None:
    for task, changes in ((made("flowers"), False), (made("flowers", augmented=True), True)):
        splits = task.data()
        model = task.model(splits).train()
        batch = task.batch(splits.train, torch.arange(8))
        assert (task.loss(model, batch) != task.loss(model, batch)) == changes
        model.eval()
        with torch.no_grad():
            assert task.evaluate(model, splits.test) == task.evaluate(model, splits.test)


# Splits


def test_a_part_of_each_class_is_held_out_and_always_the_same() -> None:
    labels = torch.tensor([2, 0, 1, 1, 0, 2] * 20 + [1] * 10)
    kept, held = hold_out(labels, 0.15)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(130))
    assert labels[held].bincount().tolist() == [6, 8, 6]  # 15 % of 40, 50, 40, rounded
    again = hold_out(labels, 0.15)
    assert torch.equal(held, again[1])
    # By chance and not the first or last ones.
    assert held.min() < 30
    assert held.max() > 100


def put_npz(folder: Path, train: int, test: int) -> tuple[Any, Any]:
    x, y = noise(train + test, 32, 32, 3).numpy(), np.arange(train + test) % 10
    np.savez(
        folder / "cifar10.npz", x_train=x[:train], y_train=y[:train], x_test=x[train:],
        y_test=y[train:],
    )  # fmt: skip
    return x, y


def placed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, images: str, scale: Scale = "cpu"
) -> ImageClassification:
    """A task whose data are in that folder, however few they are."""
    monkeypatch.setattr(image_splits, "path", lambda name: folder)
    return ImageClassification(images, scale)


def test_the_test_split_is_the_publishers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = put_npz(tmp_path, 100, 30)
    splits = placed(tmp_path, monkeypatch, "cifar10").data()
    pixels, labels = splits.test.pick(torch.arange(30))
    assert np.array_equal(pixels.numpy(), x[100:])
    assert np.array_equal(labels.numpy(), y[100:])
    rows = torch.cat([splits.train.rows, splits.validation.rows])
    assert torch.equal(rows.sort().values, torch.arange(100))
    assert splits.validation.labels.bincount().tolist() == [2] * 10
    pixels, labels = splits.validation.pick(torch.tensor([3, 0]))
    chosen = splits.validation.rows[[3, 0]]
    assert np.array_equal(pixels.numpy(), x[chosen])
    assert np.array_equal(labels.numpy(), y[chosen])
    assert splits.notes[0] == "80 images to train on, 20 to validate and 30 to test."
    assert not splits.synthetic


def test_images_stay_bytes_and_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_npz(tmp_path, 50, 20)
    splits = placed(tmp_path, monkeypatch, "cifar10").data()
    assert splits.train.pixels.dtype == torch.uint8
    assert splits.train.pixels.data_ptr() == splits.validation.pixels.data_ptr()
    assert splits.train.pick(torch.arange(2))[0].dtype == torch.uint8


def test_at_cpu_scale_the_first_images_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = put_npz(tmp_path, 100, 30)
    monkeypatch.setattr(image_splits, "CPU_TRAIN", 60)
    monkeypatch.setattr(image_splits, "CPU_TEST", 20)
    cpu = placed(tmp_path, monkeypatch, "cifar10").data()
    assert len(cpu.train) + len(cpu.validation) == 60
    assert np.array_equal(cpu.test.pick(torch.arange(20))[0].numpy(), x[100:120])
    paper = placed(tmp_path, monkeypatch, "cifar10", "paper").data()
    assert len(paper.train) + len(paper.validation) == 100
    assert len(paper.test) == 30


def put_flowers(folder: Path, each: int) -> None:
    rng = np.random.default_rng(0)
    for label, name in enumerate(photographs.FLOWERS):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(40 * label, 40 * label + 60, (70, 90, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")


def put_weeds(folder: Path, each: int) -> None:
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    lines = ["Filename,Label,Species"]
    for number in range(9 * each):
        label = number % 9
        pixels = rng.integers(20 * label, 20 * label + 60, (70, 70, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.jpg")
        lines.append(f"{number}.jpg,{label},weed {label}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(("images", "put"), [("flowers", put_flowers), ("deepweeds", put_weeds)])
def test_photographs_are_parted_class_by_class_and_trained_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    images: str,
    put: Callable[[Path, int], None],
) -> None:
    put(tmp_path / "set", 20)
    task = placed(tmp_path / "set", monkeypatch, images)
    splits = load_splits(task)
    parts = (splits.train, splits.validation, splits.test)
    for part, each in zip(parts, (14, 2, 4), strict=True):
        assert part.labels.bincount().tolist() == [each] * task.classes
    rows = torch.cat([part.rows for part in parts])
    assert torch.equal(rows.sort().values, torch.arange(20 * task.classes))
    assert splits.train.pick(torch.tensor([0]))[0].shape == (1, 64, 64, 3)
    assert any("of 64×64 pixels at this scale" in note for note in splits.notes)
    assert any("a fifth of each class is held out" in note for note in splits.notes)
    done = train(task, tmp_path / "runs", find_method("adam"), steps=2)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message


def test_only_the_first_weeds_of_each_class_count_at_cpu_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_weeds(tmp_path, 12)
    monkeypatch.setattr(image_splits, "CPU_OF_EACH_WEED", 10)
    splits = placed(tmp_path, monkeypatch, "deepweeds").data()
    assert sum(len(part) for part in (splits.train, splits.validation, splits.test)) == 90
    assert splits.train.pixels.shape[0] == 90


def test_a_photograph_that_is_none_ends_the_task_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_flowers(tmp_path, 4)
    bad = tmp_path / "tulips" / "2.jpg"
    bad.write_bytes(bad.read_bytes()[:500])
    task = placed(tmp_path, monkeypatch, "flowers")
    with pytest.raises(TaskError, match=r"task image-flowers: .*tulips/2\.jpg cannot be decoded"):
        load_splits(task)


def put_patches(folder: Path) -> dict[str, Any]:
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    made = {}
    for part, size in (("train", 40), ("valid", 12), ("test", 16)):
        made[part] = noise(size, 96, 96, 3, seed=size).numpy()
        labels = (np.arange(size) % 2).astype(np.uint8).reshape(-1, 1, 1, 1)
        for field, values in (("x", made[part]), ("y", labels)):
            file = folder / f"camelyonpatch_level_2_split_{part}_{field}.h5"
            with h5py.File(file, "w") as opened:
                opened[field] = values
    return made


def test_patches_are_taken_as_their_publisher_parts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = put_patches(tmp_path / "set")
    task = placed(tmp_path / "set", monkeypatch, "camelyon", "paper")
    splits = load_splits(task)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [40, 12, 16]
    assert isinstance(splits.train.pixels, Patches)
    for part, name in (
        (splits.train, "train"),
        (splits.validation, "valid"),
        (splits.test, "test"),
    ):
        pixels, labels = part.pick(torch.tensor([9, 2]))
        assert np.array_equal(pixels.numpy(), found[name][[9, 2]])
        assert labels.tolist() == [1, 0]
    monkeypatch.setattr(image_splits, "CPU_TRAIN", 30)
    monkeypatch.setattr(image_splits, "CPU_TEST", 10)
    task = placed(tmp_path / "set", monkeypatch, "camelyon")
    splits = load_splits(task)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [30, 10, 10]
    assert splits.train.pixels.shape == (30, 48, 48, 3)
    done = train(task, tmp_path / "runs", find_method("adam"), steps=2)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message


def test_images_that_are_there_twice_are_reported() -> None:
    pixels = noise(6, 4, 4, 3)
    pixels[4] = pixels[0]  # in the test, and of another class
    pixels[5] = pixels[3]  # in the test, and in the validation
    labels = torch.tensor([0, 1, 2, 1, 2, 1])
    rows = [torch.tensor(these) for these in ([0, 1], [2, 3], [4, 5])]
    splits = [Split(pixels, these, labels[these], ("cat", "dog", "cow")) for these in rows]
    assert list(duplicate_notes(*splits)) == [
        "2 of 2 test images are also among those for training and validation, pixel for pixel.",
        "One image is there as cat and as cow.",
    ]
    pixels[4:] = noise(2, 4, 4, 3, seed=9)
    assert list(duplicate_notes(*splits)) == []


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    for images, dataset in {"cifar10": "cifar10", "flowers": "tf-flowers"}.items():
        with pytest.raises(TaskError, match=f"task image-{images}: .*badm data fetch {dataset}"):
            load_splits(ImageClassification(images))


# Figures and artifacts


def test_the_metrics_are_those_of_the_whole_split_in_pieces() -> None:
    task = made()
    splits = task.data()
    rows = torch.arange(300)
    split = Split(splits.train.pixels, rows, splits.train.labels[rows], splits.train.classes)
    seen = []
    model = task.model(splits).eval()
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    with torch.no_grad():
        figures = task.evaluate(model, split)
        assert seen == [128, 128, 44]
        logits = torch.cat([model(split.pixels[row][None]) for row in rows])
    assert figures["accuracy"] == (logits.argmax(1) == split.labels).double().mean().item()
    assert figures["loss"] == pytest.approx(cross_entropy(logits, split.labels).item(), rel=1e-5)


def test_artifacts_show_validation_images_from_all_over_with_what_they_were_taken_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from badm.bench.tasks.scores import image_grids

    shown: dict[str, Any] = {}

    def watched(images: Tensor, truths: list[str], guesses: list[str]) -> bytes:
        shown.update(images=images, truths=truths, guesses=guesses)
        return b"PNG"

    monkeypatch.setattr(image_grids, "classified_grid", watched)
    task = made()
    splits = task.data()
    model = task.model(splits).eval()
    with torch.no_grad():
        (title,) = task.artifacts(model, splits)
        logits = model(shown["images"])
    assert "Validation" in title
    rows = [100 * n // 32 for n in range(32)]
    assert torch.equal(shown["images"], splits.validation.pixels[rows])
    names = splits.validation.classes
    assert shown["truths"] == [names[c] for c in splits.validation.labels[rows]]
    assert shown["guesses"] == [names[c] for c in logits.argmax(1)]


def colours(png: bytes) -> list[tuple[int, int, int]]:
    """The colours of a picture, the most frequent first."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    counted = sorted(image.getcolors(1 << 20) or [], reverse=True)
    return [colour for _, colour in counted]  # type: ignore[misc]


def test_right_images_are_green_and_wrong_ones_red() -> None:
    green, red = (0x1A, 0x7F, 0x37), (0xC6, 0x28, 0x28)
    images = torch.full((3, 8, 8, 3), 128, dtype=torch.uint8)
    all_right = colours(classified_grid(images, ["a", "b", "c"], ["a", "b", "c"]))
    assert green in all_right
    assert red not in all_right
    one_wrong = colours(classified_grid(images, ["a", "b", "c"], ["a", "x", "c"]))
    assert green in one_wrong
    assert red in one_wrong
    assert (128, 128, 128) in one_wrong[:3]  # the images themselves


@pytest.mark.slow
def test_equal_artifacts_are_equal_to_the_byte_and_grow_by_rows() -> None:
    images, names = noise(9, 8, 8, 3), [f"{n}$ class" for n in range(9)]
    once, again = (classified_grid(images, names, names[::-1]) for _ in range(2))
    assert once == again
    sizes = [
        Image.open(io.BytesIO(classified_grid(images[:n], names[:n], names[:n]))).size
        for n in (8, 9)
    ]
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > 1.5 * sizes[0][1]


def test_a_dollar_in_the_name_of_a_class_is_a_dollar() -> None:
    images, names = noise(1, 8, 8, 3), ["$\\nonsense$"]  # no formula that could be set
    assert classified_grid(images, names, names)[1:4] == b"PNG"


# Real data

SIZES = {
    "cifar10": (5_099, 901, 1_500),
    "svhn": (5_100, 900, 1_500),
    "deepweeds": (1_530, 270, 450),
    "cmaterdb": (4_250, 750, 1_000),
    "cmaterdb-devanagari": (2_120, 380, 500),
    "cmaterdb-telugu": (2_120, 380, 500),
    "flowers": (2_494, 441, 735),
}


@pytest.mark.data
@pytest.mark.parametrize("images", SIZES)
@pytest.mark.usefixtures("badm_data")
def test_the_real_splits_have_the_sizes_stated(images: str) -> None:
    task = ImageClassification(images)
    splits = task.data()
    parts = (splits.train, splits.validation, splits.test)
    assert tuple(len(part) for part in parts) == SIZES[images]
    share = splits.train.labels.bincount() / len(splits.train)
    for part in parts:
        assert part.pick(torch.tensor([0]))[0].shape == (1, task.network.side, task.network.side, 3)
        assert (part.labels.bincount() / len(part) - share).abs().max() < 0.02
        assert len(part.classes) == task.classes == len(share)


@pytest.mark.data
@pytest.mark.usefixtures("badm_data")
def test_twins_of_the_real_sets_are_noted() -> None:
    notes = ImageClassification("cmaterdb-devanagari").data().notes
    assert notes[1:] == (
        "14 of 500 test images are also among those for training and validation, pixel for pixel.",
        "One image is there as 5 and as 6.",
    )
    assert (
        "One image is there as roses and as tulips." in ImageClassification("flowers").data().notes
    )


@pytest.mark.data
@pytest.mark.usefixtures("badm_data")
@pytest.mark.parametrize("method", ["adam", "badm"])
def test_a_few_steps_teach_the_real_numerals(tmp_path: Path, method: str) -> None:
    task = ImageClassification("cmaterdb")
    done = train(task, tmp_path, find_method(method), setting={"lr": 3e-3}, steps=40)
    assert done.result is not None
    assert done.result.test is not None
    assert done.result.test["accuracy"] > 0.7
