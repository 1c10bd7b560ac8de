"""Words and vocabularies as in the public examples, and a cache that only ever saves time."""

from __future__ import annotations

import os
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from badm.bench.data import text_encoding as module
from badm.bench.data.text_encoding import (
    EncodingOptions,
    Vocabulary,
    build_vocabulary,
    encode_cached,
    tokenize,
)

TRICKY = {
    "": [],
    "   \t\r\n ": [],
    "...!?": [],
    "<br />": [],
    "Good.<br /><br />Bad": ["good", "bad"],
    "one<br />two": ["one", "two"],
    "ONE<BR />TWO": ["one", "two"],
    "one<br/>two": ["onebrtwo"],  # another way to write it, which the examples do not know
    "one<br />.<br />two": ["one", "two"],
    "it's a well-known film, isn't it?": ["its", "a", "wellknown", "film", "isnt", "it"],
    "8/10 - $1,000,000!": ["810", "1000000"],
    "a\tb\nc\x0bd\x0ce\rf": ["a", "b", "c", "d", "e", "f"],
    "under_score@home": ["underscorehome"],
    'say "hi" [now]': ["say", "hi", "now"],
    # Beyond ASCII nothing is made small, deleted or divided.
    "Café ÉTÉ naïve": ["café", "ÉtÉ", "naïve"],
    "smart “quotes” — dash": ["smart", "“quotes”", "—", "dash"],
    "no\xa0break\u2003wide\u3000ideographic": ["no\xa0break\u2003wide\u3000ideographic"],
    "next\x85line separator\x1cfile": ["next\x85line", "separator\x1cfile"],
    "İstanbul ẞ ﬁ": ["İstanbul", "ẞ", "ﬁ"],
    "film \U0001f3ac!": ["film", "\U0001f3ac"],
    "e\u0301 zero\u200bwidth": ["e\u0301", "zero\u200bwidth"],
    "映画は 最高": ["映画は", "最高"],
}


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_are_divided_into_the_right_words(text: str) -> None:
    assert tokenize(text) == [word.encode() for word in TRICKY[text]]


def test_punctuation_that_is_kept_stays_with_its_word() -> None:
    kept = tokenize('He said: "[mask] is [it]!"<br />(really)', keep='"[]')
    assert kept == [b"he", b"said", b'"[mask]', b"is", b'[it]"', b"really"]


def test_half_a_pair_which_json_may_hold_is_no_error() -> None:
    assert tokenize("lone \ud800 half") == [b"lone", b"half"]  # it becomes a ?, which is deleted


@pytest.mark.slow
@given(st.text())
def test_words_have_neither_capitals_nor_punctuation_nor_gaps(text: str) -> None:
    gone = {*string.punctuation, *string.ascii_uppercase, *" \t\n\r\x0b\x0c"}
    for word in tokenize(text):
        assert word
        assert not gone & set(word.decode())


def test_keras_makes_the_same_words_and_vocabulary(keras: ModuleType) -> None:
    tf = pytest.importorskip("tensorflow", reason="TextVectorization of Keras needs TensorFlow")

    def standardised(x: object) -> object:
        lower = tf.strings.regex_replace(tf.strings.lower(x), "<br />", " ")
        return tf.strings.regex_replace(lower, f"[{string.punctuation}]", "")

    layer = keras.layers.TextVectorization(20, standardised, output_sequence_length=9)
    layer.adapt([*TRICKY])
    form = EncodingOptions(20, 9)
    known = build_vocabulary(TRICKY, form)
    assert [w.decode() for w in known.words] == layer.get_vocabulary()[2:]
    assert known.encode([*TRICKY], form).tolist() == layer([*TRICKY]).numpy().tolist()


# The vocabulary


def test_words_are_numbered_by_frequency_and_ties_by_their_bytes_backwards() -> None:
    texts = ["b a b c", "c d é", "e"]
    # Keras sorts by counts, then words, and turns the whole around: é is beyond all letters.
    assert build_vocabulary(texts, EncodingOptions(99, 1)).words == (
        b"c",
        b"b",
        "é".encode(),
        b"e",
        b"d",
        b"a",
    )
    assert build_vocabulary(texts, EncodingOptions(5, 1)).words == (b"c", b"b", "é".encode())


def test_mask_has_the_last_number_whatever_the_texts_say() -> None:
    form = EncodingOptions(size=6, length=4, keep="[]", mask=True)
    known = build_vocabulary(["[mask] [mask] [mask] a a b c d"], form)
    assert known.words == (b"a", b"d", b"c", b"[mask]")
    assert (known.mask, len(known)) == (5, 6)
    assert known.encode(["a [MASK], e."], form).tolist() == [[2, 5, 1, 0]]


