"""Files that others have put there: a report names what it cannot use and shows the rest."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import pytest
import torch
from PIL import Image
from rich.console import Console
from sqlalchemy import create_engine, text
from torch import Tensor, nn
from typer.testing import CliRunner

from badm.bench import Score, Splits, Task
from badm.bench.analysis.summaries import summarise
from badm.bench.compare.database import file_url
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.compare.search import SearchDatabase
from badm.bench.engine.evaluation import Evaluator
from badm.bench.engine.journal import RunJournal
from badm.bench.engine.task_data import load_splits
from badm.bench.engine.training import TrainingState
from badm.bench.errors import StoreError, TaskError
from badm.bench.files import load_tensors
from badm.bench.records import artifact_files, schema
from badm.bench.records.comparisons import (
    Comparison,
    MethodInfo,
    TaskInfo,
    Trial,
    from_json,
    to_json,
)
from badm.bench.records.plans import (
    ComparisonRecord,
    MethodRecord,
    Plan,
    latest_record,
    read_record,
)
from badm.bench.records.runs import RunConfig, RunStore, TrajectoryPoint, header, json_line
from badm.bench.records.runs import RunResult as Ended
from badm.bench.report import page
from badm.bench.report.figures import draw_figures
from badm.bench.report.page import write_page
from badm.bench.report.saving import save
from badm.bench.report.text import console_table, markdown
from badm.bench.tasks.scores import image_grids
from badm.cli import application
from tests.helpers import ROOT

PLAN = Plan(("toy",), ("sgd", "adam"), trials=2, seeds=1, reference="sgd")
TASK = TaskInfo("toy", "a toy", "cpu", "accuracy", "high", True, 20, 4, 0.8, synthetic=False)
ENVIRONMENT = {"python": "3.11", "cores": 2, "packages": {"torch": "2.9"}}
FACTS = {"description": "a toy", "score": {"name": "accuracy"}, "synthetic": True, "notes": ["n"]}
SECRET = "the secret of another folder"

NESTED: Any = "the end"
for _ in range(300):
    NESTED = [NESTED]
WRONG: dict[str, Any] = {
    "null": None,
    "text": "text",
    "empty text": "",
    "surrogate": "\ud800",
    "negative": -1,
    "huge": 1e308,
    "huge and whole": 10**400,
    "NaN": math.nan,
    "list": [1, "a"],
    "dict": {"a": 1},
    "nested": NESTED,
}


@cache
def picture(size: tuple[int, int] = (6, 4), mode: str = "RGB", form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, form)
    return file.getvalue()


def config(method: str) -> RunConfig:
    return RunConfig("toy", "1", "cpu", 20, method, {"lr": 0.1}, 0)


def lines(method: str) -> list[dict[str, Any]]:
    """A run file with everything in it that one can have, as plain data."""
    shown = {"samples": "20-0.png", "words": "20-1.txt"}
    points = [
        TrajectoryPoint(0, 0.0, 0.0, validation={"accuracy": 0.5, "loss": 2.0}),
        TrajectoryPoint(10, 1.0, 10.0, losses={"model": 1.0}),
        TrajectoryPoint(20, 2.0, 20.0, validation={"accuracy": 0.9, "loss": 1.0}),
        TrajectoryPoint(20, 2.0, 20.0, exhibits=shown),
    ]
    figures = {"accuracy": 0.9, "loss": 1.0}
    result = Ended("finished", 20, "", 0.9, figures, figures, 2.0, 20.0, "ab", "cd", 1000, 8)
    content = header(config(method), ENVIRONMENT, FACTS)
    content += b"".join(json_line(asdict(point)) for point in points)
    return [
        json.loads(text) for text in (content + json_line({"result": asdict(result)})).splitlines()
    ]


def record() -> ComparisonRecord:
    def entry(method: str) -> MethodRecord:
        tried = [Trial("toy", method, i, {"lr": 10.0**-i}, "finished", 0.9) for i in range(2)]
        tried[0] = replace(tried[0], steps_to_target=math.inf)
        own = config(method)
        return MethodRecord("toy", method, {"lr": 0.1}, ["lr"], ["lr"], tried, {0: own}, {}, 0.9)

    methods = [MethodInfo(name, "a method", "keras") for name in PLAN.methods]
    return ComparisonRecord(PLAN, "2026-01-01", [TASK], methods, [entry("sgd"), entry("adam")])


def write(path: Path, plain: list[Any]) -> None:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in plain))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run each of two methods, with a picture and a text, and the comparison they belong to."""
    store = RunStore(tmp_path / "runs")
    for method in PLAN.methods:
        folder = store.artifacts(config(method))
        folder.mkdir(parents=True)
        (folder / "20-0.png").write_bytes(picture())
        (folder / "20-1.txt").write_text("said")
        write(store.path(config(method)), lines(method))
    record().write(store)
    (tmp_path / "secret.txt").write_text(SECRET)
    return store


