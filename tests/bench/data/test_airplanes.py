"""Photographs of airplanes and their boxes: read in both layouts, and never believed unseen."""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from badm.bench import data
from badm.bench.data import airplanes
from badm.bench.data.airplanes import AirplaneError, read, read_box, synthetic_airplanes
from badm.bench.data.dataset import FetchFailed, MissingData
from badm.bench.data.download import Download
from badm.bench.data.image_files import ImageFileError

DATASET = data.find("caltech-airplanes")
# y0, y1, x0, x1, of images 200 wide and 100 high.
BOXES = ([10, 60, 20, 180], [0, 100, 0, 200], [38, 90, 104, 126])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "decoded"))


def put(folder: Path, inside: tuple[str, str] = airplanes.PLAIN) -> Path:
    """Three photographs in one of the two layouts."""
    images, annotations = (folder / part for part in inside)
    images.mkdir(parents=True)
    annotations.mkdir(parents=True)
    for number, box in enumerate(BOXES, start=1):
        grey = 50 * number
        Image.new("RGB", (200, 100), (grey, grey, grey)).save(images / f"image_{number:04}.jpg")
        put_box(annotations / f"annotation_{number:04}.mat", np.array([box], np.uint16))
    return folder


def put_box(file: Path, box: Any) -> None:
    savemat(file, {"box_coord": box, "obj_contour": np.zeros((2, 5))})


# Reading


@pytest.mark.parametrize("inside", [airplanes.PLAIN, airplanes.OFFICIAL])
def test_both_layouts_are_read_by_name(tmp_path: Path, inside: tuple[str, str]) -> None:
    found = read(put(tmp_path, inside))
    assert [a.image.name for a in found] == [f"image_000{i}.jpg" for i in (1, 2, 3)]
    assert [a.annotation.name for a in found] == [f"annotation_000{i}.mat" for i in (1, 2, 3)]
    assert [a.target for a in found] == [
        (0.1, 0.1, 0.9, 0.6),
        (0.0, 0.0, 1.0, 1.0),
        (0.52, 0.38, 0.63, 0.9),
    ]
    images, targets = airplanes.decoded(found, 8)
    assert images.shape == (3, 8, 8, 3)
    assert images.dtype == torch.uint8
    assert images.float().mean((1, 2, 3)).tolist() == [50, 100, 150]
    assert targets.dtype == torch.float32
    assert targets[2].tolist() == pytest.approx([0.52, 0.38, 0.63, 0.9])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float64])
def test_a_box_is_read_in_numbers_that_can_be_subtracted(tmp_path: Path, dtype: Any) -> None:
    file = tmp_path / "annotation_0001.mat"
    put_box(file, np.array([[38, 90, 104, 126]], dtype))
    y0, y1, x0, x1 = read_box(file)
    assert (y0 - y1, x0 - x1) == (-52, -22)


@pytest.mark.parametrize(
    ("box", "flaw"),
    [
        ([38, 38, 104, 126], "no height (y0 = y1 = 38)"),
        ([38, 50, 104, 104], "no width (x0 = x1 = 104)"),
        ([38, 39, 104, 105], None),
    ],
)
def test_a_box_that_holds_nothing_is_reported(
    tmp_path: Path, box: list[int], flaw: str | None
) -> None:
    put_box(put(tmp_path) / "Airplanes_Side_2/annotation_0002.mat", np.array([box], np.uint8))
    assert [a.flaw for a in read(tmp_path)] == [None, flaw, None]


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ([1, 2, 3], r"box_coord must be four numbers y0, y1, x0, x1, got int64 of shape \(1, 3\)"),
        ([1, 2, 3, 4, 5], r"box_coord must be four numbers .*shape \(1, 5\)"),
        ([1j, 2, 3, 4], "box_coord must be an array of real numbers, and is of class 6, complex"),
        (["abcd"], r"box_coord must be four numbers .*got <U"),
        ([1.0, np.nan, 3.0, 4.0], r"box_coord must be four numbers, got \[1.0, nan, 3.0, 4.0\]"),
        ([60, 10, 20, 180], "box_coord must have 0 ≤ y0 ≤ y1 ≤ 100, .* got 60 and 10"),
        ([10, 60, 180, 20], "box_coord must have 0 ≤ x0 ≤ x1 ≤ 200, .* got 180 and 20"),
        ([10, 101, 20, 180], "0 ≤ y0 ≤ y1 ≤ 100, as image_0002.jpg has 200 × 100 pixels"),
        ([10, 60, 20, 201], "0 ≤ x0 ≤ x1 ≤ 200, .* got 20 and 201"),
        ([-1, 60, 20, 180], "got -1 and 60"),
    ],
)
def test_a_wrong_box_is_named_with_file_and_field(
    tmp_path: Path, box: list[Any], words: str
) -> None:
    file = put(tmp_path) / "Airplanes_Side_2/annotation_0002.mat"
    put_box(file, np.array([box]))
    with pytest.raises(AirplaneError, match=words) as told:
        read(tmp_path)
    assert str(told.value).startswith(f"{file}: box_coord ")
    assert len(str(told.value).splitlines()) == 1