def test_a_text_is_cut_off_or_padded_at_its_end() -> None:
    known, form = Vocabulary((b"a", b"b")), EncodingOptions(4, 3)
    rows = known.encode(["a b a b", "b", "", "<br />", "x a"], form)
    assert rows.dtype == torch.int32
    assert rows.tolist() == [[2, 3, 2], [3, 0, 0], [0, 0, 0], [0, 0, 0], [1, 2, 0]]


def test_numbers_read_as_words_again() -> None:
    known = build_vocabulary(["été b"], EncodingOptions(9, 3))
    assert (
        known.show(known.encode(["b été x"], EncodingOptions(9, 5))[0].tolist())
        == "b été [unknown]"
    )
    assert known.word(0) == "[pad]"
    assert Vocabulary((b"\xff",)).word(2) == "�"


@pytest.mark.parametrize(
    ("size", "length", "mask", "words"),
    [
        (2, 5, False, "size must be at least 3, got 2"),
        (3, 5, True, "size must be at least 4, got 3"),
        (9, 0, False, "length must be at least 1, got 0"),
    ],
)
def test_a_form_that_cannot_be_is_named(size: int, length: int, mask: bool, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EncodingOptions(size, length, mask=mask)


# The cache

TEXTS = ("a film, a plot", "the film", "", "é é")
FORM = EncodingOptions(6, 4)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(module, "build_vocabulary", never)


def same(a: tuple[Vocabulary, torch.Tensor], b: tuple[Vocabulary, torch.Tensor]) -> bool:
    return a[0] == b[0] and a[1].dtype == b[1].dtype and torch.equal(a[1], b[1])


def test_what_was_made_once_is_read_from_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = encode_cached(TEXTS[:2], TEXTS, FORM)
    assert made[0] == build_vocabulary(TEXTS[:2], FORM)
    assert torch.equal(made[1], made[0].encode(TEXTS, FORM))
    (file,) = cache.iterdir()
    assert file.name.startswith("words-")
    forbid(monkeypatch)
    assert same(encode_cached(TEXTS[:2], TEXTS, FORM), made)


def test_every_setting_and_every_letter_has_a_place_of_its_own_in_the_cache(cache: Path) -> None:
    changed = (
        (TEXTS, TEXTS, FORM),
        (TEXTS[:2], TEXTS, FORM),
        (TEXTS[:2], TEXTS[:3], FORM),
        (TEXTS[:2], (*TEXTS[:3], "e e"), FORM),
        # The same letters, divided in another way, between texts and between the two lists.
        (("a film, a plott", "he film"), TEXTS, FORM),
        (TEXTS[:3], TEXTS[3:], FORM),
        (TEXTS[:2], TEXTS[2:], FORM),
        (TEXTS, TEXTS, EncodingOptions(5, 4)),
        (TEXTS, TEXTS, EncodingOptions(6, 5)),
        (TEXTS, TEXTS, EncodingOptions(6, 4, ",")),
        (TEXTS, TEXTS, EncodingOptions(6, 4, "", True)),
    )
    for number, (counted, texts, form) in enumerate(changed, start=1):
        known, numbers = encode_cached(counted, texts, form)
        assert known == build_vocabulary(counted, form)
        assert torch.equal(numbers, known.encode(texts, form))
        assert len([*cache.iterdir()]) == number


def test_a_cache_that_is_damaged_is_made_again(cache: Path) -> None:
    made = encode_cached(TEXTS, TEXTS, FORM)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    middle = whole.index("é".encode())
    for content in (
        b"",
        b"<html>",
        whole[:-30],
        whole[:40],
        whole[:middle] + b"??" + whole[middle + 2 :],
    ):
        file.write_bytes(content)
        assert same(encode_cached(TEXTS, TEXTS, FORM), made)
        assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BADM_CACHE", str(tmp_path / "file" / "cache"))
    assert len(encode_cached(TEXTS, TEXTS, FORM)[0]) == 6


def test_texts_without_a_word_come_back_from_the_cache_as_they_went(cache: Path) -> None:
    for _ in range(2):
        known, numbers = encode_cached(["...", ""], ["a"], FORM)
        assert known.words == ()
        assert numbers.tolist() == [[1, 0, 0, 0]]


def test_several_may_make_it_at_the_same_time(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(lambda _: encode_cached(TEXTS, TEXTS, FORM), range(40))]
    assert all(same(one, made[0]) for one in made)
    assert len([*cache.iterdir()]) == 1


def test_what_a_killed_process_leaves_is_never_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    made = encode_cached(TEXTS, TEXTS, FORM)
    monkeypatch.undo()
    monkeypatch.setenv("BADM_CACHE", str(cache))
    assert not [*cache.glob("*.npz")]
    assert same(encode_cached(TEXTS, TEXTS, FORM), made)
