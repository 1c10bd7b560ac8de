"""``detection``: boxes that are scored right, splits of the example, runs that learn."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat
from torch import Tensor, nn

from badm.bench import tasks
from badm.bench.data import airplanes
from badm.bench.engine.task_data import load_splits
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.vision_transformer import VisionTransformer
from badm.bench.task import Splits
from badm.bench.tasks.detection import CPU_HEAD, HEAD, Detection, DetectionScaled, Split
from badm.bench.tasks.scores.boxes import draw_boxes, iou, pixel_iou
from tests.helpers.engine_tasks import train

SIDE = 12  # of the raster that boxes are counted on


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests: images are decoded once."""
    monkeypatch.setenv("BADM_CACHE", str(tmp_path_factory.getbasetemp() / "decoded"))


# Boxes


def ends(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def boxes(draw: st.DrawFn, *, sound: bool = False) -> Tensor:
    """On a raster; the second corner may come before the first unless the box is to be sound."""
    (x1, x2), (y1, y2) = draw(ends(0, SIDE)), draw(ends(0, SIDE))
    if sound:
        (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
        x2, y2 = max(x2, x1 + 1), max(y2, y1 + 1)
    return torch.tensor([x1, y1, x2, y2], dtype=torch.float64)


def raster(box: Tensor) -> Tensor:
    """The cells that lie in a box, one by one."""
    x1, y1, x2, y2 = box.tolist()
    cells = range(SIDE + 1)
    return torch.tensor([[x1 <= x < x2 and y1 <= y < y2 for x in cells] for y in cells])


@given(boxes(), boxes())
def test_iou_is_that_of_the_cells_that_boxes_cover(a: Tensor, b: Tensor) -> None:
    common, union = (raster(a) & raster(b)).sum().item(), (raster(a) | raster(b)).sum().item()
    assert iou(a, b).item() == pytest.approx(common / union if union else 0.0)


@given(boxes(), boxes(sound=True))
def test_iou_is_symmetric_from_0_to_1_and_1_of_equal_boxes_alone(a: Tensor, b: Tensor) -> None:
    value = iou(a, b).item()
    assert value == iou(b, a).item()
    assert 0 <= value <= 1
    assert (value == 1) == torch.equal(a, b)


@given(
    boxes(sound=True),
    boxes(sound=True),
    st.floats(0.01, 100),
    st.floats(-10, 10),
)
def test_iou_does_not_depend_on_place_and_size(
    a: Tensor, b: Tensor, size: float, shift: float
) -> None:
    moved = iou(size * a + shift, size * b + shift).item()
    assert moved == pytest.approx(iou(a, b).item(), abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        [0.9, 0.2, 0.1, 0.8],  # ends before it begins in x
        [0.1, 0.8, 0.9, 0.2],  # in y
        [0.9, 0.8, 0.1, 0.2],  # in both, so that a product of sides would be positive
        [0.5, 0.5, 0.5, 0.5],
        [2.0, 2.0, 3.0, 3.0],
        [-1e30, -1e30, 1e30, 1e30],
    ],
)
def test_a_senseless_prediction_has_no_overlap_and_is_a_number(wrong: list[float]) -> None:
    truth = torch.tensor([[0.1, 0.2, 0.9, 0.8]])
    for value in (iou(torch.tensor([wrong]), truth), pixel_iou(torch.tensor([wrong]), truth, 224)):
        assert value.tolist() == pytest.approx([0], abs=1e-4)
    empty = torch.zeros(1, 4)
    assert iou(torch.tensor([wrong]), empty).tolist() == [0]


def by_the_example(predicted: list[float], truth: list[float], side: int) -> float:
    """Whole pixels, of which the last belongs to the box: every side is one longer."""
    px1, py1, px2, py2 = (int(c * side) for c in predicted)
    tx1, ty1, tx2, ty2 = (int(c * side) for c in truth)
    common = max(0, min(px2, tx2) - max(px1, tx1) + 1) * max(0, min(py2, ty2) - max(py1, ty1) + 1)
    first, second = (px2 - px1 + 1) * (py2 - py1 + 1), (tx2 - tx1 + 1) * (ty2 - ty1 + 1)
    return common / (first + second - common)


@given(st.lists(st.floats(-0.25, 1.25, width=32), min_size=8, max_size=8))
def test_pixel_iou_is_that_of_the_example_for_sound_boxes(numbers: list[float]) -> None:
    both = []
    for x1, y1, x2, y2 in (numbers[:4], numbers[4:]):
        both.append([min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)])
    ours = pixel_iou(*(torch.tensor(box) for box in both), 224).item()
    assert ours == pytest.approx(by_the_example(*both, 224))


# The figures and the loss


class Fixed(nn.Module):
    """Gives out boxes that were put in, image by image."""

    def __init__(self, boxes: Tensor) -> None:
        super().__init__()
        self.left = boxes

    def forward(self, images: Tensor) -> Tensor:
        now, self.left = self.left[: len(images)], self.left[len(images) :]
        return now