def test_a_file_without_the_field_is_named(tmp_path: Path) -> None:
    file = put(tmp_path) / "Airplanes_Side_2/annotation_0002.mat"
    savemat(file, {"obj_contour": np.zeros((2, 5))})
    with pytest.raises(AirplaneError, match=f"^{file}: has no field box_coord$"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"nonsense", 200 * b"\x00", 500 * b"\xff"])
def test_what_is_no_matlab_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = put(tmp_path) / "Airplanes_Side_2/annotation_0002.mat"
    file.write_bytes(content)
    with pytest.raises(AirplaneError, match=f"^{file} cannot be read as a MATLAB file: ") as told:
        read(tmp_path)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("left", [130, 150, 200])
def test_a_matlab_file_that_is_cut_off_is_named(tmp_path: Path, left: int) -> None:
    file = put(tmp_path) / "Airplanes_Side_2/annotation_0002.mat"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(AirplaneError, match=f"^{file}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (
            "Airplanes_Side_2/annotation_0002.mat",
            "annotation_0002.mat is missing, the annotation of image_0002.jpg",
        ),
        ("images/image_0002.jpg", "image_0002.jpg is missing, the image of annotation_0002.mat"),
    ],
)
def test_an_image_without_its_annotation_and_the_reverse_are_named(
    tmp_path: Path, lost: str, words: str
) -> None:
    (put(tmp_path) / lost).unlink()
    with pytest.raises(AirplaneError, match=words) as told:
        read(tmp_path)
    assert str(tmp_path / lost) in str(told.value)


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(AirplaneError, match=f"{tmp_path / 'images'} has no images"):
        read(tmp_path)


def test_an_image_that_is_none_is_named(tmp_path: Path) -> None:
    (put(tmp_path) / "images/image_0003.jpg").write_bytes(b"no picture")
    with pytest.raises(ImageFileError, match=r"image_0003\.jpg"):
        read(tmp_path)


