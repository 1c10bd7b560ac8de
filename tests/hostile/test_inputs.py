"""Bad input and odd terminals: one sentence that names the thing, the right code, nothing lost."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench.compare.choices import method_names
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.errors import ProtocolError
from badm.bench.records.plans import Plan, read_record
from badm.bench.records.runs import RunStore

# A task of milliseconds; cases change a line of it.
TASK = """
import torch
from torch import nn

from badm.bench import Player, Score, Splits, Task


class One(Task):
    name = "one"
    score = Score("error", best="low")
    batch_size = 4
    steps = 3
    evaluate_every = 2

    def data(self):
        x = torch.arange(12.0).reshape(6, 2) / 12
        return Splits((x, x), (x, x), (x, x))

    def model(self, splits):
        return nn.Linear(2, 2)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, model, split):
        return {"error": self.loss(model, split).item()}
"""
APPLICATION = cli.application()


def badm(*arguments: object) -> Result:
    # Wide and plain, so that no message is wrapped or coloured.
    environment = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(APPLICATION, [str(a) for a in arguments], env=environment)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with the task in it."""
    (tmp_path / "one.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(result: Result, code: int, *words: str) -> None:
    """One sentence on stderr that has these words, nothing on stdout, no run begun."""
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for word in words:
        assert word in said
    assert "Traceback" not in said
    assert result.stdout == ""
    assert not list(Path().glob("runs/*/*.jsonl"))


RUN = ("run", "one.py", "-m", "sgd")
OUTER = ("run", "one.py", "-m", "sgd", "--replicas", "outer")
COMPARE = ("compare", "one.py", "-m", "sgd")
NUMBER = "lr of sgd must be a finite number of at least 0, got "
WHOLE = "of sgd+outer must be a whole number"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*RUN, "-s", "lr=nan"), f"{NUMBER}'nan'"),
        ((*RUN, "-s", "lr=NaN"), f"{NUMBER}nan"),
        ((*RUN, "-s", "lr=inf"), f"{NUMBER}'inf'"),
        ((*RUN, "-s", "lr=Infinity"), f"{NUMBER}inf"),
        ((*RUN, "-s", "lr=-Infinity"), f"{NUMBER}-inf"),
        ((*RUN, "-s", "lr=1e999"), f"{NUMBER}inf"),
        ((*RUN, "-s", f"lr=1{'0' * 400}"), f"{NUMBER}1000"),
        ((*RUN, "-s", f"lr={'9' * 5000}"), f"{NUMBER}'9999"),
        ((*RUN, "-s", "lr=-1"), f"{NUMBER}-1"),
        ((*RUN, "-s", "lr=true"), f"{NUMBER}True"),
        ((*RUN, "-s", "lr=null"), f"{NUMBER}None"),
        ((*RUN, "-s", "lr=[0.1]"), f"{NUMBER}[0.1]"),
        ((*RUN, "-s", f"lr={'[' * 100_000}"), f"{NUMBER}'[[[["),
        ((*RUN, "-s", "lr="), "--set: must be name=value, got 'lr='"),
        ((*RUN, "-s", "lr"), "--set: must be name=value, got 'lr'"),
        ((*RUN, "-s", "=1"), "--set: must be name=value, got '=1'"),
        ((*RUN, "-s", ""), "--set: must be name=value, got ''"),
        ((*RUN, "-s", "lr=1", "-s", "lr=2"), "--set: must have every name once, got lr"),
        ((*RUN, "-s", "metric=spectral"), "sgd takes lr, momentum, nesterov, got metric"),
        ((*RUN, "-s", "nesterov=2"), "nesterov of sgd must be true or false, got 2"),
        ((*OUTER, "-s", "ranks=0"), f"ranks {WHOLE} from 1 to 1024, got 0"),
        ((*OUTER, "-s", "ranks=-1"), f"ranks {WHOLE} from 1 to 1024, got -1"),
        ((*OUTER, "-s", "ranks=1.5"), f"ranks {WHOLE} from 1 to 1024, got 1.5"),
        ((*OUTER, "-s", "ranks=2.0"), f"ranks {WHOLE} from 1 to 1024, got 2.0"),
        ((*OUTER, "-s", "ranks=1000000"), f"ranks {WHOLE} from 1 to 1024, got 1000000"),
        ((*OUTER, "-s", "ranks=two"), f"ranks {WHOLE} from 1 to 1024, got 'two'"),
        ((*OUTER, "-s", "every=0"), f"every {WHOLE} of at least 1, got 0"),
        ((*OUTER, "-s", "every=1e3"), f"every {WHOLE} of at least 1, got 1000.0"),
        ((*OUTER, "-s", "outer_lr=NaN"), "outer_lr of sgd+outer must be a finite number"),
        ((*OUTER, "-s", "shards=odd"), "shards of sgd+outer must be one of even, labels, got"),
        ((*RUN, "--replicas", "sideways"), "there is no replica mode 'sideways'"),
        ((*RUN, "--steps", "0"), "--steps': must be a number from 1 to 1,000,000,000, got 0"),
        ((*RUN, "--steps", "1" + "0" * 400), "--steps': must be a number from 1"),
        ((*RUN, "--seed", "-1"), "--seed': must be a number from 0 to 4,294,967,295, got -1"),
        ((*RUN, "--seed", "1" + "0" * 400), "--seed': must be a number from 0 to"),
        ((*RUN, "--threads", "1000000000"), "must be a number from 1 to 1,024, got"),
        (
            (*RUN, "--checkpoint", "nan"),
            "--checkpoint': must be a finite number of at least 0, got nan",
        ),
        ((*COMPARE, "--target", "nan"), "--target': must be a finite number, got nan"),
        ((*COMPARE, "--target", "inf"), "--target': must be a finite number, got inf"),
        ((*COMPARE, "--jobs", "0"), "--jobs': must be a number from 1 to 1,024, got 0"),
        ((*COMPARE, "--target=-inf"), "--target': must be a finite number, got -inf"),
        ((*COMPARE, "--trials=-1"), "--trials': must be a number from 1 to 10,000, got -1"),
        ((*COMPARE, "--trials", "1000000000"), "from 1 to 10,000, got 1000000000"),
        ((*COMPARE, "--seeds", "0"), "--seeds': must be a number from 1 to 1,000, got 0"),
        ((*COMPARE, "--seeds", "1001"), "--seeds': must be a number from 1 to 1,000, got 1001"),
        (("compare", "one.py", "-m", ","), "methods must name at least one method, got ','"),
        (("compare", "one.py", "-m", ""), "methods must name at least one method, got ''"),
        (("tune", "one.py", "-m", " , "), "methods must name at least one method, got ' , '"),
        (("compare", "one.py", "-m", "adam,[/b]"), "there is no method '[/b]'"),
        (("compare", "one.py", "-m", "badm-loud"), "there is no method 'badm-loud'"),
        (("compare", "one.py", "one.py"), "tasks must have different names, got one from"),
        (("compare", "[/b]"), "there is no task '[/b]'"),
        (("compare", "no\nsuch.py"), r"there is no task 'no\nsuch.py'"),
        (("compare", f"{'long' * 100}.py"), "long.py cannot be read: file name too long"),
        (("compare", "one.py:two"), "one.py has no task 'two': choose one of one.py:one"),
        (("certify", "--seed", "1" + "0" * 30), "--seed"),
        (("certify", "--samples", "1" + "0" * 12), "--samples"),
        (("certify", "--features", "99999999"), "--samples, --features: must make matrices"),
        (("certify", "--steps", "1" + "0" * 30), "--steps"),
        (("certify", "--rho", "inf"), "--rho"),
        (("certify", "--l2", "nan"), "--l2"),
        (("data", "verify", "[/b]"), "[/b]"),
    ],
    ids=lambda value: repr(" ".join(value))[:60] if isinstance(value, tuple) else "",
)
def test_a_value_that_cannot_be_is_a_usage_error_before_any_work(
    here: Path, arguments: tuple[str, ...], words: str
) -> None:
    refused(badm(*arguments), 2, words)


