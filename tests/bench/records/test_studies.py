"""A comparison in a file: read as it was written, and clear about what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from badm.bench.records.plans import Plan
from badm.bench.records.studies import StudyError, read_study, study_of, study_text
from badm.bench.report.saving import save
from tests.helpers.comparisons import comparison

PLANS = [
    Plan(("digits",), ("badm", "adam")),
    Plan(("digits", "my_task.py:moons"), ("badm",), "paper", 0, 5, "smoke", reference="badm"),
    Plan(("digits",), ("badm", "adamw"), "speed", baseline="adamw", schedule="linear", warmup=0.05),
    Plan(("a \"b\" \\ 'c'.py",), ("sgd",), target=0.97, steps=40, threads=2, search="wide"),
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_study_says_all_that_makes_a_plan(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_text(study_of(plan)), encoding="utf-8")
    options = read_study(path)
    assert Plan(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}) == plan


def test_results_to_show_beside_it_are_part_of_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_text(study_of(PLANS[0], ("results/digits.json",))))
    assert read_study(path)["others"] == ["results/digits.json"]


def test_one_name_may_stand_without_a_list_and_a_whole_number_for_a_number(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('tasks = "digits"\ntarget = 1\n')
    assert read_study(path) == {"tasks": ["digits"], "target": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'tasks = ["digits"]\ntrails = 3',
            r"no option 'trails'; did you mean threads or trials\? it",
        ),
        ('tasks = ["digits"]\nseeds = "5"', r"seeds must be a whole number, got '5' \(str\)"),
        ('tasks = ["digits"]\nseeds = true', r"seeds must be a whole number, got True \(bool\)"),
        ('tasks = ["digits"]\nseeds = 2.5', r"seeds must be a whole number, got 2.5"),
        ("tasks = [1]", r"tasks must be a list of names, got \[1\]"),
        ("seeds = 3", r"tasks must name at least one task, such as"),
        ("tasks = digits", r"is not TOML: "),
        ('tasks = ["digits"]\n[runs]\nfolder = 1', r"no option 'runs'"),
    ],
)
def test_what_is_wrong_with_a_study_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(StudyError, match=said) as error:
        read_study(path)
    assert str(error.value).startswith(str(path))


def test_a_study_that_is_not_there_or_not_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no file"):
        read_study(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(StudyError, match="is not TOML"):
        read_study(tmp_path / "bytes.toml")


def test_a_study_is_written_beside_every_result_and_stands_in_the_page(tmp_path: Path) -> None:
    study = study_of(PLANS[1])
    made = replace(comparison(tasks=1, methods=3), study=study)
    for name in ("table.md", "report.html", "numbers.json"):
        save(made, tmp_path / name)
        written = (tmp_path / name).with_suffix(".toml")
        assert read_study(written) == study
    assert "badm compare study.toml" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert r"\"my_task.py:moons\"" in (tmp_path / "report.html").read_text(encoding="utf-8")
