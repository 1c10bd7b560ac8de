"""badm reproduce: the tables of the paper, ours beside it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench import tasks
from badm.bench.engine.workers import Workers
from badm.bench.records.comparisons import Comparison, Interval, MethodInfo, ResultRow, TaskInfo
from badm.bench.reproduce import parts as paper
from badm.bench.reproduce import result as part_report
from badm.bench.reproduce.part import NotMeasured, PaperPart, TableSpec
from badm.bench.reproduce.tables import PaperTable, merged, paper_markdown, paper_tables
from badm.bench.tasks.node_paper import STATED
from tests.helpers.comparisons import comparison as made_up

NODE = paper.PARTS["node-classification"]
QUICK = ("--scale", "smoke", "--steps", "5", "--jobs", "1")
HEADINGS = ["Cora", "Citeseer", "PubMed", "Physics", "CS", "Computers"]


def badm(*arguments: object) -> Result:
    # Wide and plain, so that no message is wrapped or coloured.
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


def cells(markdown: str, block: str) -> dict[str, list[str]]:
    """The table of a block: cells by the first of their row."""
    section = markdown.partition(f"## {block}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    split = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    return {first: rest for first, *rest in split}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with Table 1 of two methods; figures are another test's."""
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_report, "draw", lambda *_: None)
        chosen = ("--seeds", "1", "--methods", "sgd,dladmm")
        places = ("--runs", folder / "runs", "-o", folder / "results")
        result = badm("reproduce", "node-classification", *QUICK, *chosen, *places)
    assert result.exit_code == 0, result.output
    assert "DNN: ours / paper" in result.stdout
    return folder / "results"


@pytest.fixture(scope="module")
def numbers(written: Path) -> Any:
    text = (written / "node-classification.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.slow
def test_every_cell_has_ours_the_papers_and_the_difference(written: Path, numbers: Any) -> None:
    markdown = (written / "node-classification.md").read_text(encoding="utf-8")
    ours = {
        (row["task"], row["method"]): row["test"]["value"]
        for one in numbers["comparisons"]
        for row in one["rows"]
    }
    for block, network in (("DNN", "dnn"), ("GNN", "gnn")):
        table = cells(markdown, block)
        assert table["method"] == HEADINGS
        for heading, cell in zip(HEADINGS, table["SGD (sgd)"], strict=True):
            graph = heading.lower()
            stated = getattr(STATED[graph], network)[0]
            value = ours[f"node-{graph}-{network}", "sgd"]
            found, figure, difference = cell.replace("*", "").split(" / ")
            assert found == f"{100 * value:.1f} %"
            assert figure.rstrip("¹") == f"{100 * stated:.1f} %"
            assert figure.endswith("¹") == (heading == "Physics")  # the paper's suspect figure
            points = float(difference.replace("−", "-"))
            assert points == pytest.approx(100 * (value - stated), abs=0.0501)


@pytest.mark.slow
def test_dladmm_is_taken_from_the_perceptrons_with_a_footnote(written: Path, numbers: Any) -> None:
    first, second = numbers["comparisons"]
    assert {row["method"] for row in first["rows"]} == {"sgd"}
    assert [row["task"] for row in second["rows"]] == [f"node-{h.lower()}-mlp" for h in HEADINGS]
    assert {(row["method"], row["status"]) for row in second["rows"]} == {("dladmm", "finished")}
    markdown = (written / "node-classification.md").read_text(encoding="utf-8")
    row = cells(markdown, "DNN")["dlADMM (dladmm)²"]
    for heading, cell, found in zip(HEADINGS, row, second["rows"], strict=True):
        shown, figure, _ = cell.replace("*", "").split(" / ")
        assert shown == f"{100 * found['test']['value']:.1f} %"
        assert figure == f"{100 * STATED[heading.lower()].dnn[2]:.1f} %"
    assert "² dlADMM cannot train networks with BatchNorm" in markdown
    assert list(cells(markdown, "GNN")) == ["method", "---", "SGD (sgd)"]


@pytest.mark.slow
def test_the_notes_say_what_could_not_be_matched(written: Path) -> None:
    markdown = (written / "node-classification.md").read_text(encoding="utf-8")
    assert "**The data are synthetic" in markdown
    assert "- All tasks: A made-up citation graph of 300 nodes." in markdown  # of the splits
    assert "- DNN, DNN of dladmm: The paper calls its DNN a network of two" in markdown  # of Paper
    assert "Cora 1,325 nodes" in markdown
    assert "- sgd: lr 0.001, momentum 0, nesterov False.\n" in markdown  # on all tasks alike
    assert "| node-physics-gnn | 5 | 12,300 | 64 | synthetic |" in markdown  # steps
    assert "--scale smoke --seeds 1 --steps 5 --methods sgd,dladmm`" in markdown


@pytest.mark.slow
def test_a_second_call_runs_nothing_anew_and_writes_the_same(tmp_path: Path) -> None:
    again = ("reproduce", "molecule", *QUICK, "--methods", "adam,badm", "--runs", tmp_path / "runs")
    first = badm(*again, "-o", tmp_path / "first", "--json")
    assert first.exit_code == 0, first.output
    (part,) = json.loads(first.stdout, parse_constant=pytest.fail)
    assert part["part"] == "molecule"
    assert [row["method"] for row in part["comparisons"][0]["rows"]] == ["adam", "badm"]
    assert [len(row["seeds"]) for row in part["comparisons"][0]["rows"]] == [3, 3]
    runs = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*.jsonl")}
    assert len(runs) == 6
    assert badm(*again, "-o", tmp_path / "second", "--quiet").exit_code == 0
    assert runs == {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*.jsonl")}
    tables = [(tmp_path / name / "molecule.md").read_bytes() for name in ("first", "second")]
    assert tables[0] == tables[1]
    drawn = {path.name for path in (tmp_path / "first" / "molecule-figures").iterdir()}
    assert drawn == {"bbbp-score.png", "bbbp-loss.png"}
    assert not (tmp_path / "first" / "molecule.html").exists()


def test_after_ctrl_c_what_there_is_is_written_and_the_exit_code_is_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Workers, seconds: float) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "events", interrupted)
    monkeypatch.setattr(Workers, "start", lambda self, job: self.busy.update({id(job): job}))
    monkeypatch.setattr(Workers, "stop", lambda self: None)
    places = ("--runs", tmp_path / "runs", "-o", tmp_path / "results")
    result = badm("reproduce", *QUICK, "--methods", "sgd,dladmm", *places)
    assert result.exit_code == 130
    assert "run the same command to resume" in result.stderr
    markdown = (tmp_path / "results" / "node-classification.md").read_text(encoding="utf-8")
    assert cells(markdown, "DNN")["SGD (sgd)"][0] == "*missing* / 30.3 %"
    assert "The comparison was interrupted" in markdown
    assert not (tmp_path / "results" / "molecule.md").exists()