def test_a_method_named_twice_counts_once() -> None:
    assert method_names("adam,adam, sgd,sg*,adam") == ("adam", "sgd", "sgd-momentum", "sgd-sigma")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tasks": ()}, "tasks must be at least one, got ()"),
        ({"methods": ()}, "methods must be at least one, got ()"),
        ({"methods": ("sgd", "sgd")}, "methods must be different from each other"),
        ({"protocol": "own"}, "protocol must be one of paper, tuned, speed, got 'own'"),
        ({"objective": "speed"}, "objective must be score or steps, got 'speed'"),
        ({"schedule": "steep"}, "(my.py:falls), got 'steep'"),
        ({"scale": "huge"}, "scale must be one of smoke, cpu, paper, got 'huge'"),
        ({"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({"seeds": -1}, "seeds must be a whole number from 0 to 1000, got -1"),
        ({"seeds": 1001}, "seeds must be a whole number from 0 to 1000, got 1001"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"target": math.nan}, "target must be a finite number, got nan"),
        ({"reference": "adam"}, "reference must be one of the methods, got 'adam'"),
    ],
    ids=str,
)
def test_a_plan_of_no_comparison_is_refused(
    here: Path, changed: dict[str, Any], words: str
) -> None:
    plan = Plan(**{"tasks": ("one.py",), "methods": ("sgd",), **changed})
    with pytest.raises(ProtocolError, match=re.escape(words)):
        ComparisonRunner(plan, RunStore("runs"))
    assert not list(here.glob("runs/*.db"))