def reported(store: RunStore, folder: Path) -> tuple[Comparison, str]:
    """The latest comparison and all that is written of it, but figures."""
    found, problems = latest_record(store)
    assert found is not None, problems
    made = summarise(found, store)
    write_page(made, folder / "page.html")
    console = Console(file=io.StringIO(), width=100)
    for task in made.tasks:
        console.print(console_table(made, task.name))
    return made, to_json(made) + markdown(made) + (folder / "page.html").read_text()


@pytest.fixture(autouse=True)
def quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without five megabytes of Plotly, on a disk that is not waited for."""
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "")
    monkeypatch.setattr(os, "fsync", lambda file: None)


def statuses(made: Comparison) -> dict[str, str]:
    return {row.method: row.status for row in made.rows}


def paths_of(plain: Any, to: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a nest, the whole of it first."""
    yield to
    parts = plain.items() if isinstance(plain, dict) else ()
    parts = enumerate(plain) if isinstance(plain, list) else parts
    for name, part in parts:
        yield from paths_of(part, (*to, name))


def replaced(plain: Any, to: tuple[Any, ...], value: Any) -> Any:
    if not to:
        return value
    plain = copy.deepcopy(plain)
    *way, last = to
    inner = plain
    for name in way:
        inner = inner[name]
    inner[last] = value
    return plain


# Types


@pytest.mark.parametrize("place", list(paths_of(lines("adam")))[1:], ids=str)
def test_a_run_file_with_anything_anywhere_is_named_or_read_and_the_rest_shown(
    store: RunStore, tmp_path: Path, place: tuple[Any, ...]
) -> None:
    path = store.path(config("adam"))
    for wrong in WRONG.values():
        write(path, replaced(lines("adam"), place, wrong))
        before = path.read_bytes()
        found, problems = store.read_all()
        assert "sgd" in [run.config.method for run in found]
        assert all(str(path) in problem and "\n" not in problem for problem in problems)
        assert len(found) + len(problems) == 2
        if problems:
            made = summarise(record(), store)
            assert statuses(made) == {"sgd": "finished", "adam": "missing"}
            assert made.notes == [f"Skipped: {problems[0]}."]
        else:
            reported(store, tmp_path)
        assert path.read_bytes() == before


RECORD = json.loads(json.dumps(asdict(record())))
IN_RECORD = [to for to in paths_of(RECORD) if to[:2] not in (("entries", 1), ("methods", 1))]


@pytest.mark.parametrize("place", IN_RECORD, ids=str)
def test_a_record_with_anything_anywhere_is_named_or_shown(
    store: RunStore, tmp_path: Path, place: tuple[Any, ...]
) -> None:
    (path,) = (store.folder / "comparisons").iterdir()
    plain = json.loads(path.read_text())
    for wrong in WRONG.values():
        path.write_text(json.dumps(replaced(plain, place, wrong)))
        found, problems = latest_record(store)
        if found is not None:
            reported(store, tmp_path)
        else:
            (problem,) = problems
            assert str(path) in problem
            assert "\n" not in problem


