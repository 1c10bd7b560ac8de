"""The command ``badm data``: what it prints and returns."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from badm.bench import data
from badm.bench.data import checksums, idx, reviews
from badm.bench.tasks import TASKS
from badm.commands import data as command

PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def badm_data_command(*arguments: str, **environment: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.add_typer(command.app, name="data")
    return CliRunner().invoke(app, ["data", *arguments], env={**PLAIN, **environment})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def bbbp(root: Path) -> Path:
    """One dataset that is there, and its checksum."""
    file = root / "bbbp" / "BBBP.csv"
    file.parent.mkdir()
    file.write_text("num,name,p_np,smiles\n")
    (root / "SHA256SUMS").write_text(f"{checksums.sha256(file)}  bbbp/BBBP.csv\n")
    return file


def test_list_shows_every_set_with_its_status(bbbp: Path, root: Path) -> None:
    (root / "mnist").mkdir()
    (root / "mnist" / idx.FILES[0]).touch()
    result = badm_data_command("list")
    assert result.exit_code == 0
    assert str(root) in result.output
    lines = {line.split("  ")[0]: line for line in result.output.splitlines()}
    assert {dataset.name for dataset in data.DATASETS} <= set(lines)
    assert "present" in lines["bbbp"]
    assert "partly" in lines["mnist"]
    assert "missing" in lines["camelyon"]
    assert "inside" in lines["digits"]


def test_list_json_holds_the_same(bbbp: Path, root: Path) -> None:
    shown = json.loads(badm_data_command("list", "--json").stdout)
    assert shown["root"] == str(root)
    rows = {row["name"]: row for row in shown["datasets"]}
    assert list(rows) == [dataset.name for dataset in data.DATASETS]
    assert rows["bbbp"]["status"] == "present"
    assert rows["bbbp"]["bytes"] == bbbp.stat().st_size
    assert rows["digits"]["status"] == "inside scikit-learn"
    assert rows["camelyon"]["files"][0].endswith("split_train_x.h5")


def test_list_shows_every_task_under_the_dataset_it_states(root: Path) -> None:
    rows = json.loads(badm_data_command("list", "--json").stdout)["datasets"]
    shown = {task: row["name"] for row in rows for task in row["tasks"]}
    assert shown == {name: make("cpu").dataset_name for name, make in TASKS.items()}
    assert sum(len(row["tasks"]) for row in rows) == len(TASKS)  # each once


def test_verify_checks_what_is_there_and_exits_0(bbbp: Path) -> None:
    result = badm_data_command("verify")
    assert result.exit_code == 0, result.output
    assert result.stdout == "bbbp: good (SHA256SUMS)\n"


def test_verify_names_a_corrupt_file_and_exits_1(bbbp: Path) -> None:
    bbbp.write_text("changed")
    result = badm_data_command("verify", "bbbp", "mnist")
    assert result.exit_code == 1
    assert "bbbp: 1 problem\n  bbbp/BBBP.csv: does not have the expected" in result.stderr
    shown = json.loads(badm_data_command("verify", "--json").stdout)
    (problem,) = shown["datasets"][0]["problems"]
    assert (problem["path"], problem["kind"]) == ("bbbp/BBBP.csv", "corrupt")


def test_verify_prints_ten_problems_and_json_all(root: Path) -> None:
    (root / "imdb").mkdir()
    (root / "imdb" / "train.jsonl.gz").touch()
    listed = [f"tf_flowers/daisy/{i}.jpg" for i in range(14)]
    (root / "tf_flowers" / "daisy").mkdir(parents=True)
    (root / listed[0]).touch()
    (root / "SHA256SUMS").write_text("".join(f"{'0' * 64}  {path}\n" for path in listed))
    result = badm_data_command("verify", "tf-flowers")
    assert result.exit_code == 1
    assert "tf-flowers: 18 problems" in result.stderr  # 14 files, and 4 classes without any
    assert "and 8 more: --json has them all" in result.stderr
    assert result.stderr.count("tf_flowers/daisy/") == 10
    shown = json.loads(badm_data_command("verify", "tf-flowers", "--json").stdout)
    assert len(shown["datasets"][0]["problems"]) == 18


def test_verify_of_a_missing_set_exits_3(bbbp: Path) -> None:
    result = badm_data_command("verify", "bbbp", "mnist")
    assert result.exit_code == 3
    assert "bbbp: good" in result.stdout
    assert "mnist: missing" in result.stderr
    assert "badm data fetch mnist" in result.stderr


def test_verify_of_nothing_at_all_exits_3(root: Path) -> None:
    result = badm_data_command("verify")
    assert result.exit_code == 3
    assert f"there are no datasets in {root}" in result.stderr


def test_verify_says_where_sums_are_not_readable(bbbp: Path, root: Path) -> None:
    (root / "SHA256SUMS").write_text("nonsense\n")
    result = badm_data_command("verify")
    assert result.exit_code == 1
    assert "line 1 of" in result.stderr


@pytest.mark.parametrize("verb", ["verify", "fetch"])
def test_a_name_that_is_none_exits_2_and_names_the_nearest(root: Path, verb: str) -> None:
    result = badm_data_command(verb, "mnist", "fashion")
    assert result.exit_code == 2
    assert "'fashion'; did you mean fashion-mnist?" in result.output
    assert list(root.iterdir()) == []


def test_a_fetch_that_fails_says_which_files_go_where(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = replace(reviews.ARCHIVE, url="file:///nowhere/reviews.tar.gz")
    monkeypatch.setattr(reviews, "ARCHIVE", nowhere)
    result = badm_data_command("fetch", "imdb")
    assert result.exit_code == 1
    for part in ("could not be downloaded", str(root), "imdb/train.jsonl.gz", "data verify imdb"):
        assert part in result.stderr
    shown = json.loads(badm_data_command("fetch", "imdb", "--json").stdout)
    assert shown["datasets"][0]["outcome"] == "failed"
    assert list(root.iterdir()) == []


def test_fetch_of_what_is_inside_scikit_learn_is_done(root: Path) -> None:
    result = badm_data_command("fetch", "digits")
    assert result.exit_code == 0
    assert "nothing to download" in result.stdout


def test_fetch_without_the_library_exits_2_and_names_the_extra(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    result = badm_data_command("fetch", "mnist")
    assert result.exit_code == 2
    assert 'pip install "badm[data]"' in result.stderr


class Rows:
    """That many images of each class, one picture for each."""

    def __init__(self, each: int) -> None:
        self.each = each

    def __len__(self) -> int:
        return 10 * self.each

    def __iter__(self) -> Iterator[dict[str, object]]:
        pictures = [Image.new("L", (28, 28), 20 * label) for label in range(10)]
        for i in range(len(self)):
            yield {"image": pictures[i % 10], "label": i % 10}


def pretend(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """Put a Hub of 60,000 + 10,000 images in the place of the real one."""

    def dataset_info(self: object, repository: str, timeout: float) -> SimpleNamespace:
        if error:
            raise error
        return SimpleNamespace(sha="c0ffee")

    def load_dataset(repository: str, **keywords: object) -> dict[str, Rows]:
        return {"train": Rows(6000), "test": Rows(1000)}

    utils = SimpleNamespace(
        are_progress_bars_disabled=lambda: True,
        disable_progress_bars=lambda: None,
        enable_progress_bars=lambda: None,
    )
    for name in ("datasets", "huggingface_hub"):
        module = ModuleType(name)
        api = type("HfApi", (), {"dataset_info": dataset_info})
        module.__dict__.update(utils=utils, load_dataset=load_dataset, HfApi=api)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.slow
def test_fetch_of_the_whole_fashion_mnist_then_verify(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    result = badm_data_command("fetch", "fashion-mnist")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"fashion-mnist: downloaded into {root / 'fashion_mnist'}\n"
    images = idx.load(root / "fashion_mnist")
    assert len(images.train) == 60_000
    assert torch.equal(images.test[17], torch.full((28, 28), 140, dtype=torch.uint8))
    assert badm_data_command("verify").stdout == "fashion-mnist: good (SHA256SUMS)\n"
    again = badm_data_command("fetch", "fashion-mnist", "--json")
    assert json.loads(again.stdout)["datasets"][0]["outcome"] == "there"


@pytest.mark.slow
def test_fetch_does_not_keep_images_that_are_not_those_of_mnist(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    result = badm_data_command("fetch", "mnist", "--quiet")
    assert result.exit_code == 1
    assert "the files downloaded for mnist are not as expected" in result.stderr
    assert list(root.iterdir()) == []


def test_fetch_without_a_network_exits_1_and_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, OSError("Name or service not known"))
    result = badm_data_command("fetch", "mnist", "fashion-mnist")
    assert result.exit_code == 1
    assert "OSError: Name or service not known). Nothing was changed" in result.stderr
    assert "zalando-datasets/fashion_mnist" in result.stderr
    assert list(root.iterdir()) == []


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from badm.commands.data import app; app(prog_name='badm data')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **PLAIN, **environment},
    )


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs badm[data]")
def test_fetch_from_a_hub_that_refuses_fails_cleanly(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "data"
    result = run(
        "fetch",
        "mnist",
        BADM_DATA=str(place),
        HF_ENDPOINT="http://127.0.0.1:9",  # the discard port: nothing listens
        HF_HOME=str(tmp_path / "hub"),
    )
    assert result.returncode == 1, result.stderr
    assert "ylecun/mnist could not be downloaded from the Hugging Face Hub" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Retry" not in result.stderr
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_a_pipe_and_quiet_show_no_bar(bbbp: Path, root: Path) -> None:
    piped = run("verify", BADM_DATA=str(root))
    assert (piped.stdout, piped.stderr) == ("bbbp: good (SHA256SUMS)\n", "")
    quiet = run("verify", "--quiet", BADM_DATA=str(root))
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("", "", 0)


def test_a_terminal_shows_a_bar(bbbp: Path) -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm"}  # what rich takes for one
    shown = badm_data_command("verify", **terminal).output
    assert "bbbp: bytes" in shown
    assert "100%" in shown
    assert "bytes" not in badm_data_command("verify", "--quiet", **terminal).output
    json.loads(badm_data_command("verify", "--json", **terminal).stdout)


@pytest.mark.parametrize("verb", ["list", "verify", "fetch"])
def test_help_has_examples(verb: str) -> None:
    result = badm_data_command(verb, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"badm data {verb}" in result.output.split("Examples")[1]
    assert "Exit codes" in result.output


@pytest.mark.data
def test_list_and_verify_of_the_real_data(badm_data: Path) -> None:
    if not (badm_data / "SHA256SUMS").exists():
        pytest.skip("needs the SHA256SUMS of the compact data")
    rows = json.loads(badm_data_command("list", "--json").stdout)["datasets"]
    absent = {row["name"]: row["status"] for row in rows if row["status"] != "present"}
    assert absent == {"camelyon": "missing", "digits": "inside scikit-learn"}
    result = badm_data_command("verify")
    assert result.exit_code == 0, result.output
    assert result.stdout.count(": good (SHA256SUMS)") == 17


@pytest.mark.data
def test_verify_names_the_corrupt_copy_of_a_real_file(badm_data: Path, root: Path) -> None:
    shutil.copytree(badm_data / "mnist", root / "mnist")
    images = root / "mnist" / idx.FILES[2]
    images.write_bytes(images.read_bytes()[:-1000])
    result = badm_data_command("verify")
    assert result.exit_code == 1
    assert f"mnist/{idx.FILES[2]}: {images} is truncated" in result.stderr
