"""Settings by name: one design for all methods, ranges, stated settings, and what comes next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench import methods
from badm.bench.compare.budgets import TIMED_STEPS, steps_in, steps_in_epochs
from badm.bench.compare.search_space import check_search, design, read_ranges, with_stated
from badm.bench.errors import ProtocolError
from badm.bench.method import Choice, Range
from badm.bench.paper import Paper
from badm.bench.records.plans import Plan
from badm.bench.records.runs import Run, RunConfig, RunResult, TrajectoryPoint
from badm.bench.tasks import find
from tests.helpers import QUICK_TASKS, training_functions

QUICK = f"{QUICK_TASKS}:quick"


def badm(*arguments: object) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


def plan(*names: str, **options: Any) -> Plan:
    return Plan(("digits",), names, **options)


def settings(name: str, trials: int, **options: Any) -> list[dict[str, Any]]:
    return design(methods.find(name), plan(name, **options)).settings(trials)


def test_the_design_is_the_same_on_every_machine() -> None:
    # Written down: another sequence would make runs of before worthless. Change it knowingly.
    assert settings("adamw", 4, search="lr,weight_decay,beta") == [
        {"lr": 0.00316, "weight_decay": 0.00669, "beta1": 0.874},
        {"lr": 0.000562, "weight_decay": 0.0448, "beta1": 0.9204},
        {"lr": 0.0178, "weight_decay": 0.00188, "beta1": 0.9498},
        {"lr": 0.000237, "weight_decay": 0.0126, "beta1": 0.9683},
    ]


def test_all_methods_take_the_same_points_of_what_they_share() -> None:
    search = "lr,weight_decay,beta"
    adamw, badm, lion = (settings(name, 5, search=search) for name in ("adamw", "badm", "lion"))
    assert [s["weight_decay"] for s in adamw] == [s["weight_decay"] for s in badm]
    assert [s["beta1"] for s in adamw] == [s["beta"] for s in badm]
    assert [s["lr"] for s in adamw] == [s["lr"] for s in badm]
    # Its range of learning rates, 3e-5 to 0.03, is another one: its points are the same.
    assert [s["lr"] for s in lion] == pytest.approx([0.3 * s["lr"] for s in adamw], rel=0.01)


def test_a_method_without_a_setting_searches_the_others_with_as_many_trials() -> None:
    found = settings("sgd", 4, search="lr,beta2")
    assert [list(setting) for setting in found] == [["lr"]] * 4
    assert len({setting["lr"] for setting in found}) == 4
    # A momentum of 0 is what makes sgd: it is not searched without a range of its own.
    assert list(settings("torch-sgd", 1, search="lr,momentum")[0]) == ["lr"]
    assert list(
        settings("torch-sgd", 1, search="lr,momentum", space=("momentum=0.5..0.9",))[0]
    ) == ["lr", "momentum"]


def test_one_name_is_the_search_there_always_was() -> None:
    assert settings("adamw", 3, search="lr") == [{"lr": x} for x in (0.000316, 0.00316, 0.0316)]


def test_ranges_take_the_place_of_the_methods_own() -> None:
    assert settings("adamw", 2, space=("lr=1e-3..1e-1",)) == [{"lr": 0.00316}, {"lr": 0.0316}]
    found = settings("torch-sgd", 2, search="lr,nesterov", space=("nesterov=true|false",))
    assert {setting["nesterov"] for setting in found} == {True, False}
    assert read_ranges(["x=0..1"]) == {"x": Range(0.0, 1.0, log=False)}
    assert read_ranges(["x=1|2|3"]) == {"x": Choice((1, 2, 3))}


def test_what_is_stated_or_in_brackets_is_not_searched() -> None:
    stated = with_stated(methods.find("adamw"), ("weight_decay=1", "beta=0.95"))
    assert (stated.name, stated.source) == ("adamw", "")
    assert stated.setting({})["weight_decay"] == 1.0
    assert stated.setting({})["beta1"] == 0.95
    assert stated.paper_setting(Paper(lr=0.5))["beta1"] == 0.95
    assert list(design(stated, plan(search="lr,weight_decay,beta")).space) == ["lr"]
    bracketed = methods.find("adamw[weight_decay=0.2]")
    assert list(design(bracketed, plan(search="lr,weight_decay")).space) == ["lr"]
    assert with_stated(methods.find("dladmm"), ("weight_decay=1",)) == methods.find("dladmm")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "lr,lrr"}, r"no method has the setting 'lrr' of --search; did you mean lr\?"),
        ({"search": ""}, "search must be lr, wide or names of settings"),
        ({"search": "lr,wide"}, "search must be lr, wide or names of settings"),
        ({"search": "lr,lr"}, "search must have every name once"),
        ({"search": "lr,eps"}, "eps has no range of its own: give one, such as --space eps="),
        ({"space": ("weight_decay=0.1..0.2",)}, "weight_decay has a range and is not searched"),
        ({"space": ("lr=high",)}, r"space must be name=low..high, such as lr=1e-4..1e-1"),
        ({"space": ("lr=1..x",)}, "space must be name=low..high"),
        ({"space": ("lr=1..0.1",)}, "space must have a low end below its high end"),
        ({"space": ("lr=1..2", "lr=1..3")}, "space must have every name once, got lr twice"),
        ({"stated": ("weigth_decay=1",)}, r"of --set; did you mean weight_decay\?"),
        ({"stated": ("lr",)}, "set must be name=value, such as weight_decay=0.1, got 'lr'"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    chosen = [methods.find("adamw"), methods.find("badm")]
    with pytest.raises(ProtocolError, match=message):
        check_search(plan("adamw", "badm", **options), chosen)


def test_a_range_beyond_what_a_setting_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="lr of adamw must be a finite number of at least 0"):
        check_search(plan("adamw", space=("lr=-1..1",)), [methods.find("adamw")])


def test_new_options_leave_the_keys_of_older_plans_and_runs_as_they_were() -> None:
    assert plan("badm", "adam").key == "5e5014536495"
    assert RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 1e-3}, seed=0).key == (
        "0c0a2d1b92146674"
    )
    changed = {
        "space": ("lr=1..2",),
        "stated": ("lr=1",),
        "clip_norm": 1.0,
        "epoch_budget": 2.0,
        "second_budget": 2.0,
    }
    for name, value in changed.items():
        assert plan("badm", "adam", **{name: value}).key != plan("badm", "adam").key


def test_a_budget_in_epochs_counts_the_batches_of_the_task() -> None:
    assert steps_in_epochs(find(QUICK), 2.5) == 10  # 40 samples in batches of 10
    function = find(f"{training_functions.__file__}:side")
    with pytest.raises(ProtocolError, match="whose epochs badm cannot count: state epoch="):
        steps_in_epochs(function, 1)


def timed(seconds: list[float], *, losses: bool = True) -> Run:
    points = [
        TrajectoryPoint(i, s, i, losses={"model": 1.0} if losses else None, validation=None)
        for i, s in enumerate(seconds, 1)
    ]
    config = RunConfig("t", "1", "cpu", TIMED_STEPS, "m", {}, 0)
    result = RunResult("finished", len(seconds), seconds=seconds[-1])
    return Run(Path(), config, {}, {"synthetic": False, "notes": []}, points, result)


def test_a_budget_in_seconds_takes_the_median_step() -> None:
    slow_start = [5.0 + 0.25 * i for i in range(TIMED_STEPS)]
    assert steps_in(10.0, timed(slow_start)) == 40
    by_mean = timed([0.5 * (i + 1) for i in range(TIMED_STEPS)], losses=False)
    assert steps_in(10.0, by_mean) == 20
    assert steps_in(0.1, by_mean) == 1


@pytest.mark.slow
def test_a_comparison_searches_clips_and_says_what_to_try_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def falls(done):\n    return 1 - done ** 2\n")
    command = ["compare", QUICK, "-m", "adamw,badm", "--trials", 4, "--seeds", 1, "--jobs", 1]
    command += ["--search", "lr,weight_decay", "--space", "lr=0.05..0.5", "--set", "beta=0.8"]
    command += ["--schedule", "mine.py:falls", "--warmup", 0.25, "--clip-norm", 0.5]
    done = badm(*command, "--epochs", 2, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    memories = {"adamw": "beta1", "badm": "beta"}
    for row in result["rows"]:
        assert row["searched"] == ["lr", "weight_decay"]
        assert row["setting"][memories[row["method"]]] == 0.8
        assert row["trials"] == 4
    assert {trial["setting"]["lr"] for trial in result["tried"]} <= {
        0.158, 0.0889, 0.281, 0.0667,
    }  # fmt: skip
    assert result["tasks"][0]["steps"] == 8
    (note,) = [note for note in result["notes"] if "--space lr=" in note]
    assert "at the edge of what was tried: --space lr=0.232..2.32 tries the next" in note
    (run, *_) = tmp_path.glob("runs/quick/adamw-seed0-*.jsonl")
    config = json.loads(run.read_text().splitlines()[0])["config"]
    assert config["clip_norm"] == 0.5
    assert config["schedule"].startswith("falls@")


@pytest.mark.slow
def test_in_a_budget_of_seconds_every_method_has_its_own_steps_and_keeps_them(
    tmp_path: Path,
) -> None:
    command = ("compare", QUICK, "-m", "sgd,badm", "--trials", 1, "--seeds", 1, "--jobs", 1)
    command += ("--seconds", "0.05", "--runs", tmp_path, "--json")
    first, second = (json.loads(badm(*command).stdout) for _ in range(2))
    (note,) = [note for note in first["notes"] if "seconds of training" in note]
    assert note in second["notes"]
    assert note.startswith("Every run had about 0.05 seconds of training. Steps on quick: sgd ")
    assert [row["status"] for row in first["rows"]] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", 5, "--epochs", 1), "a budget must be in steps, in epochs or in seconds"),
        (("--protocol", "speed", "--seconds", 1, "--baseline", "sgd"), "other protocols than"),
        (("--epochs", 0), "epoch_budget must be a number of epochs above 0"),
        (("--space", "lr"), "space must be name=low..high"),
        (("--search", "lrr"), "no method has the setting 'lrr'"),
        (("--schedule", "linnear"), "did you mean linear?"),
        (("--clip-norm", "-1"), "must be a finite number of at least 0"),
        (("--set", "beta"), "set must be name=value"),
    ],
)
def test_commands_refuse_what_cannot_be_with_a_sentence(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    done = badm("compare", QUICK, "-m", "sgd,badm", "--runs", tmp_path, *options)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
