"""What a run is filed under, attacked: code and data that change, old files, strange names."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from badm.bench import methods, tasks
from badm.bench.data import DATASETS
from badm.bench.engine import environment
from badm.bench.engine.environment import CHANGED, commit_of
from badm.bench.engine.run import run
from badm.bench.errors import StoreError, TaskError
from badm.bench.method import package_versions
from badm.bench.records.plans import Plan
from badm.bench.records.runs import RunConfig, RunStore, read_run
from badm.bench.task import Task
from badm.bench.tasks import FoundTask, by_dataset, data_identity, find
from badm.bench.tasks.data_identity import identity

TASK = """
import torch
from badm.bench import Score, Splits, Task

class One(Task):
    name = "one"
    score = Score("error", best="low")
    batch_size = 2
    steps = SIZE
    evaluate_every = 1

    def data(self): return Splits(torch.ones(4), torch.ones(4), torch.ones(4))
    def model(self, splits): return torch.nn.Linear(1, 1)
    def loss(self, model, batch): return model(batch[:, None]).square().mean()
    def evaluate(self, model, split): return {"error": model.weight.item() ** 2}
"""
ALONE = TASK.replace("SIZE", "3")


def written(folder: Path, files: dict[str, str]) -> str:
    """The files in a folder, the task among them; its path."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "my_task.py")


# Files beside a task that says SIZE, by the way it comes by it; "@" stands for the number.
WAYS: dict[str, dict[str, str]] = {
    "import": {"my_task.py": "import side\nSIZE = side.SIZE\n", "side.py": "SIZE = @"},
    "import as": {"my_task.py": "import side as s\nSIZE = s.SIZE\n", "side.py": "SIZE = @"},
    "from": {"my_task.py": "from side import SIZE\n", "side.py": "SIZE = @"},
    "star": {"my_task.py": "from side import *\n", "side.py": "SIZE = @"},
    "package": {"my_task.py": "from box import SIZE\n", "box/__init__.py": "SIZE = @"},
    "module of a package": {
        "my_task.py": "from box.part import SIZE\n",
        "box/__init__.py": "",
        "box/part.py": "SIZE = @",
    },
    "module out of a package": {
        "my_task.py": "from box import part\nSIZE = part.SIZE\n",
        "box/__init__.py": "",
        "box/part.py": "SIZE = @",
    },
    "dots": {
        "my_task.py": "import box.inner.part\nSIZE = box.inner.part.SIZE\n",
        "box/__init__.py": "",
        "box/inner/__init__.py": "",
        "box/inner/part.py": "SIZE = @",
    },
    "no __init__": {"my_task.py": "from box.part import SIZE\n", "box/part.py": "SIZE = @"},
    "relative": {
        "my_task.py": "from box import SIZE\n",
        "box/__init__.py": "from .part import SIZE",
        "box/part.py": "SIZE = @",
    },
    "relative, the module itself": {
        "my_task.py": "from box import SIZE\n",
        "box/__init__.py": "from . import part\nSIZE = part.SIZE",
        "box/part.py": "SIZE = @",
    },
    "relative, one up": {
        "my_task.py": "from box.inner.deep import SIZE\n",
        "box/__init__.py": "",
        "box/inner/__init__.py": "",
        "box/inner/deep.py": "from ..part import SIZE",
        "box/part.py": "SIZE = @",
    },
    "a local module of a local module": {
        "my_task.py": "from near import SIZE\n",
        "near.py": "import far\nSIZE = far.SIZE",
        "far.py": "SIZE = @",
    },
    "a circle": {
        "my_task.py": "import first\nSIZE = first.size()\n",
        "first.py": "import second\ndef size(): return second.SIZE",
        "second.py": "import first\nSIZE = @",
    },
    "a circle through the task": {
        "my_task.py": "from side import SIZE\n",
        "side.py": "SIZE = @\ndef late():\n    import my_task",
    },
    "a name in a call": {
        "my_task.py": "from importlib import import_module\nSIZE = import_module('side').SIZE\n",
        "side.py": "SIZE = @",
    },
    "a name that is put together": {
        "my_task.py": "import importlib\nSIZE = importlib.import_module('si' + 'de').SIZE\n",
        "side.py": "SIZE = @",
    },
    "all of a package": {
        "my_task.py": "from box import *\nSIZE = part.SIZE\n",
        "box/__init__.py": "__all__ = ['part']",
        "box/part.py": "SIZE = @",
    },
    "in a try": {
        "my_task.py": "try:\n    from side import SIZE\nexcept ImportError:\n    SIZE = 9\n",
        "side.py": "SIZE = @",
    },
    "in a function": {
        "my_task.py": "def size():\n    import side\n    return side.SIZE\nSIZE = size()\n",
        "side.py": "SIZE = @",
    },
    "a name beyond ASCII": {"my_task.py": "from größe import SIZE\n", "größe.py": "SIZE = @"},
    "a name that Python has too": {
        "my_task.py": "from tabnanny_2 import SIZE\nimport json; json.loads\n",
        "json.py": "raise RuntimeError",
        "tabnanny_2.py": "SIZE = @",
    },
    "a package and a module": {
        "my_task.py": "from side import SIZE\n",
        "side.py": "SIZE = 99",
        "side/__init__.py": "SIZE = @",
    },
}


