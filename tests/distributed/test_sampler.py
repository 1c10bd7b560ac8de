"""Which samples each rank trains on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from badm import DistributedBatchSampler


def everyone(
    world_size: int, samples: int, batch_size: int, **options: object
) -> list[DistributedBatchSampler]:
    return [
        DistributedBatchSampler(samples, batch_size, rank=rank, world_size=world_size, **options)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 200), st.integers(0, 3))
def test_every_sample_is_seen_once_by_one_rank_in_batches_of_a_size(
    world_size: int, batch_size: int, samples: int, epoch: int
) -> None:
    if samples < world_size:
        with pytest.raises(
            ValueError, match=f"at least {world_size}, one for each rank, got {samples}"
        ):
            everyone(world_size, samples, batch_size)
        return
    ranks = everyone(world_size, samples, batch_size)
    for sampler in ranks:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in ranks]
    assert {len(own) for own in batches} == {len(ranks[0])}
    counted = [
        batch
        for own, sampler in zip(batches, ranks, strict=True)
        for batch, weight in zip(own, sampler.loss_weights, strict=True)
        if weight
    ]
    assert sorted(index for batch in counted for index in batch) == list(range(samples))
    assert max(map(len, counted)) <= batch_size
    assert max(map(len, counted)) - min(map(len, counted)) <= 2


def test_a_rank_that_has_run_out_repeats_a_sample_that_does_not_count() -> None:
    first, second = everyone(2, 5, 1)
    assert second.loss_weights == [1.0, 1.0, 0.0]
    assert first.loss_weights == [1.0, 1.0, 2.0]
    assert list(second)[2] == next(iter(second))


def test_the_order_is_new_in_every_epoch_and_the_same_for_a_seed() -> None:
    sampler, twin = (everyone(3, 100, 4, seed=5)[1] for _ in range(2))
    first = list(sampler)
    assert list(sampler) == first == list(twin)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(everyone(3, 100, 4, seed=6)[1]) != first


def test_an_epoch_goes_on_where_it_stopped() -> None:
    sampler = everyone(2, 50, 4)[0]
    sampler.set_epoch(3)
    whole, weights = list(sampler), sampler.loss_weights
    sampler.set_epoch(3, skip=2)
    assert list(sampler) == whole[2:]
    assert sampler.loss_weights == weights[2:]
    assert len(sampler) == len(whole) - 2
    with pytest.raises(ValueError, match="skip must be from 0 to 7 batches, got 8"):
        sampler.set_epoch(0, skip=8)


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 6), st.integers(5, 90))
def test_the_weighted_mean_over_ranks_is_the_mean_over_samples(
    world_size: int, batch_size: int, samples: int
) -> None:
    losses = torch.randn(samples, generator=torch.Generator().manual_seed(0)).double()
    ranks = everyone(world_size, samples, batch_size)
    of_batches = zip(*(zip(s.loss_weights, s, strict=True) for s in ranks), strict=True)
    for of_ranks in of_batches:
        together = [index for weight, batch in of_ranks if weight for index in batch]
        mean = sum(weight * losses[batch].mean() for weight, batch in of_ranks) / world_size
        torch.testing.assert_close(mean, losses[together].mean(), rtol=0, atol=1e-6)


def test_labels_stay_with_their_rank() -> None:
    labels = [0, 1, 2, 3, 4, 5, 6, 7] * 20
    ranks = everyone(4, 160, 8, labels=labels)
    for epoch in range(2):
        seen = []
        for rank, sampler in enumerate(ranks):
            sampler.set_epoch(epoch)
            own = [index for batch in sampler for index in batch]
            assert {labels[index] for index in own} == {2 * rank, 2 * rank + 1}
            seen += own
        assert sorted(seen) == list(range(160))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to 1, as world_size is 2, got 2"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"labels": [0, 1]}, "labels must be one for each of 10 samples"),
        ({"labels": [0] * 10}, "labels must have at least 2 values, one for each rank, got 1"),
    ],
)
def test_bad_values_name_the_argument(options: dict[str, object], words: str) -> None:
    given = {"num_samples": 10, "batch_size": 5, "rank": 0, "world_size": 2, **options}
    with pytest.raises(ValueError, match=words):
        DistributedBatchSampler(given.pop("num_samples"), given.pop("batch_size"), **given)  # type: ignore[arg-type]
