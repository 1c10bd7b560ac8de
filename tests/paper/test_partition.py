"""Batches and sub-batches: a disjoint cover of the data, and the weights that go with it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from badm import Partition, split
from tests.helpers.support import rng


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int, Partition]:
    samples = draw(st.integers(1, 200))
    batch_size = draw(st.integers(1, 250))
    limit = min(samples, batch_size)
    by_size = draw(st.booleans())
    number = draw(st.integers(1, limit))
    choice = {"sub_batch_size" if by_size else "sub_batches": number}
    shuffle = draw(st.booleans())
    return samples, limit, Partition(samples, batch_size, shuffle=shuffle, **choice)


@given(partitions())
def test_every_sample_is_in_exactly_one_sub_batch(drawn: tuple[int, int, Partition]) -> None:
    samples, _, partition = drawn
    parts = [part for batch in partition.batches() for part in batch]
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))


@given(partitions())
def test_batches_are_full_but_for_the_last(drawn: tuple[int, int, Partition]) -> None:
    samples, batch_size, partition = drawn
    sizes = [sum(len(part) for part in batch) for batch in partition.batches()]
    assert len(partition) == len(sizes) == -(-samples // batch_size)
    assert all(size == batch_size for size in sizes[:-1])
    assert 0 < sizes[-1] <= batch_size


@given(partitions())
def test_alphas_are_the_shares_of_the_samples(drawn: tuple[int, int, Partition]) -> None:
    samples, _, partition = drawn
    shares = [[len(part) / samples for part in batch] for batch in partition.batches()]
    expected = torch.tensor(shares, dtype=torch.float64)
    assert torch.equal(partition.alpha_bs, expected)
    torch.testing.assert_close(partition.alpha_s, expected.sum(0), rtol=1e-14, atol=1e-14)
    assert partition.alpha_s.sum().item() == pytest.approx(1.0, abs=1e-14)


@given(partitions())
def test_the_partition_is_drawn_once(drawn: tuple[int, int, Partition]) -> None:
    _, _, partition = drawn
    for first, second in zip(partition.batches(), partition.batches(), strict=True):
        assert [part.tolist() for part in first] == [part.tolist() for part in second]


def lists(partition: Partition) -> list[list[list[int]]]:
    return [[part.tolist() for part in batch] for batch in partition.batches()]


def test_a_number_of_sub_batches_gives_sizes_that_differ_by_at_most_one() -> None:
    assert lists(Partition(7, 7, sub_batches=3, shuffle=False)) == [[[0, 1, 2], [3, 4], [5, 6]]]


def test_a_size_of_sub_batches_leaves_the_last_one_short() -> None:
    assert lists(Partition(7, 7, sub_batch_size=3, shuffle=False)) == [[[0, 1, 2], [3, 4, 5], [6]]]


def test_a_short_last_batch_leaves_sub_batches_empty_with_weight_zero() -> None:
    for choice in ({"sub_batches": 3}, {"sub_batch_size": 1}):
        partition = Partition(4, 3, shuffle=False, **choice)
        assert lists(partition) == [[[0], [1], [2]], [[3], [], []]]
        assert partition.alpha_bs.tolist() == [[0.25, 0.25, 0.25], [0.25, 0.0, 0.0]]
        assert partition.alpha_s.tolist() == [0.5, 0.25, 0.25]


def test_an_equal_generator_draws_an_equal_partition() -> None:
    draws = [lists(Partition(50, 8, sub_batches=2, generator=rng(seed))) for seed in (3, 3, 4)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_unshuffled_keeps_the_order_of_the_data() -> None:
    partition = Partition(20, 6, sub_batches=2, shuffle=False)
    assert [i for batch in lists(partition) for part in batch for i in part] == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 1), {"sub_batches": 1}, r"num_samples must be a whole number of at least 1, got 0"),
        ((4, 0), {"sub_batches": 1}, r"batch_size must be .* at least 1, got 0"),
        ((4, 2.0), {"sub_batches": 1}, r"batch_size must be a whole number .*, got 2\.0"),
        ((True, 1), {"sub_batches": 1}, r"num_samples must be a whole number .*, got True"),
        ((8, 4), {"sub_batches": 0}, r"sub_batches must be .* at least 1, got 0"),
        ((8, 4), {"sub_batch_size": -1}, r"sub_batch_size must be .* at least 1, got -1"),
        ((8, 4), {"sub_batches": 5}, r"sub_batches must be at most the 4 samples .*, got 5"),
        ((3, 8), {"sub_batches": 4}, r"sub_batches must be at most the 3 samples .*, got 4"),
        ((8, 4), {"sub_batch_size": 5}, r"sub_batch_size must be at most the 4 .*, got 5"),
        ((8, 4), {}, r"exactly one of sub_batch_size and sub_batches, got .*None and .*None"),
        ((8, 4), {"sub_batches": 2, "sub_batch_size": 2}, r"exactly one of .*=2 and .*=2"),
    ],
)
def test_bad_values_are_named(
    arguments: tuple[Any, Any], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(*arguments, **options)


Pair = namedtuple("Pair", "x y")


class Encoding(UserDict):
    """A mapping that is no dict, as the batches of some tokenisers are."""


@given(samples=st.integers(1, 40), data=st.data())
def test_split_cuts_into_near_equal_parts_in_order(samples: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, samples))
    x = torch.arange(samples)
    parts = split(x, count)
    assert len(parts) == count
    assert torch.equal(torch.cat(parts), x)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


X, Y = torch.arange(5), torch.arange(10.0).reshape(5, 2)


@pytest.mark.parametrize(
    "nest",
    [
        (X, Y),
        [X, Y],
        Pair(X, Y),
        {"x": X, "y": Y},
        OrderedDict(x=X, y=Y),
        Encoding(x=X, y=Y),
        {"deep": [(X, {"y": Y})]},
    ],
    ids=lambda nest: type(nest).__name__,
)
def test_split_keeps_the_form_of_the_nest(nest: Any) -> None:
    for index, part in enumerate(split(nest, 2)):
        assert_same_form(part, nest, slice(0, 3) if index == 0 else slice(3, 5))


def assert_same_form(part: Any, whole: Any, rows: slice) -> None:
    assert type(part) is type(whole)
    if isinstance(whole, torch.Tensor):
        assert torch.equal(part, whole[rows])
    elif isinstance(whole, (tuple, list)):
        assert len(part) == len(whole)
        for inner, outer in zip(part, whole, strict=True):
            assert_same_form(inner, outer, rows)
    else:
        assert list(part) == list(whole)
        for key in whole:
            assert_same_form(part[key], whole[key], rows)


def test_split_keeps_a_defaultdict() -> None:
    nest = defaultdict(list, x=X)
    first, second = split(nest, 2)
    assert (first["x"].tolist(), second["x"].tolist()) == ([0, 1, 2], [3, 4])
    assert first["absent"] == []


def test_what_has_no_samples_goes_into_every_part() -> None:
    scale = torch.tensor(2.0)
    for part in split((X, 3, "name", None, scale), 2):
        assert part[1:] == (3, "name", None, scale)


@pytest.mark.parametrize(
    ("nest", "count", "message"),
    [
        (X, 6, r"sub_batches must be at most the 5 samples of a batch, got 6"),
        (X, 0, r"sub_batches must be a whole number of at least 1, got 0"),
        (
            (X, torch.zeros(4)),
            2,
            r"batch must contain tensors that agree .*, got the sizes \[4, 5\]",
        ),
        (("no", "tensors"), 2, r"batch must contain tensors .*, got the sizes \[\]"),
    ],
)
def test_what_cannot_be_split_is_named(nest: Any, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(nest, count)