def put(folder: Path, way: dict[str, str], number: int) -> str:
    task = {"my_task.py": way["my_task.py"] + TASK}
    return written(folder, {n: t.replace("@", str(number)) for n, t in {**way, **task}.items()})


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_changed_local_module_is_another_version_and_its_change_is_seen(
    tmp_path: Path, way: dict[str, str]
) -> None:
    path = put(tmp_path, way, 3)
    first = find(path)
    assert find(path).version == first.version
    put(tmp_path, way, 4)  # of the same size and within the same moment
    second = find(path)
    assert second.version != first.version
    assert (first.task.steps, second.task.steps) == (3, 4)
    put(tmp_path, way, 3)
    assert (find(path).version, find(path).task.steps) == (first.version, 3)
    elsewhere = put(tmp_path / "else" / "where", way, 3)
    assert find(elsewhere).version == first.version


def test_bytecode_of_another_version_is_not_taken(tmp_path: Path) -> None:
    """As Python writes it, with the date and size of the source and no more."""
    path = put(tmp_path, WAYS["from"], 4)
    side = tmp_path / "side.py"
    os.utime(side, (1e9, 1e9))
    command = [sys.executable, "-c", "import side"]
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.glob("__pycache__/side*"))
    put(tmp_path, WAYS["from"], 3)
    os.utime(side, (1e9, 1e9))
    assert find(path).task.steps == 3


def test_a_linked_local_module_counts_by_what_it_holds(tmp_path: Path) -> None:
    path = written(tmp_path, {"my_task.py": WAYS["from"]["my_task.py"] + TASK})
    target = tmp_path / "elsewhere" / "target.py"
    target.parent.mkdir()
    target.write_text("SIZE = 3")
    (tmp_path / "side.py").symlink_to(target)
    first = find(path)
    target.write_text("SIZE = 4")
    assert find(path).version != first.version
    assert find(path).task.steps == 4


LAZY = ALONE.replace(
    "def data(self): return",
    "def data(self):\n        import side\n        self.seen = side.SIZE\n        return",
)


