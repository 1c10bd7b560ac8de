"""The machine that runs have, and the options of how they are carried out."""

import pickle

import pytest
import torch

from badm.bench.engine.options import Machine, RunOptions, available_devices


def have(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in devices)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in devices)


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("cuda", "mps"), "cuda")],
)
def test_auto_is_the_accelerator_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], chosen: str
) -> None:
    have(monkeypatch, *devices)
    assert Machine(device="auto").device == chosen
    assert available_devices() == (*devices, "cpu")


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:1", "meta", ""])
def test_an_unknown_device_is_refused_with_the_names_that_are_known(name: str) -> None:
    with pytest.raises(ValueError, match=f"one of cpu, cuda, mps, auto, got {name!r}"):
        Machine(device=name)


@pytest.mark.parametrize(("wanted", "other"), [("cuda", "mps"), ("mps", "cuda")])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, wanted: str, other: str
) -> None:
    have(monkeypatch)
    with pytest.raises(ValueError, match=rf"{wanted} is not available: torch \S+ has cpu$"):
        Machine(device=wanted)
    have(monkeypatch, other)
    with pytest.raises(ValueError, match=rf"{wanted} is not available: torch \S+ has {other}, cpu"):
        Machine(device=wanted)


def test_a_cpu_needs_no_accelerator_and_leaves_torch_as_it_is() -> None:
    Machine(threads=1).prepare()
    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_options_are_keyword_only_and_reach_another_process() -> None:
    with pytest.raises(TypeError):
        RunOptions(5.0)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Machine(2)  # type: ignore[misc]
    options = RunOptions(checkpoint_seconds=5.0, keep_weights=True)
    assert RunOptions(**options.to_dict()) == options
    assert pickle.loads(pickle.dumps(options)) == options