STATE = TrainingState(
    3, 1.5, [3.0], [0.5], 1, {"accuracy": 0.5, "loss": math.nan}, {"accuracy": 0.4}, 9
)


def test_the_state_of_a_checkpoint_is_read_as_it_was_saved() -> None:
    found = schema.build(TrainingState, asdict(STATE))
    assert str(found) == str(STATE)  # NaN is not equal to itself


@pytest.mark.parametrize("place", [(name,) for name in asdict(STATE)], ids=str)
def test_the_state_of_a_checkpoint_has_its_types(place: tuple[str, ...]) -> None:
    for wrong in ("text", [1, "a"], {"a": "b"}, -1, True):
        with pytest.raises(schema.SchemaError, match=place[0]):
            schema.build(TrainingState, replaced(asdict(STATE), place, wrong))


RESULTS = ROOT / "results"


def comparisons_in(path: Path) -> list[Any]:
    plain = json.loads(path.read_text())
    found: list[Any] = plain.get("comparisons", [plain])
    return found


IN_RESULTS = [
    pytest.param(one, id=f"{path.stem}-{number}")
    for path in sorted(RESULTS.rglob("*.json"))
    for number, one in enumerate(comparisons_in(path))
    if "rows" in one and "summary" in one
]


def common(found: Any, older: Any) -> Any:
    """What is found, without the fields that classes have got since."""
    if isinstance(found, dict):
        return {name: common(found[name], older[name]) for name in found if name in older}
    if isinstance(found, list):
        return [common(*pair) for pair in zip(found, older, strict=True)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("plain", IN_RESULTS)
def test_every_comparison_among_the_results_goes_to_json_and_back(plain: Any) -> None:
    found = json.loads(to_json(from_json(json.dumps(plain))))
    assert common(found, plain) == plain


@pytest.mark.parametrize(
    "field", [field.name for field in fields(Comparison) if field.name != "artifacts"]
)
def test_a_comparison_with_anything_in_a_field_is_named_or_read(
    store: RunStore, field: str
) -> None:
    plain = json.loads(to_json(summarise(record(), store)))
    plain.setdefault(field, None)  # a protocol's own part, which a file without it leaves out
    first = plain[field][:1] if isinstance(plain[field], list) else plain[field]
    for place in paths_of(first, (field,)):
        for wrong in (None, "text", 1e308, math.nan, [1, "a"], {"a": 1}):
            said = ""
            try:
                to_json(from_json(json.dumps(replaced(plain, place, wrong)))).encode()
            except schema.SchemaError as error:
                said = str(error)
            assert not said or (field in said and "\n" not in said)


HUGE: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "a reading": ("score", (3, "validation", "accuracy"), ()),
    "a loss": ("loss", (2, "losses", "model"), ()),
    "a target": ("score", (), ("tasks", 0, "target")),
    "the score of a trial": ("sensitivity", (), ("entries", 0, "tried", 0, "score")),
    "a learning rate": ("sensitivity", (), ("entries", 0, "tried", 0, "setting", "lr")),
}


@pytest.mark.parametrize(("kind", "in_run", "in_record"), HUGE.values(), ids=list(HUGE))
def test_numbers_too_large_for_a_figure_are_left_out_of_it(
    store: RunStore, tmp_path: Path, kind: str, in_run: tuple[Any, ...], in_record: tuple[Any, ...]
) -> None:
    (path,) = (store.folder / "comparisons").iterdir()
    if in_record:
        path.write_text(json.dumps(replaced(json.loads(path.read_text()), in_record, 1e308)))
    if in_run:
        write(store.path(config("adam")), replaced(lines("adam"), in_run, 1e308))
    made, _ = reported(store, tmp_path)
    assert statuses(made) == {"sgd": "finished", "adam": "finished"}
    (drawn,) = draw_figures(made, tmp_path / "figures", kinds=(kind,), forms=("svg",))
    assert drawn.name == f"toy-{kind}.svg"