def test_what_a_run_imports_later_is_of_the_version_it_is_filed_under(tmp_path: Path) -> None:
    path = written(tmp_path, {"my_task.py": LAZY, "side.py": "SIZE = 3"})
    found = find(path)
    written(tmp_path, {"side.py": "SIZE = 4"})
    run(config_of(found), found.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    assert found.task.seen == 3  # type: ignore[attr-defined]
    assert find(path).version != found.version


def test_local_modules_of_the_same_name_in_two_folders_are_kept_apart(tmp_path: Path) -> None:
    found = []
    for number in (3, 4):
        folder = tmp_path / str(number)
        path = written(folder, {"my_task.py": LAZY, "side.py": f"SIZE = {number}"})
        found.append(find(path))
    for one, number in zip([*found, *found], (3, 4, 3, 4), strict=True):
        folder = tmp_path / f"runs{number}"
        run(config_of(one), one.task, methods.find("sgd"), RunStore(folder))
        assert one.task.seen == number  # type: ignore[attr-defined]
        (folder / "one").rename(tmp_path / f"done{len(list(tmp_path.glob('done*')))}")


def test_what_others_have_imported_stays_theirs(tmp_path: Path) -> None:
    other, before = ModuleType("side"), list(sys.path)
    other.__file__ = str(tmp_path / "side.py")
    sys.modules["side"] = other
    try:
        path = put(tmp_path, WAYS["from"], 3)
        assert find(path).task.steps == 3
        assert sys.modules["side"] is other
    finally:
        del sys.modules["side"]
    assert [p for p in sys.path if p not in before] == [str(tmp_path)]
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Finder"]


@pytest.mark.parametrize(
    "name",
    [
        "unrelated.py",
        "notes.txt",
        "data.csv",
        "box/__init__.py",
        "__pycache__/side.cpython-311.pyc",
        ".venv/lib/python3.11/site-packages/side.py",
        "side.txt",
        "inner/side.py",
        "badm.py",
        "torch_2/__init__.py",
    ],
)
def test_what_a_task_does_not_import_is_not_part_of_it(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, WAYS["from"], 3)
    first = find(path)
    written(tmp_path, {name: "raise RuntimeError('never to be imported')\n"})
    assert find(path).version == first.version
    assert find(path).task is not first.task
    assert type(find(path).task) is type(first.task)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SIZE = 3 +", r"SyntaxError: .*\(side.py, line 1\)"),
        ("SIZE = 1 / 0", r"ZeroDivisionError: .*\(my_task.py, line 1\)"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("from nowhere_at_all import SIZE", "ModuleNotFoundError: No module named"),
        ("from . import SIZE", "ImportError: attempted relative import"),
        ("from ...... import SIZE", "ImportError: attempted relative import"),
        ("SIZE = 3\0", "cannot be imported: (SyntaxError|ValueError)"),
        ("import side\nSIZE = side.NONE", "AttributeError"),
        ("(" * 5_000, "cannot be imported"),
    ],
)
def test_a_local_module_that_cannot_be_imported_is_an_error_of_the_task(
    tmp_path: Path, text: str, words: str
) -> None:
    path = written(tmp_path, {"my_task.py": WAYS["from"]["my_task.py"] + TASK, "side.py": text})
    for _ in range(2):
        with pytest.raises(TaskError, match=words):
            find(path)
    written(tmp_path, {"side.py": "SIZE = 5"})
    assert find(path).task.steps == 5


def config_of(found: FoundTask, **more: Any) -> RunConfig:
    return found.config(methods.find("sgd"), {"lr": 0.1}, 0, **more)


def with_files(folder: Path, stated: str, files: dict[str, str]) -> Task:
    text = ALONE.replace("    steps", f"    data_files = {stated}\n    steps")
    return find(written(folder, {"my_task.py": text, **files})).task


def settled(path: Path, seconds: float = 10.0) -> None:
    """As if nothing had been changed for a while."""
    about = os.stat(path)
    os.utime(path, (about.st_atime, about.st_mtime - seconds))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BADM_CACHE", str(folder))
    return folder


def here(name: str) -> str:
    return f"(__import__('pathlib').Path(__file__).with_name({name!r}),)"


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda p: p.write_text("1,2,3,4"),
    "same size": lambda p: p.write_text("1,2,4"),
    "same size and date": lambda p: (
        (about := p.stat()),
        p.write_text("1,2,4"),
        os.utime(p, ns=(about.st_atime_ns, about.st_mtime_ns)),
    ),
    "another file in its place": lambda p: (
        p.with_name("new").write_text("1,2,4"),
        os.replace(p.with_name("new"), p),
    ),
    "a link to another": lambda p: (
        p.with_name("new").write_text("1,2,4"),
        p.unlink(),
        p.symlink_to(p.with_name("new")),
    ),
    "empty": lambda p: p.write_text(""),
}


@pytest.mark.parametrize("old", [False, True], ids=["just written", "from long ago"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_data_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], old: bool
) -> None:
    if old:  # so that the cache takes part
        monkeypatch.setattr(data_identity, "SETTLED_SECONDS", -1.0)
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    before = identity(task)
    assert before == identity(task) != ""
    change(tmp_path / "data.csv")
    assert identity(task) != before
    (tmp_path / "data.csv").unlink()
    (tmp_path / "data.csv").write_text("1,2,3")
    assert identity(task) == before


FOLDER_CHANGES: dict[str, Callable[[Path], object]] = {
    "one more": lambda p: (p / "b" / "3").write_text("x"),
    "one less": lambda p: (p / "b" / "2").unlink(),
    "in another class": lambda p: (p / "b" / "2").rename(p / "a" / "2"),
    "under another name": lambda p: (p / "b" / "2").rename(p / "b" / "7"),
    "exchanged": lambda p: (
        (p / "a" / "1").rename(p / "x"),
        (p / "b" / "2").rename(p / "a" / "1"),
        (p / "x").rename(p / "b" / "2"),
    ),
    "hidden": lambda p: (p / ".hidden").write_text("x"),
}


