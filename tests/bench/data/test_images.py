"""Sets of images: every layout read right, every flaw named, and fetched only as it is known."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch import Tensor

from badm.bench import data
from badm.bench.data import camelyon, image_facts, image_sources, images, photographs
from badm.bench.data.camelyon import MissingH5py, Patches
from badm.bench.data.dataset import FetchFailed, MissingData
from badm.bench.data.download import Download
from badm.bench.data.images import ImageError
from badm.bench.data.synthetic_images import synthetic_images

h5py = pytest.importorskip("h5py", reason="needs h5py: pip install -c constraints.txt h5py")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    return tmp_path


def pixels(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def equal(read: Tensor, made: Any) -> bool:
    return read.dtype == torch.from_numpy(made).dtype and np.array_equal(read.numpy(), made)


# CIFAR-10 and SVHN as npz


def arrays(**changed: Any) -> dict[str, Any]:
    fields = {
        "x_train": pixels(12),
        "y_train": np.arange(12) % 10,
        "x_test": pixels(5, seed=1),
        "y_test": np.arange(5),
    }
    return {name: x for name, x in {**fields, **changed}.items() if x is not None}


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_an_npz_file_is_read(tmp_path: Path, name: str) -> None:
    made = arrays()
    np.savez_compressed(tmp_path / f"{name}.npz", **made)
    found = getattr(images, name)(tmp_path)
    assert equal(found.train.pixels, made["x_train"])
    assert equal(found.train.labels, made["y_train"])
    assert equal(found.test.pixels, made["x_test"])
    assert equal(found.test.labels, made["y_test"])
    assert found.classes == (images.CIFAR10 if name == "cifar10" else tuple("0123456789"))


def test_labels_of_other_whole_numbers_become_int64(tmp_path: Path) -> None:
    np.savez(tmp_path / "svhn.npz", **arrays(y_train=np.arange(12, dtype=np.uint8) % 10))
    assert equal(images.svhn(tmp_path).train.labels, np.arange(12) % 10)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": None}, "has no field x_train, only y_train, x_test, y_test"),
        ({"x_test": pixels(5).astype(np.float32)}, r"x_test must be uint8 .* got float32"),
        ({"x_train": pixels(12)[:, :28]}, r"x_train must be .*\(N, 32, 32, 3\), got .*28, 32, 3"),
        ({"x_train": pixels(12)[..., 0]}, r"x_train must be .* got uint8 of shape \(12, 32, 32\)"),
        ({"x_test": pixels(0), "y_test": np.arange(0)}, "x_test has no images"),
        ({"y_train": np.arange(11) % 10}, r"y_train must be 12 whole .* of shape \(11,\)"),
        ({"y_train": np.arange(12) / 12}, "y_train must be 12 whole numbers, got float64"),
        ({"y_train": np.arange(12)}, "y_train of image 10 must be from 0 to 9, got 10"),
        ({"y_test": -np.arange(5)}, "y_test of image 1 must be from 0 to 9, got -1"),
        ({"y_train": np.array([None] * 12)}, "y_train cannot be read: .*allow_pickle"),
    ],
)
def test_what_is_wrong_with_an_npz_file_is_said_with_file_and_field(
    tmp_path: Path, changed: Mapping[str, Any], words: str
) -> None:
    np.savez(tmp_path / "cifar10.npz", **arrays(**changed))
    with pytest.raises(ImageError, match=words) as error:
        images.cifar10(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'cifar10.npz'}: ")


def test_an_npz_file_that_is_cut_off_or_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cifar10.npz"
    with pytest.raises(ImageError, match=r"cifar10\.npz is missing"):
        images.cifar10(tmp_path)
    np.savez_compressed(file, **arrays())
    whole = file.read_bytes()
    for content in (whole[:-100], whole[:5000], b"<html>not found</html>", b""):
        file.write_bytes(content)
        with pytest.raises(ImageError, match=r"cifar10\.npz is truncated or not an npz file"):
            images.cifar10(tmp_path)
    # Damage in the middle, where the directory at the end of the file is still whole.
    file.write_bytes(whole[:3000] + bytes(2000) + whole[5000:])
    with pytest.raises(ImageError, match=r"cifar10\.npz: x_train cannot be read"):
        images.cifar10(tmp_path)
    file.write_bytes(whole)
    monkeypatch.setattr(images, "LARGEST", 1000)
    with pytest.raises(ImageError, match=r"cifar10\.npz: states 52,\d+ bytes, more than 1,000"):
        images.cifar10(tmp_path)


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damage_inside_a_compressed_field_is_named(tmp_path: Path, packing: int) -> None:
    file = tmp_path / "svhn.npz"
    with zipfile.ZipFile(file, "w", packing) as packed:
        for name, array in arrays(x_train=pixels(12) // 64).items():
            with packed.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    assert len(images.svhn(tmp_path).train) == 12
    whole = file.read_bytes()
    # After its header, which ends with a name and a field of stated lengths.
    first = 30 + sum(int.from_bytes(whole[i : i + 2], "little") for i in (26, 28))
    for place in (first, first + 2000):
        file.write_bytes(whole[:place] + b"\xff" * 200 + whole[place + 200 :])
        with pytest.raises(ImageError, match=r"svhn\.npz: x_train cannot be read"):
            images.svhn(tmp_path)


# CIFAR-10 as published


def binary(x: Any, y: Any) -> bytes:
    """One image after the other: its label, then its red, green and blue pixels."""
    return b"".join(
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for image, label in zip(x, y, strict=True)
    )


def put_batches(folder: Path) -> tuple[Any, Any]:
    x, y = pixels(24), np.arange(24) % 10
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for number in range(5):
        rows = slice(4 * number, 4 * number + 4)
        (batches / f"data_batch_{number + 1}.bin").write_bytes(binary(x[rows], y[rows]))
    (batches / "test_batch.bin").write_bytes(binary(x[20:], y[20:]))
    (batches / "readme.html").write_text("nothing to read here")
    return x, y


def test_the_official_binary_files_are_read_in_the_place_of_the_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", **arrays())
    x, y = put_batches(tmp_path)
    found = images.cifar10(tmp_path)
    assert equal(found.train.pixels, x[:20])
    assert equal(found.train.labels, y[:20])
    assert equal(found.test.pixels, x[20:])
    assert equal(found.test.labels, y[20:])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"data_batch_3\.bin is missing"),
        (b"", r"data_batch_3\.bin: 0 bytes are not whole images of 3,073 each"),
        (bytes(3074), r"data_batch_3\.bin: 3,074 bytes are not whole"),
        (bytes(3073) + b"\x0a" + bytes(3072), r"batch_3\.bin: the label of image 1 .* got 10"),
    ],
)
def test_a_bad_binary_file_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    put_batches(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ImageError, match=words):
        images.cifar10(tmp_path)


# SVHN as published


def put_mats(folder: Path, **changed: Any) -> Any:
    folder.mkdir(exist_ok=True)
    x = pixels(12)
    digits = np.array([[10], [1], [2], [3], [4], [5], [6], [7], [8], [9], [10], [1]], np.uint8)
    fields = {"X": x.transpose(1, 2, 3, 0), "y": digits, **changed}
    savemat(folder / "train_32x32.mat", {k: v for k, v in fields.items() if v is not None})
    savemat(folder / "test_32x32.mat", {"X": x[:2].transpose(1, 2, 3, 0), "y": digits[:2]})
    return x


def test_the_official_matlab_files_are_read_and_ten_is_the_digit_0(tmp_path: Path) -> None:
    x = put_mats(tmp_path)
    found = images.svhn(tmp_path)
    assert equal(found.train.pixels, x)
    assert found.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.train.labels.dtype == torch.int64
    assert found.test.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"X": None}, "has no field X"),
        ({"y": None}, "has no field y"),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "X must have four axes"),
        ({"X": np.zeros((3, 32, 32, 12), np.uint8)}, "X must be uint8 of shape"),
        ({"X": np.zeros((32, 32, 3, 12))}, "X must be uint8 .* got float64"),
        ({"y": np.arange(12)[:, None].astype(np.uint8)}, "y must be from 1 to 10, got 0 to 11"),
        ({"y": np.ones((12, 2), np.uint8)}, "y must be a column of whole numbers"),
        ({"y": np.ones((12, 1))}, "y must be a column of whole numbers, got float64"),
        ({"y": np.ones((11, 1), np.uint8)}, r"y must be 12 whole numbers, got int64 of shape \(11"),
    ],
)
def test_a_bad_matlab_file_is_named_with_the_field(
    tmp_path: Path, changed: Mapping[str, Any], words: str
) -> None:
    put_mats(tmp_path, **changed)
    with pytest.raises(ImageError, match=words) as error:
        images.svhn(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'train_32x32.mat'}: ")


def test_a_matlab_file_that_is_cut_off_or_missing_is_named(tmp_path: Path) -> None:
    put_mats(tmp_path)
    file = tmp_path / "test_32x32.mat"
    whole = file.read_bytes()
    for content in (whole[:-50], whole[:100], b"", b"<html>not found</html>" * 20):
        file.write_bytes(content)
        with pytest.raises(ImageError, match=r"test_32x32\.mat cannot be read as a MATLAB file"):
            images.svhn(tmp_path)
    file.unlink()
    with pytest.raises(ImageError, match=r"test_32x32\.mat is missing"):
        images.svhn(tmp_path)


# CMATERdb


@pytest.mark.parametrize("script", images.SCRIPTS)
def test_the_numerals_of_a_script_are_read(tmp_path: Path, script: str) -> None:
    for part, count in (("training", 20), ("testing", 10)):
        np.savez(
            tmp_path / f"{script}-{part}-images.npz",
            images=pixels(count, seed=count),
            labels=np.arange(count) % 10,
        )
    found = images.cmaterdb(script, tmp_path)
    assert equal(found.train.pixels, pixels(20, seed=20))
    assert equal(found.test.pixels, pixels(10, seed=10))
    assert equal(found.test.labels, np.arange(10))
    np.savez(tmp_path / f"{script}-testing-images.npz", images=pixels(10))
    with pytest.raises(ImageError, match=f"{script}-testing-images.npz: has no field labels"):
        images.cmaterdb(script, tmp_path)


# Photographs


def photograph(file: Path, colour: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 8), (colour, colour, colour)).save(file, quality=95)


def put_flowers(folder: Path, counts: tuple[int, ...] = (2, 3, 1, 2, 2)) -> None:
    for label, (name, count) in enumerate(zip(photographs.FLOWERS, counts, strict=True)):
        for number in range(count):
            photograph(folder / name / f"{number}.jpg", 50 * label)
    (folder / "LICENSE.txt").write_text("free")


def test_flowers_are_classed_by_their_folders(tmp_path: Path) -> None:
    put_flowers(tmp_path)
    found = photographs.flowers(tmp_path)
    assert found.labels == (0, 0, 1, 1, 1, 2, 3, 3, 4, 4)
    assert [file.parent.name for file in found.files] == [found.classes[c] for c in found.labels]
    read = found.decoded(4)
    assert read.pixels.shape == (10, 4, 4, 3)
    means = read.pixels.double().mean((1, 2, 3))
    assert (means - 50 * read.labels).abs().max() < 2
    assert read.labels.tolist() == list(found.labels)


def test_folders_of_flowers_that_are_missing_or_empty_are_named(tmp_path: Path) -> None:
    put_flowers(tmp_path)
    (tmp_path / "roses" / "0.jpg").unlink()
    with pytest.raises(ImageError, match=r"roses has no images \*\.jpg"):
        photographs.flowers(tmp_path)
    (tmp_path / "roses").rmdir()
    with pytest.raises(ImageError, match=f"{tmp_path} has no folder roses"):
        photographs.flowers(tmp_path)


HEADER = "Filename,Label,Species\n"
NINE = [f"{n}.jpg,{n},weed {n}\n" for n in range(9)]


def put_weeds(folder: Path, lines: list[str] | None = None, header: str = HEADER) -> None:
    for number in range(9):
        photograph(folder / "images" / f"{number}.jpg", 20 * number)
    (folder / "labels.csv").write_text(header + "".join(NINE if lines is None else lines))


def test_weeds_are_classed_by_the_table_and_in_its_order(tmp_path: Path) -> None:
    put_weeds(tmp_path, NINE[::-1])
    found = photographs.deepweeds(tmp_path)
    assert found.labels == tuple(range(8, -1, -1))
    assert [file.name for file in found.files] == [f"{n}.jpg" for n in found.labels]
    assert found.classes == tuple(f"weed {n}" for n in range(9))
    means = found.decoded(4).pixels.double().mean((1, 2, 3))
    assert (means - 20 * torch.tensor(found.labels)).abs().max() < 2


@pytest.mark.parametrize(
    ("lines", "header", "words"),
    [
        (None, "Filename,Label\n", r"csv, line 1: no column 'Species' among Filename, Label"),
        (None, "Name,Label,Species\n", r"csv, line 1: no column 'Filename'"),
        (None, "Label,Label,Species\n", r"line 1: no column 'Filename' among Label, Label"),
        (None, "Filename,Label,Label\n", r"line 1: more than one column 'Label'"),
        ([], "", r"csv, line 1: no column 'Filename' among none"),
        (["0.jpg,9,weed 9\n"], HEADER, r"line 2, field Label: must be from 0 to 8, got '9'"),
        (["0.jpg,-1,weed\n"], HEADER, r"line 2, field Label: must be from 0 to 8, got '-1'"),
        (["0.jpg,1.0,weed\n"], HEADER, r"line 2, field Label: .* got '1.0'"),
        (["0.jpg,,weed\n"], HEADER, r"line 2, field Label: .* got ''"),
        ([*NINE, "0.jpg,0,weed 0\n"], HEADER, r"line 11, field Filename: 0.jpg is there twice"),
        ([*NINE, "x.jpg,0,weed 1\n"], HEADER, r"line 11, field Species: Label 0 is 'weed 0' bef"),
        ([*NINE, "x.jpg,0\n"], HEADER, r"line 11: 2 fields for 3 columns"),
        ([*NINE, "x.jpg,0,weed 0\n"], HEADER, r"csv: x\.jpg must be in .*images, and is not"),
        ([*NINE, "../0.jpg,0,weed 0\n"], HEADER, r"csv: \.\./0\.jpg must be in .*images"),
        (
            [*NINE, "x.jpg,0,weed 0\n", "y.jpg,0,weed 0\n"],
            HEADER,
            r"csv: x\.jpg and 1 more must be in",
        ),
        (NINE[:-1], HEADER, r"csv: no line has the Label 8"),
        (['"0.jpg,0,weed 0\n'], HEADER, r"csv, line 2: unexpected end of data"),
    ],
)
def test_what_is_wrong_with_the_table_of_weeds_is_said_with_line_and_field(
    tmp_path: Path, lines: list[str] | None, header: str, words: str
) -> None:
    put_weeds(tmp_path, lines, header)
    with pytest.raises(ImageError, match=words):
        photographs.deepweeds(tmp_path)


def test_a_table_of_weeds_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"labels\.csv is missing"):
        photographs.deepweeds(tmp_path)
    (tmp_path / "labels.csv").write_bytes(b"Filename\xff")
    with pytest.raises(ImageError, match=r"labels\.csv, line .*: must be UTF-8"):
        photographs.deepweeds(tmp_path)


def test_the_first_of_each_class_are_kept_in_their_order() -> None:
    labels = (1, 0, 1, 1, 0, 2)
    files = tuple(Path(str(number)) for number in range(6))
    some = photographs.Photographs(("a", "b", "c"), files, labels).first_of_each(2)
    assert [file.name for file in some.files] == ["0", "1", "2", "4", "5"]
    assert some.labels == (1, 0, 1, 0, 2)


# PatchCamelyon


def put_patches(folder: Path, part: str, x: Any, y: Any, fields: str = "xy") -> None:
    folder.mkdir(exist_ok=True)
    for field, name, values in (("x", fields[0], x), ("y", fields[1], y)):
        file = folder / f"camelyonpatch_level_2_split_{part}_{field}.h5"
        with h5py.File(file, "w") as made:
            made.create_dataset(name, data=values, chunks=(2, *values.shape[1:]))


def patches(count: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 96, 96, 3), np.uint8)
    return x, (np.arange(count) % 2).astype(np.uint8).reshape(-1, 1, 1, 1)


def test_patches_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    x, y = patches(7)
    put_patches(tmp_path, "train", x, y)
    found, labels = camelyon.read(tmp_path, "train")
    assert len(found) == 7
    assert found.shape == (7, 96, 96, 3)
    assert labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert labels.dtype == torch.int64
    for rows in ([3], [5, 0, 6], [2, 2, 1, 2], [6, 5, 4, 3, 2, 1, 0]):
        assert equal(found[torch.tensor(rows)], x[rows])


def test_patches_are_read_in_a_process_that_was_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = patches(4)
    put_patches(tmp_path, "train", x, y)
    found, _ = camelyon.read(tmp_path, "train")
    assert found.opened is not None
    before = found.opened[1]
    monkeypatch.setattr(camelyon.os, "getpid", lambda: -1)
    assert equal(found[torch.tensor([1])], x[[1]])
    assert found.opened[1] is not before


def test_the_first_patches_are_shrunk_by_averaging(tmp_path: Path) -> None:
    x, y = patches(5)
    put_patches(tmp_path, "test", x, y)
    small = camelyon.first(tmp_path, "test", 3, 48)
    assert small.labels.tolist() == [0, 1, 0]
    mean = x[:3].reshape(3, 48, 2, 48, 2, 3).astype(float).mean((2, 4))
    assert small.pixels.dtype == torch.uint8
    assert abs(small.pixels.numpy() - mean).max() <= 0.5
    assert equal(camelyon.first(tmp_path, "test", 9, 96).pixels, x)


@pytest.mark.parametrize(
    ("x", "y", "fields", "words"),
    [
        (patches(3)[0][:, :64], patches(3)[1], "xy", r"_x\.h5: x must be .* \(3, 64, 96, 3\)"),
        (patches(3)[0] / 255, patches(3)[1], "xy", r"_x\.h5: x must be uint8 .* got float64"),
        (patches(3)[0], patches(3)[1][:, 0], "xy", r"_y\.h5: y must be .* of shape \(3, 1, 1\)"),
        (patches(3)[0], patches(3)[1] * 2, "xy", r"_y\.h5: y must be 0 or 1, got 0 to 2"),
        (patches(3)[0], patches(3)[1] / 2, "xy", r"_y\.h5: y must be whole .* got float64"),
        (patches(3)[0], patches(4)[1], "xy", r"_y\.h5: y has 4 labels for 3 patches"),
        (*patches(3), "zy", r"_x\.h5: has no field x, only z"),
        (*patches(3), "xz", r"_y\.h5: has no field y, only z"),
    ],
)
def test_a_bad_hdf5_file_is_named_with_the_field(
    tmp_path: Path, x: Any, y: Any, fields: str, words: str
) -> None:
    put_patches(tmp_path, "valid", x, y, fields)
    with pytest.raises(ImageError, match=words):
        camelyon.read(tmp_path, "valid")


def test_an_hdf5_file_that_is_missing_or_cut_off_is_named(tmp_path: Path) -> None:
    put_patches(tmp_path, "valid", *patches(3))
    file = tmp_path / "camelyonpatch_level_2_split_valid_x.h5"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ImageError, match=r"valid_x\.h5 is truncated or not an HDF5 file"):
        Patches(file)
    file.unlink()
    with pytest.raises(ImageError, match=r"valid_x\.h5 is missing"):
        Patches(file)


def test_without_h5py_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingH5py, match=r'needs h5py: pip install "badm\[data\]"'):
        Patches(tmp_path / "x.h5")


# Made-up images


def test_made_up_images_repeat_and_carry_over_to_another_seed() -> None:
    a, b, other = (synthetic_images(60, 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(a.pixels, b.pixels)
    assert torch.equal(a.labels, b.labels)
    assert not torch.equal(a.pixels, other.pixels)
    assert a.labels.bincount().tolist() == [15] * 4
    # The mean image of a class is nearest to that of the same class of the other seed.
    means = [
        torch.stack([made.pixels[made.labels == c].double().mean(0) for c in range(4)])
        for made in (a, other)
    ]
    distances = torch.cdist(means[0].flatten(1), means[1].flatten(1))
    assert distances.argmin(1).tolist() == [0, 1, 2, 3]


# The catalogue: official files in the place of the compact ones


def test_official_files_do_as_well_as_the_npz(root: Path) -> None:
    cifar = data.find("cifar10")
    assert data.status(cifar) == "missing"
    with pytest.raises(MissingData, match=r"cifar10\.npz is missing"):
        data.path("cifar10")
    put_batches(root / "cifar10")
    assert data.status(cifar) == "present"
    assert data.path("cifar10") == root / "cifar10"
    (root / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    assert data.status(cifar) == "partly"
    with pytest.raises(MissingData, match=r"data_batch_\*\.bin is missing \(4 of 5\)"):
        data.path("cifar10")


def test_official_files_are_verified_by_their_checksums(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    svhn = data.find("svhn")
    put_mats(root / "svhn")
    assert data.verified_against(svhn) == "recorded checksums"
    problems = data.verify(svhn)
    assert [problem.path for problem in problems] == [
        "svhn/train_32x32.mat",
        "svhn/test_32x32.mat",
    ]
    assert {problem.kind for problem in problems} == {"corrupt"}


def test_a_set_of_other_sizes_is_not_the_one_known(root: Path) -> None:
    put_batches(root / "cifar10")
    (problem,) = data.verify(data.find("cifar10"))
    assert problem.path == "cifar10"
    assert "20 + 4 images are not the 50,000 + 10,000 or 6,000 + 1,500 known" in problem.message
    put_flowers(root / "tf_flowers")
    (problem,) = image_facts.check("tf-flowers", root / "tf_flowers")
    assert "10 images are not the 3,670 known" in problem.message


@pytest.mark.parametrize("label", [3, 4])
def test_the_known_sets_are_recognised_by_their_classes(tmp_path: Path, label: int) -> None:
    train, test = image_facts.KNOWN["cifar10"][1]
    y_train = np.repeat(np.arange(10), train)
    y_train[-1] = 9 if label == 4 else label
    np.savez_compressed(
        tmp_path / "cifar10.npz",
        x_train=np.zeros((6000, 32, 32, 3), np.uint8),
        y_train=y_train,
        x_test=np.zeros((1500, 32, 32, 3), np.uint8),
        y_test=np.repeat(np.arange(10), test),
    )
    assert len(image_facts.check("cifar10", tmp_path)) == (label == 3)


def test_the_known_numbers_are_those_published() -> None:
    sums = {
        name: [tuple(sum(part) for part in one) for one in known]
        for name, known in image_facts.KNOWN.items()
    }
    assert sums == {
        "cifar10": [(50_000, 10_000), (6_000, 1_500)],
        "svhn": [(73_257, 26_032), (6_000, 1_500)],
        "cmaterdb": [(5_000, 1_000, 2_500, 500, 2_500, 500)],
        "tf-flowers": [(3_670,)],
        "deepweeds": [(17_509,), (2_250,)],
    }


def test_a_check_decodes_every_photograph(tmp_path: Path) -> None:
    put_flowers(tmp_path)
    (tmp_path / "roses" / "0.jpg").write_text("no photograph")
    (problem,) = image_facts.check("tf-flowers", tmp_path)
    assert problem.kind == "corrupt"
    assert f"{tmp_path / 'roses' / '0.jpg'} is not a JPEG or PNG image" in problem.message


def test_a_check_of_patches_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in camelyon.PARTS:
        put_patches(tmp_path, part, *patches(3))
    problems = image_facts.check_camelyon(tmp_path)
    assert [problem.message for problem in problems] == [
        "3 patches are not the 262,144 known",
        "3 patches are not the 32,768 known",
        "3 patches are not the 32,768 known",
    ]
    monkeypatch.setattr(image_facts, "CAMELYON", dict.fromkeys(camelyon.PARTS, 3))
    assert image_facts.check_camelyon(tmp_path) == []
    (tmp_path / "camelyonpatch_level_2_split_test_y.h5").unlink()
    (problem,) = image_facts.check_camelyon(tmp_path)
    assert "test_y.h5 is missing" in problem.message


# Fetching, from files in the place of the publishers'


def published(file: Path, content: bytes) -> Download:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return Download(file.as_uri(), len(content), hashlib.sha256(content).hexdigest())


def test_a_download_is_the_file_that_is_known(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    source = published(tmp_path / "there" / "set.bin", content)
    told: list[tuple[str, int, int]] = []
    source.get(tmp_path / "copy", lambda *report: told.append(report))
    assert (tmp_path / "copy").read_bytes() == content
    assert told[-1] == ("set.bin", len(content), len(content))
    assert len(told) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 9}, "returned more than the expected 9 bytes"),
        ({"size": 11}, "returned 10 of the expected 11 bytes"),
        ({"sha256": "0" * 64}, "its checksum is not the recorded one"),
        ({"url": "file:///nowhere/set.bin"}, "could not be downloaded"),
        (
            {"url": "http://127.0.0.1:9/set.bin"},
            "could not be downloaded .*refused",
        ),  # the discard port
    ],
)
def test_a_download_that_is_not_what_it_was_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    source = replace(published(tmp_path / "set.bin", b"0123456789"), **change)
    with pytest.raises(FetchFailed, match=words) as error:
        source.get(tmp_path / "copy")
    assert str(error.value).startswith(source.url)


def test_a_download_without_end_is_cut_short(tmp_path: Path) -> None:
    source = replace(published(tmp_path / "set.bin", bytes(5_000_000)), size=1000)
    with pytest.raises(FetchFailed, match="returned more than the expected 1,000 bytes"):
        source.get(tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == 1001


def tar(folder: str, files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def known_to_be(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set as it is in a folder becomes the one that is known."""
    counts = tuple(tuple(y.bincount().tolist()) for y in image_facts._parts(name, folder))
    monkeypatch.setitem(image_facts.KNOWN, name, (counts,))


