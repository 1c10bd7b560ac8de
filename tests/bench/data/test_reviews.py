"""IMDB reviews: both layouts read alike, every flaw named, splits as in the public example."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from badm.bench import data
from badm.bench.data import reviews
from badm.bench.data.dataset import FetchFailed
from badm.bench.data.download import Download
from badm.bench.data.reviews import Review, ReviewError, Reviews, read, synthetic_reviews, write
from badm.bench.tasks import review_splits
from badm.bench.tasks.review_splits import split_reviews

SOME = {
    "train": (
        Review("neg/0_3", "Dull.<br /><br />Très \U0001f634 \x85 dull\u2028indeed."),
        Review("neg/10_1", ""),
        Review("neg/1_4", 'A "plot" [sic]\ttabbed'),
        Review("pos/0_9", "Superb."),
        Review("pos/7_10", "Superb, too."),
    ),
    "test": (Review("neg/2_2", "Dull."), Review("pos/2_8", "Superb.")),
}


def put_lines(folder: Path, some: Any = SOME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, those in some.items():
        write(folder / f"{part}.jsonl.gz", those)
    return folder


def put_official(folder: Path) -> Path:
    for part, those in SOME.items():
        for review in those:
            file = folder / "aclImdb" / part / f"{review.id}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(review.text.encode())
    (folder / "aclImdb" / "train" / "unsup").mkdir()
    (folder / "aclImdb" / "train" / "unsup" / "0_0.txt").write_text("without a label")
    (folder / "aclImdb" / "train" / "labeledBow.feat").write_text("9 0:9 1:1")
    return folder


# Reading


def test_both_layouts_give_the_same_reviews_in_the_order_of_file_names(tmp_path: Path) -> None:
    lines, official = put_lines(tmp_path / "a"), put_official(tmp_path / "b")
    found = read(lines)
    assert found == read(official)
    # As names of files sort: 10_1.txt before 1_4.txt.
    assert [r.id for r in found["train"].items] == [
        "neg/0_3",
        "neg/10_1",
        "neg/1_4",
        "pos/0_9",
        "pos/7_10",
    ]
    assert found["train"].labels.tolist() == [0, 0, 0, 1, 1]
    assert dict(zip(found["train"].items, found["train"].texts, strict=True)) == {
        review: review.text for review in SOME["train"]
    }


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    turned = {part: those[::-1] for part, those in SOME.items()}
    assert read(put_lines(tmp_path / "a")) == read(put_lines(tmp_path / "b", turned))


GOOD = {"id": "neg/5_1", "label": 0, "rating": 1, "text": "Dull."}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "line 2: must be JSON"),
        (b"{", "line 2: must be JSON, but .*column"),
        (b"[1]", "line 2: must be an object, got list"),
        (b'{"id": "\xff"}', "line 2: must be UTF-8, got the byte 0xff"),
        ({"id": None}, "line 2: has no field id"),
        ({"label": None}, "line 2: has no field label"),
        ({"text": None}, "line 2: has no field text"),
        ({"text": 3}, "line 2, field text: must be str, got 3"),
        ({"label": "0"}, "line 2, field label: must be int, got '0'"),
        ({"label": True}, "line 2, field label: must be int, got True"),
        ({"label": 1}, "line 2, field label: must be 0 for neg/5_1, got 1"),
        ({"id": "unsup/5_0"}, "line 2, field id: must be like neg/3577_2, got 'unsup/5_0'"),
        ({"id": "neg/../5_1"}, "line 2, field id: must be like"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_field(
    tmp_path: Path, line: bytes | dict[str, Any], words: str
) -> None:
    put_lines(tmp_path)
    if isinstance(line, dict):
        line = json.dumps({k: v for k, v in {**GOOD, **line}.items() if v is not None}).encode()
    first = json.dumps({**GOOD, "id": "neg/4_1"}).encode()
    file = tmp_path / "test.jsonl.gz"
    file.write_bytes(gzip.compress(first + b"\n" + line + b"\n"))
    with pytest.raises(ReviewError, match=words) as error:
        read(tmp_path)
    assert str(error.value).startswith(str(file))


def test_a_file_that_is_missing_cut_off_empty_or_no_gzip_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match=r"train\.jsonl\.gz is missing"):
        read(tmp_path)
    put_lines(tmp_path)
    file = tmp_path / "train.jsonl.gz"
    whole = file.read_bytes()
    for content, words in (
        (whole[:-20], "is truncated"),
        (b"<html>not found</html>", "is not a valid gzip file"),
        (whole[:12] + b"\xff" * 20 + whole[32:], "is not a valid gzip file"),
        (gzip.compress(b""), "is empty"),
    ):
        file.write_bytes(content)
        with pytest.raises(ReviewError, match=words) as error:
            read(tmp_path)
        assert str(error.value).startswith(str(file))


def test_one_id_twice_is_named(tmp_path: Path) -> None:
    put_lines(tmp_path, {**SOME, "test": (*SOME["test"], SOME["test"][0])})
    with pytest.raises(ReviewError, match=r"test: the id neg/2_2 is there more than once"):
        read(tmp_path)


def test_an_official_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    put_official(tmp_path)
    file = tmp_path / "aclImdb" / "test" / "pos" / "2_8.txt"
    file.write_bytes(b"Superb \xe9")
    with pytest.raises(ReviewError, match=r"pos/2_8\.txt must be UTF-8, but"):
        read(tmp_path)
    file.rename(file.with_name("two.txt"))
    with pytest.raises(ReviewError, match=r"two\.txt must have a name like 3577_2\.txt"):
        read(tmp_path)


def test_reviews_are_written_as_they_are_read_and_always_alike(tmp_path: Path) -> None:
    assert [*read(put_lines(tmp_path / "a"))["test"].items] == [*SOME["test"]]
    put_lines(tmp_path / "b")
    a, b = (
        hashlib.sha256((tmp_path / name / "train.jsonl.gz").read_bytes()).hexdigest()
        for name in "ab"
    )
    assert a == b


# What is known of the set


def test_checked_are_the_numbers_of_good_and_bad_reviews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_lines(tmp_path / "imdb")
    (problem,) = reviews.check(tmp_path / "imdb")
    assert str(problem) == (
        "imdb: 5 + 2 reviews are not 25,000 + 25,000 or 10,000 + 5,000, half of them good ones"
    )
    even = {**SOME, "train": SOME["train"][1:]}
    put_lines(tmp_path / "imdb", even)
    monkeypatch.setattr(reviews, "KNOWN", ((2, 1),))
    assert reviews.check(tmp_path / "imdb") == []
    uneven = {**SOME, "train": (*SOME["train"][:3], SOME["train"][4])}
    put_lines(tmp_path / "imdb", uneven)
    assert len(reviews.check(tmp_path / "imdb")) == 1
    (tmp_path / "imdb" / "test.jsonl.gz").write_bytes(b"")
    (problem,) = reviews.check(tmp_path / "imdb")
    assert problem.kind == "corrupt"
    assert "test.jsonl.gz" in problem.message


def tar(folder: Path, extra: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder / "aclImdb", "aclImdb")
        for name, content in extra.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def served(file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(content)
    source = Download(file.as_uri(), len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(reviews, "ARCHIVE", source)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(reviews, "KNOWN", ((2, 1),))
    return tmp_path / "data"


def test_the_official_archive_is_fetched_without_what_has_no_label(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put_official(tmp_path / "made")
    (made / "aclImdb" / "train" / "neg" / "0_3.txt").unlink()
    others = (
        "../../evil.txt",
        "/aclImdb/train/neg/9_1.txt",
        "b/train/neg/9_1.txt",
        "aclImdb/README",
    )
    harmful = dict.fromkeys(others, b"Hi")
    served(tmp_path / "aclImdb_v1.tar.gz", tar(made, harmful), monkeypatch)
    imdb = data.find("imdb")
    told: list[tuple[str, int, int]] = []
    assert data.fetch(imdb, lambda *report: told.append(report)) == "fetched"
    assert sorted(p.name for p in root.iterdir()) == ["SHA256SUMS", "imdb"]
    assert sorted(p.name for p in (root / "imdb").iterdir()) == ["test.jsonl.gz", "train.jsonl.gz"]
    expected = {**SOME, "train": SOME["train"][1:]}
    assert {k: set(v.items) for k, v in read(root / "imdb").items()} == {
        k: set(v) for k, v in expected.items()
    }
    assert told[-1][0] == "aclImdb_v1.tar.gz"
    assert data.verify(imdb) == []
    assert data.fetch(imdb) == "there"
    assert data.path("imdb") == root / "imdb"


def test_the_official_folder_will_do_in_the_place_of_the_files(root: Path) -> None:
    put_official(root / "imdb")
    imdb = data.find("imdb")
    assert data.status(imdb) == "partly"
    few = replace(imdb, official=tuple(replace(f, count=1) for f in imdb.official))
    assert data.path(few) == root / "imdb"
    assert data.status(few) == "present"


@pytest.mark.parametrize("content", [b"no archive", None])
def test_an_archive_that_cannot_be_unpacked_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    whole = tar(put_official(tmp_path / "made"), {})
    served(tmp_path / "a.tar.gz", whole[:-40] if content is None else content, monkeypatch)
    with pytest.raises(FetchFailed, match=r"a\.tar\.gz cannot be unpacked"):
        data.fetch(data.find("imdb"))
    assert [*root.iterdir()] == []


def test_what_is_fetched_must_be_the_whole_set(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(tmp_path / "a.tar.gz", tar(put_official(tmp_path / "made"), {}), monkeypatch)
    with pytest.raises(FetchFailed, match=r"5 \+ 2 reviews are not 4 \+ 2"):
        data.fetch(data.find("imdb"))


def test_a_review_of_megabytes_is_none(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"aclImdb/test/neg/1_1.txt": bytes(reviews.LONGEST + 1)}
    served(tmp_path / "a.tar.gz", tar(put_official(tmp_path / "made"), large), monkeypatch)
    with pytest.raises(FetchFailed, match=r"holds aclImdb/test/neg/1_1\.txt of 1,048,577 bytes"):
        data.fetch(data.find("imdb"))


# Splits


def many(count: int, classes: tuple[str, ...] = ("neg", "pos")) -> Reviews:
    ids = sorted(
        f"{name}/{number}_{number % 10 + 1}" for name in classes for number in range(count)
    )
    return Reviews(tuple(Review(id, f"text of {id}") for id in ids))


@pytest.mark.slow
def test_the_split_is_the_one_that_keras_makes_of_the_folder(
    tmp_path: Path, keras: ModuleType
) -> None:
    from keras.src.utils import dataset_utils

    train = many(40)
    for review in train.items:
        file = tmp_path / f"{review.id}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(review.text)
    paths, labels, _ = dataset_utils.index_directory(
        str(tmp_path), "inferred", (".txt",), shuffle=True, seed=1337
    )
    kept, kept_labels = dataset_utils.get_training_or_validation_split(
        paths, labels, 0.2, "training"
    )
    held, _ = dataset_utils.get_training_or_validation_split(paths, labels, 0.2, "validation")

    def ids(those: list[str]) -> list[str]:
        return [Path(p).relative_to(tmp_path).with_suffix("").as_posix() for p in those]

    splits = split_reviews(train, many(5))
    assert [r.id for r in splits.train.items] == ids(kept)
    assert splits.train.labels.tolist() == list(kept_labels)
    assert [r.id for r in splits.validation.items] == ids(held)
    assert (len(kept), len(held)) == (64, 16)


def test_reviews_that_are_in_two_splits_are_counted() -> None:
    train, test = many(40), many(5)
    assert split_reviews(train, Reviews(())).notes == (
        "64 reviews to train on, 16 to validate and 0 to test.",
    )
    # The ten of the test split have the texts of ten that are for training or validation.
    said = split_reviews(train, test).notes
    assert said[1:] == ("10 of 10 test reviews are also among those for training and validation.",)
    last = split_reviews(train, Reviews(())).validation.items[0]
    twice = Reviews(
        tuple(replace(r, text=last.text) if r.id == "neg/0_1" else r for r in train.items)
    )
    assert any("1 of 16 validation reviews" in note for note in split_reviews(twice, test).notes)


def test_at_cpu_scale_the_lowest_numbers_of_each_class_are_taken() -> None:
    some = many(12).first_by_number(3)
    assert {r.id for r in some.items} == {
        *("neg/0_1", "neg/1_2", "neg/2_3", "pos/0_1", "pos/1_2", "pos/2_3")
    }
    assert [r.id for r in some.items] == sorted(r.id for r in some.items)


def test_made_up_reviews_are_called_so_and_are_always_the_same() -> None:
    assert review_splits.load("smoke").synthetic
    assert synthetic_reviews(10, seed=3) == synthetic_reviews(10, seed=3)
    assert synthetic_reviews(10, seed=3) != synthetic_reviews(10, seed=4)
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got 0"):
        synthetic_reviews(0)


# Real data


@pytest.mark.data
def test_the_real_reviews_are_as_stated(badm_data: Path) -> None:
    folder = badm_data / "imdb"
    assert reviews.check(folder) == []
    splits = review_splits.load("cpu")
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [8000, 2000, 5000]
    both = Reviews((*splits.train.items, *splits.validation.items))
    assert both.labels.sum() == 5000
    assert splits.test.labels.sum() == 2500
    assert splits.test.count_shared(both) == 4
    assert "4 of 5,000 test reviews are also among those for training and validation." in (
        splits.notes
    )
    assert any("validation reviews are also among those for training." in n for n in splits.notes)
