"""Image files: decoded right, kept once decoded, and named when they are no good."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from badm.bench.data import image_files
from badm.bench.data.image_files import ImageFileError, MissingPillow
from badm.bench.files import cache_folder


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own."""
    folder = tmp_path / "kept"
    monkeypatch.setenv("BADM_CACHE", str(folder))
    return folder


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three photographs of noise, of different shapes."""
    rng = np.random.default_rng(0)
    made = []
    for number, (height, width) in enumerate([(40, 60), (50, 30), (24, 24)]):
        file = tmp_path / f"{number}.jpg"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(file)
        made.append(file)
    return made


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were decoded, in the course of the test."""
    seen: list[Path] = []
    read = image_files.read

    def watched(file: Path, height: int, width: int, *, crop: bool) -> image_files.Pixels:
        seen.append(file)
        return read(file, height, width, crop=crop)

    monkeypatch.setattr(image_files, "read", watched)
    return seen


def save(file: Path, pixels: Sequence[object], mode: str | None = None) -> Path:
    image = Image.fromarray(np.array(pixels, np.uint8))
    (image if mode is None else image.convert(mode)).save(file)
    return file


# One file


def test_pixels_are_where_they_are_in_the_file(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    file = save(tmp_path / "a.png", pixels)
    read = image_files.read(file, 2, 3)
    assert read.dtype == np.uint8
    assert np.array_equal(read, pixels)
    assert image_files.original_size(file) == (2, 3)
    read[0] = 0  # writable, and the caller's own
    assert np.array_equal(image_files.read(file, 2, 3), pixels)


def test_shrinking_takes_every_pixel_into_account(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::8] = 255  # an eighth is white
    small = image_files.read(save(tmp_path / "stripes.png", stripes), 8, 8)
    # Without antialiasing all columns would be black, or all white.
    assert small.mean() == pytest.approx(255 / 8, abs=2)
    assert (abs(small.astype(int) - 32) < 16).all()


def test_enlarging_interpolates(tmp_path: Path) -> None:
    file = save(tmp_path / "two.png", [[[0, 0, 0], [200, 200, 200]]])
    assert image_files.read(file, 1, 4)[0, :, 0].tolist() == [0, 50, 150, 200]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    file = save(
        tmp_path / ("white.jpg" if mode == "CMYK" else "white.png"), np.full((5, 4, 3), 255), mode
    )
    assert image_files.read(file, 5, 4).tolist() == np.full((5, 4, 3), 255).tolist()


def test_the_orientation_that_a_camera_noted_is_not_looked_at(tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert image_files.original_size(tmp_path / "turned.jpg") == (4, 6)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-300])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing"),
    "cut off": (cut, "cannot be decoded: .*truncated"),
    "a page": (
        lambda file: file.write_text("<html>not found</html>"),
        "is not a JPEG or PNG image",
    ),
    "empty": (lambda file: file.write_bytes(b""), "is not a JPEG or PNG image"),
    "a header alone": (lambda file: file.write_bytes(file.read_bytes()[:200]), "cannot be|no imag"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_is_no_good_is_named_in_one_sentence(files: list[Path], how: str) -> None:
    breaks, words = BROKEN[how]
    breaks(files[1])
    for action in (
        lambda: image_files.read(files[1], 8, 8),
        lambda: image_files.read_all(files, 8, 8),
    ):
        with pytest.raises(ImageFileError, match=words) as error:
            action()
        assert str(error.value).startswith(f"{files[1]} ")
        assert "\n" not in str(error.value)
        assert str(files[1]) not in str(error.value)[len(str(files[1])) :]


def test_a_file_that_is_no_image_has_no_size(files: list[Path]) -> None:
    files[0].write_text("no image")
    with pytest.raises(ImageFileError, match=r"0\.jpg is not a JPEG or PNG image"):
        image_files.original_size(files[0])


def test_an_image_that_would_fill_the_memory_is_refused(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageFileError, match=r"0\.jpg cannot be decoded: .*exceeds limit"):
        image_files.read(files[0], 8, 8)


@pytest.mark.parametrize("size", [(0, 3), (3, -1)])
def test_sizes_that_are_none_are_refused(files: list[Path], size: tuple[int, int]) -> None:
    for action in (
        lambda: image_files.read(files[0], *size),
        lambda: image_files.read_all(files, *size),
    ):
        with pytest.raises(ValueError, match=f"at least 1, got {size[0]} and {size[1]}"):
            action()


def test_without_pillow_the_message_says_how_to_get_it(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPillow, match=r'Pillow: pip install "badm\[bench\]"'):
        image_files.read(files[0], 8, 8)


# All files of a set


def test_all_are_what_each_is(files: list[Path]) -> None:
    together = image_files.read_all(files, 8, 10)
    assert (together.shape, together.dtype) == ((3, 8, 10, 3), np.uint8)
    for file, image in zip(files, together, strict=True):
        assert np.array_equal(image_files.read(file, 8, 10), image)
    assert np.array_equal(image_files.read_all(files[::-1], 8, 10), together[::-1])


def test_what_was_decoded_once_is_mapped_into_memory(
    files: list[Path], kept: Path, decoded: list[Path]
) -> None:
    first = image_files.read_all(files, 8, 8).copy()
    again = image_files.read_all(files, 8, 8)
    assert decoded == files
    assert np.array_equal(first, again)
    assert isinstance(again, np.memmap)
    (file,) = kept.iterdir()
    assert np.array_equal(np.load(file, allow_pickle=False), first)  # a plain .npy file


def test_what_is_written_to_the_array_stays_there(files: list[Path], kept: Path) -> None:
    first = image_files.read_all(files, 8, 8)
    before = first.copy()
    (file,) = kept.iterdir()
    content = file.read_bytes()
    torch.from_numpy(first).zero_()  # without a warning that it cannot be written to
    assert not first.any()
    assert file.read_bytes() == content
    assert np.array_equal(image_files.read_all(files, 8, 8), before)


def test_other_sizes_names_and_contents_are_other_images(
    files: list[Path], tmp_path: Path, decoded: list[Path]
) -> None:
    image_files.read_all(files, 8, 8)
    for again in (
        lambda: image_files.read_all(files, 8, 9),
        lambda: image_files.read_all(files, 9, 8),
        lambda: image_files.read_all(files[:2], 8, 8),
        lambda: image_files.read_all(files[::-1], 8, 8),
        lambda: image_files.read_all(
            [file.rename(tmp_path / f"x{file.name}") for file in files], 8, 8
        ),
    ):
        decoded.clear()
        again()
        assert decoded


def test_every_size_has_a_place_of_its_own(files: list[Path], decoded: list[Path]) -> None:
    for size in ((8, 9), (9, 8)):
        image_files.read_all(files, *size)
    decoded.clear()
    assert image_files.read_all(files, 8, 9).shape == (3, 8, 9, 3)
    assert not decoded


def test_a_file_that_changed_is_decoded_again(files: list[Path], decoded: list[Path]) -> None:
    before = image_files.read_all(files, 8, 8).copy()
    stat = files[0].stat()
    content = bytearray(files[0].read_bytes())
    content[-400:-300] = bytes(100)
    files[0].write_bytes(content)  # of the same length
    os.utime(files[0], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    decoded.clear()
    after = image_files.read_all(files, 8, 8)
    assert decoded == files
    assert not np.array_equal(before[0], after[0])


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def reshape(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b"(3, 8, 8, 3)", b"(3, 8, 3, 8)"))


@pytest.mark.parametrize(
    "damage",
    [shorten, flip_a_bit, reshape, lambda file: file.write_bytes(b""), lambda f: f.write_text("x")],
)
def test_a_damaged_cache_is_made_anew(
    files: list[Path], kept: Path, decoded: list[Path], damage: Callable[[Path], object]
) -> None:
    before = image_files.read_all(files, 8, 8).copy()
    (file,) = kept.iterdir()
    damage(file)
    decoded.clear()
    assert np.array_equal(image_files.read_all(files, 8, 8), before)
    assert decoded == files
    decoded.clear()
    assert np.array_equal(image_files.read_all(files, 8, 8), before)
    assert not decoded


def test_a_cache_that_cannot_be_written_is_done_without(
    files: list[Path], kept: Path, decoded: list[Path]
) -> None:
    kept.write_text("a file, where a folder should be")
    for _ in range(2):
        decoded.clear()
        assert image_files.read_all(files, 8, 8).shape == (3, 8, 8, 3)
        assert decoded == files


def test_a_bad_file_leaves_nothing_in_the_cache(files: list[Path], kept: Path) -> None:
    cut(files[2])
    with pytest.raises(ImageFileError, match=r"2\.jpg cannot be decoded"):
        image_files.read_all(files, 8, 8)
    assert not kept.exists()


def test_a_process_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    files: list[Path], kept: Path, decoded: list[Path]
) -> None:
    image_files.read_all(files, 8, 8)
    (file,) = kept.iterdir()
    # As it is while another process writes: a part under another name.
    file.rename(kept / f"{file.name}.part12345")
    decoded.clear()
    image_files.read_all(files, 8, 8)
    assert decoded == files
    assert file.exists()


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_CACHE", "~/scratch")
    assert cache_folder() == Path.home() / "scratch"
    monkeypatch.delenv("BADM_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "badm" / "decoded"


@pytest.mark.data
def test_a_real_photograph_is_decoded(badm_data: Path) -> None:
    file = min((badm_data / "deepweeds" / "images").glob("*.jpg"))
    height, width = image_files.original_size(file)
    whole = image_files.read(file, height, width)
    assert whole.shape == (height, width, 3)
    small = image_files.read(file, height // 4, width // 4)
    squares = whole.reshape(height // 4, 4, width // 4, 4, 3).mean((1, 3))
    assert abs(small - squares).mean() < 8
