"""Datasets: found, read and verified, and never trusted more than they deserve."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from badm.bench import data
from badm.bench.data import checksums, hub, idx
from badm.bench.data.dataset import FetchFailed, Files, MissingData
from badm.bench.data.handlers import CHECK, FETCH
from badm.bench.tasks import by_dataset

MNIST = data.find("mnist")
SMALL = (idx.Facts(train=(3, 3, 3, 3, 2, 2, 2, 2, 2, 2), test=(1,) * 10),)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def small(root: Path, monkeypatch: pytest.MonkeyPatch) -> data.Dataset:
    """MNIST as if it had 24 + 10 images, and in its place."""
    put_small(root / "mnist")
    monkeypatch.setitem(CHECK, "mnist", partial(idx.check, SMALL))
    return MNIST


def put_small(folder: Path) -> None:
    folder.mkdir(parents=True)
    for images_file, labels_file, count in ((*idx.FILES[:2], 24), (*idx.FILES[2:], 10)):
        images, labels = idx.synthetic_images(count, seed=count)
        idx.write(folder / images_file, images)
        idx.write(folder / labels_file, labels)


def put_sums(root: Path, dataset: data.Dataset) -> None:
    lines = [f"{checksums.sha256(root / path)}  {path}\n" for path in dataset.found(root)]
    (root / "SHA256SUMS").write_text("".join(lines))


def kinds(problems: list[data.FileProblem]) -> dict[str, str]:
    return {problem.path: problem.kind for problem in problems}


# The folder and the catalogue


def test_root_is_the_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADM_DATA", "~/sets")
    assert data.root() == Path.home() / "sets"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("BADM_DATA")
        else:
            monkeypatch.setenv("BADM_DATA", unset)
        assert data.root() == Path.home() / ".cache" / "badm"


def test_no_other_file_of_the_package_reads_the_variable() -> None:
    package = Path(data.__file__).parents[2]
    readers = [
        path.name
        for path in package.rglob("*.py")
        if "BADM_DATA" in path.read_text(encoding="utf-8") and "environ" in path.read_text("utf-8")
    ]
    assert readers == ["folder.py"]


def test_names_and_layouts_of_the_catalogue() -> None:
    names = [dataset.name for dataset in data.DATASETS]
    assert len(set(names)) == len(names) == 19
    for dataset in data.DATASETS:
        assert data.find(dataset.name) is dataset
        assert by_dataset()[dataset.name]
        assert {files.pattern.split("/")[0] for files in dataset.files} <= {dataset.folder}
        assert dataset.folder is None or dataset.folder in dataset.layout


def test_every_dataset_with_files_can_be_fetched_and_checked() -> None:
    with_files = [dataset.name for dataset in data.DATASETS if dataset.files]
    assert sorted(FETCH) == sorted(CHECK) == sorted(with_files)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("minst", "mnist"), ("Fashion_MNIST", "fashion-mnist"), ("cifar-10", "cifar10")],
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"'{typed}'; did you mean {meant}"):
        data.find(typed)


def test_a_name_near_nothing_is_answered_with_all() -> None:
    with pytest.raises(ValueError, match=r"there are cora, citeseer,.* digits"):
        data.find("zzzz")


def test_missing_data_name_folder_variable_and_command(root: Path) -> None:
    with pytest.raises(MissingData) as missing:
        data.path("mnist")
    for part in (str(root / "mnist"), "BADM_DATA", "badm data fetch mnist"):
        assert part in str(missing.value)


def test_path_is_the_folder_once_every_file_is_there(small: data.Dataset, root: Path) -> None:
    assert data.path("mnist") == root / "mnist"
    assert data.status(MNIST) == "present"
    (root / "mnist" / idx.FILES[3]).unlink()
    assert data.status(MNIST) == "partly"
    with pytest.raises(MissingData, match="t10k-labels"):
        data.path(MNIST)
    shutil.rmtree(root / "mnist")
    assert data.status(MNIST) == "missing"


def test_a_set_of_many_files_is_partly_there_until_it_has_as_many_as_known(root: Path) -> None:
    many = replace(MNIST, files=(Files("many/*.jpg", 3),))
    (root / "many").mkdir()
    assert data.status(many) == "missing"
    for i, expected in enumerate(("partly", "partly", "present")):
        (root / "many" / f"{i}.jpg").touch()
        assert data.status(many) == expected
    (root / "many" / "0.jpg").unlink()
    with pytest.raises(MissingData, match=r"many/\*\.jpg is missing \(2 of 3\)"):
        data.path(many)


# Verification


def test_sums_name_every_missing_corrupt_and_extra_file(small: data.Dataset, root: Path) -> None:
    put_sums(root, small)
    assert data.verified_against(small) == "SHA256SUMS"
    assert data.verify(small) == []
    images = root / "mnist" / idx.FILES[0]
    images.write_bytes(images.read_bytes()[:-1] + b"!")
    (root / "mnist" / idx.FILES[1]).unlink()
    lines = (root / "SHA256SUMS").read_text().splitlines(keepends=True)
    (root / "SHA256SUMS").write_text("".join(x for x in lines if idx.FILES[2] not in x))
    assert kinds(data.verify(small)) == {
        f"mnist/{idx.FILES[0]}": "corrupt",
        f"mnist/{idx.FILES[1]}": "missing",
        f"mnist/{idx.FILES[2]}": "extra",
    }


def test_sums_that_leave_out_a_missing_file_do_not_hide_it(small: data.Dataset, root: Path) -> None:
    (root / "mnist" / idx.FILES[0]).unlink()
    put_sums(root, small)
    assert kinds(data.verify(small)) == {f"mnist/{idx.FILES[0]}": "missing"}


def test_verify_reports_bytes_up_to_the_whole(small: data.Dataset, root: Path) -> None:
    put_sums(root, small)
    told: list[tuple[int, int]] = []
    data.verify(small, lambda what, done, total: told.append((done, total)))
    size = sum(path.stat().st_size for path in (root / "mnist").iterdir())
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("line", ["abc  mnist/x", f"{'0' * 64}  ../x", f"{'0' * 64}  /etc/passwd"])
def test_a_bad_line_of_sums_is_named(root: Path, line: str) -> None:
    (root / "SHA256SUMS").write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"line 2 of .*SHA256SUMS must be"):
        data.verify(MNIST)


def test_without_sums_known_checksums_count(root: Path) -> None:
    numerals = data.find("cmaterdb")
    assert data.verified_against(numerals) == "recorded checksums"
    assert set(kinds(data.verify(numerals)).values()) == {"missing"}
    (root / "cmaterdb").mkdir()
    (root / "cmaterdb" / "telugu-testing-images.npz").write_bytes(b"no images")
    assert kinds(data.verify(numerals))["cmaterdb/telugu-testing-images.npz"] == "corrupt"


def test_without_sums_idx_files_are_compared_with_known_facts(
    small: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.verified_against(small) == "recorded facts"
    assert data.verify(small) == []
    monkeypatch.setitem(CHECK, "mnist", partial(idx.check, idx.MNIST))
    (problem,) = data.verify(small)
    assert "24 + 10 images are not the 60,000 + 10,000 or 20,000 + 5,000 known" in str(problem)


def test_known_checksums_are_those_before_compression(small: data.Dataset, root: Path) -> None:
    labels = idx.read(root / "mnist" / idx.FILES[1], idx.LABELS)
    known = hashlib.sha256(idx.contents(labels)).hexdigest()
    right = replace(SMALL[0], sha256={idx.FILES[1]: known})
    assert idx.check((right,), root / "mnist") == []
    wrong = replace(SMALL[0], sha256={idx.FILES[1]: known, idx.FILES[0]: known})
    assert kinds(idx.check((wrong,), root / "mnist")) == {f"mnist/{idx.FILES[0]}": "corrupt"}


# idx files


def gz(content: bytes) -> bytes:
    return gzip.compress(content)


HEADER = struct.pack(">4I", idx.IMAGES, 2, 28, 28)
IMAGE = bytes(range(256)) * 3 + bytes(16)


def test_idx_gives_the_bytes_in_their_places(tmp_path: Path) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(gz(HEADER + IMAGE + IMAGE[::-1]))
    images = idx.read(file, idx.IMAGES)
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (2, 28, 28))
    assert bytes(images[0].flatten().tolist()) == IMAGE
    assert images[1].flatten().tolist() == images[0].flatten().flip(0).tolist()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gz(struct.pack(">4I", 2049, 2, 28, 28) + IMAGE * 2), "magic number 2051, got 2049"),
        (gz(HEADER[:9]), "ends inside its header: 9 bytes"),
        (gz(HEADER + IMAGE), "2×28×28 = 1568 bytes and holds only 784"),
        (gz(HEADER + IMAGE * 3), "2×28×28 = 1568 bytes and holds more"),
        (gz(struct.pack(">4I", 2051, 2**32 - 1, 2**16, 28)), "which a file of"),
        (gz(struct.pack(">4I", 2051, 0, 28, 28)), "is empty"),
        (gz(HEADER + os.urandom(1568))[:-300], "is truncated"),
        (b"<html>not found</html>", "is not a valid gzip file"),
        (gz(HEADER + IMAGE * 2)[:-8] + bytes(8), "is not a valid gzip file"),
        (None, "is missing"),
    ],
)
def test_what_is_wrong_with_an_idx_file_is_said_with_its_name(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "images.gz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(idx.IdxError) as error:
        idx.read(file, idx.IMAGES)
    assert str(error.value).startswith(str(file))
    assert words in str(error.value)


def test_load_refuses_files_that_do_not_fit_together(tmp_path: Path) -> None:
    put_small(tmp_path / "mnist")
    assert [len(part) for part in idx.load(tmp_path / "mnist")] == [24, 24, 10, 10]
    idx.write(tmp_path / "mnist" / idx.FILES[3], torch.zeros(9, dtype=torch.uint8))
    with pytest.raises(idx.IdxError, match=r"t10k-labels.* has 9 labels for 10 images"):
        idx.load(tmp_path / "mnist")
    idx.write(tmp_path / "mnist" / idx.FILES[0], torch.zeros(24, 8, 8, dtype=torch.uint8))
    with pytest.raises(idx.IdxError, match=r"train-images.* 28×28 pixels, got 8×8"):
        idx.load(tmp_path / "mnist")


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    images, _ = idx.synthetic_images(20)
    for name in ("a.gz", "b.gz"):
        idx.write(tmp_path / name, images)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    with pytest.raises(ValueError, match=r"torch\.uint8, got torch\.int64"):
        idx.write(tmp_path / "c.gz", torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_images_can_be_learnt_and_carry_over_to_another_seed(seed: int) -> None:
    x, y = idx.synthetic_images(600, seed=seed)
    torch.manual_seed(0)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        logits = model(x.flatten(1) / 255)
        nn.functional.cross_entropy(logits, y.long()).backward()
        optimizer.step()
    test, labels = idx.synthetic_images(500, seed=seed + 10)
    accuracy = (model(test.flatten(1) / 255).argmax(1) == labels).float().mean().item()
    assert accuracy > 0.9
    assert torch.bincount(labels.long()).tolist() == [50] * 10


def test_synthetic_images_repeat_and_refuse_nonsense() -> None:
    for part in (0, 1):
        once, again = (idx.synthetic_images(9, 3, 7)[part] for _ in range(2))
        assert torch.equal(once, again)
    assert not torch.equal(idx.synthetic_images(9, 3, 7)[0], idx.synthetic_images(9, 3, 8)[0])
    with pytest.raises(ValueError, match=r"count must be .* at least 1, got 0"):
        idx.synthetic_images(0)
    with pytest.raises(ValueError, match="classes must be from 1 to 256, got 300"):
        idx.synthetic_images(5, 300)


# Archives


def make_tar(path: Path, *members: tarfile.TarInfo, mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = 3 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_good_tar_is_unpacked(tmp_path: Path, mode: str) -> None:
    archive = tmp_path / "good.tar"
    members = (member("a", tarfile.DIRTYPE), member("a/b.txt"), member("c/d.txt"))
    make_tar(archive, *members, mode=mode)
    data.unpack(archive, tmp_path / "sets" / "good")
    assert (tmp_path / "sets" / "good" / "a" / "b.txt").read_text() == "xxx"
    assert (tmp_path / "sets" / "good" / "c" / "d.txt").read_text() == "xxx"
    assert [path.name for path in (tmp_path / "sets").iterdir()] == ["good"]


def test_a_good_zip_is_unpacked_into_an_empty_folder_only(tmp_path: Path) -> None:
    archive = tmp_path / "good.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a/", "")
        packed.writestr("a/b.txt", "text")
    (tmp_path / "good").mkdir()
    data.unpack(archive, tmp_path / "good")
    assert (tmp_path / "good" / "a" / "b.txt").read_text() == "text"
    with pytest.raises(FileExistsError, match="must be new or empty"):
        data.unpack(archive, tmp_path / "good")


def nothing_came_of(tmp_path: Path, archive: Path) -> bool:
    """No file but the archive, inside the folder or outside."""
    return [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


HOSTILE_TARS: dict[str, tuple[tarfile.TarInfo, ...]] = {
    "absolute": (member("/tmp/badm-evil"),),
    "parent": (member("good"), member("../evil")),
    "parent in the middle": (member("a/../../evil"),),
    "windows": (member("..\\evil"),),
    "drive": (member("C:evil"),),
    "symbolic link": (member("link", tarfile.SYMTYPE, "/etc"), member("link/evil")),
    "hard link": (member("link", tarfile.LNKTYPE, "/etc/passwd"),),
    "inner link": (member("a"), member("link", tarfile.SYMTYPE, "a")),
    "device": (member("null", tarfile.CHRTYPE),),
    "pipe": (member("pipe", tarfile.FIFOTYPE),),
    "twice": (member("a"), member("a")),
    "file as folder": (member("a"), member("a/b")),
}


@pytest.mark.parametrize("harm", HOSTILE_TARS)
def test_a_hostile_tar_is_refused_and_nothing_is_unpacked(tmp_path: Path, harm: str) -> None:
    archive = tmp_path / "evil.tar.gz"
    make_tar(archive, *HOSTILE_TARS[harm])
    with pytest.raises(data.ArchiveError, match=r"evil\.tar\.gz holds"):
        data.unpack(archive, tmp_path / "deep" / "inside")
    assert nothing_came_of(tmp_path, archive)


@pytest.mark.parametrize("name", ["../evil", "/tmp/badm-evil", "a/../../evil", "..\\evil", "link"])
def test_a_hostile_zip_is_refused_and_nothing_is_unpacked(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "evil.zip"
    info = zipfile.ZipInfo(name)
    if name == "link":
        info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("first.txt", "good")
        packed.writestr(info, "/etc")
    with pytest.raises(data.ArchiveError, match=r"evil\.zip holds"):
        data.unpack(archive, tmp_path / "deep" / "inside")
    assert nothing_came_of(tmp_path, archive)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_swells_is_stopped(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"bomb.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("zeros", bytes(5_000_000))
    else:
        large = member("zeros")
        large.size = 5_000_000
        make_tar(archive, large)
    with pytest.raises(data.ArchiveError, match="more than 4,000,000 bytes"):
        data.unpack(archive, tmp_path / "inside", largest=4_000_000)
    assert nothing_came_of(tmp_path, archive)


@pytest.mark.parametrize("cut", [0, 40, 2000])
def test_a_broken_archive_is_named(tmp_path: Path, cut: int) -> None:
    archive = tmp_path / "broken.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("noise")
        info.size = 5000
        tar.addfile(info, io.BytesIO(os.urandom(5000)))
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(data.ArchiveError, match=r"broken\.tar\.gz cannot be unpacked"):
        data.unpack(archive, tmp_path / "inside")
    assert nothing_came_of(tmp_path, archive)


# Fetching, with a Hub that is made up


def fake_rows(count: int) -> list[dict[str, object]]:
    images, labels = idx.synthetic_images(count, seed=count)
    return [
        {"image": Image.fromarray(images[i].numpy()), "label": int(labels[i])} for i in range(count)
    ]


Install = Callable[..., SimpleNamespace]


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts modules in the place of the Hub's libraries; what was asked of them is in ``asked``."""

    def install(rows: object = None, error: Exception | None = None) -> SimpleNamespace:
        asked = SimpleNamespace(loaded=[], timeout=None, silent=False)

        def dataset_info(self: object, repository: str, timeout: float) -> SimpleNamespace:
            asked.timeout = timeout
            if error:
                raise error
            return SimpleNamespace(sha="c0ffee")

        def load_dataset(repository: str, revision: str, cache_dir: str) -> object:
            Path(cache_dir, "leftover").write_text("of the library")
            asked.loaded.append((repository, revision))
            return rows

        utils = SimpleNamespace(
            are_progress_bars_disabled=lambda: asked.silent,
            disable_progress_bars=lambda: setattr(asked, "silent", True),
            enable_progress_bars=lambda: setattr(asked, "silent", False),
        )
        for name in ("datasets", "huggingface_hub"):
            module = ModuleType(name)
            module.__dict__.update(
                utils=utils,
                load_dataset=load_dataset,
                HfApi=type("A", (), {"dataset_info": dataset_info}),
            )
            monkeypatch.setitem(sys.modules, name, module)
        return asked

    return install


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> data.Dataset:
    monkeypatch.setitem(CHECK, "mnist", partial(idx.check, SMALL))
    return MNIST


