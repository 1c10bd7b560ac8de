"""``badm list``: the names that can be typed, those that match a word, in the width there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench.data import DATASETS
from badm.bench.methods import METHODS
from badm.bench.tasks import TASKS, by_dataset
from badm.commands import listing

KINDS = {
    "tasks": list(TASKS),
    "methods": list(METHODS),
    "datasets": [dataset.name for dataset in DATASETS],
}


def badm(*arguments: str, columns: int | None = None) -> Result:
    environment = {"NO_COLOR": "1", "COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli.application(), list(arguments), env=environment)


def first_words(shown: str, names: list[str]) -> list[str]:
    return [word for line in shown.splitlines() if (word := line.split(" ")[0]) in names]


def test_the_listing_is_what_tasks_and_methods_say() -> None:
    made, kept = listing.as_text(listing.current()), listing.FILE.read_text(encoding="utf-8")
    assert made == kept, "run python -m badm.commands.listing"


def test_every_dataset_has_the_tasks_that_read_it() -> None:
    assert {name: tuple(tasks) for name, tasks in listing.tasks_by_dataset().items()} == (
        by_dataset()
    )


@pytest.mark.parametrize("columns", [80, 140, None])
@pytest.mark.parametrize("kind", KINDS)
def test_every_name_is_there_whole_and_fits_the_terminal(kind: str, columns: int | None) -> None:
    result = badm("list", kind, columns=columns)
    assert result.exit_code == 0
    assert first_words(result.stdout, KINDS[kind]) == KINDS[kind]
    if columns is not None:
        assert max(map(len, result.stdout.splitlines())) <= columns


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_pipe_all_about_a_name_is_on_its_line(kind: str) -> None:
    lines = [line.rstrip() for line in badm("list", kind).stdout.splitlines()]
    named = [line for line in lines if line.split(" ")[0] in KINDS[kind]]
    assert len(named) == len(KINDS[kind])
    (one,) = (line for line in named if line.split(" ")[0] in ("node-cora-dnn", "adam", "cora"))
    ends = {
        "tasks": "accuracy  3,000  71.0 %",
        "methods": "keras       lr 0.001    0.0001 – 0.1",
        "datasets": "node-cora-gnn-sender  graphs",
    }
    assert " ".join(one.split()).endswith(" ".join(ends[kind].split()))


@pytest.mark.parametrize(
    ("kind", "word", "found"),
    [
        ("tasks", "cgan-fashion", ["cgan-fashion", "cgan-fashion-one-hot", "cgan-fashion-example"]),
        ("tasks", "MOLECULES", ["bbbp", "bbbp-padded"]),  # in the description alone
        ("methods", "muon", ["muon", "normuon"]),
        ("methods", "badm-k*", ["badm-kronecker", "badm-kronecker-spectral"]),
        ("datasets", "flowers", ["tf-flowers", "flowers102"]),
    ],
)
def test_a_word_shows_those_that_match_it(kind: str, word: str, found: list[str]) -> None:
    assert first_words(badm("list", kind, word).stdout, KINDS[kind]) == found
    plain = json.loads(badm("list", kind, word, "--json").stdout)
    rows = plain["datasets"] if kind == "datasets" else plain
    assert [row["name"] for row in rows] == found


@pytest.mark.parametrize(
    ("kind", "word", "sentence"),
    [
        ("tasks", "imgae", "no task matches 'imgae'; did you mean image? `badm list tasks` "),
        ("methods", "shampo0", "no method matches 'shampo0'; did you mean kl-shampoo or shampoo? "),
        ("datasets", "cifar-10", "no dataset matches 'cifar-10'; did you mean cifar10? "),
        ("methods", "xyzzy", "no method matches 'xyzzy'; `badm list methods` shows all\n"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_word_that_nothing_matches_exits_2_with_near_names(
    kind: str, word: str, sentence: str, more: tuple[str, ...]
) -> None:
    result = badm("list", kind, word, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"badm: {sentence}")


def test_datasets_are_listed_by_two_names_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    assert badm("list", "datasets").stdout == badm("data", "list").stdout
    assert str(tmp_path) in badm("data", "list", "mnist").stdout


def test_json_has_ranges_as_numbers() -> None:
    (adam,) = json.loads(badm("list", "methods", "torch-adam", "--json").stdout)[:1]
    assert adam["searched"]["lr"]["low"] == 1e-4
    assert adam["defaults"]["lr"] == 1e-3
