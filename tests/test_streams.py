"""Adversarial streams of gradients: a part of them, in every metric and on every path."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest
import torch

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
def test_no_stream_makes_weights_or_state_that_are_not_finite(
    gradients: ModuleType, metric: str
) -> None:
    chosen = gradients.streams()[::EVERY]
    assert len(chosen) >= 15
    verdicts = {str(stream): gradients.check_stream(stream, metric) for stream in chosen}
    assert any(verdict.overflow for verdict in verdicts.values())
    assert {name: v.failures for name, v in verdicts.items() if v.failures} == {}


@pytest.mark.slow
def test_the_streams_find_the_overflow_of_adam(gradients: ModuleType) -> None:
    stream = gradients.Stream("spike of 1e28", (7,), torch.float32, 1.0, 0)
    found = gradients.check_stream(stream, "Adam").failures
    assert set(found.values()) == {"exp_avg_sq not finite"}


def test_there_are_a_thousand_streams_of_all_kinds(gradients: ModuleType) -> None:
    streams = gradients.streams()
    assert len(streams) >= 1000
    assert {stream.kind for stream in streams} == set(gradients.KINDS)