def test_cifar10_is_fetched_as_published(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path_factory.mktemp("made")
    put_batches(made)
    known_to_be("cifar10", made, monkeypatch)
    files = contents(made / "cifar-10-batches-bin")
    source = published(made / "cifar.tar.gz", tar("cifar-10-batches-bin", files))
    monkeypatch.setattr(image_sources, "CIFAR10", source)
    assert data.fetch(data.find("cifar10")) == "fetched"
    assert contents(root / "cifar10" / "cifar-10-batches-bin") == files
    assert sorted(path.name for path in root.iterdir()) == ["SHA256SUMS", "cifar10"]
    assert data.verify(data.find("cifar10")) == []
    assert data.verified_against(data.find("cifar10")) == "SHA256SUMS"
    assert data.fetch(data.find("cifar10")) == "there"


def test_flowers_are_fetched_as_published_and_what_is_lacking_is_put_in(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path_factory.mktemp("made")
    put_flowers(made / "flower_photos")
    known_to_be("tf-flowers", made / "flower_photos", monkeypatch)
    files = contents(made / "flower_photos")
    source = published(made / "flowers.tgz", tar("flower_photos", files))
    monkeypatch.setattr(image_sources, "FLOWERS", source)
    flowers = data.find("tf-flowers")
    few = replace(flowers, files=tuple(replace(f, count=1) for f in flowers.files))
    assert data.fetch(few) == "fetched"
    assert contents(root / "tf_flowers") == files
    (root / "tf_flowers" / "roses" / "0.jpg").unlink()
    (root / "tf_flowers" / "roses").rmdir()
    assert data.fetch(few) == "fetched"
    assert contents(root / "tf_flowers") == files
    # Another photograph of that name is not taken for it, nor overwritten.
    (root / "tf_flowers" / "roses" / "0.jpg").unlink()
    photograph(root / "tf_flowers" / "daisy" / "1.jpg", 99)
    (root / "SHA256SUMS").unlink()
    with pytest.raises(FetchFailed, match=r"daisy/1\.jpg differs from the downloaded file"):
        data.fetch(few)


def test_weeds_are_fetched_as_published(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path_factory.mktemp("made")
    put_weeds(made)
    known_to_be("deepweeds", made, monkeypatch)
    files = contents(made)
    archive = tar(".", contents(made / "images"))  # its photographs are in no folder
    source = replace(published(made / "download?id=1", archive), file_name="images.zip")
    monkeypatch.setattr(image_sources, "DEEPWEEDS", source)
    labels = published(made / "labels.csv", files["labels.csv"])
    monkeypatch.setattr(image_sources, "DEEPWEEDS_LABELS", labels)
    weeds = data.find("deepweeds")
    few = replace(weeds, files=tuple(replace(f, count=1) for f in weeds.files))
    assert data.fetch(few) == "fetched"
    assert contents(root / "deepweeds") == files


def test_svhn_and_cmaterdb_are_fetched_as_published(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path_factory.mktemp("made")
    put_mats(made / "svhn")
    known_to_be("svhn", made / "svhn", monkeypatch)
    files = contents(made / "svhn")
    sources = [
        published(made / "svhn" / n, files[n]) for n in ("train_32x32.mat", "test_32x32.mat")
    ]
    monkeypatch.setattr(image_sources, "SVHN", tuple(sources))
    assert data.fetch(data.find("svhn")) == "fetched"
    assert contents(root / "svhn") == files

    (made / "cmaterdb").mkdir()
    for name in image_sources.CMATERDB:
        np.savez(made / "cmaterdb" / name, images=pixels(10), labels=np.arange(10))
    known_to_be("cmaterdb", made / "cmaterdb", monkeypatch)
    files = contents(made / "cmaterdb")
    for name, content in files.items():
        # Of two scripts the files are called alike, and are told apart by their folder.
        file = made / name.split("-")[0] / "images.npz" if "training" in name else made / name
        monkeypatch.setitem(image_sources.CMATERDB, name, published(file, content))
    numerals = data.find("cmaterdb")
    any_contents = tuple(replace(f, sha256=None) for f in numerals.files)
    assert data.fetch(replace(numerals, files=any_contents)) == "fetched"
    assert contents(root / "cmaterdb") == files


def test_camelyon_is_fetched_and_decompressed(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path_factory.mktemp("made")
    for part in camelyon.PARTS:
        put_patches(made / "camelyon", part, *patches(3))
    monkeypatch.setattr(image_facts, "CAMELYON", dict.fromkeys(camelyon.PARTS, 3))
    files = contents(made / "camelyon")
    sources = [published(made / f"{name}.gz", gzip.compress(files[name])) for name in files]
    monkeypatch.setattr(image_sources, "CAMELYON", tuple(sources))
    assert data.fetch(data.find("camelyon")) == "fetched"
    assert contents(root / "camelyon") == files
    broken = published(made / "x.h5.gz", gzip.compress(bytes(1000))[:-9])
    monkeypatch.setattr(image_sources, "CAMELYON", (broken,))
    with pytest.raises(FetchFailed, match=r"x\.h5\.gz cannot be decompressed"):
        image_sources.fetch_camelyon(root, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar("elsewhere", {"a": b"a"}), "holds no folder cifar-10-batches-bin"),
        (tar("..", {"a": b"a"}), "which leads outside"),
        (b"no archive", "cannot be unpacked"),
    ],
    ids=["elsewhere", "outside", "none"],
)
def test_an_archive_that_is_none_changes_nothing(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    words: str,
) -> None:
    source = published(tmp_path_factory.mktemp("made") / "x.tar.gz", content)
    monkeypatch.setattr(image_sources, "CIFAR10", source)
    with pytest.raises(FetchFailed, match=words):
        data.fetch(data.find("cifar10"))
    assert list(root.iterdir()) == []


def test_what_is_fetched_has_the_checksums_of_the_catalogue() -> None:
    listed = {f.pattern: f.sha256 for f in data.find("cmaterdb").files}
    assert listed == {f"cmaterdb/{n}": s.sha256 for n, s in image_sources.CMATERDB.items()}
    names = {f.pattern.partition("/")[2] for f in data.find("camelyon").files}
    assert names == {source.name.removesuffix(".gz") for source in image_sources.CAMELYON}


# Real data

Read = Callable[[Path], list[Tensor]]
REAL: dict[str, tuple[str, Read]] = {
    "cifar10": ("cifar10", lambda f: [s.labels for s in _two(images.cifar10(f))]),
    "svhn": ("svhn", lambda f: [s.labels for s in _two(images.svhn(f))]),
    "tf-flowers": ("tf_flowers", lambda f: [torch.tensor(photographs.flowers(f).labels)]),
    "deepweeds": ("deepweeds", lambda f: [torch.tensor(photographs.deepweeds(f).labels)]),
}


def _two(found: images.ImageSet) -> tuple[images.Images, images.Images]:
    return found.train, found.test


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_the_real_sets_have_the_known_number_of_each_class(badm_data: Path, name: str) -> None:
    folder, read = REAL[name]
    counts = tuple(tuple(labels.bincount().tolist()) for labels in read(badm_data / folder))
    assert counts in image_facts.KNOWN[name]


@pytest.mark.data
@pytest.mark.parametrize("script", images.SCRIPTS)
def test_the_real_numerals_are_balanced_and_come_in_blocks(badm_data: Path, script: str) -> None:
    found = images.cmaterdb(script, badm_data / "cmaterdb")
    train, test = (500, 100) if script == "bangla" else (250, 50)
    for part, each in ((found.train, train), (found.test, test)):
        assert part.labels.bincount().tolist() == [each] * 10
        assert part.labels[::each].tolist() == [9, 0, 7, 6, 1, 8, 4, 3, 2, 5]


@pytest.mark.data
def test_a_real_photograph_is_of_the_class_of_its_folder(badm_data: Path) -> None:
    found = photographs.flowers(badm_data / "tf_flowers")
    for file, label in zip(found.files, found.labels, strict=True):
        assert file.parent.name == found.classes[label]
    assert photographs.deepweeds(badm_data / "deepweeds").classes == (
        "Chinee apple", "Lantana", "Parkinsonia", "Parthenium", "Prickly acacia", "Rubber vine",
        "Siam weed", "Snake weed", "Negative",
    )  # fmt: skip


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", image_facts.KNOWN)
def test_the_real_sets_are_sound(badm_data: Path, name: str) -> None:
    folder = data.find(name).folder
    assert folder is not None
    assert image_facts.check(name, badm_data / folder) == []
