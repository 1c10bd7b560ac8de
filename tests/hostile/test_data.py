"""Data files made to do harm: every one is refused in a sentence, and takes no memory to speak of.

Nothing here is larger than some kilobytes, whatever it claims.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from badm.bench import data
from badm.bench.data import (
    airplanes,
    archives,
    bbbp,
    camelyon,
    checksums,
    flowers102,
    graphs,
    idx,
    image_files,
    images,
    matlab,
    photographs,
    reviews,
    smiles,
    text_encoding,
)

HUGE = 10**12
LITTLE = 48 << 20  # bytes that a refusal may take, libraries that it imports among them


@contextmanager
def refused(kind: type[ValueError], *parts: str, most: int = LITTLE) -> Iterator[None]:
    """Within it a file is refused in one sentence with those parts, before memory is taken."""
    tracemalloc.start()
    try:
        with pytest.raises(kind) as error:
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(error.value)
    for part in parts:
        assert part in message
    assert message.isprintable()
    assert len(message) < 1_000
    assert peak < most


def gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


# Arrays of npz files


def npy(
    shape: object = (2,),
    descr: object = "|u1",
    content: bytes = b"ab",
    *,
    fortran: bool = False,
    version: int = 1,
    header: bytes | None = None,
) -> bytes:
    """An npy file whose header says whatever it is told to."""
    about = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}}}".encode()
    text = (about if header is None else header) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + content


def npz(file: Path, members: Mapping[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file


NPY: dict[str, tuple[bytes, str]] = {
    "more elements than bytes": (npy((HUGE,)), "1,000,000,000,000 bytes, and has 2"),
    "a shape whose product overflows": (npy((2**40, 2**40)), "and has 2"),
    "a shape that overflows to 2": (npy((2**63, 2, 2**62 + 1)), "and has 2"),
    "a negative length": (npy((-2,)), "a length below 0"),
    "two negative lengths": (npy((-1, -2)), "a length below 0"),
    "fewer elements than bytes": (npy((1,)), "1 bytes, and has 2"),
    "wide elements": (npy((2,), "<U250000000"), "bytes, and has 2"),
    "elements of no size": (npy((2,), "|S0"), "cannot be read"),
    "objects": (npy((1,), "|O", b"cos\nsystem\n(S'true'\ntR."), "Object arrays"),
    "objects in a structure": (npy((1,), [("a", "|O")]), "Object arrays"),
    "an unknown type": (npy((2,), "|X9"), "cannot be read"),
    "a version of the future": (npy(version=9), "its version is 9.0"),
    "no header": (b"", "cannot be read"),
    "a header that is cut off": (npy()[:20], "cannot be read"),
    "a header of parentheses": (npy(header=b"(" * 9_000), "cannot be read"),
    "a header of a million letters": (npy(version=2, header=b" " * 10**6), "cannot be read"),
    "a header that is no dictionary": (npy(header=b"[1, 2]"), "cannot be read"),
    "a header that calls": (npy(header=b"__import__('os').getpid()"), "cannot be read"),
    "a shape of texts": (npy(("a",)), "cannot be read"),
}


@pytest.mark.parametrize("how", NPY)
def test_an_array_that_lies_about_itself_is_refused(tmp_path: Path, how: str) -> None:
    content, what = NPY[how]
    good = npy((1, 32, 32, 3), content=bytes(3072))
    file = npz(
        tmp_path / "cifar10.npz",
        {"x_train": content, "y_train": npy(), "x_test": good, "y_test": npy((1,), content=b"a")},
    )
    with refused(images.ImageError, f"{file}: x_train cannot be read", what):
        images.cifar10(tmp_path)


def labelled(folder: Path, labels: Any, pixels: Any = None) -> Path:
    pixels = np.zeros((2, 32, 32, 3), np.uint8) if pixels is None else pixels
    file = folder / "cifar10.npz"
    np.savez(file, x_train=pixels, y_train=labels, x_test=pixels, y_test=np.array([0, 1]))
    return file


LABELS: dict[str, tuple[Any, str]] = {
    "NaN": (np.array([0, np.nan]), "whole numbers, got float64"),
    "minus one": (np.array([0, -1]), "of image 1 must be from 0 to 9, got -1"),
    "ten": (np.array([10, 0]), "of image 0 must be from 0 to 9, got 10"),
    "the largest there is": (np.array([0, 2**64 - 1], np.uint64), "got 18446744073709551615"),
    "one for all": (np.array(3), "of shape ()"),
    "texts": (np.array(["0", "1"]), "got <U1"),
    "truth values": (np.array([True, False]), "got bool"),
    "none": (np.empty(0, int), "of shape (0,)"),
}


@pytest.mark.parametrize("how", LABELS)
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, how: str) -> None:
    labels, what = LABELS[how]
    file = labelled(tmp_path, labels)
    with refused(images.ImageError, f"{file}: y_train", what):
        images.cifar10(tmp_path)


def test_arrays_of_other_orders_are_read_as_what_they_are(tmp_path: Path) -> None:
    pixels = np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3)
    labelled(tmp_path, np.array([3, 7], ">i8"), np.asfortranarray(pixels))
    found = images.cifar10(tmp_path).train
    assert found.labels.tolist() == [3, 7]
    assert torch.equal(found.pixels, torch.from_numpy(pixels))


def test_an_npz_file_that_swells_beyond_what_deflate_can_is_refused(tmp_path: Path) -> None:
    """Its directory says so: the members overlap, or lie."""
    file = npz(tmp_path / "cifar10.npz", {"x_train": npy()})
    content = bytearray(file.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 2_000_000_000)
    file.write_bytes(content)
    with refused(images.ImageError, f"{file}: states 2,000,000,000 bytes", "cannot hold"):
        images.cifar10(tmp_path)


def test_an_npz_file_of_another_compression_is_refused(tmp_path: Path) -> None:
    file = npz(tmp_path / "cifar10.npz", {"x_train": npy()}, zipfile.ZIP_BZIP2)
    with refused(images.ImageError, f"{file}: 'x_train' must be compressed with deflate or LZMA"):
        images.cifar10(tmp_path)


@pytest.mark.slow
def test_a_field_of_which_lzma_makes_more_than_it_states_is_not_unpacked(tmp_path: Path) -> None:
    members = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), npy())
    bomb = npy() + bytes(64 << 20)
    file = npz(tmp_path / "cifar10.npz", members | {"x_train": bomb}, zipfile.ZIP_LZMA)
    content = bytearray(file.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", len(npy()))
    file.write_bytes(content)
    # What 4 kB unpack to, and what is cut off of it.
    with refused(images.ImageError, f"{file}: x_train", most=96 << 20):
        images.cifar10(tmp_path)


def test_an_npz_file_with_one_field_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cifar10.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x_train.npy", npy())
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x_train.npy", npy())
    with refused(images.ImageError, f"{file}: has 2 fields 'x_train'"):
        images.cifar10(tmp_path)


def test_field_names_of_any_kind_are_shown_on_one_line(tmp_path: Path) -> None:
    file = npz(tmp_path / "cifar10.npz", {"a\n\x1b[2Jb": npy(), "c" * 5_000: npy()})
    with refused(images.ImageError, f"{file}: has no field x_train, only"):
        images.cifar10(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cifar10.npz")
    with refused(images.ImageError, "must be a file, and is a device, a pipe or a folder"):
        images.cifar10(tmp_path)


# Graphs

MADE = graphs.synthetic(6, 4, 2, seed=0)
CSR: dict[str, tuple[dict[str, Any], str]] = {
    "nodes": ({"adj_shape": np.array([HUGE, HUGE])}, "adj_indptr must ascend from 0 in"),
    "columns": ({"attr_shape": np.array([6, HUGE])}, "states 1,000,000,000,000 columns"),
    "negative columns": ({"attr_shape": np.array([6, -4])}, "attr_shape must be two sizes"),
    "a shape of one number": ({"attr_shape": np.array(6)}, "attr_shape must be a row"),
    "a shape of three": ({"adj_shape": np.array([6, 6, 6])}, "adj_shape must be two sizes"),
    "pointers that fall": ({"adj_indptr": np.arange(7)[::-1].copy()}, "adj_indptr must ascend"),
    "pointers beyond the end": ({"adj_indptr": np.arange(7) * 10**9}, "adj_indices has"),
    "one pointer": ({"adj_indptr": np.array(0)}, "adj_indptr must be a row"),
    "one value": ({"attr_data": np.array(1.0)}, "attr_data must be"),
    "values of no number": ({"attr_data": np.full(len(MADE.features.data), np.nan)}, "has nan"),
    "NaN for a label": ({"labels": np.array([np.nan] * 6)}, "labels must be a row of whole"),
    "labels of a huge class": ({"labels": np.array([0, 1, 0, 1, 0, HUGE])}, "class numbers from 0"),
    "one name": ({"class_names": np.array("a")}, "class_names must be a row of strings"),
    "names that are numbers": (
        {"class_names": np.zeros(2)},
        "class_names must be a row of strings",
    ),
}


@pytest.mark.parametrize("how", CSR)
def test_a_graph_that_claims_what_it_has_not_is_refused(tmp_path: Path, how: str) -> None:
    changes, what = CSR[how]
    file = tmp_path / "made.npz"
    graphs.write(file, MADE)
    with np.load(file) as arrays:
        fields = dict(arrays)
    np.savez(file, **(fields | changes))
    with refused(graphs.GraphError, f"{file}: ", what):
        graphs.read(file)


def test_a_graph_in_the_other_byte_order_is_the_same_graph(tmp_path: Path) -> None:
    file = tmp_path / "made.npz"
    graphs.write(file, MADE)
    with np.load(file) as arrays:
        turned = {name: x.astype(x.dtype.newbyteorder(">")) for name, x in arrays.items()}
    np.savez(file, **turned)
    found = graphs.read(file)
    assert torch.equal(found.labels, MADE.labels)
    assert (found.features != MADE.features).nnz == 0
    assert (found.adjacency != MADE.adjacency).nnz == 0


# idx files

IDX: dict[str, tuple[bytes, str]] = {
    "a gigabyte": (struct.pack(">4I", 2051, 1 << 20, 32, 32), "states the shape 1048576×32×32"),
    "more than there is": (
        struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        "cannot hold",
    ),
    "nothing": (struct.pack(">4I", 2051, 0, 2**32 - 1, 28), "is empty"),
}


@pytest.mark.parametrize("how", IDX)
def test_an_idx_file_that_claims_more_than_it_holds_is_refused(tmp_path: Path, how: str) -> None:
    header, what = IDX[how]
    file = tmp_path / "images.gz"
    file.write_bytes(gz(header))
    with refused(idx.IdxError, str(file), what):
        idx.read(file, idx.IMAGES)


def test_an_idx_file_with_gigabytes_behind_what_it_states_is_not_unpacked(tmp_path: Path) -> None:
    """A bomb of zeros, of which no more than is stated is looked at."""
    file = tmp_path / "labels.gz"
    file.write_bytes(gz(struct.pack(">2I", idx.LABELS, 3) + bytes(64 << 20)))
    with refused(idx.IdxError, f"{file} states 3 = 3 bytes and holds more"):
        idx.read(file, idx.LABELS)


def test_an_idx_label_that_is_no_class_is_refused(tmp_path: Path) -> None:
    pixels, labels = idx.synthetic_images(4)
    labels[2] = 255
    for name, content in zip(idx.FILES, (pixels, labels) * 2, strict=True):
        idx.write(tmp_path / name, content)
    with refused(idx.IdxError, str(tmp_path / idx.FILES[1]), "0 to 9, got 255 for image 2"):
        idx.load(tmp_path)


# MATLAB files


def element(kind: int, content: bytes, length: int | None = None) -> bytes:
    """An element of a MATLAB file; its length may be another than it has."""
    stated = len(content) if length is None else length
    padding = 0 if kind == 15 else -len(content) % 8  # compressed ones have none
    return struct.pack("<II", kind, stated) + content + bytes(padding)


def mat(*elements: bytes) -> bytes:
    return b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + b"".join(elements)


def array(
    name: bytes, shape: tuple[int, ...], content: bytes, kind: int = 9, length: int | None = None
) -> bytes:
    """An array of bytes, of class uint8 unless told otherwise."""
    return element(
        14,
        element(6, struct.pack("<II", kind, 0))
        + element(5, struct.pack(f"<{len(shape)}i", *shape))
        + element(1, name)
        + element(2, content, length),
    )


MAT: dict[str, tuple[bytes, str]] = {
    "an element beyond the end": (mat(element(14, b"12345678", 2**32 - 8)), "states 4,294,967,288"),
    "dimensions without numbers": (mat(array(b"box_coord", (10**6, 10**6), b"1234")), "the shape"),
    "negative dimensions": (mat(array(b"box_coord", (-1, -4), b"1234")), "the shape (-1, -4)"),
    "too many dimensions": (mat(array(b"box_coord", (1,) * 40, b"1")), "states 40 dimensions"),
    "cells": (
        mat(array(b"box_coord", (10**9, 1), b"", kind=1)),
        "must be an array of real numbers",
    ),
    "a structure": (mat(array(b"box_coord", (1, 4), b"1234", kind=2)), "is of class 2"),
    "numbers beyond their element": (
        mat(array(b"box_coord", (1, 4), b"1234", length=10**9)),
        "states more bytes of numbers than the 16 that follow",
    ),
    "complex numbers": (
        mat(array(b"box_coord", (1, 4), b"1234", kind=0x809)),
        "of real numbers, and is of class 9, complex",
    ),
    "a bomb": (
        mat(element(15, zlib.compress(struct.pack("<II", 14, 2**31)))),
        "states 2,147,483,648 bytes",
    ),
    "compressed nonsense": (mat(element(15, b"nonsense")), "cannot be read as a MATLAB file"),
    "a tag that is cut off": (mat(b"\x0e\0\0"), "ends inside the tag at byte 128"),
    "an unknown element": (mat(element(0, b"")), "is of type 0, and no array"),
    "a name of gigabytes": (
        mat(element(14, element(6, bytes(8)) + element(5, bytes(8)) + element(1, b"", 2**31))),
        "a part of 2,147,483,648 bytes is stated",
    ),
    "version 4": (struct.pack("<5i", 0, 1 << 30, 1 << 30, 0, 2) + b"X\0", "do not begin as those"),
    "nothing": (b"", "do not begin as those of version 5"),
}


@pytest.mark.parametrize("how", MAT)
def test_a_matlab_file_that_claims_what_it_has_not_is_refused(tmp_path: Path, how: str) -> None:
    content, what = MAT[how]
    file = tmp_path / "annotation.mat"
    file.write_bytes(content)
    with refused(airplanes.AirplaneError, str(file), what):
        airplanes.read_box(file)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_matlab_file_as_scipy_writes_it_is_read(tmp_path: Path, compressed: bool) -> None:
    file = tmp_path / "some.mat"
    fields = {"a": np.array([[1.5, 2.5]]), "text": "left alone", "b": np.arange(6).reshape(2, 3)}
    scipy.io.savemat(file, fields, do_compression=compressed)
    a, b = matlab.fields(file, ["a", "b"], ValueError)
    assert a.tolist() == [[1.5, 2.5]]
    assert b.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.slow
def test_a_bomb_of_zeros_in_a_matlab_file_is_bounded_by_what_it_states(tmp_path: Path) -> None:
    inner = array(b"labels", (1, 4), b"1234")
    file = tmp_path / flowers102.LABELS
    file.write_bytes(mat(element(15, zlib.compress(inner + bytes(64 << 20)))))
    # scipy unpacks blocks of 128 kB, whatever comes of them.
    with refused(images.ImageError, f"{file} cannot be read as a MATLAB file", most=200 << 20):
        flowers102._labels(tmp_path)


# HDF5 files


def h5(file: Path, fill: Callable[[Any], object]) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(file, "w") as opened:
        fill(opened)
    return file


def never_written(shape: tuple[int, ...], **options: Any) -> Callable[[Any], object]:
    return lambda file: file.create_dataset("x", shape, np.uint8, chunks=(1, 96, 96, 3), **options)


def in_another_file(file: Any) -> None:
    import h5py

    file["x"] = h5py.ExternalLink("/etc/passwd", "/x")


def as_raw_bytes_of_another(file: Any) -> None:
    file.create_dataset("x", (1, 96, 96, 3), np.uint8, external=[("/etc/passwd", 0, 27648)])


def from_a_virtual_set(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((1, 96, 96, 3), np.uint8)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (1, 96, 96, 3))
    file.create_virtual_dataset("x", layout)


H5: dict[str, tuple[Callable[[Any], object], str]] = {
    "patches that were never written": (never_written((HUGE, 96, 96, 3)), "0 are stored"),
    "compressed ones": (never_written((HUGE, 96, 96, 3), compression="gzip"), "0 are stored"),
    "a link into another file": (in_another_file, ""),
    "bytes of another file": (as_raw_bytes_of_another, "is in another"),
    "a view of another file": (from_a_virtual_set, "is in another"),
    "a group": (lambda file: file.create_group("x"), "must be an array, and is a group"),
    "one number": (lambda file: file.create_dataset("x", data=3), "x must be uint8"),
    "no shape": (lambda file: file.create_dataset("x", dtype="u1"), "x has no shape"),
}


@pytest.mark.parametrize("how", H5)
def test_an_hdf5_file_that_claims_what_it_has_not_is_refused(tmp_path: Path, how: str) -> None:
    fill, what = H5[how]
    file = h5(tmp_path / "x.h5", fill)
    with refused(images.ImageError, str(file), what):
        camelyon.Patches(file)


def test_labels_that_were_never_written_are_refused(tmp_path: Path) -> None:
    file = h5(
        tmp_path / "y.h5",
        lambda opened: opened.create_dataset("y", (HUGE, 1, 1, 1), "u1", chunks=(1024, 1, 1, 1)),
    )
    with refused(images.ImageError, f"{file}: y states the shape", "1,000,000,000,000 bytes"):
        camelyon.labels(file)


# Pictures


def png(width: int, height: int, content: bytes = b"", depth: int = 8, kind: int = 2) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content)


def jpeg(width: int, height: int) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (8, 8)).save(made, "JPEG")
    content = bytearray(made.getvalue())
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def as_format(kind: str) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (8, 8)).save(made, kind)
    return made.getvalue()


PICTURES: dict[str, tuple[bytes, str]] = {
    "a PNG of a terabyte": (png(10**6, 10**6), ""),
    "a PNG of the largest sides": (png(2**31 - 1, 2**31 - 1), ""),
    "a PNG of 12,000 × 12,000": (png(12_000, 12_000), "states 12,000 × 12,000 pixels"),
    "a PNG of 3,000 × 3,000 in 100 bytes": (png(3_000, 3_000), "states 3,000 × 3,000 pixels"),
    "a PNG of nothing": (png(0, 5), ""),
    "a JPEG of 65,000 × 65,000": (jpeg(65_000, 65_000), ""),
    "a JPEG of 9,000 × 9,000": (jpeg(9_000, 9_000), "states 9,000 × 9,000 pixels"),
    "a picture of another kind": (as_format("BMP"), "is not a JPEG or PNG image"),
    "a program that draws": (as_format("EPS"), "is not a JPEG or PNG image"),
    "a PNG of noise": (png(4, 4, b"noise"), "cannot be decoded"),
}


@pytest.mark.parametrize("how", PICTURES)
def test_a_picture_that_claims_more_than_it_holds_is_refused(tmp_path: Path, how: str) -> None:
    content, what = PICTURES[how]
    file = tmp_path / "image.jpg"
    file.write_bytes(content)
    with refused(image_files.ImageFileError, str(file), what):
        image_files.read(file, 4, 4)


def test_a_picture_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "image.jpg")
    with refused(image_files.ImageFileError, "must be a file"):
        image_files.original_size(tmp_path / "image.jpg")


# Lines

LINES: dict[str, tuple[bytes, str]] = {
    "a line without end": (b" " * (9 << 20), "line 1: is longer than 8,388,608 bytes"),
    "a long line behind a good one": (
        b'{"id": "neg/0_1", "label": 0, "text": ""}\n' + b"[" * (9 << 20),
        "line 2: is longer",
    ),
    "lists in lists": (b"[" * 100_000, "line 1: must be JSON, but is nested too deeply"),
    "lists in lists that end": (b"[" * 100_000 + b"]" * 100_000, "line 1: must be"),
    "objects in objects": (b'{"a":' * 100_000, "line 1: must be"),
    "a number of 100,000 digits": (b"1" * 100_000, "line 1: must be JSON"),
    "a label that is NaN": (b'{"id": "neg/0_1", "label": NaN, "text": ""}', "must be int, got nan"),
    "a label that is infinite": (b'{"id": "neg/0_1", "label": 1e999, "text": ""}', "got inf"),
    "a label of another class": (b'{"id": "neg/0_1", "label": 1, "text": ""}', "must be 0 for"),
    "a label that is true": (b'{"id": "pos/0_9", "label": true, "text": ""}', "must be int"),
    "an id of 5,000 digits": (
        json.dumps({"id": f"neg/{'1' * 5_000}_1", "label": 0, "text": ""}).encode(),
        "must be like neg/3577_2",
    ),
    "an id in other digits": (
        '{"id": "neg/٣_١", "label": 0, "text": ""}'.encode(),
        "must be like neg/3577_2",
    ),
    "a text that is a list": (
        json.dumps({"id": "neg/0_1", "label": 0, "text": ["a"] * 50_000}).encode(),
        "field text: must be str, got",
    ),
    "no text at all": (b"\0" * 100, "line 1: must be JSON"),
}


@pytest.mark.parametrize("how", LINES)
def test_a_line_that_is_no_review_is_refused(tmp_path: Path, how: str) -> None:
    content, what = LINES[how]
    file = tmp_path / reviews.file_name("train")
    file.write_bytes(gz(content))
    with refused(reviews.ReviewError, str(file), what):
        reviews.read(tmp_path)


def test_reviews_that_swell_beyond_all_reviews_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "LARGEST", 1_000)
    lines = [reviews.Review(f"neg/{number}_1", "dull " * 20) for number in range(20)]
    reviews.write(tmp_path / reviews.file_name("train"), lines)
    with refused(reviews.ReviewError, "line 7: is beyond 1,000 bytes"):
        reviews.read(tmp_path)


@pytest.mark.parametrize("what", ["long", "pipe"])
def test_a_review_as_published_that_has_no_end_is_refused(tmp_path: Path, what: str) -> None:
    file = tmp_path / reviews.OFFICIAL / "train" / "neg" / "0_1.txt"
    file.parent.mkdir(parents=True)
    if what == "pipe":
        os.mkfifo(file)
    else:
        with open(file, "wb") as made:
            made.truncate(1 << 40)  # it takes no room on the disk
    with refused(
        reviews.ReviewError, str(file), "must be a file" if what == "pipe" else "more than"
    ):
        reviews.read(tmp_path)


def test_tables_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    for name in ("labels.csv", "BBBP.csv", checksums.SUMS):
        with open(tmp_path / name, "wb") as made:
            made.truncate(1 << 40)
    with refused(images.ImageError, "labels.csv has 1,099,511,627,776 bytes"):
        photographs.deepweeds(tmp_path)
    with refused(bbbp.CsvError, "BBBP.csv has 1,099,511,627,776 bytes"):
        bbbp.read_rows(tmp_path / "BBBP.csv")
    with refused(ValueError, f"{checksums.SUMS} has 1,099,511,627,776 bytes"):
        checksums.read_sums()


CSV: dict[str, tuple[str, str]] = {
    "a field of a megabyte": ("smiles,p_np\n" + "C" * (1 << 20) + ",1\n", "field larger than"),
    "a quote that never ends": ('smiles,p_np\n"C,1\n' + "C,1\n" * 50_000, "field larger than"),
    "a header of a million columns": ("a," * 10**6, "no column 'smiles' among 'a, a"),
    "a label that is NaN": ("smiles,p_np\nC,nan\n", "must be 0 or 1, got 'nan'"),
    "a label of 10,000 digits": ("smiles,p_np\nC," + "1" * 10_000, "must be 0 or 1, got '111"),
    "a label in other digits": ("smiles,p_np\nC,١\n", "must be 0 or 1, got '١'"),
}


@pytest.mark.parametrize("how", CSV)
def test_a_table_of_molecules_that_is_none_is_refused(tmp_path: Path, how: str) -> None:
    text, what = CSV[how]
    file = tmp_path / "BBBP.csv"
    file.write_text(text, encoding="utf-8")
    with refused(bbbp.CsvError, str(file), what):
        bbbp.read_rows(file)


# Molecules. Unbounded, the first of these ends the process.

SMILES: dict[str, tuple[str, str]] = {
    "a chain": ("C" * 200_000, "has more than 2,000 letters"),
    "branches in branches": ("C(" * 500 + "C" + ")" * 500, "or more nested branches"),
    "branches that never end": ("C(" * 100_000, "has more than 2,000 letters"),
    "half a pair": ("C\udc80", "fails in RDKit"),
    "a zero byte": ("C\0C", "is not a SMILES"),
    "line breaks": ("\n\n", "is not a SMILES"),
    "nothing": ("", "is not a SMILES"),
    "rings that never close": ("C1" + "".join(f"C%{n}" for n in range(10, 99)), "is not a SMILES"),
    "an isotope of many digits": ("[" + "9" * 1_000 + "C]", "is not a SMILES"),
    "hydrogens without number": ("[CH" + "9" * 1_000 + "]", "is not a SMILES"),
    "charges": ("[C" + "+" * 1_000 + "]", "is not a SMILES"),
    "a reaction": ("C>>C", "is not a SMILES"),
}


@pytest.mark.parametrize("how", SMILES)
def test_a_smiles_that_is_none_is_refused(how: str) -> None:
    pytest.importorskip("rdkit")
    text, what = SMILES[how]
    with refused(smiles.NotAMolecule, what):
        smiles.read_smiles(text)


@pytest.mark.parametrize(
    "text", ["C" * 2_000, "C(" * 199 + "C" + ")" * 199, "C" + "(C)" * 600, "C." * 900 + "C"]
)
def test_the_largest_molecules_that_are_taken_are_read(text: str) -> None:
    pytest.importorskip("rdkit")
    assert len(smiles.read_smiles(text).molecule.atoms) == text.count("C")


def test_a_hostile_molecule_among_good_ones_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    file = tmp_path / "BBBP.csv"
    file.write_text(f"name,p_np,smiles\nethanol,1,CCO\nchain,0,{'C' * 50_000}\nmethane,0,C\n")
    found = bbbp.read(file)
    assert found.rows.tolist() == [0, 2]
    (note,) = found.notes
    assert "cannot read 1 of 3 SMILES, which are left out: chain (line 3)" in note


def test_whatever_rdkit_raises_is_a_molecule_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")

    def fail(*_: object) -> None:
        raise RuntimeError("Pre-condition Violation\n\tC++ says so")

    monkeypatch.setattr(smiles, "_graph", fail)
    with refused(smiles.NotAMolecule, "'CCO' fails in RDKit: Pre-condition Violation"):
        smiles.read_smiles("CCO")


# Archives


def tar(file: Path, *names: str, kind: bytes = tarfile.REGTYPE, mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as packed:  # type: ignore[call-overload]
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            packed.addfile(member)
    return file


def zipped(file: Path, *names: str) -> Path:
    with zipfile.ZipFile(file, "w") as packed:
        for name in names:
            packed.writestr(name, "")
    return file


NAMES: dict[str, tuple[str, str]] = {
    "4,000 letters": ("a" * 4_000, "which is too long for a name"),
    "300 letters": ("a" * 300, "which is too long for a name"),
    "90 letters of three bytes": ("€" * 90, "which is too long for a name"),
    "a thousand folders": ("a/" * 1_000 + "b", "which is too long for a name"),
    "a line break": ("a\nb", "which cannot be printed"),
    "an escape": ("\x1b[2Jb", "which cannot be printed"),
    "text from right to left": ("a\u202egpj.exe", "which cannot be printed"),
    "a way out": ("../b", "which leads outside"),
    "a way out in the middle": ("a/../../b", "which leads outside"),
    "a way from the root": ("/etc/b", "which leads outside"),
    "a drive": ("C:/b", "which leads outside"),
}


@pytest.mark.parametrize("packed", [tar, zipped])
@pytest.mark.parametrize("how", NAMES)
def test_a_name_that_does_harm_is_refused(
    tmp_path: Path, how: str, packed: Callable[..., Path]
) -> None:
    name, what = NAMES[how]
    archive = packed(tmp_path / "evil.gz", "good", name)
    with refused(data.ArchiveError, "evil.gz holds ", what):
        data.unpack(archive, tmp_path / "inside")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_a_member_that_is_no_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tar(tmp_path / "evil.gz", "a\n" * 2_000, kind=kind)
    with refused(data.ArchiveError, "which is neither a file nor a folder"):
        data.unpack(archive, tmp_path / "inside")


@pytest.mark.parametrize("packed", [tar, zipped])
def test_one_name_twice_is_refused(tmp_path: Path, packed: Callable[..., Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile says what it is given
        archive = packed(tmp_path / "evil.gz", "a", "a")
    with refused(data.ArchiveError, "evil.gz holds one name twice"):
        data.unpack(archive, tmp_path / "inside")


def test_a_small_archive_does_not_fill_the_disk(tmp_path: Path) -> None:
    """Zeros in bzip2 shrink far beyond what deflate can do."""
    archive = tmp_path / "bomb.tar.bz2"
    with tarfile.open(archive, "w:bz2") as packed:
        member = tarfile.TarInfo("zeros")
        member.size = 4 << 20
        packed.addfile(member, io.BytesIO(bytes(member.size)))
    with refused(data.ArchiveError, "bomb.tar.bz2 unpacks to more than"):
        data.unpack(archive, tmp_path / "inside")


def test_an_archive_of_countless_files_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 10)
    archive = tar(tmp_path / "many.tar.gz", *map(str, range(11)))
    with refused(data.ArchiveError, "many.tar.gz holds more than 10 files and folders"):
        data.unpack(archive, tmp_path / "inside")


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_a_tar_whose_headers_are_gigabytes_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("name")
    header.type, header.size = kind, 1 << 32
    file = tmp_path / "evil.tar"
    file.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with refused(data.ArchiveError, "4,294,967,296 bytes are stated before a member"):
        data.unpack(file, tmp_path / "inside")


def test_a_zip_that_states_another_size_than_it_has_is_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "evil.zip", "a")
    content = bytearray(file.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 20 : directory + 28] = struct.pack("<II", 2**31, 2**31)
    file.write_bytes(content)
    with refused(data.ArchiveError, "evil.zip cannot be unpacked"):
        data.unpack(file, tmp_path / "inside")


# What is kept, and checksums


def test_a_cache_of_words_that_lies_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path))
    form = text_encoding.EncodingOptions(size=5, length=3)
    known, numbers = text_encoding.encode_cached(["a film"], ["a film"], form)
    (kept,) = tmp_path.glob("words-*.npz")
    npz(kept, {"words": npy(), "numbers": npy((HUGE,))})
    again, same = text_encoding.encode_cached(["a film"], ["a film"], form)
    assert again == known
    assert torch.equal(same, numbers)


def test_a_pipe_among_listed_files_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    (tmp_path / "bbbp").mkdir()
    os.mkfifo(tmp_path / "bbbp" / bbbp.FILE)
    (tmp_path / checksums.SUMS).write_text(f"{'0' * 64}  bbbp/{bbbp.FILE}\n")
    problems = data.verify(data.find("bbbp"))
    assert any("is a device, a pipe or a folder" in problem.message for problem in problems)


@pytest.mark.parametrize("path", ["a\0b", "../a", "/a", "a/../b"])
def test_a_line_of_sums_that_leads_elsewhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    (tmp_path / checksums.SUMS).write_text(f"{'0' * 64}  {path}\n")
    with refused(ValueError, "line 1 of", "a path inside the folder"):
        checksums.read_sums()
