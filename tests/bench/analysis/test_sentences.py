"""The sentences a reader sees first say what was measured, and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badm.bench.analysis.differences import (
    paired_tests,
    rival_tests,
    step_rival_tests,
    step_tests,
)
from badm.bench.analysis.intervals import mean_interval, median_interval
from badm.bench.analysis.sentences import summary
from badm.bench.records.comparisons import MethodInfo, ResultRow, TaskInfo

INF = math.inf
DIGITS = TaskInfo("digits", "", "cpu", "accuracy", "high", True, 300, 32, 0.95, False)
METHODS = [
    MethodInfo(name, "", "badm" if name.startswith("badm") else "keras")
    for name in ("badm", "badm-kronecker", "adam", "nadam", "sgd")
]
Seeds = Mapping[str, Sequence[float]]


def table(
    scores: Seeds, times: Seeds, reference: str = "adam", task: str = "digits"
) -> list[ResultRow]:
    order = sorted(scores, key=lambda method: -sum(scores[method]))
    fastest = sorted(times, key=lambda method: (median_interval(times[method]).value, method))
    tests, rivals = paired_tests(scores, reference), rival_tests(scores, order)
    step, step_rivals = step_tests(times, reference), step_rival_tests(times, fastest)
    return [
        ResultRow(
            task,
            method,
            "finished",
            test=mean_interval(values),
            steps_to_target=median_interval(times[method]) if method in times else None,
            compared=tests.get(method),
            rival=rivals.get(method),
            steps_compared=step.get(method),
            steps_rival=step_rivals.get(method),
        )
        for method, values in scores.items()
    ]


def test_badm_that_wins_without_significance():
    # badm against adam has t = 29/9, nadam against adam t = 3, at one degree of freedom, where
    # p = 1 - 2 atan(t) / π: 0.192 and 0.205. Corrected, both are 2 · 0.192. badm against nadam, the
    # first against the next, has t = 3.5 and p = 0.177. t₁ is 12.706 in 95 % intervals.
    rows = table(
        {"badm": [0.975, 0.985], "adam": [0.965, 0.966], "nadam": [0.97, 0.976]},
        {"badm": [38, 42], "adam": [100, INF], "nadam": [90, 94]},
    )
    assert summary([DIGITS], rows, METHODS, "adam") == [
        "On digits, badm has the highest test accuracy, 98.0 % (95 % interval 91.6–104.4), against "
        "96.5 % (95.9–97.2) for adam; the difference is not significant (paired t, Holm: p = 0.38, "
        "2 seeds); nadam, the best without BADM, has 97.3 % (93.5–101.1), and the difference is "
        "not significant (paired t: p = 0.18, 2 seeds).",
        "It also needs the fewest steps to 95.0 % on the validation split, 40 (median of 2 seeds, "
        "95 % interval 21.2–75.4); nadam, the fastest without BADM, needs 92 (2.3 times as many); "
        "the difference is significant (paired t on logarithms: p = 0.022, 2 seeds), seed by seed "
        "0.43 times the steps (95 % interval 0.30–0.62); missed by adam (1 of 2 seeds).",
    ]


def test_badm_that_loses_says_who_wins():
    rows = table(
        {"badm": [0.95, 0.952], "adam": [0.96, 0.97], "nadam": [0.98, 0.99]},
        {"badm": [50, 60], "adam": [60, 60], "nadam": [20, 22]},
    )
    scores, steps = summary([DIGITS], rows, METHODS, "adam")
    assert scores.startswith(
        "On digits, nadam has the highest test accuracy, 98.5 % (95 % interval 92.1–"
    )
    assert "badm, the best BADM method, has 95.1 % (93.8–96.4), and the difference is not" in scores
    assert "(paired t, Holm over all pairs: p = 0.22, 2 seeds)" in scores
    assert steps.startswith("It also needs the fewest steps")
    assert "badm, the fastest BADM method, needs 55 (2.6 times as many)" in steps


def test_the_winner_may_be_another_than_the_fastest():
    rows = table({"badm": [0.9], "adam": [0.8]}, {"badm": [50], "adam": [20]})
    scores, steps = summary([DIGITS], rows, METHODS, "adam")
    assert scores == (
        "On digits, badm has the highest test accuracy, 90.0 %, against 80.0 % for adam; "
        "with one seed the difference may be chance."
    )
    assert steps == (
        "adam needs the fewest steps to 95.0 % on the validation split, 20 (one seed); "
        "badm, the fastest BADM method, needs 50 (2.5 times as many)."
    )


def test_a_significant_difference_is_called_so_whichever_row_has_the_test():
    scores = {"badm": [0.97, 0.971, 0.972], "adam": [0.9, 0.902, 0.901]}
    for reference in scores:
        sentence = summary([DIGITS], table(scores, {}, reference), METHODS, reference)[0]
        assert "the difference is significant (paired t, Holm: p < 0.001, 3 seeds)" in sentence


def test_a_score_that_should_be_low():
    task = replace(DIGITS, score="kid", best="low", percent=False, target=None)
    rows = table({"badm": [0.15849], "adam": [0.25]}, {})
    (sentence,) = summary([task], rows, METHODS, "adam")
    assert "badm has the lowest test kid, 0.1585, against 0.25 for adam" in sentence


def test_equals_share_first_place():
    rows = table(
        {"badm": [0.9, 0.92], "adam": [0.9, 0.92], "sgd": [0.8, 0.9]},
        {"badm": [40, 40], "adam": [40, 40], "sgd": [80, 80]},
    )
    scores, steps = summary([DIGITS], rows, METHODS, "sgd")
    assert "adam and badm share the highest test accuracy, 91.0 %, against 85.0 %" in scores
    assert steps.startswith("adam and badm need the fewest steps to 95.0 %")
    assert "BADM" not in scores + steps


def test_synthetic_data_are_called_synthetic():
    rows = table({"badm": [0.9], "adam": [0.8]}, {})
    other = replace(DIGITS, name="moons", synthetic=True)
    moons = [replace(row, task="moons") for row in rows]
    assert summary([other], moons, METHODS, "adam")[0].startswith("On moons (synthetic data), ")
    both = summary([DIGITS, other], rows + moons, METHODS, "adam")
    assert both[0].startswith("On 2 tasks (synthetic data: moons), ")


def test_a_target_no_one_reaches():
    rows = table({"badm": [0.9, 0.9], "adam": [0.8, 0.9]}, {"badm": [40, INF], "adam": [INF, INF]})
    assert summary([DIGITS], rows, METHODS, "adam")[1] == (
        "No method reaches 95.0 % on the validation split within 300 steps in most of its seeds; "
        "missed by adam (2 of 2 seeds) and badm (1 of 2 seeds)."
    )


def test_nothing_finished():
    rows = [ResultRow("digits", "adam", "failed"), ResultRow("digits", "badm", "diverged")]
    expected = "On digits, no method finished: adam failed and badm diverged."
    assert summary([DIGITS], rows, METHODS, "adam") == [expected]
    other = replace(DIGITS, name="moons", target=None)
    assert summary([replace(DIGITS, target=None), other], rows, METHODS, "adam") == [
        "On 2 tasks, no method finished any.",
        "Not finished: adam on 1 (failed) and badm on 1 (diverged).",
    ]


@pytest.mark.parametrize(("tasks", "rows"), [([], []), ([DIGITS], [])])
def test_nothing_compared(tasks, rows):
    assert summary(tasks, rows, METHODS, "adam") == ["Nothing was compared."]


def test_the_unfinished_are_named():
    rows = [*table({"adam": [0.9]}, {}), ResultRow("digits", "badm", "diverged")]
    assert summary([replace(DIGITS, target=None)], rows, METHODS, "adam") == [
        "On digits, adam is the only method that finished, with a test accuracy of 90.0 %.",
        "Not finished: badm diverged.",
    ]


def test_several_tasks_count_wins_tests_and_misses():
    names = ("a", "b", "c", "d")
    tasks = [replace(DIGITS, name=name) for name in names]
    tasks[3] = replace(tasks[3], best="low", target=None)
    high, low = [0.97, 0.971, 0.972], [0.9, 0.902, 0.901]
    slow, fast, miss = [80] * 3, [20] * 3, [INF] * 3
    rows = [
        *table({"badm": high, "adam": low}, {"badm": fast, "adam": slow}, task="a"),
        *table({"badm": [0.91, 0.95], "adam": [0.9, 0.9]}, {"badm": fast, "adam": fast}, task="b"),
        *table({"badm": low, "adam": high}, {"badm": fast, "adam": miss}, task="c"),
        *table({"badm": low, "adam": high}, {}, task="d"),
        ResultRow("d", "sgd", "diverged"),
    ]
    assert summary(tasks, rows, METHODS, "adam") == [
        "On 4 tasks, badm has the best test score on 3 and adam on 1; against adam (paired t, "
        "Holm), badm is significantly better on 2, significantly worse on 1 and not significantly "
        "different on 1.",
        "Of 3 with a target, badm reaches it in the fewest steps (median) on 3 and adam on 1 "
        "(ties count for each); badm takes 0.5 times the steps of the fastest method without "
        "BADM on each (geometric mean of the 2 that both reach, 95 % interval 0.000075–3,341); "
        "missed by adam on 1.",
        "Not finished: sgd on 1 (diverged).",
    ]


def test_several_tasks_with_the_winner_as_the_reference():
    tasks = [replace(DIGITS, name=name, target=None) for name in ("a", "b")]
    high, low = [0.97, 0.971, 0.972], [0.9, 0.902, 0.901]
    rows = [
        *table({"badm": low, "adam": high, "nadam": low}, {}, task="a"),
        ResultRow("b", "badm", "cannot"),
        *table({"adam": high}, {}, task="b"),
    ]
    assert summary(tasks, rows, METHODS, "adam")[0] == (
        "On 2 tasks, adam has the best test score on 2, and no BADM method on any; against the "
        "best of the others on each task (paired t, Holm), adam is significantly better on 1 and "
        "untested on 1."
    )


any_rows = st.lists(
    st.builds(
        lambda task, method, status, scores, times: ResultRow(
            task,
            method,
            status,
            test=mean_interval(scores) if scores else None,
            steps_to_target=median_interval(times) if times else None,
        ),
        st.sampled_from(["digits", "moons"]),
        st.sampled_from([facts.name for facts in METHODS]),
        st.sampled_from(["finished", "diverged", "failed", "cannot", "missing"]),
        st.lists(st.sampled_from([0.5, 0.9, 0.91]), max_size=3),
        st.lists(st.sampled_from([0.0, 10.0, 20.0, INF]), max_size=3),
    ),
    max_size=8,
    unique_by=lambda row: (row.task, row.method),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(any_rows, st.integers(1, 2), st.sampled_from([facts.name for facts in METHODS]))
def test_whatever_was_found_makes_sentences(rows, count, reference):
    tasks = [DIGITS, replace(DIGITS, name="moons", synthetic=True)][:count]
    sentences = summary(tasks, rows, METHODS, reference)
    assert 1 <= len(sentences) <= 3
    for sentence in sentences:
        assert sentence.endswith(".")
        for wrong in ("nan", "inf", "None", "  ", " ,", " ;", " .", "()"):
            assert wrong not in sentence
    text = " ".join(sentences)
    for row in rows:
        shown = row.task in {task.name for task in tasks}
        if shown and row.status != "finished":
            assert row.method in text
