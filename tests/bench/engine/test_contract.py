"""A run keeps the contract of a task: players, stages, batches, schedules, what is kept."""

from __future__ import annotations

import math
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from badm.bench import Method, Splits, Task
from badm.bench.engine.options import RunOptions
from badm.bench.engine.schedules import SCHEDULES
from badm.bench.engine.tensors import digest
from badm.bench.errors import StoreError
from badm.bench.records.runs import RunStore
from badm.bench.tasks.scores.image_grids import sample_grid
from tests.helpers.engine_tasks import (
    MOMENTUM,
    Fine,
    Gan,
    Graph,
    Line,
    Noisy,
    Sabotaged,
    method_of,
    recording,
    train,
    variant,
)


def test_a_player_changes_nothing_of_the_other(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str, list[Any]]] = []

    class Watching(Gan):
        def model(self, splits: Splits) -> nn.Module:
            self.made = super().model(splits)
            return self.made

    task = Watching()

    def look(module: nn.Module, work: Any) -> Any:
        other = task.made["generator" if work.player.name == "discriminator" else "discriminator"]
        return (
            work.player.name,
            digest(task.made["discriminator"].state_dict()),
            digest(task.made["generator"].state_dict()),
            [None if p.grad is None else p.grad.clone() for p in other.parameters()],
        )

    method = recording(seen, look)
    done = train(task, tmp_path, method)
    assert [name for name, *_ in seen] == ["discriminator", "generator"] * 6
    for before, after in pairwise(seen):
        changed = [a != b for a, b in zip(before[1:3], after[1:3], strict=True)]
        assert changed == [after[0] == "discriminator", after[0] == "generator"]
    # What the discriminator had as gradients is what it still has after the generator's step.
    own = [p.grad for p in task.made["discriminator"].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen[-1][3], own, strict=True))  # type: ignore[arg-type]
    assert all(g is None for g in seen[0][3])  # nor has the generator any before its first step
    assert set(done.points[1].losses or {}) == {"discriminator", "generator"}
    assert done.result is not None
    assert done.result.gradients == 12
    assert done.result.state_bytes == 4 * sum(p.numel() for p in task.made.parameters())


def test_players_get_the_same_batch_and_their_own_state(tmp_path: Path) -> None:
    batches: list[Any] = []
    train(Gan(), tmp_path, recording(batches, lambda module, work: work.batch.clone()))
    assert all(torch.equal(a, b) for a, b in zip(batches[::2], batches[1::2], strict=True))


def test_buffers_are_trained_with_and_kept(tmp_path: Path) -> None:
    done = train(Graph(), tmp_path, options=RunOptions(keep_weights=True), seed=3)
    weights = torch.load(RunStore(tmp_path).weights(done.config), weights_only=True)
    best = max((p.validation["accuracy"], -p.step) for p in done.points if p.validation is not None)
    assert weights["seen"] == -best[1]
    assert done.result is not None
    assert digest(weights) == done.result.kept
    assert done.result.score == best[0]


def staged(folder: Path, first: Task | None = None, method: Method = MOMENTUM) -> Any:
    first = first or Line()
    before = train(first, folder, method, RunOptions(keep_weights=True))
    return train(Fine(), folder, method, RunOptions(keep_weights=True), after=before.config)


def test_the_second_stage_starts_from_the_weights_of_the_first(tmp_path: Path) -> None:
    fine = staged(tmp_path)
    store = RunStore(tmp_path)
    first = torch.load(store.weights(fine.config.after), weights_only=True)
    second = torch.load(store.weights(fine.config), weights_only=True)
    assert torch.equal(first["0.weight"], second["0.weight"])  # frozen
    assert not torch.equal(first["0.bias"], second["0.bias"])
    other = train(
        variant(Line, name="line"), tmp_path, seed=1, options=RunOptions(keep_weights=True)
    )
    elsewhere = train(Fine(), tmp_path, after=other.config)
    assert elsewhere.path != fine.path
    assert elsewhere.result is not None
    assert elsewhere.result.weights != fine.result.weights


def test_a_stage_after_one_that_did_not_finish_says_so(tmp_path: Path) -> None:
    broken = variant(Line, loss=lambda self, model, batch: model(batch[0]).sum() * math.nan)
    fine = staged(tmp_path, broken)
    assert fine.result.status == "failed"
    assert "line" in fine.result.message
    assert "diverged" in fine.result.message