# Artifacts


def shown_as(store: RunStore, name: str) -> None:
    """Let the run of adam want that file to be shown as its samples."""
    write(store.path(config("adam")), replaced(lines("adam"), (4, "exhibits", "samples"), name))


def linked(to: str) -> Callable[[Path, Path], None]:
    """A link of the name that is shown, to a place beside the folder of the runs or elsewhere."""
    return lambda folder, outside: (folder / "x.txt").symlink_to(
        to if to.startswith("/") else outside / to
    )


def folder_linked(folder: Path, outside: Path) -> None:
    """The folder of the artifacts is a link to one that has a file of that name."""
    elsewhere = outside / "elsewhere"
    folder.rename(elsewhere)
    (elsewhere / "x.txt").write_text(SECRET)
    folder.symlink_to(elsewhere)


def in_a_folder(folder: Path, outside: Path) -> None:
    (folder / "within").mkdir()
    (folder / "within" / "x.txt").write_text(SECRET)


def nothing(folder: Path, outside: Path) -> None: ...


def made_of(content: bytes, name: str = "x.png") -> Callable[[Path, Path], Any]:
    return lambda folder, outside: (folder / name).write_bytes(content)


def sparse(folder: Path, outside: Path) -> None:
    with (folder / "x.txt").open("wb") as file:
        file.truncate(10**12)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 108 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


ARTIFACTS: dict[str, tuple[str, Callable[[Path, Path], Any], str]] = {
    "above": ("../../../secret.txt", nothing, "is outside of"),
    "above a folder that is not there": ("x/../../../../secret.txt", nothing, "cannot be read"),
    "in a folder": ("within/x.txt", in_a_folder, "is outside of"),
    "absolute": ("/etc/hostname", nothing, "is outside of"),
    "of the system": ("/proc/self/environ", nothing, "is outside of"),
    "a link out": ("x.txt", linked("secret.txt"), "is outside of"),
    "a link to the other run": ("x.txt", linked("runs/toy"), "is outside of"),
    "a link to a device": ("x.txt", linked("/dev/zero"), "is outside of"),
    "a link to nowhere": ("x.txt", linked("/nowhere/x"), "no such file"),
    "a link to itself": ("x.txt", lambda f, _: (f / "x.txt").symlink_to("x.txt"), "cannot be read"),
    "in a folder that is a link": ("x.txt", folder_linked, "is outside of"),
    "the folder itself": (".", nothing, "is outside of"),
    "no name": ("", nothing, "is outside of"),
    "no name a file can have": ("x\0.txt", nothing, "its name is not that of a file"),
    "a long name": ("x" * 5000, nothing, "name too long"),
    "a named pipe": ("x.txt", lambda f, _: os.mkfifo(f / "x.txt"), "is a named pipe"),
    "a socket": ("x.txt", lambda f, _: a_socket(f / "x.txt"), "is a socket"),
    "a directory": ("x.txt", lambda f, _: (f / "x.txt").mkdir(), "is a directory"),
    "a terabyte": ("x.txt", sparse, "is larger than the 20.0 MB that are read"),
    "a long text": ("x.txt", made_of(b"a" * 1_000_001, "x.txt"), "at most 1,000,000 are shown"),
    "an empty picture": ("x.png", made_of(b""), "is not a PNG image"),
    "a page": ("x.png", made_of(b"<html>"), "is not a PNG image"),
    "a JPEG": ("x.png", made_of(picture(form="JPEG")), "is not a PNG image"),
    "a cut picture": ("x.png", made_of(picture((60, 60))[:60]), "is a damaged PNG image"),
    "a bomb": ("x.png", made_of(picture((20_000, 20_000), "1")), "pixels, more than allowed"),
    "a wire": ("x.png", made_of(picture((30_000, 1), "1")), "pixels, more than allowed"),
}