@pytest.mark.parametrize("change", FOLDER_CHANGES.values(), ids=FOLDER_CHANGES.keys())
def test_a_changed_folder_of_data_is_noticed(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    task = with_files(tmp_path, here("data"), {"data/a/1": "one", "data/b/2": "two"})
    before = identity(task)
    change(tmp_path / "data")
    assert identity(task) != before


def test_equal_data_in_another_place_are_the_same(tmp_path: Path) -> None:
    files = {"data/a/1": "one", "data/größe/2": "two", "data/b/empty": ""}
    first, second = (
        with_files(tmp_path / place, here("data"), files) for place in ("here", "some/where/else")
    )
    settled(tmp_path / "here" / "data" / "a" / "1", 1e8)
    assert identity(first) == identity(second)
    one, two = (FoundTask("", task, "1", None, tmp_path) for task in (first, second))
    assert config_of(one).key == config_of(two).key


def test_links_are_followed_and_those_around_in_a_circle_once(tmp_path: Path) -> None:
    task = with_files(tmp_path, here("data"), {"data/a/1": "one"})
    before = identity(task)
    real = tmp_path / "real"
    (tmp_path / "data").rename(real)
    (tmp_path / "data").symlink_to(real)
    assert identity(task) == before
    (real / "a" / "again").symlink_to(real)
    assert identity(task) == before
    (real / "b").symlink_to(real / "a")  # not around: one more class with the same samples
    assert identity(task) != before


def test_two_files_of_one_name_both_count_in_any_order(tmp_path: Path) -> None:
    files = {"a/x.csv": "1", "b/x.csv": "2"}
    stated = [f"{tmp_path}/{name}" for name in files]
    task = with_files(tmp_path, str(stated), files)
    back = with_files(tmp_path, str(stated[::-1]), files)
    assert identity(task) == identity(back)
    one = with_files(tmp_path, str(stated[:1]), files)
    assert identity(one) != identity(task)


def test_a_name_that_is_no_text_is_a_name(tmp_path: Path) -> None:
    task = with_files(tmp_path, here("data"), {"data/a": "1"})
    before = identity(task)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/data/\xff\xfe")).write_text("2")
    assert identity(task) != before


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (
            "('nowhere.csv',)",
            "its data file .*/nowhere.csv cannot be read: no such file",
        ),
        ("'data.csv'", r"must be a tuple or list of paths, got 'data.csv'; one path is \(path,\)"),
        ("b'data.csv'", "must be a tuple or list of paths"),
        ("3", "must be a tuple or list of paths, got 3"),
        ("None", "must be a tuple or list of paths, got None"),
        ("{'a': 1}", "must be a tuple or list of paths"),
        ("(3,)", "must be paths, got 3"),
        ("(None,)", "must be paths, got None"),
        ("('',)", "must be paths, got ''"),
        ("('a\\0b',)", "cannot be read: embedded null byte"),
        ("('/dev/zero',)", "data_files names /dev/zero, which is neither a file nor a folder"),
        (here("pipe"), "pipe, which is neither a file nor a folder"),
        (here("dangling"), "dangling cannot be read: no such file or directory"),
        (here("itself"), "itself cannot be read: too many levels of symbolic links"),
        (here("hollow"), "hollow, a folder without files"),
        ("('/proc/self/mem',)", "/proc/self/mem cannot be read: input/output error"),
        ("('/' + 'x' * 5000,)", "cannot be read: file name too long"),
        ("property(lambda self: 1 / 0)", "data_files raised ZeroDivisionError"),
    ],
)
def test_data_files_that_cannot_be_are_named(tmp_path: Path, stated: str, words: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "hollow" / "inside").mkdir(parents=True)
    task = with_files(tmp_path, stated, {})
    with pytest.raises(TaskError, match=words) as told:
        identity(task)
    assert str(told.value).startswith("task one: ")
    assert "\n" not in str(told.value)