def test_damaged_weights_of_the_stage_before_are_set_aside_and_made_anew(tmp_path: Path) -> None:
    before = train(Line(), tmp_path, options=RunOptions(keep_weights=True))
    path = RunStore(tmp_path).weights(before.config)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match=path.name):
        train(Fine(), tmp_path, after=before.config)
    assert not path.exists()
    assert staged(tmp_path).result.status == "finished"


def test_a_sampled_score_is_the_same_draw_for_every_method(tmp_path: Path) -> None:
    still = {"lr": 0.0}
    a = train(Gan(), tmp_path, setting=still)
    b = train(Gan(), tmp_path, method_of(Sabotaged), setting=still)
    drawn = [p.validation for run in (a, b) for p in run.points if p.validation is not None]
    assert len(drawn) == 6
    assert all(figures == drawn[0] for figures in drawn)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_kept_weights_are_those_the_test_split_is_read_with(tmp_path: Path, keep: str) -> None:
    # So large a step overshoots: the score gets worse and worse.
    task = variant(Line, keep=keep, steps=10)
    done = train(task, tmp_path, setting={"lr": 0.9})
    readings = [p.validation["error"] for p in done.points if p.validation is not None]
    assert readings[-1] > min(readings)
    assert done.result is not None
    assert done.result.score == (min(readings) if keep == "best" else readings[-1])
    assert done.result.test == {"error": done.result.score}  # here the splits are the same
    assert (done.result.kept == done.result.weights) == (keep == "last")


def test_the_test_split_is_read_only_if_asked_for(tmp_path: Path) -> None:
    done = train(Line(), tmp_path, test=False)
    assert done.result is not None
    assert done.result.test is None
    assert done.result.score is not None


def batches_of(task: Task, folder: Path, steps: int, seed: int = 0) -> list[list[int]]:
    """The samples of each batch, of a task whose samples are their own indices."""
    seen: list[Any] = []
    train(
        task,
        folder,
        recording(seen, lambda module, work: work.batch[0][:, 0].tolist()),
        steps=steps,
        seed=seed,
    )
    return seen


class Counted(Line):
    """Its samples are the numbers 0 to 9."""

    def data(self) -> Splits:
        x = torch.arange(10, dtype=torch.float64).reshape(-1, 1).expand(-1, 3) / 10
        return Splits(*[(x, x[:, :1])] * 3)


def test_an_epoch_has_every_sample_once_and_the_last_batch_what_is_left(tmp_path: Path) -> None:
    batches = batches_of(Counted(), tmp_path, steps=6)
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    first, second = [*chain(*batches[:3])], [*chain(*batches[3:])]
    assert sorted(first) == sorted(second) == [i / 10 for i in range(10)]
    assert first != second
    assert first != sorted(first)


def test_a_fixed_order_is_that_of_the_split(tmp_path: Path) -> None:
    batches = batches_of(variant(Counted, order="fixed"), tmp_path, steps=4)
    assert [*chain(*batches[:3])] == [i / 10 for i in range(10)]
    assert batches[3] == batches[0]


def test_a_batch_may_be_larger_than_the_split(tmp_path: Path) -> None:
    batches = batches_of(variant(Counted, batch_size=64), tmp_path, steps=2)
    assert [len(batch) for batch in batches] == [10, 10]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_schedule_goes_from_one_towards_zero(tmp_path: Path, schedule: str) -> None:
    factors: list[float] = []
    method = recording(factors, lambda module, work: work.lr_factor)
    train(Line(), tmp_path, method, steps=4, schedule=schedule)
    assert factors == pytest.approx(
        {
            "constant": [1, 1, 1, 1],
            "linear": [1, 0.75, 0.5, 0.25],
            "wsd": [1, 1, 1, 1],
            "cosine": [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5],
        }[schedule],
        abs=1e-15,
    )


def test_a_run_warms_up_before_its_schedule(tmp_path: Path) -> None:
    factors: list[float] = []
    method = recording(factors, lambda module, work: work.lr_factor)
    train(Line(), tmp_path, method, steps=4, schedule="linear", warmup=0.5)
    assert factors == pytest.approx([0.5, 1, 1, 0.5])