STATED = '    name = "one"\n'
SPLITS = "Splits((x, x), (x, x), (x, x))"
MODEL = "return nn.Linear(2, 2)"
FIGURES = 'return {"error": self.loss(model, split).item()}'
TWICE = TASK + TASK[TASK.index("class One") :].replace("class One", "class Two")
LOOP = TASK.replace(STATED, f'{STATED}    after = "two"\n') + TASK[
    TASK.index("class One") :
].replace("class One", "class Two").replace(STATED, '    name = "two"\n    after = "one"\n')


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (STATED, '    name = "../up"\n', "name of task One must be lower-case letters, digits"),
        (STATED, '    name = "a/b"\n', "name of task One must be lower-case letters, digits"),
        (STATED, '    name = ".."\n', "at most 100 of them, got '..'"),
        (STATED, '    name = ""\n', "at most 100 of them, got ''"),
        (STATED, '    name = "one\\n"\n', r"at most 100 of them, got 'one\n'"),
        (STATED, '    name = "x" * 101\n', "at most 100 of them, got 'xxx"),
        (STATED, "    name = ['one']\n", "at most 100 of them, got ['one']"),
        (STATED, "    name = None\n", "at most 100 of them, got None"),
        (STATED, '    name = "search.db"\n', "other than comparisons, report.html, search.db"),
        (STATED, "", "task One must state name"),
        (
            STATED,
            f"{STATED}    description = 5\n",
            "description of task One must be a string, got 5",
        ),
        (STATED, f"{STATED}    target = float('nan')\n", "target of task One must be a finite"),
        (STATED, f"{STATED}    target = '0.9'\n", "a finite number or None, got '0.9'"),
        (STATED, f"{STATED}    after = 'one'\n", "cannot come after itself, got one after one"),
        (STATED, f"{STATED}    after = 'nowhere'\n", "after of task one must be a task: there is"),
        (STATED, f"{STATED}    after = ['one']\n", "after of task One must be the name of the"),
        (
            STATED,
            f"{STATED}    artifacts_at = 0.5\n",
            "artifacts_at of task One must be a tuple of",
        ),
        (STATED, f"{STATED}    artifacts_at = (2,)\n", "numbers above 0 and up to 1"),
        (STATED, f"{STATED}    paper = 'yes'\n", "paper of task One must be a Paper or None"),
        ('best="low"', 'best="lowest"', "a Score whose best is 'high' or 'low', got Score("),
        ('Score("error", best="low")', 'Score("")', "a Score whose name is a string that evaluate"),
        ('Score("error", best="low")', '"error"', 'must be a Score, such as Score("accuracy")'),
        ("batch_size = 4", "batch_size = 10**30", "batch_size of task One must be at most 1,000"),
        ("steps = 3", "steps = float('inf')", "steps of task One must be a whole number of at"),
        (
            "    def data(self)",
            "    def __init__(self, scale): pass\n\n    def data(self)",
            "super",
        ),
        (
            "    steps = 3",
            "    steps = property(lambda self: 1 / 0)",
            "ZeroDivisionError: division",
        ),
        (SPLITS, "None", "data must return Splits, got None"),
        (SPLITS, "(x, x, x)", "data must return Splits, got tuple"),
        (SPLITS, "Splits(None, None, None)", "must hold tensors in tuples, lists and dicts, got"),
        (SPLITS, "Splits((x[:0], x), x, x)", "the training split has no samples"),
        (SPLITS, "Splits((x, x), (x[:0], x[:0]), x)", "the validation split has no samples"),
        (SPLITS, "Splits((x, x), (x, x), (x[:0], x))", "the test split has no samples"),
        (SPLITS, f"{SPLITS[:-1]}, notes='made')", "notes of its data must be strings, got 'made'"),
        (SPLITS, f"{SPLITS[:-1]}, notes=(5,))", "notes of its data must be strings, got (5,)"),
        (SPLITS, f"{SPLITS[:-1]}, synthetic='no')", "synthetic of its data must be True or"),
        (MODEL, "return None", "model must return a torch.nn.Module, got None"),
        (MODEL, "return nn.Linear", "model must return a torch.nn.Module, got type"),
        (MODEL, "return [nn.Linear(2, 2)]", "model must return a torch.nn.Module, got list"),
        (MODEL, "return nn.Identity()", "must have parameters that require gradients"),
        (MODEL, f"{MODEL}.requires_grad_(False)", "must have parameters that require gradients"),
        (FIGURES, "return None", "evaluate must return numbers by name, got None"),
        (FIGURES, "return 0.5", "evaluate must return numbers by name, got float"),
        (FIGURES, 'return {"error": "0.5"}', "got '0.5' for 'error'"),
        (FIGURES, 'return {"error": None}', "got None for 'error'"),
        (FIGURES, 'return {"error": torch.zeros(2)}', "got tensor([0., 0.]) for 'error'"),
        (FIGURES, 'return {"error": 1j}', "got 1j for 'error'"),
        (FIGURES, "return {5: 0.5}", "got 0.5 for 5"),
        (FIGURES, 'return {"loss": 1.0}', "evaluate must report its score 'error', got loss"),
        (
            "    def data(self)",
            "    def players(self, model): return []\n\n    def data(self)",
            "[]",
        ),
        (
            "    def data(self)",
            "    def players(self, m): return [m]\n\n    def data(self)",
            "players must return a list of Player, got Linear in it",
        ),
        (
            "    def data(self)",
            "    def players(self, m): return [Player('a', m, m)] * 2\n\n    def data(self)",
            "its players must have different names, got ['a', 'a']",
        ),
        (
            "    def data(self)",
            "    def samples(self, split): return 2.5\n\n    def data(self)",
            "samples must return a whole number, got 2.5",
        ),
        (TASK, "", "one.py defines no task: a subclass of badm.bench.Task"),
        (TASK, "class One(:\n", "one.py cannot be imported: SyntaxError: invalid syntax (one.py"),
        (TASK, "x = 1\0", "one.py cannot be imported: "),
        (TASK, "raise SystemExit(0)", "one.py cannot be imported: SystemExit: 0 (one.py, line 1)"),
        (TASK, "(" * 100_000, "one.py cannot be imported: "),
        (TASK, "raise ValueError('[/b]')", "cannot be imported: ValueError: [/b] (one.py, line 1)"),
        (TASK, LOOP, "task one cannot come after itself, got one after two after one"),
    ],
    ids=range(59),
)
def test_an_error_in_a_task_is_reported_before_training(
    here: Path, old: str, new: str, words: str
) -> None:
    assert old in TASK
    (here / "one.py").write_text(TASK.replace(old, new))
    result = badm(*RUN)
    assert "trained" not in result.output
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("badm: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not any("result" in path.read_text() for path in here.glob("runs/*/*.jsonl"))


LATER = [
    ("warning", "self, metrics", "5", "warning must return a string, got int"),
    ("warning", "self, metrics", "None", "warning must return a string, got None"),
    ("artifacts", "self, model, splits", "['x']", "artifacts must be a dict of images and texts"),
    ("artifacts", "self, model, splits", "{5: 'x'}", "a short string for every title, got int"),
    ("artifacts", "self, model, splits", "{'x': 5}", "artifacts 'x' must be an image (PNG bytes)"),
]


@pytest.mark.parametrize(("method", "arguments", "value", "words"), LATER)
def test_what_a_task_says_at_the_end_is_checked(
    here: Path, method: str, arguments: str, value: str, words: str
) -> None:
    (here / "one.py").write_text(f"{TASK}\n    def {method}({arguments}): return {value}\n")
    result = badm(*RUN)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


TEXTS = ["made [/b]", "[red]", "\\[", ":bug:", "σ \U0001f388", "\udcff", "\ud800", "{task}", "%s"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_of_a_task_is_kept_as_it_is(here: Path, text: str) -> None:
    """In its description, notes, warnings and artifacts, but for halves of characters."""
    source = TASK.replace(STATED, f"{STATED}    description = {text!a}\n")
    source = source.replace(SPLITS, f"{SPLITS[:-1]}, notes=({text!a},))")
    source += f"\n    def warning(self, figures): return {text!a}\n"
    source += f"\n    def artifacts(self, model, splits): return {{{text!a}: {text!a}}}\n"
    (here / "one.py").write_text(source)
    result = badm(*RUN, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    shown, text = json.loads(result.stdout), text.encode(errors="replace").decode()
    assert shown["result"]["message"] == text
    lines = [json.loads(line) for line in Path(shown["path"]).read_text("utf-8").splitlines()]
    assert (lines[0]["facts"]["description"], lines[0]["facts"]["notes"]) == (text, [text])
    assert [list(line["exhibits"]) for line in lines if "exhibits" in line] == [[text]]


def test_scores_that_are_nan_are_a_result(here: Path) -> None:
    (here / "one.py").write_text(TASK.replace(FIGURES, 'return {"error": float("nan")}'))
    result = badm(*RUN)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "the score is not finite before the first step" in result.stdout


@pytest.mark.parametrize("form", ["utf-8-sig", "utf-8"])
def test_a_file_with_a_mark_at_its_beginning_is_read(here: Path, form: str) -> None:
    (here / "one.py").write_text(TASK, encoding=form)
    assert badm(*RUN).exit_code == 0


def test_a_file_in_utf_16_is_refused(here: Path) -> None:
    (here / "one.py").write_text(TASK, encoding="utf-16")
    refused(badm(*RUN), 1, "one.py cannot be imported: ")


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_not_opened(here: Path, kind: str) -> None:
    path = here / "odd.py"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path)}[
        kind
    ]()
    refused(badm("run", "odd.py", "-m", "sgd"), 2, "odd.py")


@pytest.mark.parametrize("name", [b"r\xff", b"r[old]", b"r?x=1#y", b"r\x1b[2J", "σ".encode()])
def test_any_folder_name_is_printed_in_its_own_bytes(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    task = os.fsdecode(name) + ".py"
    Path(task).write_text(TASK)
    out = printed(monkeypatch, "run", task, "-m", "sgd", "--runs", os.fsdecode(name))
    (file,) = (here / os.fsdecode(name) / "one").glob("*.jsonl")
    assert out.splitlines()[-1] == b"written: " + os.fsencode(file.relative_to(here))


def printed(monkeypatch: pytest.MonkeyPatch, *arguments: str, encoding: str = "utf-8") -> bytes:
    """What a command that ends well prints to a stream of that encoding."""
    stream = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["badm", *arguments])
        patched.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        sys.stdout.flush()
        return stream.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "koi8-r", "shift_jis", "utf-16", "utf-7"])
def test_a_result_in_greek_is_printed_in_any_encoding(
    here: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    source = TASK.replace('"error"', '"‖σ‖ [/b]"')
    (here / "one.py").write_text(
        f'{source}\n    def warning(self, figures): return "漢字 σ [/b]"\n'
    )
    lines = printed(monkeypatch, *RUN, encoding=encoding).decode(encoding).splitlines()
    assert len(lines) == 5
    assert re.search(r"^.. (σ|sigma) \[/b\]$", lines[3])


@pytest.mark.parametrize("arguments", [RUN, ("list", "tasks"), ("certify", "--help")], ids=str)
def test_a_stdout_that_is_closed_is_no_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["badm", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_loses_no_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["badm", *RUN])
    with open("/dev/full", "w", encoding="utf-8") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 4
    assert capsys.readouterr().err.endswith("cannot be written: no space left on device\n")
    assert len(list(here.glob("runs/one/*.jsonl"))) == 1


@pytest.mark.parametrize("name", ["taken.png", "nowhere/x.png", "x.exe"])
def test_a_picture_that_cannot_be_written_is_a_sentence(here: Path, name: str) -> None:
    (here / "taken.png").mkdir()
    result = badm("certify", "--steps", "2", "--samples", "8", "-o", name)
    refused(result, 4 if name == "taken.png" else 2, name)


@pytest.mark.slow
def test_a_comparison_of_a_file_whose_name_is_not_utf_8_can_be_reported(here: Path) -> None:
    source = os.fsdecode(b"na\xffme.py")
    Path(source).write_text(TASK)
    record = ComparisonRunner(Plan((source,), ("sgd",), reference="sgd"), RunStore("runs")).record
    record.write(RunStore("runs"))
    (path,) = here.glob("runs/comparisons/*.json")
    assert read_record(path).plan.tasks == ("na?me.py",)