# Verifying and fetching


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three photographs in their place, as if there were no others."""
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "root"))
    folder = put(tmp_path / "root" / "caltech_airplanes")
    facts = hashlib.sha256(airplanes._facts(read(folder))).hexdigest()
    monkeypatch.setattr(airplanes, "SHA256", facts)
    return folder


def test_check_names_every_file_that_is_wrong(small: Path) -> None:
    assert airplanes.check(small) == []
    put_box(small / "Airplanes_Side_2/annotation_0001.mat", np.array([[1, 2, 3]]))
    picture = small / "images/image_0003.jpg"
    picture.write_bytes(picture.read_bytes()[:-200])  # its header, and so its size, is whole
    assert {problem.path: problem.kind for problem in airplanes.check(small)} == {
        "caltech_airplanes/Airplanes_Side_2/annotation_0001.mat": "corrupt",
        "caltech_airplanes/images/image_0003.jpg": "corrupt",
    }


def test_check_tells_other_boxes_other_sizes_and_missing_files(small: Path) -> None:
    put_box(small / "Airplanes_Side_2/annotation_0001.mat", np.array([[10, 60, 20, 181]]))
    (problem,) = airplanes.check(small)
    assert "boxes are not the 800 of Caltech-101" in problem.message
    put_box(small / "Airplanes_Side_2/annotation_0001.mat", np.array([[10, 60, 20, 180]]))
    assert airplanes.check(small) == []
    Image.new("RGB", (201, 100)).save(small / "images/image_0001.jpg")
    assert [problem.kind for problem in airplanes.check(small)] == ["size"]
    (small / "images/image_0001.jpg").unlink()
    assert [problem.kind for problem in airplanes.check(small)] == ["missing"]


def packed(folder: Path, file: Path, leave_out: str = "") -> Download:
    """An archive like Caltech's, of the photographs in a folder and a few other files."""
    put(folder, airplanes.OFFICIAL)
    other = folder / "101_ObjectCategories/ant"
    other.mkdir()
    (other / "image_0001.jpg").write_bytes(b"an ant")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("caltech-101/show_annotation.m", "% a script")
        for name in airplanes.INNER:
            top, inner = name.partition(".")[0], io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w:gz" if name.endswith("gz") else "w") as tar:
                tar.add(folder / top, top)
            if name != leave_out:
                archive.writestr(f"caltech-101/{name}", inner.getvalue())
    content = file.read_bytes()
    return Download(file.as_uri(), len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def three_are_enough() -> data.Dataset:
    few = [
        tuple(replace(files, count=3) for files in kind)
        for kind in (DATASET.files, DATASET.official)
    ]
    return replace(DATASET, files=few[0], official=few[1])


def test_fetch_keeps_the_airplanes_of_the_official_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path, three_are_enough: data.Dataset
) -> None:
    shutil.rmtree(small)
    source = packed(tmp_path / "made", tmp_path / "caltech-101.zip")
    monkeypatch.setattr(airplanes, "ARCHIVE", source)
    assert data.fetch(three_are_enough) == "fetched"
    found = read(data.path(three_are_enough))
    assert [a.target for a in found] == [a.target for a in read(tmp_path / "made")]
    names = {file.name for file in small.rglob("*") if file.is_file()}
    assert len(names) == 6
    assert list(small.parent.glob(".*")) == []  # nothing is left over
    assert data.verify(three_are_enough) == []
    assert data.fetch(three_are_enough) == "there"


@pytest.mark.parametrize("leave_out", airplanes.INNER)
def test_an_archive_without_the_airplanes_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: Path,
    three_are_enough: data.Dataset,
    leave_out: str,
) -> None:
    shutil.rmtree(small)
    source = packed(tmp_path / "made", tmp_path / "caltech-101.zip", leave_out)
    monkeypatch.setattr(airplanes, "ARCHIVE", source)
    with pytest.raises(FetchFailed, match=f"holds no {leave_out} with a folder"):
        data.fetch(three_are_enough)
    assert not small.exists()


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="`badm data fetch caltech-airplanes` downloads it"):
        data.path(DATASET)


# Made-up images


def test_the_made_up_box_is_where_the_bright_pixels_are() -> None:
    images, targets = synthetic_airplanes(50, 24, seed=3)
    for image, target in zip(images, targets, strict=True):
        bright = (image >= 155).all(-1)
        rows, columns = bright.any(1).nonzero().flatten(), bright.any(0).nonzero().flatten()
        found = torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        assert torch.equal(found, (24 * target).round().long())
        assert bright.sum() == len(rows) * len(columns)  # it is full
    assert targets.std(0).min() > 0.1
    again, other = (synthetic_airplanes(50, 24, seed=seed)[0] for seed in (3, 4))
    assert torch.equal(images, again)
    assert not torch.equal(images, other)


# Real data


@pytest.mark.data
def test_the_real_boxes_are_those_of_the_list_beside_them(badm_data: Path) -> None:
    folder = badm_data / "caltech_airplanes"
    found = {a.image.name: a for a in read(folder)}
    assert list(found) == [f"image_{number:04}.jpg" for number in range(1, 801)]
    with open(folder / "airplanes.csv", newline="") as file:
        listed = {name: tuple(map(float, box)) for *box, name in csv.reader(file)}
    assert {name: (a.x1, a.y1, a.x2, a.y2) for name, a in found.items()} == listed


@pytest.mark.data
def test_one_real_box_holds_nothing(badm_data: Path) -> None:
    flawed = [a for a in read(badm_data / "caltech_airplanes") if a.flaw]
    assert [(a.annotation.name, a.flaw) for a in flawed] == [
        ("annotation_0118.mat", "no height (y0 = y1 = 38)")
    ]


@pytest.mark.data
def test_the_real_files_agree_with_the_facts(badm_data: Path) -> None:
    assert airplanes.check(badm_data / "caltech_airplanes") == []
