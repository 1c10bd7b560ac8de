"""Training functions: their runs, in the files that runs of tasks have."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from badm import bench, cli
from badm.bench import methods, tasks
from badm.bench.engine.function_run import NO_TEST
from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.schedules import lr_factor
from badm.bench.engine.streams import output_to
from badm.bench.engine.training import Interrupted
from badm.bench.errors import ProtocolError, TaskError
from badm.bench.method import Method
from badm.bench.records.runs import Run, RunStore
from tests.helpers import own_optimizers, training_functions

FILE = Path(training_functions.__file__)
STEPS = training_functions.STEPS


def badm(*arguments: object) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


def done(
    name: str,
    folder: Path,
    method: str | Method = "sgd",
    options: RunOptions | None = None,
    **facts: Any,
) -> Run:
    found = tasks.find(f"{FILE}:{name}")
    chosen = methods.find(method) if isinstance(method, str) else method
    setting = chosen.setting(facts.pop("setting", {"lr": 1.0}))
    config = found.config(chosen, setting, facts.pop("seed", 0), **facts)
    return run(config, found.task, chosen, RunStore(folder), options)


def scores(run: Run) -> list[tuple[int, float]]:
    return [*zip(*run.validation_curve("accuracy"), strict=True)]


def test_a_run_of_a_function_has_the_file_of_a_run(tmp_path: Path) -> None:
    made = done("side", tmp_path)
    assert made.result is not None
    assert (made.result.status, made.result.step, made.result.message) == ("finished", STEPS, "")
    assert [step for step, _ in scores(made)] == [2, 4, 6, 8, 10, 12]
    assert made.result.score == max(score for _, score in scores(made))
    assert made.result.test is not None
    assert 0.5 < made.result.test["accuracy"] <= 1
    assert made.result.gradients == STEPS
    losses = [point.losses["model"] for point in made.points if point.losses]
    assert len(losses) == 6
    assert made.config.task == "side"
    assert made.facts["description"] == "Which side of a line a point is on."
    assert made.path.with_suffix(".log").read_text() == "begun with seed 0\n"


def test_what_is_printed_and_logged_goes_to_the_file_and_back_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("badm.tests.output")
    logger.addHandler(handler := logging.StreamHandler())  # with the stderr of now
    try:
        for mode in ("w", "a"):
            with output_to(tmp_path / "log", mode):
                print("printed")
                logger.warning("logged")
        logger.warning("afterwards")
    finally:
        logger.removeHandler(handler)
    assert (tmp_path / "log").read_text().count("printed\nlogged\n") == 2
    assert capsys.readouterr() == ("", "afterwards\n")


def test_equal_seeds_are_equal_bit_for_bit_and_other_seeds_are_not(tmp_path: Path) -> None:
    first, second, other = (
        done("side", tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2))
    )
    assert scores(first) == scores(second)
    assert first.result
    assert second.result
    assert other.result
    assert first.result.weights == second.result.weights != other.result.weights


def test_a_search_does_not_read_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (result := done("side", tmp_path, test=False).result)
    assert result.test is None


def test_the_test_split_is_measured_with_the_weights_of_the_best_report(tmp_path: Path) -> None:
    found = tasks.find(f"{FILE}:side")
    made = done("side", tmp_path, options=RunOptions(keep_weights=True))
    kept = torch.load(RunStore(tmp_path).weights(made.config))
    model = nn.Linear(2, 2)
    model.load_state_dict(kept)
    _, validation, test = training_functions.data()
    assert made.result
    assert made.result.test
    assert training_functions.accuracy(model, validation) == made.result.score
    assert training_functions.accuracy(model, test) == made.result.test["accuracy"]
    assert found.is_function


@pytest.mark.parametrize(("schedule", "warmup"), [("linear", 0.25), ("cosine", 0.0)])
def test_the_schedule_is_that_of_the_engine(tmp_path: Path, schedule: str, warmup: float) -> None:
    rates: list[float] = []
    method = methods.find("torch.optim:SGD")

    def build(setup: Any, setting: Any) -> Any:
        trainer = method.build(setup, setting)
        trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
        )
        return trainer

    from dataclasses import replace

    watched = replace(method, build=build)
    assert done("side", tmp_path, watched, schedule=schedule, warmup=warmup).result
    expected = [1.0 * lr_factor(schedule, warmup, k, STEPS) for k in range(1, STEPS + 1)]
    assert rates == expected


def test_a_function_that_goes_on_after_its_budget_no_longer_changes_the_model(
    tmp_path: Path,
) -> None:
    short = done("side", tmp_path, steps=5)
    assert short.result
    assert short.result.status == "finished"
    # The loop reports after every second step: the first report after the fifth ends it.
    assert [step for step, _ in scores(short)] == [2, 4, 5]
    assert (short.result.step, short.result.gradients) == (5, 5.0)
    assert short.result.test is not None
    whole = done("no-test", tmp_path, steps=5)  # asks for its steps
    assert whole.result
    assert whole.result.step == 5


def test_every_player_has_an_optimizer_of_its_own(tmp_path: Path) -> None:
    made = done("two-players", tmp_path)
    assert made.result
    assert made.result.test
    assert (made.result.step, made.result.gradients) == (STEPS, 2.0 * STEPS)


def test_without_a_test_split_the_validation_score_counts_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    made = done("no-test", tmp_path)
    assert made.result
    assert made.result.test
    assert made.result.test["accuracy"] == made.result.score
    assert made.facts["notes"] == ["Points in a plane.", NO_TEST]


@pytest.mark.parametrize("method", ["badm", "adamw", "muon", "soap", "adam", "torch-nadam", "lion"])
def test_methods_of_every_family_train_a_function(tmp_path: Path, method: str) -> None:
    made = done("side", tmp_path, method, setting={})
    assert made.result
    assert (made.result.status, made.result.step) == ("finished", STEPS)
    assert made.result.state_bytes is not None


def test_a_method_that_evaluates_other_weights_needs_the_context_for_them(tmp_path: Path) -> None:
    without = done("side", tmp_path, "schedule-free").result
    assert without
    assert without.status == "cannot"
    assert "the function must evaluate within `with trial.evaluation():`" in without.message
    within = done("no-test", tmp_path, "schedule-free").result
    assert within
    assert within.status == "finished"


def test_what_a_layer_wise_method_cannot_train_is_said(tmp_path: Path) -> None:
    result = done("side", tmp_path, "dladmm", setting={}).result
    assert result
    assert result.status == "cannot"


def test_an_error_of_the_optimizer_is_the_methods_and_one_of_the_function_is_not(
    tmp_path: Path,
) -> None:
    result = done("side", tmp_path, f"{own_optimizers.__file__}:Fails").result
    assert result
    assert result.status == "failed"
    assert result.message.startswith("RuntimeError: no step today (own_optimizers.py, line ")
    message = r"task raises: raises raised LookupError: no such thing \(training_functions.py, line"
    with pytest.raises(TaskError, match=message):
        done("raises", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("never-reports", r"it never reported its score: it must call trial.report\(step, acc"),
        ("reports-loss-alone", "it never reported its score"),
        ("other-score", "trial.report must be given the score 'accuracy', got f1"),
        ("word", "trial.report must be given numbers by name, got 'high' for 'accuracy'"),
        ("exits", "exits raised SystemExit: 0"),
        ("own-optimizer", r"it must train with trial.optimizer\(model\)"),
        ("no-model", "trial.optimizer must be given a torch.nn.Module .*, got list"),
        ("forgets-test", "it never called trial.test: give it a function"),
        ("bad-test", "trial.test must be given the score 'accuracy', got f1"),
    ],
)
def test_a_function_that_leaves_something_out_is_told_so(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        done(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "the accuracy is nan at step 1"),
        ("blows-up", "the weights are not finite at step 1"),
    ],
)
def test_a_score_or_weights_that_are_no_number_are_a_divergence(
    tmp_path: Path, name: str, message: str
) -> None:
    result = done(name, tmp_path).result
    assert result
    assert (result.status, result.message) == ("diverged", message)


def test_a_schedule_that_is_not_followed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"has the schedule cosine: it must call trial.scheduler\(optimizer\)"
    ):
        done("no-test", tmp_path, schedule="cosine")


def test_a_function_that_ends_early_is_noted(tmp_path: Path) -> None:
    result = done("stops-early", tmp_path).result
    assert result
    assert (result.status, result.message) == ("finished", "it ended after 5 of its 12 steps")


def test_ranks_are_refused_before_anything_is_run() -> None:
    with pytest.raises(ProtocolError, match=r"sgd\+outer takes several ranks, and side is a train"):
        tasks.find(f"{FILE}:side").require_single_process(methods.find("sgd+outer"))


def test_an_interrupted_run_starts_again_and_one_with_checkpoints_goes_on(tmp_path: Path) -> None:
    class StopAt:
        def __init__(self, step: int) -> None:
            self.step, self.taken = step, 0

        def count(self, step: int, loss: float) -> None:
            self.taken = step

        def is_reached(self) -> bool:
            return self.taken >= self.step

    for name, log in (
        ("side", "begun with seed 0\n"),
        ("resumes", "from 0\nfrom 6\n"),
    ):
        whole = done(name, tmp_path / "whole")
        stop = StopAt(7)
        options = RunOptions(checkpoint_seconds=0, on_step=stop.count, should_stop=stop.is_reached)
        with pytest.raises(Interrupted):
            done(name, tmp_path / "broken", options=options)
        again = done(name, tmp_path / "broken")
        assert scores(again) == scores(whole)
        assert again.result
        assert whole.result
        assert again.result.weights == whole.result.weights
        assert again.result.test == whole.result.test
        assert again.path.with_suffix(".log").read_text() == log


def test_a_damaged_checkpoint_is_put_aside_and_the_run_starts_again(tmp_path: Path) -> None:
    taken = [0]
    options = RunOptions(
        checkpoint_seconds=0,
        on_step=lambda step, _: taken.__setitem__(0, step),
        should_stop=lambda: taken[0] >= 5,
    )
    with pytest.raises(Interrupted):
        done("resumes", tmp_path, options=options)
    (checkpoint,) = tmp_path.glob("resumes/*.checkpoint")
    checkpoint.write_bytes(b"nothing")
    made = done("resumes", tmp_path)
    assert made.result
    assert made.result.status == "finished"
    assert made.path.with_suffix(".log").read_text() == "from 0\n"


@pytest.mark.slow
def test_a_run_whose_process_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    command = [sys.executable, "-m", "badm", "run", f"{FILE}:resumes", "-m", "sgd"]
    command += ["--checkpoint", "0", "--runs", str(tmp_path / "runs"), "--json"]
    environment = {**os.environ, "FUNCTION_GATE": str(gate), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert killed.returncode == -9
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    whole = done("resumes", tmp_path / "whole", setting={})
    assert whole.result
    assert json.loads(again.stdout)["result"]["weights"] == whole.result.weights
    (log,) = tmp_path.glob("runs/resumes/*.log")
    assert log.read_text() == "from 0\nfrom 6\n"


@pytest.mark.slow
def test_a_function_and_a_task_are_compared_in_one_report(tmp_path: Path) -> None:
    from tests.helpers import quick_tasks

    chosen = ("-m", "badm,sgd", "--trials", 2, "--seeds", 2, "--jobs", 1, "--runs", tmp_path)
    outputs = ("-o", tmp_path / "a.json", "-o", tmp_path / "a.html", "-o", tmp_path / "a.md")
    made = badm("compare", f"{FILE}:side", f"{quick_tasks.__file__}:quick", *chosen, *outputs)
    assert made.exit_code == 0, made.output
    content = json.loads((tmp_path / "a.json").read_text())
    assert {(row["task"], row["method"], row["status"]) for row in content["rows"]} == {
        (task, method, "finished") for task in ("side", "quick") for method in ("badm", "sgd")
    }
    assert all(0 < row["test"]["value"] <= 1 for row in content["rows"])
    assert "## side" in (tmp_path / "a.md").read_text()
    assert "begun with seed" not in made.output


@pytest.mark.slow
def test_the_speed_protocol_shortens_a_function(tmp_path: Path) -> None:
    result = bench.compare(
        training_functions.side,
        ["adamw", "badm"],
        protocol="speed",
        trials=1,
        seeds=1,
        jobs=1,
        steps=16,
        runs=tmp_path,
        reference="badm",
    )
    assert result.comparison.speed is not None
    parts = {part.steps for row in result.comparison.speed.rows for part in row.parts}
    assert 8 in parts


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("never-reports", 1, "it never reported its score"),
        ("raises", 1, "raises raised LookupError: no such thing"),
        ("nothing-there", 2, "has no task 'nothing-there': choose one of"),
    ],
)
@pytest.mark.slow
def test_the_command_says_what_is_wrong_with_a_function(
    tmp_path: Path, name: str, code: int, message: str
) -> None:
    runs = ("--runs", tmp_path, "--trials", 1, "--seeds", 1, "--jobs", 1)
    made = badm("compare", f"{FILE}:{name}", "-m", "sgd", *runs)
    assert made.exit_code == code, made.output
    assert message in made.stderr


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"score": "my score", "budget": 1}, "score must be the name of a metric"),
        ({"score": "accuracy", "budget": 0}, "budget must be a whole number of steps"),
        ({"score": "accuracy", "budget": 1, "best": "up"}, "best must be 'high' or 'low'"),
        ({"score": "accuracy", "budget": 1, "keep": "all"}, "keep must be 'best' or 'last'"),
        ({"score": "accuracy", "budget": 1, "name": "A B"}, "name must be lower-case letters"),
    ],
)
def test_facts_that_cannot_be_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.training(**facts)(lambda trial: None)


def test_a_file_without_a_task_says_how_to_mark_a_function(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def train(trial): ...\n")
    with pytest.raises(TaskError, match=r'@badm.bench.training\(score="accuracy", budget=600\)'):
        tasks.find(str(file))
    file.write_text(
        "import badm.bench\n"
        "@badm.bench.training(score='accuracy', budget=5)\ndef train(trial): ...\n"
    )
    assert tasks.find(str(file)).task.name == "train"
