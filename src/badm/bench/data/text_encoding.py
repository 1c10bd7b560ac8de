"""Texts as rows of token ids: tokenization, the vocabulary, and a cache of encoded texts.

Words are bytes, as in the public examples: only ASCII letters are lower-cased, only ASCII
punctuation is deleted, and only ASCII white space separates words.
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
LARGEST = 8 << 30  # bytes of a cache file
VERSION = 1  # raise it with anything that changes the ids, so that old cache files are not read


@dataclass(frozen=True)
class EncodingOptions:
    """How texts become token ids.

    Attributes:
        size: Most entries of the vocabulary, including padding, unknown words and ``[mask]``.
        length: Ids per text, which is truncated or padded at its end.
        keep: Punctuation that is not deleted.
        mask: Whether the vocabulary has a ``[mask]``, as its last entry.
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
    """Split a text into words.

    >>> tokenize("Well...<br /><br />it's GREAT!")
    [b'well', b'its', b'great']
    >>> tokenize('A "classic" [mask], really?', keep='"[]')
    [b'a', b'"classic"', b'[mask]', b'really']
    """
    deleted = bytes(set(string.punctuation.encode()) - set(keep.encode()))
    # JSON may contain lone surrogates, which cannot be encoded.
    plain = text.encode(errors="replace").lower().replace(BREAK, b" ")
    return plain.translate(None, deleted).split()


@dataclass(frozen=True)
class Vocabulary:
    """The words that have an id: 0 is padding, 1 any unknown word, then these in order.

    The last of them is ``[mask]``, if there is one.
    """

    words: tuple[bytes, ...]

    def __len__(self) -> int:
        return FIRST + len(self.words)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {word: number for number, word in enumerate(self.words, start=FIRST)}

    @property
    def mask(self) -> int:
        """The id of ``[mask]``."""
        return self.ids[MASK]

    def encode(self, texts: Sequence[str], form: EncodingOptions) -> Tensor:
        """Encode texts as ids ``(texts, length)``.

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
        """Return the word of an id, for display.

        >>> Vocabulary((b"the", b"film")).word(3)
        'film'
        """
        if number < FIRST:
            return ("[pad]", "[unknown]")[number]
        return self.words[number - FIRST].decode(errors="replace")

    def show(self, numbers: Iterable[int]) -> str:
        """Decode ids to a text, without the padding.

        >>> Vocabulary((b"the", b"film")).show([2, 3, 1, 0, 0])
        'the film [unknown]'
        """
        return " ".join(self.word(number) for number in numbers if number != PAD)


def build_vocabulary(texts: Iterable[str], form: EncodingOptions) -> Vocabulary:
    """Collect the most frequent words of some texts.

    Words of equal frequency are in descending order of their bytes, as in Keras.

    >>> build_vocabulary(["a film, a plot", "the film"], EncodingOptions(size=5, length=9)).words
    (b'film', b'a', b'the')
    """
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(tokenize(text, form.keep))
    if form.mask:
        del counts[MASK]  # it comes last
    ranked = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
    room = form.size - FIRST - form.mask
    return Vocabulary((*ranked[:room], *([MASK] if form.mask else [])))


def encode_cached(
    counted: Sequence[str], texts: Sequence[str], form: EncodingOptions
) -> tuple[Vocabulary, Tensor]:
    """Build the vocabulary of the texts ``counted`` and encode ``texts`` with it.

    The result is cached under a hash of the options and the texts. If the cache is damaged or
    cannot be written, it is computed again.
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
    """Serialize as npz, whose checksums reveal damage."""
    file = io.BytesIO()
    # No word contains white space.
    joined = np.frombuffer(b" ".join(known.words), np.uint8)
    np.savez(file, words=joined, numbers=numbers.numpy())
    return file.getvalue()


def _load(kept: Path) -> tuple[Vocabulary, Tensor] | None:
    """Load from the cache, or return ``None`` if the file is missing or damaged."""
    try:
        arrays = npz.read(kept, ["words", "numbers"], largest=LARGEST, error=ValueError)
        known = Vocabulary(tuple(arrays["words"].tobytes().split()))
        return known, torch.from_numpy(arrays["numbers"])
    except (ValueError, TypeError):  # TypeError: a dtype that torch does not know
        return None