def test_a_dataset_that_is_not_in_the_catalogue_is_named(tmp_path: Path) -> None:
    text = ALONE.replace("    steps", '    dataset_name = "mnits"\n    steps')
    task = find(written(tmp_path, {"my_task.py": text})).task
    with pytest.raises(TaskError, match="no dataset is called 'mnits'; did you mean mnist"):
        identity(task)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The data files that were read, one after the other."""
    seen: list[Path] = []
    original = data_identity.sha256

    def sha256(path: Path) -> str:
        seen.append(path)
        return original(path)

    monkeypatch.setattr(data_identity, "sha256", sha256)
    monkeypatch.setattr(data_identity, "SETTLED_SECONDS", -1.0)
    data_identity._kept.cache_clear()
    return seen


@pytest.mark.slow
def test_files_are_read_once_for_all_processes(
    tmp_path: Path, reads: list[Path], cache: Path
) -> None:
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    before = identity(task)
    data_identity._kept.cache_clear()  # as in another process
    assert identity(task) == before
    assert len(reads) == 1
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"no digest", b"\xff\xfe", b"0" * 15, b"0" * 17])
def test_a_damaged_cache_is_not_believed(
    tmp_path: Path, reads: list[Path], cache: Path, content: bytes
) -> None:
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    before = identity(task)
    (kept,) = cache.iterdir()
    kept.write_bytes(content)
    data_identity._kept.cache_clear()
    assert identity(task) == before
    assert len(reads) == 2


def test_without_a_cache_files_are_read_once_in_a_process(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_CACHE", "/dev/null/nowhere")
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    assert identity(task) == identity(task)
    assert len(reads) == 1


def test_a_file_that_was_just_written_is_read_every_time(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_identity, "SETTLED_SECONDS", 3600.0)
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    assert identity(task) == identity(task)
    assert len(reads) == 2


def test_a_file_that_changes_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    original = data_identity.sha256

    def sha256(path: Path) -> str:
        found = original(path)
        path.write_text("1,2,3,4")
        return found

    monkeypatch.setattr(data_identity, "sha256", sha256)
    with pytest.raises(TaskError, match=r"data.csv was changed while it was read"):
        identity(task)


def test_data_that_change_before_they_are_loaded_end_the_run(tmp_path: Path) -> None:
    task = with_files(tmp_path, here("data.csv"), {"data.csv": "1,2,3"})
    found = find(str(tmp_path / "my_task.py"))
    config = config_of(found)
    (tmp_path / "data.csv").write_text("1,2,4")
    with pytest.raises(TaskError, match="task one: its data files have changed since"):
        run(config, task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    with pytest.raises(TaskError, match=r"the data of .* were changed while"):
        find(str(tmp_path / "my_task.py")).confirm(config)
    found.confirm(config)


def test_relative_paths_are_meant_from_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the task goes elsewhere in the middle of a run."""
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    text = ALONE.replace("    steps", "    data_files = ('data.csv',)\n    steps").replace(
        "def data(self): return",
        "def data(self):\n        open('data.csv').close()\n        "
        "__import__('os').chdir('else')\n        return",
    )
    found = find(written(tmp_path, {"my_task.py": text, "data.csv": "1,2,3"}))
    done = run(config_of(found), found.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    assert Path.cwd() == tmp_path / "else"
    assert done.result is not None
    assert done.result.status == "finished"


# Made by the first version that had keys.
OLD = {
    "0c0a2d1b92146674": RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 1e-3}, 0),
    "7ae9b90d24a3f9a8": RunConfig(
        "größe",
        "1",
        "smoke",
        5,
        "m+outer",
        {"lr": 0.1, "name": "π", "flag": True},
        3,
        "cosine",
        test=False,
    ),
}
OLD["5875695eeab3762a"] = replace(
    OLD["0c0a2d1b92146674"], task="later", after=OLD["0c0a2d1b92146674"]
)
LATER = ("method_version", "data", "threads", "engine")