@pytest.mark.parametrize(("name", "make", "said"), ARTIFACTS.values(), ids=list(ARTIFACTS))
def test_an_artifact_that_is_none_of_the_runs_own_is_named_and_left_out(
    store: RunStore, tmp_path: Path, name: str, make: Callable[[Path, Path], Any], said: str
) -> None:
    make(store.artifacts(config("adam")), tmp_path)
    shown_as(store, name)
    made, text = reported(store, tmp_path)
    assert SECRET not in text
    start = f"Skipped: {store.path(config('adam'))}: artifact 'samples' "
    (note,) = (note for note in made.notes if note.startswith(start))
    assert said in note
    shown = [(one.method, one.title, bool(one.picture), one.text) for one in made.artifacts]
    assert ("sgd", "samples", True, "") in shown
    assert ("sgd", "words", False, "said") in shown
    assert ("adam", "samples") not in [one[:2] for one in shown]
    assert statuses(made) == {"sgd": "finished", "adam": "finished"}


def test_runs_in_a_folder_that_is_a_link_show_their_artifacts(
    store: RunStore, tmp_path: Path
) -> None:
    (store.folder / "toy").rename(tmp_path / "large disk")
    (store.folder / "toy").symlink_to(tmp_path / "large disk")
    (tmp_path / "link").symlink_to(store.folder)
    made, _ = reported(RunStore(tmp_path / "link"), tmp_path)
    assert (len(made.artifacts), made.notes) == (4, [])


