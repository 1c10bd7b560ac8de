"""Runs of several ranks: the same engine, the same promises, whatever the number of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from badm.bench import Splits, methods
from badm.bench.engine.batches import BatchSampler
from badm.bench.engine.options import RunOptions
from badm.bench.engine.ranks import Ranks, join_ranks
from badm.bench.engine.run import run_on_ranks
from badm.bench.methods.replicas import MODES
from badm.bench.records.runs import Run, RunStore
from badm.bench.task import Task
from badm.distributed.ranks import RankLostError, RankMismatchError
from tests.helpers import QUICK_TASKS
from tests.helpers.engine_tasks import Line, Noisy, comparable, config_of, train
from tests.helpers.ranks import on_ranks

pytestmark = pytest.mark.distributed

QUICK = f"{QUICK_TASKS}:quick"


class Labelled(Noisy):
    """Noisy without any draw that ranks would make each for itself, in double precision."""

    name = "labelled"
    evaluate_every = 5

    def data(self) -> Splits:
        splits = super().data()
        return Splits(
            *((x.double(), y) for x, y in (splits.train, splits.validation, splits.test)),
            synthetic=True,
        )

    def model(self, splits: Splits) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y, reduction=self.reduction)


class Summed(Labelled):
    name = "summed"
    reduction = "sum"


TASKS: dict[str, type[Task]] = {c.name: c for c in (Labelled, Summed, Line, Noisy)}


def trained(folder: str, task: str, method: str, options: RunOptions, **setting: Any) -> Run | None:
    """A run, as one of the ranks that make it."""
    ranks = join_ranks()
    setting = {"ranks": ranks.size, **setting}
    chosen, made = methods.find(method), TASKS[task]()
    config = config_of(made, chosen, setting=setting)
    return run_on_ranks(ranks, config, made, chosen, RunStore(folder), options)


def train_all(folder: str, wanted: list[tuple[str, str, dict[str, Any]]]) -> list[Run | None]:
    return [trained(folder, *names, RunOptions(), **setting) for *names, setting in wanted]


def errors(run: Run) -> list[float]:
    return run.validation_curve("loss" if run.config.task != "line" else "error")[1]


@pytest.mark.parametrize("world_size", [2, 3])
def test_step_by_step_ranks_are_one_process(tmp_path: Path, world_size: int) -> None:
    """Also with batches that do not divide, a rank without a sample, and losses that are sums."""
    pairs = [("labelled", "adam"), ("labelled", "badm"), ("summed", "sgd"), ("line", "sgd")]
    wanted = [(task, f"{method}+step", {"lr": 0.01}) for task, method in pairs]
    first, *others = on_ranks(world_size, train_all, str(tmp_path), wanted)
    assert all(other == [None] * len(wanted) for other in others)
    for (task, method), run in zip(pairs, first, strict=True):
        alone = train(TASKS[task](), tmp_path / "alone", methods.find(method), setting={"lr": 0.01})
        assert errors(run) == pytest.approx(errors(alone), rel=1e-9)
        assert errors(run)[-1] != errors(run)[0]


def test_one_inner_step_of_sgd_between_meetings_is_badm_as_printed(tmp_path: Path) -> None:
    rho, sigma, gamma = 20.0, 80.0, 0.01
    printed = {"lr": 1 / sigma, "beta": rho / (rho + sigma)}
    outer = {"lr": gamma, "every": 1, "outer_lr": 1 / (sigma * gamma), "memory": printed["beta"]}
    wanted = [
        ("labelled", "sgd+outer", outer),
        ("labelled", "sgd+dual", {**outer, "eta": 1 - printed["beta"]}),
    ]
    first, _ = on_ranks(2, train_all, str(tmp_path), wanted)
    alone = train(Labelled(), tmp_path / "alone", methods.find("badm-printed"), setting=printed)
    for run in first:
        # The last batch of an epoch is uneven by a sample, which ranks alone do not know of.
        assert errors(run) == pytest.approx(errors(alone), rel=1e-3)


def test_every_mode_trains_and_ends_where_all_agree(tmp_path: Path) -> None:
    wanted = [
        ("labelled", f"adam+{mode}", {"lr": 0.02, **({} if mode == "step" else {"every": 3})})
        for mode in MODES
    ]
    first, second = on_ranks(2, train_all, str(tmp_path), wanted)
    assert second == [None] * len(wanted)
    for (_, method, _), run in zip(wanted, first, strict=True):
        assert run.result.status == "finished", method
        assert min(errors(run)) < 0.9 * errors(run)[0], method
        steps, _ = run.validation_curve("loss")
        assert steps == list(range(0, 41, 5))


def test_diloco_is_sgd_with_nesterov_momentum_on_what_the_ranks_went(tmp_path: Path) -> None:
    """With one inner step of SGD that is torch's own optimizer, of the product of both rates."""
    setting = {"lr": 0.1, "every": 1, "outer_lr": 0.3, "memory": 0.8}
    ((run,), _) = on_ranks(2, train_all, str(tmp_path), [("labelled", "torch-sgd+diloco", setting)])
    nesterov = {"lr": 0.03, "momentum": 0.8, "nesterov": True}
    alone = train(Labelled(), tmp_path / "a", methods.find("torch-sgd"), setting=nesterov)
    assert errors(run) == pytest.approx(errors(alone), rel=1e-3)


