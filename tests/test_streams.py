"""Adversarial streams of gradients: a part of them, in every metric and on every path."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from badm import metrics
from tests.helpers import ROOT

EVERY = 60  # of the thousand and more; benchmarks/adversarial_streams.py has all


@pytest.fixture(scope="module")
def gradients() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("gradient_streams")


@pytest.mark.slow
@pytest.mark.parametrize("metric", metrics.names())
def test_no_stream_makes_weights_or_duals_that_are_not_finite(
    gradients: ModuleType, metric: str
) -> None:
    """The square of 1e20 is no float32: there a second moment overflows, as Adam's, and rests."""
    make_for = gradients.optimizers()[metric]
    chosen = gradients.streams()[::EVERY]
    assert len(chosen) >= 15
    failures = {}
    for stream in chosen:
        found = set(gradients.check_stream(stream, make_for).failures.values())
        overflows = any(large in str(stream) for large in ("1e+30", "1e30", "1e28"))
        if found - ({"second_moment not finite"} if overflows else set()):
            failures[str(stream)] = found
    assert failures == {}


def test_there_are_a_thousand_streams_of_all_kinds(gradients: ModuleType) -> None:
    streams = gradients.streams()
    assert len(streams) >= 1000
    assert {stream.kind for stream in streams} == set(gradients.KINDS)