def as_before(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as older run files have it."""
    kept = {name: value for name, value in config.items() if name not in LATER}
    return {**kept, "after": config["after"] and as_before(config["after"])}


@pytest.mark.parametrize(("key", "config"), OLD.items())
def test_old_configurations_keep_their_keys(key: str, config: RunConfig) -> None:
    assert config.key == key
    plain = as_before(config.to_dict())
    assert not set(LATER) & set(plain)
    assert RunConfig.from_dict(json.loads(json.dumps(plain))) == config


def test_the_plan_of_an_old_comparison_keeps_its_key() -> None:
    plan = Plan(("digits",), ("sgd", "adam"), trials=3, seeds=2, reference="sgd")
    assert plan.key == "e16cd388e531"
    assert len({plan.key, replace(plan, threads=2).key, replace(plan, device="cuda").key}) == 3


@pytest.fixture
def line(tmp_path: Path) -> FoundTask:
    return find(written(tmp_path, {"my_task.py": ALONE}))


def test_an_old_run_is_shown_and_not_reused(tmp_path: Path, line: FoundTask) -> None:
    """As a version without method versions left it."""
    store, sgd = RunStore(tmp_path / "runs"), methods.find("sgd")
    config = config_of(line)
    new = run(config, line.task, sgd, store)
    old = RunConfig.from_dict(as_before(config.to_dict()))
    first, _, rest = new.path.read_bytes().partition(b"\n")
    header = {**json.loads(first), "key": old.key, "config": as_before(config.to_dict())}
    del header["environment"]["commit"]
    path = store.path(old)
    assert path != new.path
    path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    new.path.unlink()
    before = path.read_bytes()

    found, problems = store.read_all()
    assert not problems
    assert [one.config for one in found] == [old]
    assert found[0].result == new.result
    again = run(config, line.task, sgd, store)
    assert again.path == new.path
    assert path.read_bytes() == before
    assert len(store.read_all()[0]) == 2


def test_a_new_field_that_was_tampered_with_does_not_fit_its_key(
    tmp_path: Path, line: FoundTask
) -> None:
    store = RunStore(tmp_path / "runs")
    done = run(config_of(line), line.task, methods.find("sgd"), store)
    for change in ({"method_version": "2"}, {"data": "x"}, {"threads": 3}, {"engine": 9}):
        first, _, rest = done.path.read_bytes().partition(b"\n")
        header = json.loads(first)
        header["config"] |= change
        other = tmp_path / done.path.name
        other.write_bytes(json.dumps(header).encode() + b"\n" + rest)
        with pytest.raises(StoreError, match="does not match its key"):
            read_run(other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_no_file_can_hold_are_in_no_key(value: float) -> None:
    with pytest.raises(ValueError, match=r"lr of adam must be a finite number, got -?(nan|inf)"):
        replace(OLD["0c0a2d1b92146674"], setting={"lr": value})


@pytest.mark.parametrize("value", ["\udcff", "a\ud800b"])
def test_text_that_no_file_can_hold_is_in_no_key(value: str) -> None:
    with pytest.raises(ValueError, match=r"shards of adam must be valid Unicode, got '.*\\ud"):
        replace(OLD["0c0a2d1b92146674"], setting={"shards": value})


@pytest.mark.parametrize("setting", [3, "ab", [1], None, True])
def test_a_run_file_with_something_else_for_settings_is_named(
    tmp_path: Path, line: FoundTask, setting: Any
) -> None:
    done = run(config_of(line), line.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    first, _, rest = done.path.read_bytes().partition(b"\n")
    header = json.loads(first)
    header["config"]["setting"] = setting
    done.path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    with pytest.raises(StoreError, match=r"not a valid run file|does not match"):
        read_run(done.path)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_run_file_with_such_a_number_is_named(
    tmp_path: Path, line: FoundTask, token: str
) -> None:
    done = run(config_of(line), line.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    text = done.path.read_text()
    done.path.write_text(text.replace('"setting": {"lr": 0.1', f'"setting": {{"lr": {token}'))
    assert done.path.read_text() != text
    with pytest.raises(StoreError, match=r"lr (of sgd )?must be a finite number") as told:
        read_run(done.path)
    assert str(told.value).startswith(str(done.path))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": "1, package 2"},
        {"package": "torch"},
        {"package": "no_such_package"},
    ],
)
def test_a_changed_method_is_not_taken_for_the_old_one(
    tmp_path: Path, line: FoundTask, change: dict[str, Any]
) -> None:
    store, sgd = RunStore(tmp_path / "runs"), methods.find("sgd")
    other = replace(sgd, **change)
    first = run(config_of(line), line.task, sgd, store)
    config = line.config(other, {"lr": 0.1}, 0)
    assert store.read(config) is None
    assert run(config, line.task, other, store).path != first.path


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("soap", "pytorch_optimizer"),
        ("lion", "pytorch_optimizer"),
        ("adan", "pytorch_optimizer"),
        ("qhm", "pytorch_optimizer"),
        ("shampoo", "pytorch_optimizer"),
        ("normuon", "pytorch_optimizer"),
        ("psgd-kron", "pytorch_optimizer"),
        ("ademamix", "pytorch_optimizer"),
        ("mars", "pytorch_optimizer"),
        ("prodigy", "pytorch_optimizer"),
        ("kl-shampoo", "heavyball"),
        ("schedule-free", "schedulefree"),
        ("adamw", "torch"),
        ("muon", "torch"),
        ("torch-adam", "torch"),
        ("adamw+outer", "torch"),
        ("lion+diloco", "pytorch_optimizer"),
    ],
)
def test_another_release_of_a_package_is_another_method(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = methods.find(name)
    before = method.identity
    assert method.package == package
    released = {**package_versions(), package: "99.1+cu130"}
    monkeypatch.setattr("badm.bench.method.package_versions", lambda: released)
    assert method.identity != before
    assert method.identity.endswith(f"{package} 99.1")
    monkeypatch.setattr("badm.bench.method.package_versions", dict)
    assert method.identity.endswith(f"{package} missing")


def test_of_replicas_both_parts_have_a_version() -> None:
    inner = methods.find("badm-kronecker")
    assert inner.version == 4
    assert methods.find("badm-kronecker+outer").identity == "4+1"
    assert methods.find("muon").version == 2


def test_a_run_with_other_threads_is_another_run_and_cannot_be_filed_as_this_one(
    tmp_path: Path, line: FoundTask
) -> None:
    config = config_of(line)
    two = config_of(line, threads=2)
    assert two.key != config.key
    assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match="filed under 2 threads, and torch has 1"):
        run(two, line.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    assert RunStore(tmp_path / "runs").read_all() == ([], [])


def test_every_task_of_ours_says_which_dataset_it_reads() -> None:
    named = {name: make("cpu").dataset_name for name, make in tasks.TASKS.items()}
    assert named == {task: one.name for one in DATASETS for task in by_dataset()[one.name]}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package of one file."""
    written(tmp_path, {"src/pack/__init__.py": "", "README.md": "", ".gitignore": "*.so\n"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


DIRTY: dict[str, tuple[Callable[[Path], object], bool]] = {
    "as committed": (lambda root: None, False),
    "changed": (lambda root: (root / "src/pack/__init__.py").write_text("x = 1\n"), True),
    "new": (lambda root: (root / "src/pack/new.py").write_text("x = 1\n"), True),
    "removed": (lambda root: (root / "src/pack/__init__.py").unlink(), True),
    "staged": (
        lambda root: (
            (root / "src/pack/__init__.py").write_text("x = 1\n"),
            git(root, "add", "src"),
        ),
        True,
    ),
    "ignored": (lambda root: (root / "src/pack/x.so").write_text(""), False),
    "beside the source": (lambda root: (root / "README.md").write_text("new"), False),
    "detached": (lambda root: git(root, "checkout", "-q", "--detach"), False),
    "packed": (lambda root: git(root, "pack-refs", "--all"), False),
}


@pytest.mark.parametrize(("change", "marked"), DIRTY.values(), ids=DIRTY.keys())
def test_the_commit_is_recorded_with_a_mark_where_the_source_is_another(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    marked: bool,
) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    change(checkout)
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside of a hook
    monkeypatch.setenv("GIT_WORK_TREE", "/nowhere")
    assert commit_of(checkout / "src" / "pack") == head + (CHANGED if marked else "")


def test_a_second_work_tree_has_its_own_commit(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "-q", "--detach", str(tmp_path / "second"))
    assert commit_of(tmp_path / "second" / "src" / "pack") == git(checkout, "rev-parse", "HEAD")


BROKEN: dict[str, Callable[[Path], object]] = {
    "no HEAD": lambda root: (root / ".git" / "HEAD").unlink(),
    "HEAD of noise": lambda root: (root / ".git" / "HEAD").write_bytes(bytes(range(256))),
    "a .git that is a file": lambda root: (
        (root / ".git").rename(root / "gone"),
        (root / ".git").write_text("gitdir: /nowhere"),
    ),
    "a branch without commits": lambda root: git(root, "checkout", "-q", "--orphan", "new"),
    "no repository": lambda root: (root / ".git").rename(root / "gone"),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_where_there_is_no_commit_none_is_recorded(
    checkout: Path, change: Callable[[Path], object]
) -> None:
    change(checkout)
    assert commit_of(checkout / "src" / "pack") is None


def test_without_git_no_commit_is_recorded(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert commit_of(checkout / "src" / "pack") is None


def test_the_repository_of_somebody_elses_project_is_not_ours(checkout: Path) -> None:
    """A package that is installed into an environment inside a checkout."""
    inside = checkout / ".venv" / "lib" / "site-packages" / "badm"
    inside.mkdir(parents=True)
    assert commit_of(inside) is None


def test_a_run_tells_commit_and_processor(tmp_path: Path, line: FoundTask) -> None:
    done = run(config_of(line), line.task, methods.find("sgd"), RunStore(tmp_path / "runs"))
    told = read_run(done.path).environment
    assert told["commit"] == environment.commit()
    assert told["processor"] == environment.processor() != ""


def in_data(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, files)
    monkeypatch.setenv("BADM_DATA", str(folder))


def test_a_task_of_ours_counts_the_files_of_its_dataset_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, small = tasks.TASKS["node-cora-mlp"]("cpu"), tasks.TASKS["node-cora-mlp"]("smoke")
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "nowhere"))
    assert identity(task) == ""  # the run will say what is missing
    in_data(tmp_path / "one", {"graphs/cora.npz": "x", "graphs/cs.npz": "y"}, monkeypatch)
    first = identity(task)
    assert first != ""
    assert identity(small) == ""  # on made-up data
    in_data(tmp_path / "one", {"graphs/cs.npz": "z", "SHA256SUMS": ""}, monkeypatch)
    assert identity(task) == first
    in_data(tmp_path / "two", {"graphs/cora.npz": "x"}, monkeypatch)
    assert identity(task) == first
    in_data(tmp_path / "two", {"graphs/cora.npz": "z"}, monkeypatch)
    assert identity(task) != first


def test_the_official_files_count_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.TASKS["image-svhn"]("cpu")
    in_data(tmp_path, {"svhn/svhn.npz": "x"}, monkeypatch)
    first = identity(task)
    in_data(tmp_path, {"svhn/train_32x32.mat": "a", "svhn/test_32x32.mat": "b"}, monkeypatch)
    second = identity(task)
    assert second not in ("", first)
    in_data(tmp_path, {"svhn/svhn.npz": "y"}, monkeypatch)  # which nobody reads any more
    assert identity(task) == second


def test_a_task_made_from_one_of_ours_counts_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_data(tmp_path / "data", {"bbbp/BBBP.csv": "x"}, monkeypatch)
    text = "from badm.bench.tasks.bbbp import Bbbp\nclass Mine(Bbbp):\n    name = 'mine'\n"
    mine = find(written(tmp_path, {"my_task.py": text}))
    assert mine.data == find("bbbp").data != ""


def test_a_set_that_is_read_once_is_read_again_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    from badm.bench.tasks import review_splits

    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    (tmp_path / "imdb").mkdir()
    seen = []
    for word in ("good", "fine"):
        for part in ("train", "test"):
            lines = [
                f'{{"id": "{kind}/{i}_{rating}", "label": {label}, "rating": {rating}, '
                f'"text": "{word}"}}'
                for label, (kind, rating) in enumerate((("neg", 1), ("pos", 10)))
                for i in range(5)
            ]
            path = tmp_path / "imdb" / f"{part}.jsonl.gz"
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
        seen.append(review_splits.load("paper"))
    assert repr(seen[0].train) != repr(seen[1].train)


@pytest.mark.data
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        "node-cora-mlp",
        "mnist-mlp",
        "image-cmaterdb",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bbbp", "text-imdb")),
    ],
)
def test_a_task_of_ours_opens_no_data_that_do_not_count(
    name: str, badm_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from badm.bench.tasks import bbbp, review_splits

    bbbp._read.cache_clear()
    review_splits._read.cache_clear()
    task, opened = tasks.TASKS[name]("cpu"), set()

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and listening:
            opened.add(os.path.abspath(arguments[0]))

    listening = True
    sys.addaudithook(listen)
    try:
        task.data()
    finally:
        listening = False  # a hook cannot be removed
    files = {str(path.absolute()) for _, path in data_identity._of_dataset(task.dataset_name)}
    read_there = {path for path in opened if path.startswith(str(badm_data.absolute()) + os.sep)}
    assert read_there
    assert read_there <= files
