"""Oxford Flowers 102: read as published, parted alike in a subset, every flaw named, fetched."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat, savemat

from badm.bench import data
from badm.bench.data import flowers102, image_files, image_sources
from badm.bench.data.dataset import FetchFailed, MissingData
from badm.bench.data.download import Download
from badm.bench.data.flowers102 import COUNT, read, split_parts
from badm.bench.data.image_files import ImageFileError
from badm.bench.data.images import ImageError
from badm.bench.data.photographs import Photographs

DATASET = data.find("flowers102")
SIZES = {"trnid": 1020, "valid": 1020, "tstid": 6149}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "decoded"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def labels_of_all() -> Any:
    """One class after the other, as the publisher has them."""
    return np.sort(np.arange(COUNT) % 102 + 1).astype(np.uint8)[None]


def sets() -> dict[str, Any]:
    """Parts of the official sizes, in which one class comes after the other as well."""
    order = np.random.default_rng(0).permutation(COUNT) + 1
    parts = np.split(order, (1020, 2040))
    return {
        name: np.sort(part).astype(np.uint16)[None] for name, part in zip(SIZES, parts, strict=True)
    }


def put(folder: Path, numbers: Any = range(1, 301)) -> Path:
    """The facts of all photographs, and some of these: empty files, for nothing is decoded."""
    (folder / "jpg").mkdir(parents=True)
    savemat(folder / "imagelabels.mat", {"labels": labels_of_all()})
    savemat(folder / "setid.mat", sets())
    for number in numbers:
        (folder / "jpg" / f"image_{number:05}.jpg").touch()
    return folder


def paint(file: Path, grey: int, size: tuple[int, int] = (30, 20)) -> None:
    Image.new("RGB", size, (grey, grey, grey)).save(file)


def names(split: Photographs) -> list[str]:
    return [file.name for file in split.files]


# Reading


def test_labels_are_those_of_the_numbers_and_counted_from_0(tmp_path: Path) -> None:
    found = read(put(tmp_path, (1, 500, 8189, 81)))
    assert names(found) == [f"image_{n:05}.jpg" for n in (1, 81, 500, 8189)]
    all_labels = labels_of_all()[0]
    true = [all_labels[n - 1] for n in (1, 81, 500, 8189)]
    assert [found.classes[label] for label in found.labels] == [f"flower {c}" for c in true]
    assert len(set(true)) == len(found.classes) == 3
    assert found.labels == (0, 0, 1, 2)


@pytest.mark.slow
def test_four_fifths_of_each_part_train_and_the_rest_is_halved(tmp_path: Path) -> None:
    splits = split_parts(put(tmp_path, range(1, COUNT + 1)))
    assert [len(split.files) for split in splits] == [6551, 819, 819]
    seen = [{int(file.stem[-5:]) for file in split.files} for split in splits]
    assert set.union(*seen) == set(range(1, COUNT + 1))
    for name, part in sets().items():
        members = set(part[0].tolist())
        inside = [len(members & numbers) for numbers in seen]
        first = int(0.8 * SIZES[name])
        half = (SIZES[name] - first) // 2
        assert inside == [first, half, SIZES[name] - first - half]
    # Every class is in every split, and no split has one class after the other.
    for split in splits:
        assert len(set(split.labels)) == 102
        turns = np.count_nonzero(np.diff(split.labels))
        assert turns > 0.9 * len(split.labels)


@pytest.mark.slow
def test_a_photograph_is_for_the_same_in_a_subset_and_always(tmp_path: Path) -> None:
    whole = split_parts(put(tmp_path / "whole", range(1, COUNT + 1)))
    some = split_parts(put(tmp_path / "some", range(5, 4000, 2)))
    assert sum(len(split.files) for split in some) == len(range(5, 4000, 2))
    for few, many in zip(some, whole, strict=True):
        assert names(few) == [name for name in names(many) if name in set(names(few))]
    torch.manual_seed(7)
    assert split_parts(tmp_path / "some") == some


def test_the_square_in_the_middle_is_taken(tmp_path: Path) -> None:
    folder = put(tmp_path, ())
    wide = np.zeros((20, 61, 3), np.uint8)
    wide[:, 20:40] = 200  # of 41 columns that are too many, 20 go on the left
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.swapaxes(0, 1)).save(tmp_path / "high.png")
    for name in ("wide.png", "high.png"):
        assert (image_files.read(tmp_path / name, 8, 8, crop=True) == 200).all()
        assert image_files.read(tmp_path / name, 8, 8).mean() == pytest.approx(200 / 3, abs=5)
    file = folder / "jpg" / "image_00001.jpg"
    Image.fromarray(wide).save(file, quality=95)
    found = read(folder)
    for crop, mean in ((True, 200), (False, 200 / 3), (True, 200)):  # each kept for itself
        decoded = found.decoded(8, crop=crop)
        assert decoded.pixels.shape == (1, 8, 8, 3)
        assert decoded.pixels.float().mean().item() == pytest.approx(mean, abs=8)


# What can be wrong


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (labels_of_all()[:, :-1], "labels must be 8,189 numbers from 1 to 102, got 8,188 from 1"),
        (labels_of_all() - 1, "labels must be 8,189 numbers from 1 to 102, got 8,189 from 0 to 1"),
        (labels_of_all() + 1, "got 8,189 from 2 to 103"),
        (labels_of_all().T, r"labels must be a row of whole numbers, got uint8 of shape \(8189, 1"),
        (labels_of_all() / 2, "labels must be a row of whole numbers, got float64"),
        (np.zeros((1, 0), np.uint8), "labels must be a row of whole numbers"),
        (None, "has no field labels"),
    ],
)
def test_wrong_labels_are_named_with_file_and_field(
    tmp_path: Path, labels: Any, words: str
) -> None:
    file = put(tmp_path) / "imagelabels.mat"
    savemat(file, {"other": np.zeros(1)} if labels is None else {"labels": labels})
    with pytest.raises(ImageError, match=words) as told:
        read(tmp_path)
    assert str(told.value).startswith(f"{file}: ")
    assert len(str(told.value).splitlines()) == 1


def changed(name: str, change: Any) -> dict[str, Any]:
    parts = sets()
    parts[name] = change(parts[name])
    return parts


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (changed("trnid", lambda x: x * 0), "trnid must be from 1 to 8189, got 0 to 0"),
        (changed("valid", lambda x: x + 8000), "valid must be from 1 to 8189, got"),
        (changed("valid", lambda x: sets()["trnid"]), "valid has photographs that are in a part"),
        (changed("trnid", lambda x: np.hstack([x, x[:, :1]])), "trnid has photographs that are in"),
        (changed("tstid", lambda x: x[:, 1:]), "photograph [0-9]+ is in none of trnid, valid, tst"),
        ({"trnid": sets()["trnid"]}, "has no field valid"),
    ],
)
def test_wrong_parts_are_named_with_file_and_field(tmp_path: Path, parts: Any, words: str) -> None:
    file = put(tmp_path) / "setid.mat"
    savemat(file, parts)
    with pytest.raises(ImageError, match=words) as told:
        split_parts(tmp_path)
    assert str(told.value).startswith(f"{file}: ")


@pytest.mark.parametrize("name", ["imagelabels.mat", "setid.mat"])
@pytest.mark.parametrize("content", [b"", b"nonsense", 500 * b"\xff", None])
def test_what_is_no_matlab_file_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    file = put(tmp_path) / name
    if content is None:
        file.unlink()
        words = "is missing"
    else:
        file.write_bytes(content)
        words = "cannot be read as a MATLAB file: "
    with pytest.raises(ImageError, match=f"^{file} {words}") as told:
        split_parts(tmp_path)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["image_00000.jpg", "image_08190.jpg", "image_rose.jpg"])
def test_a_photograph_with_a_number_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    (put(tmp_path) / "jpg" / name).touch()
    with pytest.raises(ImageError, match=f"{name} must have a number from 1 to 8189"):
        read(tmp_path)


def test_a_folder_without_photographs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=f"{tmp_path / 'jpg'} has no photographs image_"):
        read(put(tmp_path, ()))


def test_a_photograph_that_is_none_is_named(tmp_path: Path) -> None:
    found = read(put(tmp_path, (7,)))
    with pytest.raises(ImageFileError, match=r"image_00007\.jpg is not a JPEG or PNG image"):
        found.decoded(8, crop=True)


# Verifying and fetching


def test_check_decodes_every_photograph_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "flowers102", ())
    for number in (1, 2, 3):
        paint(folder / "jpg" / f"image_{number:05}.jpg", 50 * number)
    (problem,) = flowers102.check(folder)
    assert (problem.path, problem.kind) == ("flowers102/jpg", "size")
    assert problem.message == "3 photographs are not the 8,189 or first 4,000 known"
    monkeypatch.setattr(flowers102, "COMPACT", 3)
    assert flowers102.check(folder) == []
    (folder / "jpg" / "image_00002.jpg").write_text("no photograph")
    (problem,) = flowers102.check(folder)
    assert (problem.path, problem.kind) == ("flowers102/jpg/image_00002.jpg", "corrupt")
    (folder / "setid.mat").unlink()
    (problem,) = flowers102.check(folder)
    assert (problem.path, problem.kind) == ("flowers102", "corrupt")
    assert f"{folder / 'setid.mat'} is missing" in problem.message


def published(file: Path, content: bytes) -> Download:
    file.write_bytes(content)
    return Download(file.as_uri(), len(content), hashlib.sha256(content).hexdigest())


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch, inside: str = "jpg") -> data.Dataset:
    """Three photographs and the facts, in the place of the publisher's."""
    made = put(folder / "made", ())
    for number in (1, 2, 3):
        paint(made / "jpg" / f"image_{number:05}.jpg", 50 * number)
    photographs = {f"{inside}/{f.name}": f.read_bytes() for f in (made / "jpg").iterdir()}
    for name, file, content in (
        ("FLOWERS102", "102flowers.tgz", archive(photographs)),
        ("FLOWERS102_LABELS", "imagelabels.mat", (made / "imagelabels.mat").read_bytes()),
        ("FLOWERS102_SETS", "setid.mat", (made / "setid.mat").read_bytes()),
    ):
        monkeypatch.setattr(image_sources, name, published(folder / file, content))
    monkeypatch.setattr(flowers102, "COMPACT", 3)
    files = tuple(replace(f, count=min(f.count, 3), sha256=None) for f in DATASET.files)
    return replace(DATASET, files=files)