def test_the_metrics_are_those_of_the_whole_split() -> None:
    generator = torch.Generator().manual_seed(0)
    starts = 0.4 * torch.rand(150, 2, generator=generator)
    truths = torch.cat([starts, starts + 0.5], 1)
    found = truths + 0.05 * torch.randn(150, 4, generator=generator)
    split = Split(torch.zeros(150, 32, 32, 3, dtype=torch.uint8), truths)
    figures = Detection("smoke").evaluate(Fixed(found), split)
    assert set(figures) == {"iou", "loss", "explained", "iou_pixels", "iou_first_ten"}
    pairs = list(zip(found, truths, strict=True))
    assert figures["iou"] == pytest.approx(np.mean([iou(*both) for both in pairs]))
    pixels = [by_the_example(a.tolist(), b.tolist(), 32) for a, b in pairs]
    assert figures["iou_pixels"] == pytest.approx(np.mean(pixels))
    assert figures["iou_first_ten"] == pytest.approx(np.mean(pixels[:10]))
    assert figures["loss"] == pytest.approx(((found - truths) ** 2).mean().item(), rel=1e-6)
    variance = np.mean([np.var(column) for column in truths.double().numpy().T])
    assert figures["explained"] == pytest.approx(1 - figures["loss"] / variance, rel=1e-5)


def test_a_model_that_gives_out_one_box_explains_nothing() -> None:
    split = Detection("smoke").data().test
    mean = split.boxes.mean(0).expand(len(split.boxes), 4)
    figures = Detection("smoke").evaluate(Fixed(mean), split)
    assert figures["explained"] == pytest.approx(0, abs=1e-6)
    assert figures["iou"] > 0.3
    assert Detection("smoke").evaluate(Fixed(split.boxes), split)["explained"] == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_boxes_that_are_no_numbers_give_a_score_that_is_none(wrong: float) -> None:
    task = Detection("smoke")
    split = Split(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), torch.rand(2, 4))
    found = torch.tensor([[0.1, 0.1, 0.9, 0.9], [0.1, wrong, 0.9, 0.9]])
    assert math.isnan(task.evaluate(Fixed(found), split)[task.score.name])


def test_the_gradient_of_a_batch_is_the_weighted_mean_of_its_sub_batches() -> None:
    task = Detection("smoke")
    splits = task.data()
    torch.manual_seed(0)
    model = task.model(splits).eval()  # dropout is drawn anew for each of them
    batch = task.batch(splits.train, torch.arange(11))
    task.loss(model, batch).backward()
    whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for part in task.split_batch(batch, 4):
        (task.size(part) / 11 * task.loss(model, part)).backward()
    for p, g in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-6)


# The model of each scale


@pytest.mark.parametrize(("scale", "head"), [("cpu", CPU_HEAD), ("paper", HEAD)])
def test_images_are_of_full_size_and_the_head_is_that_of_the_scale(
    scale: str, head: tuple[int, ...]
) -> None:
    task = Detection(scale)  # type: ignore[arg-type]
    model = task.model(Splits(None, None, None))
    assert isinstance(model, VisionTransformer)
    assert model.positions.num_embeddings == 49
    widths = [m.out_features for m in model.head.modules() if isinstance(m, nn.Linear)]
    assert tuple(widths) == head
    numbers = sum(p.numel() for p in model.parameters())
    assert numbers == {"cpu": 953_060, "paper": 9_615_332}[scale]


def test_one_task_sees_pixels_to_255_and_the_other_to_1() -> None:
    splits, outs = Detection("smoke").data(), []
    for task in (Detection("smoke"), DetectionScaled("smoke")):
        torch.manual_seed(0)
        model = task.model(splits).eval()
        divisor = 255 if task.name == "detection" else 1
        assert isinstance(model, VisionTransformer)
        assert model.scale == pytest.approx(divisor / 255)
        outs.append(model(splits.test.images.float() / divisor))
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)


def test_the_paper_settings_are_those_that_its_note_tells() -> None:
    paper = Detection("cpu").paper
    assert paper is not None
    assert paper.scores == {"badm-printed": 0.9214, "adam": 0.9120, "rmsprop": 0.9116}
    assert (paper.lr, paper.rho, paper.sigma) == (1e-3, 500, 500)
    assert "ρ + σ = 1,000 are assumed" in paper.note
    scaled = DetectionScaled("cpu").paper
    assert scaled is not None
    assert scaled.scores == {}
    assert Detection("paper").steps == 100 * math.ceil(575 / 32)


# Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "lr"),
    [("detection", "badm", 5e-3), ("detection-scaled", "adam", 5e-3)],
)
def test_a_run_on_made_up_images_looks_at_them(
    tmp_path: Path, name: str, method: str, lr: float
) -> None:
    task = tasks.find(name, "smoke").task
    done = train(task, tmp_path, find_method(method), setting={"lr": lr})
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert done.result.test is not None
    first = next(point.validation for point in done.points if point.validation)
    assert first["iou"] < 0.2
    # One box for all images would have 0.32.
    assert done.result.test["iou"] > 0.45
    assert done.result.test["explained"] > 0.4


