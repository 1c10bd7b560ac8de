"""Texts as rows of numbers: words, the vocabulary they are numbered by, and what is kept of it.

Words are bytes, as in the public examples: only the letters of ASCII are made small, only its
punctuation is deleted, and only its white space divides.
"""

from __future__ import annotations

import hashlib
import io
import json
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from badm.bench.data import npz
from badm.bench.files import cache_folder, write_atomically

PAD, UNKNOWN = 0, 1
FIRST = 2  # the id of the most frequent word
MASK = b"[mask]"
BREAK = b"<br />"
LARGEST = 8 << 30  # bytes of what is kept
VERSION = 1  # to be raised by whatever changes the numbers: what is kept is then not read


@dataclass(frozen=True)
class EncodingOptions:
    """How texts become numbers.

    The vocabulary has ``size`` entries at most, padding, the unknown and ``[mask]`` among them. A
    text has ``length`` numbers: it is cut off or padded at its end. ``keep`` has the punctuation
    that is not deleted.
    """

    size: int
    length: int
    keep: str = ""
    mask: bool = False

    def __post_init__(self) -> None:
        least = FIRST + 1 + self.mask
        if self.size < least:
            raise ValueError(f"size must be at least {least}, got {self.size}")
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")


def tokenize(text: str, keep: str = "") -> list[bytes]:
    """The words of a text.

    >>> tokenize("Well...<br /><br />it's GREAT!")
    [b'well', b'its', b'great']
    >>> tokenize('A "classic" [mask], really?', keep='"[]')
    [b'a', b'"classic"', b'[mask]', b'really']
    """
    deleted = bytes(set(string.punctuation.encode()) - set(keep.encode()))
    # What no encoding knows, a lone half of a pair, may stand in JSON all the same.
    plain = text.encode(errors="replace").lower().replace(BREAK, b" ")
    return plain.translate(None, deleted).split()


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number: 0 is padding, 1 what is unknown, then these in their order.

    The last of them is ``[mask]`` where there is one.
    """

    words: tuple[bytes, ...]

    def __len__(self) -> int:
        return FIRST + len(self.words)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {word: number for number, word in enumerate(self.words, start=FIRST)}

    @property
    def mask(self) -> int:
        """The number of ``[mask]``."""
        return self.ids[MASK]

    def encode(self, texts: Sequence[str], form: EncodingOptions) -> Tensor:
        """Numbers ``(texts, length)``.

        >>> vocabulary = Vocabulary((b"the", b"film"))
        >>> vocabulary.encode(["The film!", "A bad, bad film", ""], EncodingOptions(4, 3)).tolist()
        [[2, 3, 0], [1, 1, 1], [0, 0, 0]]
        """
        rows = np.full((len(texts), form.length), PAD, np.int32)
        ids = self.ids
        for row, text in zip(rows, texts, strict=True):
            numbers = [ids.get(word, UNKNOWN) for word in tokenize(text, form.keep)[: form.length]]
            row[: len(numbers)] = numbers
        return torch.from_numpy(rows)

    def word(self, number: int) -> str:
        """A word for a reader.

        >>> Vocabulary((b"the", b"film")).word(3)
        'film'
        """
        if number < FIRST:
            return ("[pad]", "[unknown]")[number]
        return self.words[number - FIRST].decode(errors="replace")

    def show(self, numbers: Iterable[int]) -> str:
        """Numbers as a text, without the padding.

        >>> Vocabulary((b"the", b"film")).show([2, 3, 1, 0, 0])
        'the film [unknown]'
        """
        return " ".join(self.word(number) for number in numbers if number != PAD)


def build_vocabulary(texts: Iterable[str], form: EncodingOptions) -> Vocabulary:
    """The most frequent words of some texts.

    Of words that are as frequent as each other the last one by the order of its bytes comes first:
    that is how Keras has it.

    >>> build_vocabulary(["a film, a plot", "the film"], EncodingOptions(size=5, length=9)).words
    (b'film', b'a', b'the')
    """
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(tokenize(text, form.keep))
    if form.mask:
        del counts[MASK]  # it has its place at the end
    ranked = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
    room = form.size - FIRST - form.mask
    return Vocabulary((*ranked[:room], *([MASK] if form.mask else [])))


def encode_cached(
    counted: Sequence[str], texts: Sequence[str], form: EncodingOptions
) -> tuple[Vocabulary, Tensor]:
    """The vocabulary of the texts ``counted``, and the numbers of ``texts`` by it.

    Made once and then kept in the cache, under a name that depends on the form and on every letter
    of the texts. A cache that is damaged or cannot be written only means that it is made again.
    """
    kept = cache_folder() / f"words-{_key(counted, texts, form)}.npz"
    found = _load(kept)
    if found is not None:
        return found
    known = build_vocabulary(counted, form)
    numbers = known.encode(texts, form)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, _packed(known, numbers))
    except OSError:
        pass  # a disk that is full or read-only costs time, not results
    return known, numbers


def _key(counted: Sequence[str], texts: Sequence[str], form: EncodingOptions) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, asdict(form)]).encode())
    for those in (counted, texts):
        digest.update(len(those).to_bytes(8, "little"))
        for text in those:
            letters = text.encode(errors="replace")
            digest.update(len(letters).to_bytes(8, "little"))
            digest.update(letters)
    return digest.hexdigest()[:32]


def _packed(known: Vocabulary, numbers: Tensor) -> bytes:
    """A zip of arrays, whose checksums tell when it is damaged."""
    file = io.BytesIO()
    # No word has white space in it.
    joined = np.frombuffer(b" ".join(known.words), np.uint8)
    np.savez(file, words=joined, numbers=numbers.numpy())
    return file.getvalue()


def _load(kept: Path) -> tuple[Vocabulary, Tensor] | None:
    """What is in the cache, if it is there and whole."""
    try:
        arrays = npz.read(kept, ["words", "numbers"], largest=LARGEST, error=ValueError)
        known = Vocabulary(tuple(arrays["words"].tobytes().split()))
        return known, torch.from_numpy(arrays["numbers"])
    except (ValueError, TypeError):  # the last of numbers that torch does not know
        return None
