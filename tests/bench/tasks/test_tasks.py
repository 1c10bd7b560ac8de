"""Promises of ``tasks.find``: the task that is meant is found, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from badm.bench import task as guide
from badm.bench import tasks
from badm.bench.data import DATASETS
from badm.bench.errors import TaskError
from badm.bench.task import Task, check_task
from badm.bench.tasks import UnknownTask, by_dataset, find
from tests.helpers.engine_tasks import Line, train, variant

TASK = """
import torch
from badm.bench import Score, Splits, Task

class One(Task):
    name = "one"
    score = Score("error", best="low")
    batch_size = 2
    steps = 3
    evaluate_every = 1

    def data(self): return Splits(torch.ones(4), torch.ones(4), torch.ones(4))
    def model(self, splits): return torch.nn.Linear(1, 1)
    def loss(self, model, batch): return model(batch[:, None]).mean()
    def evaluate(self, model, split): return {"error": 0.0}
"""


def written(folder: Path, text: str, name: str = "my_task.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_task_of_the_guide_trains(tmp_path: Path) -> None:
    assert guide.__doc__ is not None
    _, _, text = guide.__doc__.partition("::\n\n")
    text = text[: text.index("\n\nThe engine does the rest")]
    task = find(written(tmp_path, dedent(text))).task
    done = train(task, tmp_path / "runs", setting={"lr": 0.1}, steps=100)
    assert done.result is not None
    assert done.result.test is not None
    assert done.result.test["accuracy"] > 0.8


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_is_found_by_its_name(name: str, scale: Any) -> None:
    found = find(name, scale)
    assert (found.task.name, found.task.scale, found.source) == (name, scale, name)
    assert found.previous_stage is None or found.previous_stage in tasks.TASKS


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("digit", r"no task 'digit'; did you mean digits\?"),
        ("DIGITS!", "no task 'DIGITS!'.*badm list tasks"),
        ("", "no task ''"),
        ("nowhere/my_task.py", "there is no file nowhere/my_task.py"),
        ("nowhere/my_task.py:one", "there is no file nowhere/my_task.py"),
    ],
)
def test_what_is_not_there_is_named(source: str, words: str) -> None:
    with pytest.raises(UnknownTask, match=words):
        find(source)


def test_a_folder_is_no_task(tmp_path: Path) -> None:
    (tmp_path / "x.py").mkdir()
    with pytest.raises(UnknownTask, match=r"x\.py is not a file"):
        find(str(tmp_path / "x.py"))


@pytest.mark.parametrize("folder", ["plain", ".pyenv", "a.py.b", "with space", "a:b"])
@pytest.mark.parametrize("wanted", ["", ":one"])
def test_a_task_is_found_in_a_file_wherever_it_lies(
    tmp_path: Path, folder: str, wanted: str
) -> None:
    (tmp_path / folder).mkdir()
    path = written(tmp_path / folder, TASK)
    found = find(path + wanted, "smoke")
    assert (found.task.name, found.task.scale, found.previous_stage) == ("one", "smoke", None)
    assert found.source == f"{path}:one"
    assert find(found.source).version == found.version


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, TASK)
    monkeypatch.chdir(tmp_path)
    assert find("my_task.py").task.name == "one"


TWO = TASK + '\nclass Two(One):\n    name = "two"\n\nclass Three(One):\n    name = "three"\n'


def test_one_of_several_tasks_has_to_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    with pytest.raises(UnknownTask, match=f"choose one of {path}:two, {path}:three"):
        find(path)
    assert find(f"{path}:three").task.name == "three"
    with pytest.raises(UnknownTask, match=f"no task 'four': choose one of {path}:two"):
        find(f"{path}:four")


def test_the_last_of_two_stages_is_what_a_file_is_for(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        TASK + '\nclass First(One):\n    name = "first"\n'
        '\nclass Last(One):\n    name = "last"\n    after = "first"\n',
    )
    found = find(path)
    assert (found.task.name, found.previous_stage) == ("last", f"{path}:first")
    assert found.previous_stage is not None
    assert find(found.previous_stage).task.name == "first"


def test_a_stage_after_a_task_of_ours_is_found_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, TASK.replace("steps = 3", 'steps = 3; after = "digits"'))
    assert find(path).previous_stage == "digits"


def test_a_changed_file_gives_another_version_and_the_changed_task(tmp_path: Path) -> None:
    path = written(tmp_path, TASK)
    first = find(path)
    assert find(path).version == first.version
    # Of the same size and within the same second, so that no cache of Python's may be trusted.
    written(tmp_path, TASK.replace("steps = 3", "steps = 4"))
    second = find(path)
    assert second.version != first.version
    assert (first.task.steps, second.task.steps) == (3, 4)
    written(tmp_path, TASK)
    assert find(path).version == first.version
    assert find(path).task.steps == 3


def test_a_task_imports_its_local_modules_at_once_and_later(tmp_path: Path) -> None:
    written(tmp_path, "SIZE = 7\n", "neighbour_of_a_task.py")
    written(tmp_path, "SIZE = 8\n", "later_neighbour_of_a_task.py")
    text = TASK.replace("steps = 3", "steps = SIZE").replace(
        "def data(self): return",
        "def data(self):\n        import later_neighbour_of_a_task as n\n        return n.SIZE, ",
    )
    path = written(tmp_path, f"from neighbour_of_a_task import SIZE\n{text}")
    task = find(path).task
    assert task.steps == 7
    assert task.data()[0] == 8  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "defines no task"),
        ("from badm.bench.tasks.digits import Digits\n", "defines no task"),
        ("x = 1\ny = x / 0\n", r"ZeroDivisionError: .*\(my_task.py, line 2\)"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .*\(my_task.py, line 3\)"),
        ("import nothing_of_that_name\n", r"ModuleNotFoundError: .*\(my_task.py, line 1\)"),
        ("x = 1\nx +\n", r"SyntaxError: invalid syntax \(my_task.py, line 2\)$"),
        ("x: unknown_name = 1\n", r"NameError: .*\(my_task.py, line 1\)"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(my_task.py, line 2\)"),
        ("x = '\\0'\n\0", "cannot be imported"),
        (
            TASK.replace("def loss", "def lost").replace("def data", "def date"),
            "task One must define data, loss",
        ),
        (
            TASK + "\n    def __init__(self, scale):\n        self.x = {}[scale]\n",
            r"One\('cpu'\) raised KeyError: 'cpu' \(my_task.py, line 18\)",
        ),
        (TASK + "\n    def __init__(self): ...\n", r"One\('cpu'\) raised TypeError"),
        (TASK.replace("steps = 3", "pass"), "task One must state steps"),
        (
            TASK.replace("steps = 3", "pass").replace("batch_size = 2", "pass"),
            "must state batch_size, steps",
        ),
    ],
)
@pytest.mark.parametrize("relative", [False, True])
def test_a_file_that_cannot_be_used_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str, relative: bool
) -> None:
    path = written(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # nor is a module that failed taken for one that did not
        with pytest.raises(TaskError, match=words) as told:
            find("my_task.py" if relative else path)
        assert str(told.value).startswith("my_task.py" if relative else path)


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [
        ("name", "Line", "name of task Line must be lower-case"),
        ("name", "a/b", "lower-case"),
        ("name", "../a", "lower-case"),
        ("name", "", "lower-case"),
        ("name", 3, "lower-case"),
        ("score", "accuracy", 'must be a Score, such as Score\\("accuracy"\\)'),
        *[
            (fact, value, f"{fact} of task Line must be a whole number of at least 1, got ")
            for fact in ("batch_size", "sub_batch_size", "steps", "evaluate_every", "terms")
            for value in (0, -1, 1.5, True, "8")
        ],
        ("batch_size", None, "batch_size of task Line must be a whole number"),
        ("gradients", "batches", "gradients of task Line must be 'batch' or 'sub-batches'"),
        ("reduction", "max", "must be 'mean' or 'sum', got 'max'"),
        ("order", "random", "must be 'shuffled' or 'fixed', got 'random'"),
        ("keep", "first", "must be 'best' or 'last', got 'first'"),
    ],
)
def test_a_wrong_fact_is_named_with_its_value(fact: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_task(variant(Line, **{fact: value}))


def test_a_right_task_passes() -> None:
    check_task(Line())
    check_task(variant(Line, sub_batch_size=2))


def test_a_wrong_scale_is_named() -> None:
    with pytest.raises(ValueError, match="scale must be one of smoke, cpu, paper, got 'tiny'"):
        Line("tiny")  # type: ignore[arg-type]


def test_a_task_with_after_must_define_start() -> None:
    task: Task = variant(Line, after="digits")
    with pytest.raises(NotImplementedError, match="line has after = 'digits' and must define"):
        task.load_pretrained(None, {})  # type: ignore[arg-type]


def test_every_task_states_a_dataset_that_there_is() -> None:
    known = {dataset.name for dataset in DATASETS}
    stated = {name: make("cpu").dataset_name for name, make in tasks.TASKS.items()}
    assert {name for name, dataset in stated.items() if dataset not in known} == set()
    assert {name for those in by_dataset().values() for name in those} == set(tasks.TASKS)