def test_missing_data_is_named_with_what_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "nothing"))
    places = ("--runs", tmp_path / "runs", "-o", tmp_path / "results")
    result = badm("reproduce", "molecule", "--jobs", "1", "--methods", "adam", *places)
    assert result.exit_code == 1
    assert "badm data fetch bbbp" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_part_goes_on_without_the_tasks_whose_data_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits come with scikit-learn, BBBP does not."""
    block = TableSpec("A", {"Digits": "digits", "BBBP": "bbbp"}, ("sgd", "adam"))
    monkeypatch.setitem(paper.PARTS, "mixed", PaperPart("mixed", "Mixed", (block,)))
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(part_report, "draw", lambda *_: None)
    chosen = ("--steps", "2", "--seeds", "1", "--jobs", "1")
    places = ("--runs", tmp_path / "runs", "-o", tmp_path / "results")
    result = badm("reproduce", "mixed", *chosen, *places)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("mixed goes on without it: bbbp is not complete") == 1
    assert "`badm data fetch bbbp` downloads it" in result.stderr
    markdown = (tmp_path / "results" / "mixed.md").read_text(encoding="utf-8")
    for measured, other in (cells(markdown, "A")[name] for name in ("sgd", "adam")):
        assert " %" in measured
        assert other == "*not measured* / –"
    assert "- BBBP (bbbp) is not measured: its data were missing." in markdown
    assert list(cells(markdown, "Steps to the target")) == ["A", "---", "target", "sgd", "adam"]
    assert str(tmp_path) not in markdown


def test_what_is_not_measured_still_shows_the_papers_figure() -> None:
    part, found = small(scored("adam", 0.7))
    (block,) = part.tables
    wider = replace(block, columns={**block.columns, "Cora": "node-cora-gnn"})
    absent = [NotMeasured("node-cora-gnn", {"adam": "78.4 %"})]
    (made,) = paper_tables(replace(part, tables=(wider,)), found, absent)
    (line,) = made.lines
    assert [(cell.ours, cell.paper) for cell in line.cells] == [
        ("70.0 %", ""),
        ("not measured", "78.4 %"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("node-clasification",), ("mean node-classification", "molecule")),
        (("xyz",), ("no part 'xyz'", "node-classification, molecule")),
        (("molecule", "--methods", "adm"), ("did you mean adam or badm?",)),
        (("molecule", "--scale", "huge"), ("--scale", "smoke, cpu, paper", "huge")),
        (("molecule", "--seeds", "0"), ("--seeds",)),
    ],
)
def test_bad_names_and_values_exit_2_and_say_what_would_do(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    result = badm("reproduce", *arguments, "--runs", tmp_path / "runs", "-o", tmp_path / "results")
    assert result.exit_code == 2
    for word in words:
        assert word in result.output


def test_a_folder_that_cannot_be_written_is_refused_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = badm("reproduce", "molecule", "--runs", tmp_path / "runs", "-o", tmp_path / "file")
    assert result.exit_code == 4
    assert f"cannot write {tmp_path / 'file'}" in result.stderr


def test_help_states_exit_codes_and_examples() -> None:
    output = badm("reproduce", "--help").output
    assert "Exit codes" in output
    assert "badm reproduce node-classification --scale cpu" in output


@pytest.mark.parametrize("part", paper.PARTS.values(), ids=lambda part: part.name)
def test_the_data_of_a_part_fit_together(part: PaperPart) -> None:
    assert paper.PARTS[part.name] is part
    planned = {
        (task, name) for plan in part.plans() for task in plan.tasks for name in plan.methods
    }
    shown = set()
    for block in part.tables:
        for name in part.rows(block):
            assert len(block.tasks(name)) == len(block.columns)
            shown |= {(task, name) for task in block.tasks(name)}
        assert set(block.substitutes) <= set(block.methods)
        for task in block.columns.values():
            stated = tasks.find(task).task.paper
            assert stated is not None
            assert set(stated.scores) <= set(block.methods)  # no figure of the paper is left out
    assert planned == shown
    assert {cell for doubt in part.suspects for cell in doubt.cells} <= shown


def test_the_suspect_scores_are_those_that_are_equal_in_both_tables() -> None:
    dnn, gnn = ({h: tasks.find(t).task.paper for h, t in b.columns.items()} for b in NODE.tables)
    equal = set()
    for heading, stated in dnn.items():
        other = gnn[heading]
        assert stated is not None
        assert other is not None
        for name, figure in other.scores.items():
            if stated.scores[name] == figure:
                equal |= {(b.columns[heading], name) for b in NODE.tables}
    assert equal == {cell for doubt in NODE.suspects for cell in doubt.cells}


def test_chosen_methods_keep_the_order_of_the_paper_and_others_follow() -> None:
    dnn, gnn = NODE.tables
    assert NODE.rows(dnn, ("muon", "adam", "dladmm")) == ("dladmm", "adam", "muon")
    assert NODE.rows(gnn, ("muon", "adam", "dladmm")) == ("adam", "muon")


def test_table_1_has_all_rows_and_columns_and_every_figure_of_the_paper_in_its_cell() -> None:
    rows, facts = [], []
    for plan in NODE.plans():
        for name in plan.tasks:
            stated = tasks.find(name).task.paper
            assert stated is not None
            figures = stated.scores
            facts.append(TaskInfo(name, "", "cpu", "accuracy", "high", True, 9, 64, None, False))
            rows += [ResultRow(name, m, "missing", paper=figures.get(m)) for m in plan.methods]
    empty = replace(made_up(tasks=1, methods=1), tasks=facts, rows=rows, methods=[])
    dnn, gnn = paper_tables(NODE, empty)
    baselines = ["RMSProp (rmsprop)", "Adam (adam)", "NAdam (nadam)", "BADM (badm-printed)"]
    ours = ["badm-diagonal", "badm", "badm-kronecker"]
    first = ["SGD (sgd)", "AdaGrad (adagrad)"]
    assert [line.label for line in dnn.lines] == [*first, "dlADMM (dladmm)²", *baselines, *ours]
    assert [line.label for line in gnn.lines] == [*first, *baselines, *ours]
    for table, network in ((dnn, "dnn"), (gnn, "gnn")):
        assert table.headings == HEADINGS
        for i, heading in enumerate(HEADINGS):
            stated = [f for f in getattr(STATED[heading.lower()], network) if f is not None]
            shown = [line.cells[i].paper for line in table.lines]
            assert shown == [f"{100 * figure:.1f} %" for figure in stated] + [""] * len(ours)
            assert {line.cells[i].ours for line in table.lines} == {"missing"}


def small(*rows: ResultRow, best: str = "high") -> tuple[PaperPart, Comparison]:
    """A part of one column, with these rows."""
    names = tuple(row.method for row in rows)
    part = PaperPart("small", "Small", (TableSpec("A", {"Digits": "digits"}, names),))
    facts = TaskInfo("digits", "", "cpu", "accuracy", best, True, 9, 64, None, False)  # type: ignore[arg-type]
    methods = [MethodInfo(name, name, "keras") for name in names]
    made = made_up(tasks=1, methods=1, protocol="paper")
    return part, replace(made, tasks=[facts], methods=methods, rows=list(rows), notes=[])


def scored(method: str, *values: float, paper: float | None = None) -> ResultRow:
    mean = math.fsum(values) / len(values)
    test = Interval(mean, min(values), max(values), list(values))
    seeds = list(range(len(values)))
    return ResultRow("digits", method, "finished", seeds=seeds, test=test, paper=paper)


def table_of(part: PaperPart, found: Comparison) -> PaperTable:
    (made,) = paper_tables(part, found)
    return made


def test_words_stand_where_a_method_has_no_score_and_the_best_of_ours_is_bold() -> None:
    part, found = small(
        scored("adam", 0.70, 0.80, paper=0.80),
        scored("nadam", 0.90, 0.90),
        ResultRow("digits", "sgd", "diverged", "at 7", seeds=[0, 1, 2], diverged=2, paper=0.5),
        ResultRow("digits", "lion", "missing"),
    )
    markdown = paper_markdown(part, found, "badm reproduce small")
    assert cells(markdown, "A") == {
        "method": ["Digits"],
        "---": ["---:"],
        "adam": ["75.0 % (70.0–80.0 %) / 80.0 % / −5.0"],
        "nadam": ["**90.0 %** (90.0–90.0 %) / –"],
        "sgd": ["*diverged in 2 of 3 seeds* / 50.0 %"],
        "lion": ["*missing* / –"],
    }
    assert "- digits: sgd: at 7." in markdown
    assert "synthetic" not in markdown.partition("## Steps")[0]


def test_steps_to_the_target_have_a_table_where_there_is_a_target() -> None:
    soon = Interval(60, 50, 70, [50, 60, 70])
    never = Interval(math.inf, math.inf, math.inf, [math.inf] * 3)
    part, found = small(
        replace(scored("adam", 0.7, 0.8, 0.9), steps_to_target=soon),
        replace(scored("sgd", 0.2, 0.3, 0.4), steps_to_target=never),
        ResultRow("digits", "lion", "missing"),
    )
    assert "Steps to the target" not in paper_markdown(part, found, "badm")
    found = replace(found, tasks=[replace(task, target=0.75) for task in found.tasks])
    assert cells(paper_markdown(part, found, "badm"), "Steps to the target") == {
        "A": ["Digits"],
        "---": ["---:"],
        "target": ["75.0 %"],
        "adam": ["**60** (50–70)"],
        "sgd": ["never"],
        "lion": ["*missing*"],
    }


@pytest.mark.slow
def test_a_row_from_other_tasks_has_no_place_in_the_table_of_steps(written: Path) -> None:
    markdown = (written / "node-classification.md").read_text(encoding="utf-8")
    rows = markdown.partition("## Steps to the target")[2].partition("\n## ")[0].splitlines()
    firsts = [row.split(" | ")[0].strip("| ") for row in rows if row.startswith("| ")]
    assert firsts == ["DNN", "---", "target", "SGD (sgd)", "GNN", "---", "target", "SGD (sgd)"]


def test_where_low_is_good_the_lowest_is_bold() -> None:
    part, found = small(scored("adam", 0.7), scored("sgd", 0.2), scored("lion", 0.2), best="low")
    lines = table_of(part, found).lines
    assert [line.cells[0].best for line in lines] == [False, True, True]


def test_merged_comparisons_keep_every_row_and_each_method_once() -> None:
    part, one = small(scored("adam", 0.7))
    _, two = small(scored("adam", 0.6), scored("sgd", 0.2))
    other = replace(
        one,
        tasks=[replace(task, name="other") for task in one.tasks],
        rows=[replace(row, task="other") for row in one.rows],
    )
    both = merged(part, [other, two])
    assert both.title == part.title
    assert len(both.rows) == 3
    assert [method.name for method in both.methods] == ["adam", "sgd"]


def test_a_task_of_two_comparisons_is_taken_from_the_one_with_more_methods() -> None:
    part, one = small(scored("adam", 0.7))
    _, two = small(scored("adam", 0.7), scored("sgd", 0.2))
    for order in ([one, two], [two, one]):
        both = merged(part, order)
        assert both.tasks == two.tasks
        assert both.rows == two.rows