def test_the_set_is_fetched_as_published(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = publish(tmp_path, monkeypatch)
    assert data.fetch(few) == "fetched"
    folder = data.path(few)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "imagelabels.mat", "jpg/image_00001.jpg", "jpg/image_00002.jpg", "jpg/image_00003.jpg",
        "setid.mat",
    ]  # fmt: skip
    assert read(folder).decoded(4).pixels.float().mean((1, 2, 3)).tolist() == [50, 100, 150]
    assert sorted(p.name for p in root.iterdir()) == ["SHA256SUMS", "flowers102"]
    assert [p.name for p in folder.iterdir() if p.is_dir()] == ["jpg"]
    assert data.verify(few) == []
    assert data.fetch(few) == "there"


def test_an_archive_without_the_photographs_changes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = publish(tmp_path, monkeypatch, inside="elsewhere")
    with pytest.raises(FetchFailed, match=r"102flowers\.tgz holds no folder jpg"):
        data.fetch(few)
    assert list(root.iterdir()) == []


def test_what_is_fetched_has_the_checksums_of_the_catalogue() -> None:
    listed = {f.pattern: f.sha256 for f in DATASET.files}
    for source in (image_sources.FLOWERS102_LABELS, image_sources.FLOWERS102_SETS):
        assert listed[f"flowers102/{source.name}"] == source.sha256
    assert image_sources.FLOWERS102.name == "102flowers.tgz"


