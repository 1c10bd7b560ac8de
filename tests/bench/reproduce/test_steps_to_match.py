"""Steps to what one method has at its end: of each seed for itself, a miss is never."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from badm import cli
from badm.bench.records.comparisons import Comparison, Curve, MethodInfo, TaskInfo
from badm.bench.reproduce.part import StepsToMatch
from badm.bench.reproduce.parts import PARTS
from badm.bench.reproduce.steps_to_match import match_markdown, steps_to_match
from tests.helpers.comparisons import comparison as made_up

RACE = StepsToMatch("pretrain", "adam", "The paper says up to 4 times.")
AT = [0, 10, 20, 30, 40]


def curve(method: str, seed: int, losses: list[float], task: str = "pretrain") -> Curve:
    at = AT[: len(losses)]
    return Curve(task, method, seed, [], [], {}, at, [float(x) for x in at], {"loss": losses})


def comparison(*curves: Curve) -> Comparison:
    names = dict.fromkeys(one.method for one in curves)
    task = TaskInfo("pretrain", "", "cpu", "loss", "low", False, AT[-1], 32, None, False)
    return replace(
        made_up(seeds=1),
        tasks=[task],
        methods=[MethodInfo(name, "", "keras") for name in names],
        curves=list(curves),
    )


def test_the_goal_is_the_end_of_the_other_method_with_the_same_seed() -> None:
    found = steps_to_match(
        RACE,
        comparison(
            curve("adam", 0, [9, 8, 7, 6, 5]),
            curve("adam", 1, [9, 8, 7, 6, 4]),
            curve("badm", 0, [9, 5, 4, 4, 4]),
            curve("badm", 1, [9, 5, 5, 4, 4]),
        ),
    )
    assert [one.method for one in found] == ["adam", "badm"]
    assert found[0].steps.values == [40, 40]
    assert found[1].steps.values == [10, 30]
    assert (found[0].times_fewer, found[1].times_fewer) == (1, 2)


def test_the_end_is_the_last_reading_not_the_best() -> None:
    adam = curve("adam", 0, [9, 4, 5, 5, 6])
    found = steps_to_match(RACE, comparison(adam, curve("badm", 0, [9, 8, 6, 6, 6])))
    assert [one.steps.value for one in found] == [10, 20]
    assert [one.times_fewer for one in found] == [1, 0.5]


def test_a_miss_is_never_and_has_no_ratio() -> None:
    found = steps_to_match(
        RACE, comparison(curve("adam", 0, [9, 8, 7, 6, 5]), curve("sgd", 0, [9, 8, 8, 8, 8]))
    )
    assert math.isinf(found[1].steps.value)
    assert found[1].times_fewer is None
    heading, words, table = match_markdown(
        RACE, comparison(curve("adam", 0, [9, 8, 7, 6, 5]), curve("sgd", 0, [9, 8, 8, 8, 8]))
    )
    assert heading == "## Steps to what adam has at its end: pretrain"
    assert words.endswith("The paper says up to 4 times.")
    assert table.splitlines()[2:] == ["| adam | 40 | 1.0× |", "| sgd | never | – |"]


def test_an_interval_is_shown_where_seeds_differ() -> None:
    curves = [curve("adam", seed, [9, 8, 7, 6, 5 - seed]) for seed in (0, 1)]
    curves += [curve("badm", 0, [9, 5]), curve("badm", 1, [9, 8, 8, 4])]
    *_, table = match_markdown(RACE, comparison(*curves))
    assert table.splitlines()[3] == "| badm | 20 (0–18,610.6) | 2.0× |"


def test_there_are_no_steps_to_match_without_the_task_or_an_end() -> None:
    done = comparison(curve("badm", 0, [9, 8, 7, 6, 5]))
    assert steps_to_match(RACE, done) == []
    assert [*match_markdown(RACE, done)] == []
    assert steps_to_match(replace(RACE, task="other"), done) == []
    # A run that diverged has no end to reach.
    cut = comparison(curve("adam", 0, [9, 8]), curve("badm", 0, [9, 8, 7, 6, 5]))
    assert steps_to_match(RACE, cut) == []
    # Nor do readings count that a run does not have.
    empty = comparison(curve("adam", 0, [9, 8, 7, 6, 5]), curve("badm", 0, []))
    assert math.isinf(steps_to_match(RACE, empty)[1].steps.value)


@pytest.mark.slow
def test_the_language_model_has_steps_to_match_and_is_fine_tuned(tmp_path: Path) -> None:
    words = ["reproduce", "language-model", "--scale", "smoke", "--steps", "4", "--jobs", "1"]
    words += ["--seeds", "1", "--methods", "adam,sgd-sigma", "--quiet"]
    words += ["--runs", str(tmp_path / "runs"), "-o", str(tmp_path / "results")]
    result = CliRunner().invoke(cli.application(), words, env={"NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    text = (tmp_path / "results" / "language-model.md").read_text(encoding="utf-8")
    for task in ("mlm-pretrain", "mlm-pretrain-mean", "mlm-pretrain-example"):
        section = text.partition(f"## Steps to what adam has at its end: {task}\n")[2]
        section = section.partition("\n## ")[0]
        assert "up to 4 times less computation" in section
        assert "| adam | " in section
        assert ("| sgd-sigma | " in section) == (task != "mlm-pretrain-example")
    tuned = text.partition("## Fine-tuning\n")[2].partition("\n## ")[0]
    assert " / 90.6 %¹" in tuned
    assert "¹ 29 of 32" in tuned
    # SGD has the step of BADM, 1/σ, on each task its own.
    assert "sgd-sigma: lr 0.0005" in text
    assert "lr 0.0002" in text
    figures = {path.name for path in (tmp_path / "results" / "language-model-figures").iterdir()}
    assert {"mlm-pretrain-loss.png", "mlm-finetune-loss.png", "mlm-finetune-score.png"} <= figures


def test_texts_stand_beside_the_papers_suspect_scores() -> None:
    part = PARTS["text-classification"]
    assert part.tasks == ("text-imdb",)
    assert {cell for doubt in part.suspects for cell in doubt.cells} == {
        ("text-imdb", name) for name in ("rmsprop", "adam", "badm-printed")
    }
    both = ("rmsprop", "adam", "badm-printed", "badm-diagonal", "badm", "badm-kronecker")
    assert part.methods == (*both, "muon", "soap")
    assert PARTS["language-model"].methods == (
        *both,
        "muon",
        "soap",
        "sgd-sigma",
        "adam-sigma",
    )