def test_the_schedule_scales_the_learning_rate(tmp_path: Path) -> None:
    lrs: list[float] = []

    class Rates(Sabotaged):
        def step(self, work: Any) -> float:
            loss = super().step(work)
            lrs.append(self.optimizer.param_groups[0]["lr"])
            return loss

    train(Line(), tmp_path, method_of(Rates), steps=4, schedule="linear", setting={"lr": 0.04})
    assert lrs == pytest.approx([0.04, 0.03, 0.02, 0.01])


def test_artifacts_are_written_as_they_are_and_recorded(tmp_path: Path) -> None:
    done = train(Noisy(), tmp_path)
    shown = {p.step: p.exhibits for p in done.points if p.exhibits is not None}
    assert list(shown) == [10, 40]
    folder = RunStore(tmp_path).artifacts(done.config)
    for files in shown.values():
        assert list(files) == ["a picture", "a text"]
        assert (folder / files["a picture"]).read_bytes() == sample_grid(torch.zeros(3, 1, 4, 4))
        assert (folder / files["a text"]).read_text(encoding="utf-8").startswith("blättert [")
    assert len(list(folder.iterdir())) == 4


def test_a_reading_comes_before_the_first_step_and_after_the_last(tmp_path: Path) -> None:
    done = train(variant(Line, evaluate_every=4), tmp_path)
    assert [p.step for p in done.points if p.validation is not None] == [0, 4, 6]
    losses = [p for p in done.points if p.losses is not None]
    assert [p.step for p in losses] == [1, 2, 3, 4, 5, 6]
    assert [p.gradients for p in losses] == [1, 2, 3, 4, 5, 6]


def test_parts_of_gradients_add_up_to_whole_ones(tmp_path: Path) -> None:
    task = variant(Line, gradients="sub-batches", batch_size=10, sub_batch_size=1)
    done = train(task, tmp_path, steps=7)
    assert [p.gradients for p in done.points if p.losses is not None] == [1, 2, 3, 4, 5, 6, 7]
    assert done.result is not None
    assert done.result.gradients == 7


@pytest.mark.slow
def test_losses_are_means_since_the_point_before(tmp_path: Path) -> None:
    seen: list[float] = []

    class Told(Sabotaged):
        def step(self, work: Any) -> float:
            seen.append(super().step(work))
            return seen[-1]

    done = train(variant(Noisy, evaluate_every=500), tmp_path, method_of(Told), steps=401)
    losses = [(p.step, p.losses["model"]) for p in done.points if p.losses is not None]
    assert [step for step, _ in losses] == [*range(2, 401, 2), 401]
    assert [loss for _, loss in losses] == pytest.approx(
        [(seen[i - 2] + seen[i - 1]) / 2 for i in range(2, 401, 2)] + [seen[400]]
    )


def test_measured_times_and_memory_are_plausible(tmp_path: Path) -> None:
    done = train(Line(), tmp_path)
    result = done.result
    assert result is not None
    assert 0 < result.seconds < 60
    seconds = [p.seconds for p in done.points]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= result.seconds
    assert result.peak_bytes is not None
    assert 50e6 < result.peak_bytes < 50e9  # torch alone takes more than the one
    assert result.state_bytes == 4 * 8  # a momentum for each of four weights


def test_work_after_a_step_is_the_task_s_own(tmp_path: Path) -> None:
    class Averaged(Line):
        def model(self, splits: Splits) -> nn.Module:
            model = super().model(splits)
            model.register_buffer("average", torch.zeros(1, 3, dtype=torch.float64))
            return model

        def after_step(self, model: nn.Module) -> None:
            assert not torch.is_grad_enabled()
            model.average.lerp_(model[0].weight, 0.5)

    plain = train(Line(), tmp_path / "plain", options=RunOptions(keep_weights=True))
    averaged = train(Averaged(), tmp_path / "averaged", options=RunOptions(keep_weights=True))
    weights = torch.load(
        RunStore(tmp_path / "averaged").weights(averaged.config), weights_only=True
    )
    without = torch.load(RunStore(tmp_path / "plain").weights(plain.config), weights_only=True)
    assert torch.equal(weights["0.weight"], without["0.weight"])
    assert weights["average"].abs().sum() > 0