def train_with_labels(folder: str) -> Any:
    made = Labelled()
    ranks = join_ranks()
    sampler = BatchSampler(50, 16, "shuffled", 0, ranks, made.sample_labels(made.data().train))
    seen = [sampler.at_step(step)[0] for step in range(1, sampler.num_batches + 1)]
    run = trained(folder, "labelled", "adam+average", RunOptions(), shards="labels", lr=0.02)
    return torch.cat(seen), run


def test_ranks_may_have_labels_of_their_own(tmp_path: Path) -> None:
    (first, run), (second, _) = on_ranks(2, train_with_labels, str(tmp_path))
    labels = torch.arange(50) % 3
    assert set(labels[first].tolist()) == {0, 1}
    assert set(labels[second].tolist()) == {2}
    assert sorted([*first.tolist(), *set(second.tolist())]) == list(range(50))
    assert run.result.status == "finished"


def test_a_task_without_labels_says_so(tmp_path: Path) -> None:
    results = on_ranks(2, by_label_without_labels, str(tmp_path))
    for error in results:
        with pytest.raises(Exception, match="task gan has no labels to divide its samples by"):
            raise error


def by_label_without_labels(folder: str) -> None:
    from tests.helpers.engine_tasks import Gan

    ranks, method = join_ranks(), methods.find("adam+average")
    config = config_of(Gan(), method, setting={"ranks": 2, "shards": "labels"})
    run_on_ranks(ranks, config, Gan(), method, RunStore(folder))


def diverge(folder: str) -> Any:
    return trained(folder, "line", "sgd+average", RunOptions(), lr=1e200, every=1)


def test_a_run_that_diverges_is_a_result_for_all_ranks(tmp_path: Path) -> None:
    run, other = on_ranks(2, diverge, str(tmp_path))
    assert other is None
    assert run.result.status == "diverged"


class Killer(Noisy):
    """On one rank, after a step, the process kills itself, as often as there are files for it."""

    name = "killer"
    batch_size = 10  # BatchNorm wants two samples on every rank

    def after_step(self, model: nn.Module) -> None:
        ticket = Path(os.environ["TICKETS"]) / f"{os.environ['RANK']}-{self.steps_done(model)}"
        if ticket.exists():
            ticket.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def steps_done(self, model: nn.Module) -> int:
        return int(model[1].num_batches_tracked)


TASKS[Killer.name] = Killer


def train_killer(folder: str, tickets: str, method: str) -> Any:
    os.environ["TICKETS"] = tickets
    every_time = RunOptions(checkpoint_seconds=0.0)
    return trained(
        folder, "killer", method, every_time, **({"every": 3} if "dual" in method else {})
    )


@pytest.mark.parametrize("method", ["adam+dual", "badm+step"])
def test_after_a_kill_of_any_rank_the_run_goes_on_bitwise_equal(
    tmp_path: Path, method: str
) -> None:
    (tickets := tmp_path / "tickets").mkdir()
    unbroken, _ = on_ranks(2, train_killer, str(tmp_path / "unbroken"), str(tickets), method)
    broken = str(tmp_path / "broken")
    for victim, step in ((1, 9), (0, 21), (1, 37)):
        (tickets / f"{victim}-{step}").touch()
        results = on_ranks(2, train_killer, broken, str(tickets), method)
        assert "-9" in str(results[victim])
        with pytest.raises(RankLostError, match=f"rank {victim} sent no heartbeat"):
            raise results[1 - victim]
    parts = [p.name.rpartition(".checkpoint")[2] for p in Path(broken).glob("*/*.checkpoint*")]
    assert sorted(parts) == ["", ".rank1.step36"]
    finished, other = on_ranks(2, train_killer, broken, str(tickets), method)
    assert comparable(finished) == comparable(unbroken)
    assert other is None
    assert not list(Path(broken).glob("*/*.checkpoint*"))