def pixels_of(picture: bytes, colour: list[int]) -> int:
    """How many pixels of a picture have a colour, or nearly."""
    shown = np.array(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
    return int((np.abs(shown - colour).sum(-1) < 30).sum())


@pytest.mark.slow
def test_the_picture_shows_both_boxes_and_is_the_same_every_time() -> None:
    splits = Detection("smoke").data()
    images, truths = splits.validation.images[:5], splits.validation.boxes[:5]
    apart = truths + torch.tensor([-0.05, -0.05, 0.05, 0.05])
    picture = draw_boxes(images, truths, apart, "five")
    assert picture == draw_boxes(images, truths, apart, "five")
    yellow, cyan = [255, 214, 0], [0, 229, 255]
    assert pixels_of(picture, yellow) > 800
    assert pixels_of(picture, cyan) > 400  # dashes
    # A prediction that lies outside is not seen, and the image stays in view.
    outside = draw_boxes(images, truths, truths + 5, "five")
    assert pixels_of(outside, yellow) == pixels_of(
        draw_boxes(images, truths, truths - 5, "five"), yellow
    )
    assert pixels_of(outside, yellow) > 800
    assert pixels_of(outside, cyan) < 100  # of the key alone


@pytest.mark.slow
def test_the_artifact_of_a_run_has_twelve_validation_images() -> None:
    task = Detection("smoke")
    splits = task.data()
    torch.manual_seed(0)
    model = task.model(splits).eval()
    with torch.no_grad():
        ((title, picture),) = task.artifacts(model, splits).items()
    assert "Validation" in title
    assert isinstance(picture, bytes)
    width, height = Image.open(io.BytesIO(picture)).size
    assert 4 / 3 * 0.8 < width / height < 4 / 3  # three rows of four


# Data


def put(folder: Path, count: int, *, flat: dict[int, list[int]]) -> None:
    """Airplanes in their place, all boxes alike but the flat ones."""
    images, annotations = (folder / part for part in airplanes.PLAIN)
    images.mkdir(parents=True)
    annotations.mkdir(parents=True)
    for number in range(1, count + 1):
        Image.new("RGB", (20, 10), (number % 256,) * 3).save(images / f"image_{number:04}.jpg")
        box = flat.get(number, [1, 9, 2, 18])
        savemat(annotations / f"annotation_{number:04}.mat", {"box_coord": np.array([box])})


@pytest.mark.slow
def test_a_flat_box_is_left_out_of_its_split_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    put(tmp_path / "caltech_airplanes", 800, flat={5: [3, 3, 2, 18], 700: [1, 9, 4, 4]})
    splits = load_splits(Detection("cpu"))
    assert [len(s.boxes) for s in (splits.train, splits.validation, splits.test)] == [575, 64, 159]
    assert splits.notes[:2] == (
        "annotation_0005.mat has a box of no height (y0 = y1 = 3) and is left out of the train "
        "split; the public example does not look and keeps it",
        "annotation_0700.mat has a box of no width (x0 = x1 = 4) and is left out of the test "
        "split; the public example does not look and keeps it",
    )


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"task detection: .*badm data fetch caltech-airplanes"):
        load_splits(Detection("cpu"))


@pytest.fixture(scope="module")
def real(badm_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Splits:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BADM_CACHE", str(tmp_path_factory.getbasetemp() / "decoded"))
        return load_splits(Detection("paper"))


@pytest.mark.data
def test_the_splits_are_those_of_the_example_but_for_one_box(badm_data: Path, real: Splits) -> None:
    found = airplanes.read(badm_data / "caltech_airplanes")
    parts = found[:576], found[576:640], found[640:]
    assert [len(s.boxes) for s in (real.train, real.validation, real.test)] == [575, 64, 160]
    for split, part in zip((real.train, real.validation, real.test), parts, strict=True):
        targets = torch.tensor([a.target for a in part if a.image.name != "image_0118.jpg"])
        assert torch.equal(split.boxes, targets)
        assert split.images.shape == (len(targets), 224, 224, 3)
        assert split.images.dtype == torch.uint8
    assert not real.synthetic


@pytest.mark.data
def test_the_notes_tell_of_the_flat_box_and_what_one_box_for_all_is_worth(real: Splits) -> None:
    assert real.notes == (
        "annotation_0118.mat has a box of no height (y0 = y1 = 38) and is left out of the train "
        "split; the public example does not look and keeps it",
        "One box for all images, the mean of those trained on, has a mean IoU of 0.8922 on the "
        "validation split and 0.9176 on the test split",
    )
    of_cpu = load_splits(Detection("cpu")).notes
    assert of_cpu[1] == (
        "Dense layers of 128, 64, 64, 64, 32 units at this scale, not 2048, 1024, 512, 64, 32"
    )


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_a_few_steps_on_real_images_lower_the_loss(tmp_path: Path) -> None:
    done = train(Detection("cpu"), tmp_path, find_method("adam"), setting={"lr": 1e-3}, steps=20)
    assert done.result is not None
    losses = [point.losses["model"] for point in done.points if point.losses]
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])