@pytest.mark.usefixtures("root")
def test_without_data_the_command_that_gets_them_is_named() -> None:
    with pytest.raises(MissingData, match="`badm data fetch flowers102` downloads it"):
        data.path(DATASET)


# Real data


@pytest.mark.data
def test_the_real_set_has_the_published_facts_and_is_parted_by_chance(badm_data: Path) -> None:
    folder = badm_data / "flowers102"
    found, splits = read(folder), split_parts(folder)
    labels = loadmat(folder / "imagelabels.mat")["labels"][0]
    for file, label in zip(found.files, found.labels, strict=True):
        assert found.classes[label] == f"flower {labels[int(file.stem[-5:]) - 1]}"
    count = len(found.files)
    assert count in (flowers102.COUNT, flowers102.COMPACT)
    assert sum(len(split.files) for split in splits) == count
    assert len({file for split in splits for file in split.files}) == count
    for split, share in zip(splits, (0.8, 0.1, 0.1), strict=True):
        assert len(split.files) == pytest.approx(share * count, rel=0.05)
        assert set(split.labels) == set(found.labels)


@pytest.mark.data
def test_a_real_photograph_is_cut_to_its_middle(badm_data: Path) -> None:
    file = read(badm_data / "flowers102").files[0]
    height, width = image_files.original_size(file)
    side = min(height, width)
    whole = image_files.read(file, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = whole[top : top + side, left : left + side]
    assert np.array_equal(image_files.read(file, side, side, crop=True), middle)
    assert height != width


@pytest.mark.data
@pytest.mark.slow
def test_the_real_set_is_sound(badm_data: Path) -> None:
    assert flowers102.check(badm_data / "flowers102") == []