def test_fetch_writes_sound_files_and_their_checksums_and_nothing_else(
    root: Path, fake_hub: Install, wanted: data.Dataset
) -> None:
    asked = fake_hub({"train": fake_rows(24), "test": fake_rows(10)})
    told: list[tuple[str, int, int]] = []
    assert data.fetch(wanted, lambda *report: told.append(report)) == "fetched"
    assert asked.loaded == [("ylecun/mnist", "c0ffee")]
    assert sorted(path.name for path in root.iterdir()) == ["SHA256SUMS", "mnist"]
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted(idx.FILES)
    train, labels = idx.synthetic_images(24, seed=24)
    read = idx.load(data.path(wanted))
    assert torch.equal(read.train, train)
    assert torch.equal(read.train_labels, labels)
    assert told == [("train images", 24, 24), ("test images", 10, 10)]
    assert data.verified_against(wanted) == "SHA256SUMS"
    assert data.verify(wanted) == []
    assert data.fetch(wanted) == "there"
    assert len(asked.loaded) == 1


def test_fetch_keeps_the_checksums_of_other_sets(
    root: Path, fake_hub: Install, wanted: data.Dataset
) -> None:
    stale, other = f"{'0' * 64}  mnist/{idx.FILES[0]}", f"{'1' * 64}  graphs/cora.npz"
    (root / "SHA256SUMS").write_text(f"{stale}\n{other}\n")
    fake_hub({"train": fake_rows(24), "test": fake_rows(10)})
    data.fetch(wanted)
    assert data.verify(wanted) == []
    lines = (root / "SHA256SUMS").read_text().splitlines()
    assert other in lines
    assert stale not in lines
    assert len(lines) == 5


