"""A method is added to results that are there; what cannot be compared is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import bench, cli
from badm.bench.analysis.merging import MergeError
from tests.helpers import QUICK_TASKS

QUICK = f"{QUICK_TASKS}:quick"


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a comparison whose runs are gone."""
    folder = tmp_path_factory.mktemp("committed")
    bench.compare(QUICK, "sgd,adam", trials=1, seeds=2, runs=folder / "runs", jobs=1).save(
        folder / "results.json"
    )
    return folder / "results.json"


def badm(*arguments: object) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


@pytest.mark.slow
def test_one_more_method_costs_only_its_own_runs(committed: Path, tmp_path: Path) -> None:
    before = json.loads(committed.read_text())
    result = badm(
        *("compare", QUICK, "-m", "lion", "--trials", 1, "--seeds", 2, "--jobs", 1),
        *("--with", committed, "--runs", tmp_path, "-o", tmp_path / "all.json", "--quiet"),
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "all.json").read_text())
    assert [row["method"] for row in made["rows"]] == ["sgd", "adam", "lion"]
    for old, new in zip(before["rows"], made["rows"], strict=False):
        assert old["test"] == new["test"]
    assert {path.name.partition("-")[0] for path in tmp_path.glob("*/*.jsonl")} == {"lion"}
    assert made["rows"][2]["compared"]["against"] == before["reference"]
    # What is written beside it repeats it, and finds all runs done.
    again = badm(
        *("compare", tmp_path / "all.toml", "--runs", tmp_path, "--jobs", 1, "--quiet"),
        *("-o", tmp_path / "again.json"),
    )
    assert again.exit_code == 0, again.output
    repeated = json.loads((tmp_path / "again.json").read_text())
    assert [row["test"] for row in repeated["rows"]] == [row["test"] for row in made["rows"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 7}, "the budget in steps on quick must be the same, and is"),
        ({"seeds": 3}, "the seeds must be the same, and is 0, 1 in the first and 0, 1, 2 in the"),
        ({"trials": 2}, "the number of trials must be the same, and is 1 in the first and 2 in"),
        ({"reference": "soap"}, "reference must be one of lion, sgd, adam, got 'soap'"),
    ],
)
def test_results_of_another_question_are_refused_before_anything_is_run(
    committed: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    options = {"trials": 1, "seeds": 2, **changes}
    with pytest.raises((MergeError, ValueError), match=said):
        bench.compare(QUICK, "lion", others=[committed], runs=tmp_path, jobs=1, **options)
    assert list(tmp_path.glob("*/*.jsonl")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("merge", "none.json"), 2, "there is no file or folder none.json"),
        (("merge", __file__), 4, "not a saved comparison"),
        (("compare", "none.toml"), 2, "there is no file none.toml"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_exit_code(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = badm(*arguments)
    assert (result.exit_code, said in result.output) == (code, True), result.output


@pytest.mark.slow
def test_options_of_the_command_line_stand_over_those_of_a_study(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"tasks = [{json.dumps(QUICK)}]\nmethods = ['sgd']\ntrials = 1\nseeds = 2\n")
    result = badm(
        *("compare", study, "--seeds", 1, "--runs", tmp_path / "runs", "--jobs", 1, "--quiet"),
        *("-o", tmp_path / "made.json"),
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "made.json").read_text())
    assert (made["trials"], [row["seeds"] for row in made["rows"]]) == (1, [[0]])
    assert made["study"]["seeds"] == 1


def test_a_study_beside_other_tasks_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text("tasks = ['digits']\n")
    result = badm("compare", study, "digits")
    assert result.exit_code == 2
    assert "names its tasks itself" in result.output