def test_artifacts_in_all_have_an_end(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is shown a million times would fill the memory."""
    monkeypatch.setattr("badm.bench.analysis.summaries.SHOWN_BYTES", 100)
    titles = {f"title {i}": "20-1.txt" for i in range(50)}
    write(store.path(config("sgd")), replaced(lines("sgd"), (4, "exhibits"), titles))
    made, _ = reported(store, tmp_path)
    assert sum(len(one.text) for one in made.artifacts) == 100
    assert made.notes == [f"Skipped: {store.path(config('sgd'))}: artifacts beyond 100 B in all."]


@pytest.mark.parametrize("mode", ["1", "LA", "P", "I;16"])
def test_pictures_of_every_kind_are_drawn(store: RunStore, tmp_path: Path, mode: str) -> None:
    for method in PLAN.methods:
        folder = store.artifacts(config(method))
        (folder / "20-0.png").write_bytes(picture((1, 3000), mode))
    made, _ = reported(store, tmp_path)
    assert not made.notes
    (file,) = draw_figures(made, tmp_path / "figures", kinds=("artifacts",), forms=("png",))
    with Image.open(file) as drawn:
        assert max(drawn.size) < 10_000


class Shows(Task):
    """Shows what it is told to."""

    name = "shows"
    score = Score("error", best="low")
    batch_size, steps, evaluate_every = 4, 1, 1

    def __init__(self, shown: Any) -> None:
        super().__init__("cpu")
        self.shown = shown

    def data(self) -> Splits:
        x = torch.ones(8, 2)
        return Splits(x, x, x)

    def model(self, splits: Splits) -> nn.Module:
        return nn.Linear(2, 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cast(Tensor, model(batch).square().mean())

    def evaluate(self, model: nn.Module, split: Any) -> dict[str, float]:
        return {"error": 1.0}

    def artifacts(self, model: nn.Module, splits: Splits) -> Any:
        return self.shown() if callable(self.shown) else self.shown


SHOWN: dict[str, tuple[Any, str]] = {
    "a list": ([b"a"], "artifacts must be a dict of images and texts by title, got list"),
    "a picture alone": (picture(), "artifacts must be a dict .*, got bytes"),
    "a number for a title": (
        {3: "a"},
        "artifacts must have a short string for every title, got int",
    ),
    "a tensor": ({"x": torch.ones(3)}, r"artifacts 'x' must be an image \(PNG bytes\) .*Tensor"),
    "nothing for a picture": ({"x": None}, "artifacts 'x' must be an image .*, got None"),
    "no picture": ({"x": b"GIF89a"}, "artifacts 'x' is not a PNG image"),
    "a damaged picture": ({"x": picture()[:40]}, "artifacts 'x' is a damaged PNG image"),
    "a bomb": ({"x": picture((20_000, 20_000), "1")}, "artifacts 'x' has 20,000 × 20,000 pixels"),
    "a long text": ({"x": "a" * 2_000_000}, "artifacts 'x' has 2,000,000 characters"),
    "a wrong shape": (
        lambda: {"x": image_grids.sample_grid(torch.ones(3))},
        r"artifacts raised ValueError: images must be \(N, channels, side, side\) .*got \(3,\)",
    ),
    "two channels": (
        lambda: {"x": image_grids.sample_grid(torch.ones(3, 2, 4, 4))},
        r"images must be .*, got \(3, 2, 4, 4\)",
    ),
    "no images": (
        lambda: {"x": image_grids.classified_grid(torch.ones(0, 4, 4, 3), [], [])},
        r"images must be \(N, side, side, 3\) and not empty",
    ),
}


@pytest.mark.parametrize(("shown", "said"), SHOWN.values(), ids=list(SHOWN))
def test_a_task_that_shows_what_cannot_be_shown_is_named_in_a_sentence(
    shown: Any, said: str
) -> None:
    task = Shows(shown)
    splits = task.data()
    with pytest.raises(TaskError, match=f"^task shows: .*{said}") as error:
        Evaluator(task, task.model(splits), splits, 0).artifacts()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("value", "grey"), [(math.nan, 0), (-math.inf, 0), (math.inf, 255)])
def test_samples_of_a_diverging_model_are_a_picture(value: float, grey: int) -> None:
    drawn = image_grids.sample_grid(torch.full((1, 1, 4, 4), value))
    artifact_files.check({"samples": drawn})
    with Image.open(io.BytesIO(drawn)) as image:
        assert image.getpixel((5, 5)) == (grey,) * 3


def test_a_task_that_shows_nothing_or_half_characters_is_no_error(tmp_path: Path) -> None:
    task = Shows(None)
    splits = task.data()
    assert Evaluator(task, task.model(splits), splits, 0).artifacts() == {}
    own = config("sgd")
    journal = RunJournal(own, RunStore(tmp_path))
    names = journal.save_artifacts(1, {"t": "\ud800"})
    folder = RunStore(tmp_path).artifacts(own)
    assert artifact_files.read(folder, names["t"]) == "?"


OWN_TASK = """
import torch
from badm.bench import Score, Splits, Task

class Mine(Task):
    name, score = "mine", Score("error", best="low")
    batch_size, steps, evaluate_every = 4, 1, 1

    def data(self):
        return Splits(*[torch.ones(8, 2)] * 3)

    def model(self, splits):
        return torch.nn.Linear(2, 1)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model, split):
        return {"error": 1.0}

    def {what}(self, *_):
        return {value}
