"""compare, tune, run and report as Python functions: what a script or a notebook gets."""

from __future__ import annotations

import doctest
import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import bench, cli
from badm.bench.compare import ComparisonInterrupted
from badm.bench.compare.choices import task_sources
from badm.bench.engine.workers import RunFinished, WorkerEvent, Workers
from badm.bench.records.plans import Plan
from badm.bench.report.result import Report
from badm.bench.tasks.digits import Digits
from tests.helpers import quick_tasks
from tests.helpers.comparisons import HOSTILE, comparison

QUICK = f"{quick_tasks.__file__}:quick"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(bench, name) for name in ("compare", "run", "tune", "report", "reproduce")
}
# What a plan, which is saved, calls otherwise than a command.
PLAN_NAMES = {"stated": "setting", "epoch_budget": "epochs", "second_budget": "seconds"}
# What only one side has: a terminal prints and writes, Python calls back and returns.
PYTHON_ONLY = {"progress", "say", "on_part"}
COMMAND_ONLY = {"context", "as_json", "quiet", "output", "page"}


def badm(*arguments: object) -> Result:
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, list[WorkerEvent]]:
    runs = tmp_path_factory.mktemp("compared")
    seen: list[WorkerEvent] = []
    result = bench.compare(
        QUICK, ["sgd", "adam"], trials=2, seeds=2, jobs=1, runs=runs, progress=seen.append
    )
    return result, runs, seen


@pytest.mark.slow
def test_a_comparison_prints_what_the_command_prints(
    compared: tuple[Report, Path, list[WorkerEvent]],
) -> None:
    result, runs, _ = compared
    arguments = ("compare", QUICK, "-m", "sgd,adam", "--trials", 2, "--seeds", 2, "--jobs", 1)
    done = badm(*arguments, "--runs", runs, "-o", runs / "again.json")
    assert done.exit_code == 0, done.output
    *printed, written = [line.rstrip() for line in done.stdout.splitlines()]
    assert printed == str(result).splitlines()
    assert written == f"written: {runs / 'again.json'}"
    assert printed[0] == "quick: accuracy, target 70.0 %, synthetic data"
    assert {line.split()[0] for line in printed if "%" in line} >= {"sgd", "adam"}
    assert result.comparison.summary[0].startswith("On quick (synthetic data), ")
    assert " ".join(result.comparison.summary[0].split()) in " ".join(str(result).split())


@pytest.mark.slow
def test_a_function_is_called_with_the_end_of_every_run(
    compared: tuple[Report, Path, list[WorkerEvent]],
) -> None:
    _, _, seen = compared
    ended = [event.job.config for event in seen if isinstance(event, RunFinished)]
    assert sorted((c.method, c.test) for c in ended) == sorted(
        (method, test) for method in ("sgd", "adam") for test in (True, True, False, False)
    )


@pytest.mark.slow
def test_a_report_of_the_runs_is_the_comparison_again(
    compared: tuple[Report, Path, list[WorkerEvent]],
) -> None:
    result, runs, _ = compared
    again = bench.report(runs)
    numbers, numbers_again = (json.loads(one.to_json()) for one in (result, again))
    # The command of another test may have written the record anew.
    assert numbers_again == {**numbers, "created": numbers_again["created"]}
    assert str(again) == str(result)


@pytest.mark.slow
def test_tune_reuses_the_trials_of_a_comparison(
    compared: tuple[Report, Path, list[WorkerEvent]],
) -> None:
    result, runs, _ = compared
    before = {path: path.stat().st_mtime_ns for path in runs.glob("quick/*.jsonl")}
    tuned = bench.tune(QUICK, "adam", trials=2, jobs=1, runs=runs)
    (row,) = [row for row in result.comparison.rows if row.method == "adam"]
    assert tuned.settings == {"adam": row.setting}
    assert tuned.finished
    assert str(tuned).splitlines()[0] == "quick: adam"
    assert f"lr = {row.setting['lr']:g}" in str(tuned)
    assert tuned._repr_html_() == f"<pre>{tuned}</pre>"
    assert {path: path.stat().st_mtime_ns for path in runs.glob("quick/*.jsonl")} == before


def test_a_result_is_saved_in_the_form_its_suffix_names(tmp_path: Path) -> None:
    result = Report(comparison(tasks=1, methods=2))
    names = ("report.html", "table.md", "numbers.json", "figures")
    assert result.save(*(str(tmp_path / name) for name in names)) == [tmp_path / n for n in names]
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "## digits" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "numbers.json").read_text(encoding="utf-8") == result.to_json()
    assert (tmp_path / "figures" / "digits-score.svg").exists()
    with pytest.raises(ValueError, match=r"an output must be \.html \(a page\).*got report\.pdf"):
        result.save("report.pdf")