def test_a_rank_without_its_part_of_the_checkpoint_lets_all_begin_anew(tmp_path: Path) -> None:
    (tickets := tmp_path / "tickets").mkdir()
    unbroken, _ = on_ranks(2, train_killer, str(tmp_path / "a"), str(tickets), "adam+dual")
    (tickets / "0-21").touch()
    on_ranks(2, train_killer, str(tmp_path / "b"), str(tickets), "adam+dual")
    (part,) = (tmp_path / "b").glob("*/*.rank1.*")
    part.unlink()
    finished, _ = on_ranks(2, train_killer, str(tmp_path / "b"), str(tickets), "adam+dual")
    assert comparable(finished) == comparable(unbroken)


def disagree(folder: str) -> None:
    trained(folder, "line", "sgd+average", RunOptions(), lr=0.1 * (1 + int(os.environ["RANK"])))


def test_ranks_that_were_told_different_things_say_so_at_once(tmp_path: Path) -> None:
    for error in on_ranks(2, disagree, str(tmp_path)):
        with pytest.raises(
            RankMismatchError, match=r"setting must be .* rank 0 has .*0\.1.* 1 has .*0\.2"
        ):
            raise error


def test_a_wrong_number_of_ranks_is_named(tmp_path: Path) -> None:
    method = methods.find("adam+outer")
    config = config_of(Line(), method)
    with pytest.raises(ValueError, match="needs 4 ranks, and there are 1"):
        run_on_ranks(Ranks(), config, Line(), method, RunStore(tmp_path))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_part_the_batches_of_one_process(size: int) -> None:
    alone = BatchSampler(23, 5, "shuffled", seed=1)
    teams = [Ranks() for _ in range(size)]
    for rank, ranks in enumerate(teams):
        ranks.rank, ranks.size = rank, size
    samplers = [BatchSampler(23, 5, "shuffled", 1, ranks) for ranks in teams]
    for step in range(1, 12):
        parts = [sampler.at_step(step) for sampler in samplers]
        counted = [own for own, share in parts if share]
        assert torch.equal(torch.cat(counted), alone.at_step(step)[0])
        assert sum(share for _, share in parts) == pytest.approx(size)
        assert all(len(own) for own, _ in parts)


def test_unknown_modes_are_named_with_those_there_are() -> None:
    with pytest.raises(methods.UnknownMethod, match="mode 'outr'; did you mean outer"):
        methods.find("adam+outr")
    with pytest.raises(methods.UnknownMethod, match="there is no method 'adm'"):
        methods.find("adm+outer")


def command(*arguments: object, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [sys.executable, *(launcher if ranks else []), "-m", "badm", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


@pytest.mark.slow
def test_the_command_on_ranks_of_its_own_and_under_torchrun_is_the_same_run(
    tmp_path: Path,
) -> None:
    given = ("run", QUICK, "--method", "adam", "--replicas", "outer", "--set", "every=2", "--json")
    own = command(*given, "--set", "ranks=2", "--runs", tmp_path / "own")
    assert own.returncode == 0, own.stderr
    under = command(*given, "--runs", tmp_path / "under", ranks=2)
    assert under.returncode == 0, under.stderr
    results = [json.loads(done.stdout) for done in (own, under)]
    assert results[0]["config"] == results[1]["config"]
    assert results[0]["result"]["weights"] == results[1]["result"]["weights"]
    again = command(*given, "--set", "ranks=2", "--runs", tmp_path / "own")
    assert json.loads(again.stdout) == results[0]


@pytest.mark.slow
def test_processes_of_torchrun_must_be_told_how_to_meet(tmp_path: Path) -> None:
    done = command("run", QUICK, "--method", "adam", "--runs", tmp_path, ranks=2)
    assert done.returncode != 0
    assert "say with replicas (--replicas) how they meet" in done.stderr


@pytest.mark.slow
def test_methods_of_replicas_can_be_compared(tmp_path: Path) -> None:
    output = tmp_path / "comparison.json"
    done = command(
        *("compare", QUICK, "--methods", "adam,adam+average", "--trials", 1, "--seeds", 1),
        *("--runs", tmp_path / "runs", "-o", output),
    )
    assert done.returncode == 0, done.stderr
    rows: list[Mapping[str, Any]] = json.loads(output.read_text())["rows"]
    assert [(row["method"], row["status"]) for row in rows] == [
        ("adam", "finished"),
        ("adam+average", "finished"),
    ]
