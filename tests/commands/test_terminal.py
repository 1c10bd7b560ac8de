"""What commands print: texts as they are, on every terminal, or one sentence and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from badm import cli
from badm.bench.compare.method_on_task import MethodOnTask
from badm.bench.compare.progress import ProgressDisplay
from badm.bench.compare.tuning import trial_table
from badm.bench.engine.workers import Job, RunProgress
from badm.bench.records.comparisons import Trial
from badm.bench.records.plans import MethodRecord
from badm.bench.records.runs import RunConfig
from badm.bench.report.result import Report
from badm.bench.report.terminal import console
from badm.bench.task import Score
from badm.commands.compare import show
from tests.helpers.comparisons import comparison

MARKUP = "made [/b] of [red]paint[/red] :smile: [link=x]"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bytes, bytes]]:
    """Run a command in this process with streams of that encoding, or with that file as stdout."""

    def run(*arguments: str, encoding: str = "utf-8", out: Any = None) -> tuple[int, bytes, bytes]:
        streams = [io.BytesIO(), io.BytesIO()]
        stdout = out or io.TextIOWrapper(streams[0], encoding)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(streams[1], encoding))
        monkeypatch.setattr(sys, "argv", ["badm", *arguments])
        monkeypatch.setenv("COLUMNS", "160")  # of a table, all columns
        with pytest.raises(SystemExit) as ended:
            cli.main()
        sys.stdout.flush()
        sys.stderr.flush()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return code or 0, *(stream.getvalue() for stream in streams)

    return run


def test_warnings_and_paths_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    made = replace(comparison(tasks=1, methods=3), notes=[MARKUP], summary=[MARKUP])
    show(Report(made), [Path("runs[old].md")], as_json=False, quiet=False)
    out = capsys.readouterr().out
    assert out.count(MARKUP) == 2
    assert out.endswith("written: runs[old].md\n")


def test_a_table_of_trials_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    entry = MethodRecord("task", "adam[/b]", searched=["lr[/b]"])
    console().print(trial_table(entry, Score("[bold]score")))
    out = capsys.readouterr().out
    assert out.split() == ["task:", "adam[/b]", "lr[/b]", "[bold]score"]


def test_a_setting_that_is_a_word_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    setting = {"shards": "labels", "lr": 0.00316}
    entry = MethodRecord("task", "adam", setting, searched=list(setting))
    entry.tried.append(Trial("task", "adam", 0, setting, "finished", 0.5, None))
    console().print(trial_table(entry, Score("score")))
    assert capsys.readouterr().out.split()[-4:] == ["labels", "0.00316", "0.5", "best"]


def test_a_progress_line_shows_names_as_they_are() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    config = RunConfig("task", "1", "cpu", 10, MARKUP, {"lr": 0.1}, 0)
    pairs: list[MethodOnTask] = []
    with ProgressDisplay(pairs, out, shown=True) as board:
        board.update(RunProgress(Job("task.py", "cpu", config), 3, 0.5))
        board.progress.refresh()
    assert MARKUP in out.file.getvalue()  # type: ignore[attr-defined]


def test_no_text_sends_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("\x1b]0;title\x07 \x1b[2Jgone \x9b31m\x7f")
    assert capsys.readouterr().out == "␛]0;title ␛[2Jgone �31m�\n"  # the bell rich leaves out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "methods"), "0.0001 - 0.1"),
        (("list", "tasks"), "digits"),
        (("data", "list"), "8x8"),
        (("certify", "--help"), "sigma"),
        (("certify", "--no-picture", "--steps", "3"), "sigma = 14.57 >= 5*max(eta, rho)"),
        (("certify", "--paper", "--steps", "2", "--samples", "20"), "rho : sigma"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_greek_letters_gets_them_spelt_out(
    command: Any, arguments: tuple[str, ...], words: str, encoding: str
) -> None:
    code, out, err = command(*arguments, encoding=encoding)
    assert (code, err) == (0, b"")
    assert encoding != "ascii" or words in out.decode("ascii")


@pytest.mark.slow
def test_json_loses_no_letter_on_an_ascii_terminal(command: Any) -> None:
    code, out, _ = command("data", "list", "--json", encoding="ascii")
    assert code == 0
    assert r"8\u00d78" in out.decode("ascii")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [("list", "tasks"), ("list", "methods", "--json"), ("--version",), ("compare", "--help")],
    ids=" ".join,
)
def test_a_full_disk_behind_stdout_is_a_sentence_and_code_4(
    command: Any, arguments: tuple[str, ...]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, _, err = command(*arguments, out=full)
    assert code == 4
    assert err == b"badm: the output cannot be written: no space left on device\n"


@pytest.mark.parametrize("arguments", [("list", "methods"), ("--version",)], ids=" ".join)
def test_a_reader_that_has_gone_ends_the_command_without_a_word(
    command: Any, arguments: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(BrokenPipeError), open(writing, "w", encoding="utf-8") as pipe:
        code, _, err = command(*arguments, out=pipe)
        assert (code, err) == (1, b"")


def test_a_name_that_is_not_utf_8_is_printed_in_its_own_bytes(command: Any) -> None:
    code, out, err = command("compare", os.fsdecode(b"na\xffme.py"))
    assert (code, out, err) == (2, b"", b"badm: there is no file na\xffme.py\n")


@pytest.mark.parametrize("maker", ["Console(", "TextColumn("])
def test_one_file_makes_all_consoles(maker: str) -> None:
    """One made elsewhere would take texts for markup."""
    sources = Path(cli.__file__).parent.rglob("*.py")
    assert [p.name for p in sources if maker in p.read_text("utf-8")] == ["terminal.py"]