"""


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("artifacts", "{'weights': 3}", "artifacts 'weights' must be an image (PNG bytes) or a "),
        ("warning", "None", "warning must return a string, got None"),
    ],
)
def test_a_task_that_gives_what_no_file_can_hold_ends_a_run_with_its_name(
    tmp_path: Path, what: str, value: str, said: str
) -> None:
    task = tmp_path / "mine.py"
    task.write_text(OWN_TASK.replace("{what}", what).replace("{value}", value))
    arguments = ["run", str(task), "-m", "sgd", "--runs", str(tmp_path / "runs"), "--quiet"]
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"badm: task mine: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"synthetic": 1}, "synthetic of its data must be True or False, got 1"),
        ({"notes": "one text"}, "notes of its data must be strings, got 'one text'"),
        ({"notes": (1,)}, r"notes of its data must be strings, got \(1,\)"),
    ],
)
def test_facts_of_data_that_no_run_file_may_have_are_reported_before_any_work(
    changes: dict[str, Any], said: str
) -> None:
    task = Shows(None)
    splits = replace(task.data(), **changes)
    task.data = lambda: splits  # type: ignore[method-assign]
    with pytest.raises(TaskError, match=f"^task shows: {said}"):
        load_splits(task)


# What is no file


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def a_terabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def what_is_at(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


SPECIAL = {
    "is a named pipe": a_pipe,
    "is a socket": a_socket,
    "is a device": a_device,
    "is a directory": Path.mkdir,
    "no such file": a_link_to_nowhere,
    "too many levels of symbolic links": a_link_to_itself,
    "is larger than the 100 MB": a_terabyte,
}
every_special = pytest.mark.parametrize(("said", "make"), SPECIAL.items(), ids=list(SPECIAL))


@every_special
def test_what_is_no_run_file_is_not_opened(
    store: RunStore, tmp_path: Path, said: str, make: Callable[[Path], None]
) -> None:
    path = store.path(config("adam"))
    path.unlink()
    make(path)
    before = what_is_at(path)
    runs, (problem,) = store.read_all()
    assert [run.config.method for run in runs] == ["sgd"]
    assert problem.startswith(f"{path}: ")
    assert said in problem
    made, _ = reported(store, tmp_path)
    assert statuses(made) == {"sgd": "finished", "adam": "missing"}
    assert what_is_at(path) == before


@every_special
def test_what_is_no_record_is_not_opened(
    store: RunStore, said: str, make: Callable[[Path], None]
) -> None:
    make(store.folder / "comparisons" / "x.json")
    found, problems = latest_record(store)
    assert found == record()
    with pytest.raises(StoreError, match=said) as error:
        read_record(store.folder / "comparisons" / "x.json")
    assert problems in ([], [str(error.value)])


@every_special
def test_what_is_no_checkpoint_is_not_opened(
    tmp_path: Path, said: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.checkpoint"
    make(path)
    with pytest.raises((OSError, BadZipFile), match=r"(?i)not a zip file|" + said):
        load_tensors(path)


def test_a_packed_checkpoint_is_not_unpacked(tmp_path: Path) -> None:
    """Zeros are packed to a thousandth: what is small on the disk may not fit into memory."""
    path, packed = tmp_path / "plain", tmp_path / "packed"
    torch.save({"weights": torch.zeros(100_000)}, path)
    with ZipFile(path) as source, ZipFile(packed, "w", ZIP_DEFLATED) as target:
        for one in source.infolist():
            target.writestr(one.filename, source.read(one))
    assert packed.stat().st_size < path.stat().st_size / 100
    with pytest.raises(StoreError, match="is damaged"):
        load_tensors(packed)


# Outputs


def report(store: RunStore, *arguments: object) -> Any:
    return CliRunner().invoke(application(), ["report", str(store.folder), *map(str, arguments)])


@pytest.mark.parametrize("form", ["html", "md", "json"])
@pytest.mark.parametrize("make", [a_pipe, a_socket, a_device, Path.mkdir], ids=lambda f: f.__name__)
def test_an_output_that_is_no_file_is_refused_and_left_alone(
    store: RunStore, tmp_path: Path, form: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / f"x.{form}"
    make(path)
    before = what_is_at(path)
    result = report(store, "-o", path)
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
    assert result.stderr.startswith(f"badm: cannot write {path}: is a ")
    assert what_is_at(path) == before


@pytest.mark.parametrize("make", [a_pipe, a_socket, a_device, Path.touch], ids=lambda f: f.__name__)
def test_a_folder_of_figures_that_is_none_is_refused_and_left_alone(
    store: RunStore, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    result = report(store, "-o", tmp_path / "x")
    assert (result.exit_code, result.stderr) == (
        4,
        f"badm: cannot write {tmp_path / 'x'}: not a directory\n",
    )


def test_dev_full_as_an_output_is_refused(store: RunStore) -> None:
    result = report(store, "-o", "/dev/full")
    assert (result.exit_code, result.stderr) == (
        4,
        "badm: cannot write /dev/full: not a directory\n",
    )


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can become larger, as on a disk that is full from there on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 600])
@pytest.mark.parametrize("name", ["x.html", "x.md", "x.json", "figures"])
def test_on_a_full_disk_the_earlier_report_remains(
    store: RunStore, tmp_path: Path, name: str, size: int
) -> None:
    made = summarise(record(), store)
    path = tmp_path / name
    kept = path / "toy-score.png" if name == "figures" else path
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("the report of yesterday")
    with files_of_at_most(size), pytest.raises(StoreError) as ended:
        save(made, path)
    assert str(ended.value) == f"cannot write {path}: file too large"
    assert kept.read_text() == "the report of yesterday"
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize("size", [0, 1, 100, 1000])
def test_on_a_full_disk_the_earlier_record_remains(store: RunStore, size: int) -> None:
    with files_of_at_most(size), pytest.raises(StoreError, match=r"cannot write .*comparisons"):
        replace(record(), interrupted=True).write(store)
    assert latest_record(store) == (record(), [])


def test_a_folder_in_the_way_of_a_record_is_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "comparisons").touch()
    with pytest.raises(StoreError, match=r"cannot write .*comparisons.*: file exists"):
        record().write(store)


# Names


NAMES = [
    "what?",
    "a#b",
    "100%",
    "%3F",
    "a b",
    "ünï漢字",
    "a:b",
    "{x}",
    "x&uri=false",
    "[a]",
    "a\\b",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_database_of_a_store_of_any_name_lies_in_it(tmp_path: Path, name: str) -> None:
    path = RunStore(tmp_path / name).folder / "search.db"
    with create_engine(file_url(path)).begin() as connection:
        connection.execute(text("create table searches (name text)"))
    assert path.stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_a_search_that_was_begun_under_the_plain_url_goes_on(tmp_path: Path) -> None:
    folder = RunStore(tmp_path / "100% {x}").folder
    plain = SearchDatabase(f"sqlite:///{folder / 'search.db'}", folder / ".locks")
    assert plain.search("toy/sgd/0", {}, [{}, {}], "high").claim() == 0
    again = SearchDatabase(file_url(folder / "search.db"), folder / ".locks")
    assert again.search("toy/sgd/0", {}, [{}, {}], "high").claim() == 1


@pytest.mark.slow
def test_a_search_database_that_is_none_is_named_by_its_path(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "what?")
    path = store.folder / "search.db"
    path.mkdir()
    with pytest.raises(ValueError, match="cannot open the search database") as error:
        SearchDatabase(file_url(path), store.folder / ".locks")
    assert f"database {path}: " in str(error.value)


@pytest.mark.slow
def test_a_store_whose_own_search_database_cannot_be_opened_is_to_blame(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "search.db").mkdir()
    with pytest.raises(StoreError, match="cannot open the search database") as error:
        ComparisonRunner(replace(PLAN, tasks=("digits",)), store)
    assert f"database {tmp_path / 'search.db'}: " in str(error.value)


@pytest.mark.slow
def test_a_comparison_in_a_folder_with_a_question_mark_is_whole(tmp_path: Path) -> None:
    runs = tmp_path / "what?"
    arguments = ["digits", "--scale", "smoke", "--steps", "2", "--trials", "1", "--seeds", "1"]
    arguments += ["-m", "sgd", "--runs", str(runs), "--jobs", "1", "--quiet"]
    result = CliRunner().invoke(application(), ["compare", *arguments])
    assert result.exit_code == 0, result.output
    assert {path.name for path in runs.iterdir()} == {
        *(".locks", "comparisons", "digits", "report.html", "report.toml", "search.db"),
    }
    assert list(tmp_path.iterdir()) == [runs]