def test_fetch_replaces_what_is_corrupt_and_leaves_what_is_sound(
    small: data.Dataset, root: Path, fake_hub: Install
) -> None:
    fake_hub({"train": fake_rows(24), "test": fake_rows(10)})
    sound, corrupt = root / "mnist" / idx.FILES[0], root / "mnist" / idx.FILES[1]
    recompressed = gzip.compress(gzip.decompress(sound.read_bytes()), 1)
    sound.write_bytes(recompressed)
    corrupt.write_bytes(b"rubbish")
    assert data.fetch(small) == "fetched"
    assert data.verify(small) == []
    assert sound.read_bytes() == recompressed


def test_fetch_does_not_mix_a_subset_with_the_whole(
    small: data.Dataset, root: Path, fake_hub: Install
) -> None:
    fake_hub({"train": fake_rows(24), "test": fake_rows(10)})
    other = root / "mnist" / idx.FILES[0]
    idx.write(other, torch.zeros(24, 28, 28, dtype=torch.uint8))
    (root / "mnist" / idx.FILES[1]).unlink()
    before = other.read_bytes()
    with pytest.raises(FetchFailed, match=r"train-images.* differs from the downloaded file"):
        data.fetch(small)
    assert other.read_bytes() == before
    assert [path.name for path in root.iterdir()] == ["mnist"]
    assert len(list((root / "mnist").iterdir())) == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"train": fake_rows(24), "test": fake_rows(9)}, "24 \\+ 9 images are not"),
        ({"train": fake_rows(24)}, "KeyError: 'test'"),
        ({"train": [{"picture": 1}], "test": []}, "KeyError: 'image'"),
        (
            {"train": [{"image": Image.new("RGB", (28, 28)), "label": 1}]},
            "image 1 of train is RGB",
        ),
        ({"train": [{**fake_rows(1)[0], "label": -1}]}, "range"),
    ],
)
def test_what_comes_wrong_from_the_hub_is_not_kept(
    root: Path, fake_hub: Install, wanted: data.Dataset, rows: object, words: str
) -> None:
    fake_hub(rows)
    with pytest.raises(FetchFailed, match=words):
        data.fetch(wanted)
    assert list(root.iterdir()) == []