def test_a_notebook_shows_summary_table_and_curves_and_runs_no_text() -> None:
    made = comparison(tasks=3, methods=3)
    shown = Report(made)._repr_html_()
    for task in made.tasks:
        assert f"<h4>{task.name}</h4>" in shown
    assert shown.count("<table>") == shown.count("data:image/png;base64,") == 3
    assert "<th>badm</th>" in shown
    made.notes.append(HOSTILE)
    assert "<script" not in Report(made)._repr_html_()


def test_a_run_is_returned_printed_and_not_repeated(tmp_path: Path) -> None:
    steps: list[int] = []
    first = bench.run(
        QUICK,
        "sgd",
        setting={"lr": 0.5},
        runs=tmp_path,
        progress=lambda step, loss: steps.append(step),
    )
    assert first is not None
    assert steps == list(range(1, 13))
    assert first.run.config.setting["lr"] == 0.5
    assert first.result.status == "finished"
    assert str(first).splitlines()[0] == "finished after 12 steps"
    again = bench.run(QUICK, "sgd", setting={"lr": 0.5}, runs=tmp_path)
    assert again == first  # seconds too: it was read
    done = badm("run", QUICK, "-m", "sgd", "--set", "lr=0.5", "--runs", tmp_path)
    assert done.stdout == f"{first}\nwritten: {first.run.path}\n"


@pytest.mark.parametrize("finals", [0, 1])
def test_ctrl_c_is_raised_with_a_report_if_there_is_anything_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finals: int
) -> None:
    def interrupted(self: Workers, seconds: float) -> list[WorkerEvent]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "events", interrupted)
    monkeypatch.setattr(Workers, "start", lambda self, job: self.busy.update({id(job): job}))
    monkeypatch.setattr(Workers, "stop", lambda self: None)
    protocol: Any = "paper" if finals else "tuned"  # which has no trials to do first
    with pytest.raises(KeyboardInterrupt) as raised:
        bench.compare(QUICK, "sgd", protocol=protocol, seeds=1, jobs=1, runs=tmp_path)
    assert isinstance(raised.value, ComparisonInterrupted) == bool(finals)
    assert bench.report(tmp_path).comparison.notes == [
        "The comparison was interrupted: some runs are missing."
    ]
    if isinstance(raised.value, ComparisonInterrupted):
        assert [row.status for row in raised.value.report.comparison.rows] == ["missing"]


def test_tasks_are_names_files_and_classes_in_files() -> None:
    assert task_sources("digits") == ("digits",)
    assert task_sources([Digits, "my_task.py", quick_tasks.Quick]) == (
        "digits",
        "my_task.py",
        QUICK,
    )
    made = type("Made", (quick_tasks.Quick,), {"__module__": "of_a_notebook"})
    with pytest.raises(ValueError, match=r"task Made must be in a \.py file"):
        task_sources(made)
    with pytest.raises(ValueError, match="must be a name, a file or a class made from Task, got 3"):
        task_sources([3])  # type: ignore[list-item]


def test_bad_names_and_values_are_value_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reference must be one of sgd, got 'adam'"):
        bench.compare(QUICK, "sgd", reference="adam", runs=tmp_path)
    with pytest.raises(ValueError, match="methods must name at least one method"):
        bench.compare(QUICK, [], runs=tmp_path)
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, mps, auto, got 'gpu'"):
        bench.run(QUICK, "sgd", device="gpu", runs=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no folder"):
        bench.report(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_command_and_its_function_have_the_same_names_and_defaults(name: str) -> None:
    (command,) = [one.callback for one in cli.application().registered_commands if one.name == name]
    assert command is not None
    typed = inspect.signature(command).parameters
    called = inspect.signature(FUNCTIONS[name]).parameters
    assert typed.keys() - COMMAND_ONLY == called.keys() - PYTHON_ONLY
    for parameter in called.keys() & typed.keys():
        if typed[parameter].default is not None:  # a list for click is none or more words
            assert typed[parameter].default == called[parameter].default


def test_a_plan_has_the_defaults_of_compare() -> None:
    called = inspect.signature(bench.compare).parameters
    for part in fields(Plan):
        # Those of schedule and warmup depend on the protocol, and only one of them has a baseline.
        if part.name not in ("tasks", "methods", "schedule", "warmup", "baseline"):
            default = called[PLAN_NAMES.get(part.name, part.name)].default
            assert part.default == (() if part.name == "stated" else default), part.name


@pytest.mark.slow
def test_the_examples_of_the_docstrings_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("compare", "tune", "run", "report", "reproduce"):  # report after compare
        text = inspect.getdoc(FUNCTIONS[name]) or ""
        examples = doctest.DocTestParser().get_examples(text)
        assert len(examples) >= 3, name
        code = "\n".join(example.source for example in examples)
        exec(compile(code, name, "exec"), {})
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "table.md").exists()
    assert (tmp_path / "results" / "molecule.md").exists()
