"""Fetching image datasets from their publishers."""

from __future__ import annotations

import gzip
import shutil
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from badm.bench.data.archives import ArchiveError, unpack
from badm.bench.data.dataset import FetchFailed, ProgressCallback
from badm.bench.data.download import Download

CIFAR10_BATCHES = "cifar-10-batches-bin"  # what the archive of CIFAR-10 unpacks to
CIFAR10 = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
FLOWERS = Download(
    "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
    228_813_984,
    "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
)
DEEPWEEDS = Download(
    # This address does not ask to confirm the download of a large file.
    "https://drive.usercontent.google.com/download"
    "?id=1xnK3B6K6KekDI55vwJ0vnc2IGoDga9cj&export=download&confirm=t",
    491_516_047,
    "0961f63c01b997bfab1559ad09e99c0e8130617fd96a8b92fdc09940e01b0ce8",
    file_name="images.zip",
)
DEEPWEEDS_LABELS = Download(
    "https://raw.githubusercontent.com/AlexOlsen/DeepWeeds/master/labels/labels.csv",
    598_898,
    "6fb95b89fd9d384f94e185a5cab6c5da7c987649399c90618ecc60acfb0112eb",
)
SVHN = (
    Download(
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        182_040_794,
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    Download(
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        64_275_384,
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)
CMATERDB = {
    f"{script}-{part}-images.npz": Download(
        "https://raw.githubusercontent.com/prabhuomkar/CMATERdb/master/datasets/"
        f"{script}-numerals/{part}-images.npz",
        size,
        sha256,
    )
    for script, part, size, sha256 in (
        (
            "bangla",
            "training",
            489_289,
            "502957392649eecad013ac425b54fecc6d06dbc06bc647a46b0cfc6b96e2c130",
        ),
        (
            "bangla",
            "testing",
            98_295,
            "d1c9780ba5decc135175a021bd29961cd7316db009f428d8c04b84ba36a6d67a",
        ),
        (
            "devanagari",
            "training",
            234_882,
            "e690d54f7c82e12e3c5ba99221672dc3fc7b6ad493e495077f7e26332558ae86",
        ),
        (
            "devanagari",
            "testing",
            47_017,
            "1636fa10484100486b96a3e938cee4c6adeddcfb1e91c9dbb5166fb9a260216d",
        ),
        (
            "telugu",
            "training",
            241_764,
            "32f9b5b135c8084f0cf646bc6a70358767653b1f8c6d19bd64ad5d5cbf1d9467",
        ),
        (
            "telugu",
            "testing",
            48_946,
            "182806a45091da53b4ad98d4425130c0ebbf9bc1bf50fb58b3e5ea65ee33c7c6",
        ),
    )
}
CAMELYON = tuple(
    Download(
        f"https://zenodo.org/record/2546921/files/camelyonpatch_level_2_split_{name}.h5.gz",
        size,
        sha256,
    )
    for name, size, sha256 in (
        (
            "train_x",
            6_421_353_462,
            "d619e741468a7ab35c7e4a75e6821b7e7e6c9411705d45708f2a0efc8960656c",
        ),
        ("train_y", 21_378, "b74126d2c01b20d3661f9b46765d29cf4e4fba6faba29c8e0d09d406331ab75a"),
        (
            "valid_x",
            805_965_320,
            "f82ee1670d027b4ec388048d9eabc2186b77c009655dae76d624c0ecb053ccb2",
        ),
        ("valid_y", 3_038, "ce1ae30f08feb468447971cfd0472e7becd0ad96d877c64120c72571439ae48c"),
        ("test_x", 800_875_929, "79174c2201ad521602a5888be8f36ee10875f37403dd3f2086caf2182ef87245"),
        ("test_y", 3_040, "0a522005fccc8bbd04c5a117bfaf81d8da2676f03a29d7499f71d0a0bd6068ef"),
    )
)

FLOWERS102, FLOWERS102_LABELS, FLOWERS102_SETS = (
    Download(f"https://www.robots.ox.ac.uk/~vgg/data/flowers/102/{name}", size, sha256)
    for name, size, sha256 in (
        (
            "102flowers.tgz",
            344_862_509,
            "2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
        ),
        (
            "imagelabels.mat",
            502,
            "4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
        ),
        (
            "setid.mat",
            14_989,
            "46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
        ),
    )
)


def fetch_cifar10(folder: Path, report: ProgressCallback | None) -> None:
    """Download the official binary files, in the folder that they unpack to."""
    _unpack(CIFAR10, CIFAR10_BATCHES, folder / CIFAR10_BATCHES, report)


def fetch_flowers(folder: Path, report: ProgressCallback | None) -> None:
    """Download the original photographs, one folder per class."""
    _unpack(FLOWERS, "flower_photos", folder, report)


def fetch_deepweeds(folder: Path, report: ProgressCallback | None) -> None:
    """Download all photographs, into the folder ``images``, and the list of their classes."""
    DEEPWEEDS_LABELS.get(folder / DEEPWEEDS_LABELS.name, report)
    _unpack(DEEPWEEDS, ".", folder / "images", report)


def fetch_svhn(folder: Path, report: ProgressCallback | None) -> None:
    """Download the official MATLAB files of cropped digits, without the extra ones."""
    for source in SVHN:
        source.get(folder / source.name, report)


def fetch_cmaterdb(folder: Path, report: ProgressCallback | None) -> None:
    """Download the files of all three scripts."""
    for name, source in CMATERDB.items():
        source.get(folder / name, report)


def fetch_camelyon(folder: Path, report: ProgressCallback | None) -> None:
    """Download the official HDF5 files and decompress them."""
    for source in CAMELYON:
        packed = folder / source.name
        source.get(packed, report)
        try:
            with gzip.open(packed) as content, open(packed.with_suffix(""), "wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FetchFailed(f"{source.url} cannot be decompressed: {error}") from error
        packed.unlink()


def fetch_flowers102(folder: Path, report: ProgressCallback | None) -> None:
    """Download the original photographs of all 102 classes, their labels and the official split."""
    for source in (FLOWERS102_LABELS, FLOWERS102_SETS):
        source.get(folder / source.name, report)
    _unpack(FLOWERS102, "jpg", folder / "jpg", report)


def _unpack(source: Download, inside: str, place: Path, report: ProgressCallback | None) -> None:
    """Download an archive and move what is in one of its folders into ``folder``."""
    with TemporaryDirectory(prefix=".archive-", dir=place.parent) as temporary:
        archive, unpacked = Path(temporary) / source.name, Path(temporary) / "unpacked"
        source.get(archive, report)
        try:
            unpack(archive, unpacked)
        except ArchiveError as error:
            raise FetchFailed(f"{source.url}: {error}") from error
        if not (unpacked / inside).is_dir():
            raise FetchFailed(f"{source.url} holds no folder {inside}")
        place.mkdir(exist_ok=True)
        for part in (unpacked / inside).iterdir():
            part.rename(place / part.name)
