"""IMDB: positive and negative film reviews, in two files of JSON lines or one file per review."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from badm.bench.data.dataset import FetchFailed, FileProblem, ProgressCallback
from badm.bench.data.download import Download
from badm.bench.data.sizes import content, shown, size_of

if TYPE_CHECKING:  # the catalogue imports this file, and is read without torch
    from torch import Tensor

PARTS = ("train", "test")
CLASSES = ("neg", "pos")  # folders, in the order of the labels
OFFICIAL = "aclImdb"  # the folder that the official archive unpacks to
ARCHIVE = Download(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
LONGEST = 1 << 20  # bytes of one review; the longest has 13,704 characters
LONGEST_LINE = 8 * LONGEST  # of a review in JSON, which may take six bytes per character
LARGEST = 1 << 30  # bytes of all lines of a file
# Reviews of each class, train and test: all, or those with the lowest numbers.
KNOWN = ((12_500, 12_500), (5_000, 2_500))

ID = re.compile(rf"({'|'.join(CLASSES)})/([0-9]{{1,9}})_([0-9]{{1,2}})")


class ReviewError(ValueError):
    """A file is invalid; the message names the file, the line and the field."""


@dataclass(frozen=True)
class Review:
    """One review; its ``id`` has class, number and rating, as in ``neg/3577_2``."""

    id: str
    text: str

    @property
    def label(self) -> int:
        """
        >>> Review("pos/12_9", "Superb.").label, Review("neg/12_2", "Dull.").label
        (1, 0)
        """
        return CLASSES.index(self.id.partition("/")[0])

    @property
    def number(self) -> int:
        """
        >>> Review("pos/12_9", "Superb.").number
        12
        """
        return int(self.id.partition("/")[2].partition("_")[0])


@dataclass(frozen=True)
class Reviews:
    """Reviews; negative ones have the label 0, positive ones 1."""

    items: tuple[Review, ...]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(review.text for review in self.items)

    @property
    def labels(self) -> Tensor:
        import torch

        return torch.tensor([review.label for review in self.items])

    def pick(self, rows: Iterable[int]) -> Reviews:
        return Reviews(tuple(self.items[row] for row in rows))

    def first_by_number(self, count: int) -> Reviews:
        """Select those of each class with the lowest numbers, keeping their order.

        >>> some = Reviews(tuple(Review(id, "") for id in ("neg/10_1", "neg/9_2", "pos/0_9")))
        >>> [review.id for review in some.first_by_number(1).items]
        ['neg/9_2', 'pos/0_9']
        """
        by_class = groupby(sorted(self.items, key=_by_number), lambda review: review.label)
        kept = {review.id for _, those in by_class for review in [*those][:count]}
        return Reviews(tuple(review for review in self.items if review.id in kept))

    def count_shared(self, others: Reviews) -> int:
        """Count how many of these texts are exactly among the others too."""
        known = set(others.texts)
        return sum(text in known for text in self.texts)


def _by_number(review: Review) -> tuple[int, int]:
    return review.label, review.number


def read(folder: Path) -> dict[str, Reviews]:
    """Read training and test reviews of a folder, sorted by file name in either layout."""
    source = _official if (folder / OFFICIAL).is_dir() else _lines
    found = {}
    for part in PARTS:
        reviews = sorted(source(folder, part), key=lambda review: review.id)
        again = [id for id, count in Counter(review.id for review in reviews).items() if count > 1]
        if again:
            raise ReviewError(f"{folder}, {part}: the id {again[0]} is there more than once")
        found[part] = Reviews(tuple(reviews))
    return found


def file_name(part: str) -> str:
    """
    >>> file_name("train")
    'train.jsonl.gz'
    """
    return f"{part}.jsonl.gz"


def _lines(folder: Path, part: str) -> Iterator[Review]:
    file = folder / file_name(part)
    size_of(file, ReviewError)
    number = 0
    try:
        with gzip.open(file, "rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE + 1), b""), 1):
                where = f"{file}, line {number}"
                if len(line) > LONGEST_LINE:
                    raise ReviewError(f"{where}: is longer than {LONGEST_LINE:,} bytes")
                if lines.tell() > LARGEST:
                    raise ReviewError(f"{where}: is beyond {LARGEST:,} bytes")
                yield _review(line, where)
    except EOFError as error:
        raise ReviewError(f"{file} is truncated: the compressed data end too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ReviewError(f"{file} is not a valid gzip file: {error}") from error
    if not number:
        raise ReviewError(f"{file} is empty")


def _review(line: bytes, where: str) -> Review:
    try:
        row: Any = json.loads(line)
    except UnicodeDecodeError as error:
        raise ReviewError(
            f"{where}: must be UTF-8, got the byte 0x{line[error.start]:02x}"
        ) from None
    except ValueError as error:
        raise ReviewError(f"{where}: must be JSON, but {error}") from None
    except RecursionError:
        raise ReviewError(f"{where}: must be JSON, but is nested too deeply") from None
    if not isinstance(row, dict):
        raise ReviewError(f"{where}: must be an object, got {type(row).__name__}")
    for field, kind in {"id": str, "label": int, "text": str}.items():
        if field not in row:
            raise ReviewError(f"{where}: has no field {field}")
        if type(row[field]) is not kind:
            raise ReviewError(
                f"{where}, field {field}: must be {kind.__name__}, got {shown(row[field])}"
            )
    if not ID.fullmatch(row["id"]):
        raise ReviewError(f"{where}, field id: must be like neg/3577_2, got {shown(row['id'])}")
    review = Review(row["id"], row["text"])
    if review.label != row["label"]:
        raise ReviewError(
            f"{where}, field label: must be {review.label} for {review.id}, got {row['label']}"
        )
    return review


def _official(folder: Path, part: str) -> Iterator[Review]:
    for name in CLASSES:
        for file in (folder / OFFICIAL / part / name).glob("*.txt"):
            id = f"{name}/{file.stem}"
            if not ID.fullmatch(id):
                raise ReviewError(f"{file} must have a name like 3577_2.txt: number and rating")
            try:
                yield Review(id, content(file, LONGEST, ReviewError).decode())
            except UnicodeDecodeError as error:
                raise ReviewError(f"{file} must be UTF-8, but {error.reason}") from error


def check(folder: Path) -> list[FileProblem]:
    """List what is wrong with the reviews of a folder."""
    try:
        found = read(folder)
    except ReviewError as error:
        return [FileProblem(folder.name, "corrupt", str(error))]
    counts = [Counter(found[part].labels.tolist()) for part in PARTS]
    for sizes in KNOWN:
        if counts == [Counter({0: size, 1: size}) for size in sizes]:
            return []
    shown = " + ".join(f"{len(found[part]):,}" for part in PARTS)
    known = " or ".join(f"{2 * train:,} + {2 * test:,}" for train, test in KNOWN)
    return [
        FileProblem(folder.name, "size", f"{shown} reviews are not {known}, half of them good ones")
    ]


def fetch(folder: Path, report: ProgressCallback | None) -> None:
    """Download the official archive and write its labelled reviews as two files of lines."""
    with TemporaryDirectory(prefix=".archive-", dir=folder.parent) as temporary:
        archive = Path(temporary) / ARCHIVE.name
        ARCHIVE.get(archive, report)
        try:
            found = _in_archive(archive)
        except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError) as error:
            raise FetchFailed(f"{ARCHIVE.url} cannot be unpacked: {error}") from error
    for part in PARTS:
        write(folder / file_name(part), sorted(found[part], key=lambda review: review.id))


def _in_archive(archive: Path) -> dict[str, list[Review]]:
    """Yield the labelled reviews; nothing is unpacked, so no name in the archive can do harm."""
    found: dict[str, list[Review]] = {part: [] for part in PARTS}
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            place = PurePosixPath(member.name)
            top, *middle = place.parent.parts or ("",)
            if top != OFFICIAL or len(middle) != 2 or middle[0] not in PARTS or not member.isreg():
                continue
            id = f"{middle[1]}/{place.stem}"
            if not ID.fullmatch(id) or place.suffix != ".txt":  # unlabelled ones
                continue
            if member.size > LONGEST:
                raise FetchFailed(f"{archive.name} holds {member.name} of {member.size:,} bytes")
            source = tar.extractfile(member)
            assert source is not None
            try:
                found[middle[0]].append(Review(id, source.read().decode()))
            except UnicodeDecodeError as error:
                raise FetchFailed(f"{archive.name} holds {member.name}, not UTF-8") from error
    return found


def write(file: Path, reviews: Iterable[Review]) -> None:
    """Write reviews as JSON lines; equal reviews give equal files."""
    with (
        open(file, "wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as lines,
    ):
        for review in reviews:
            rating = int(review.id.rpartition("_")[2])
            row = {"id": review.id, "label": review.label, "rating": rating, "text": review.text}
            lines.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


# Words of synthetic reviews. Each has one topic, a noun with its verb, so that a masked word can be
# predicted from the others, and the sentiment is in the adjectives.
NOUNS = ("actor", "plot", "score", "camera", "script", "hero", "villain", "scene")
VERBS = ("plays", "unfolds", "sounds", "moves", "reads", "fights", "laughs", "ends")
VERDICTS = (("dull", "awful", "weak", "boring"), ("superb", "lovely", "strong", "gripping"))
FILLERS = ("The", "this", "a", "and", "very", "quite", "it", "was")


def synthetic_reviews(count: int, seed: int = 0) -> Reviews:
    """Generate reviews, half of them positive, with line breaks and punctuation as in real ones.

    >>> made = synthetic_reviews(4, seed=0)
    >>> sorted(made.labels.tolist()), "<br />" in made.items[0].text
    ([0, 0, 1, 1], True)
    """
    if count < 1:
        raise ValueError(f"count must be a whole number of at least 1, got {count}")
    random = Random(seed)
    labels = [number % 2 for number in range(count)]
    random.shuffle(labels)
    return Reviews(tuple(_made_up(*one, random) for one in enumerate(labels)))


def _made_up(number: int, label: int, random: Random) -> Review:
    sentences = []
    topic = random.randrange(len(NOUNS))
    for _ in range(random.randint(2, 6)):
        # One adjective in eight says the opposite, so that no single one decides.
        verdict = random.choice(VERDICTS[label if random.random() < 7 / 8 else 1 - label])
        fillers = _some(FILLERS, random.randint(1, 3), random)
        sentences.append(" ".join([*fillers, NOUNS[topic], VERBS[topic], verdict]) + ".")
    rating = random.randint(7, 10) if label else random.randint(1, 4)
    return Review(f"{CLASSES[label]}/{number}_{rating}", "<br /><br />".join(sentences))


def _some(words: Sequence[str], count: int, random: Random) -> list[str]:
    return [random.choice(words) for _ in range(count)]