def test_a_hub_out_of_reach_is_asked_once_with_a_time_limit(
    root: Path, fake_hub: Install, wanted: data.Dataset
) -> None:
    asked = fake_hub(error=ConnectionError("Name or service not known"))
    with pytest.raises(FetchFailed, match=r"ylecun/mnist .*ConnectionError: Name or service"):
        data.fetch(wanted)
    assert asked.timeout == hub.SECONDS <= 10
    assert asked.loaded == []
    assert asked.silent is False
    assert list(root.iterdir()) == []


def test_the_bars_of_the_libraries_are_off_without_a_report(
    root: Path, fake_hub: Install, wanted: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_hub({"train": fake_rows(24), "test": fake_rows(10)})
    seen = []
    write = idx.write
    monkeypatch.setattr(idx, "write", lambda *a: (seen.append(asked.silent), write(*a)))
    data.fetch(wanted)
    assert seen == [True] * 4
    assert asked.silent is False


def test_a_missing_library_names_the_command_that_brings_it(
    root: Path, wanted: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(data.MissingLibrary, match=r'datasets: pip install "badm\[data\]"'):
        data.fetch(wanted)
    assert list(root.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: data.Dataset
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "file"))
    with pytest.raises(FetchFailed, match=f"could not be written to {tmp_path / 'file'}"):
        data.fetch(wanted)


# Real data


@pytest.fixture
def real(badm_data: Path) -> Path:
    if not (badm_data / "SHA256SUMS").exists():
        pytest.skip("needs the SHA256SUMS of the compact data")
    return badm_data


@pytest.mark.data
def test_every_real_set_is_there_and_sound(real: Path) -> None:
    for dataset in data.DATASETS:
        if dataset.name != "camelyon" and dataset.files:
            assert data.status(dataset) == "present", dataset.name
            assert data.verify(dataset) == [], dataset.name


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_images_agree_with_the_facts(
    real: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = data.find(name)
    images = idx.load(data.path(dataset))
    assert [len(part) for part in images] == [20_000, 20_000, 5_000, 5_000]
    assert images.train.float().mean().item() == pytest.approx(
        {"mnist": 33.4, "fashion-mnist": 72.9}[name], abs=0.5
    )
    shutil.copytree(real / str(dataset.folder), tmp_path / str(dataset.folder))
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    assert data.verified_against(dataset) == "recorded facts"
    assert data.verify(dataset) == []


@pytest.mark.data
@pytest.mark.parametrize(
    "name", [d.name for d in data.DATASETS if d.files and d.name != "camelyon"]
)
def test_one_changed_byte_of_a_real_set_is_found(
    real: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = data.find(name)
    for path in dataset.found(real):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(real / path, tmp_path / path)
    shutil.copyfile(real / "SHA256SUMS", tmp_path / "SHA256SUMS")
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    victim = dataset.found(tmp_path)[-1]
    content = bytearray((tmp_path / victim).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / victim).write_bytes(content)
    assert kinds(data.verify(dataset)) == {victim: "corrupt"}
