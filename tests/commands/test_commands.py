"""compare, run, tune, report and list, as people and scripts use them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench import methods
from badm.bench.method import CannotTrain, Method, Setting, Trainer, TrainingSetup
from badm.bench.records.plans import TUNING_SEED
from tests.helpers import QUICK_TASKS
from tests.helpers.waiting import wait_for

QUICK = f"{QUICK_TASKS}:quick"
COMPARED = ("compare", QUICK, "--methods", "sgd,adam", "--trials", "3", "--seeds", "2")
DEADLINE_SECONDS = 90.0
# Two equal comparisons differ in nothing else.
TIMES = {"created", "seconds", "evaluated_seconds", "seconds_to_target", "seconds_per_step"}
MEASURED = TIMES | {"peak_bytes", "summary"}


def badm(*arguments: object) -> Result:
    # Wide and plain, so that no message is wrapped or coloured.
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


class Started:
    """A command in processes of its own, which are in a group of their own."""

    def __init__(self, folder: Path, *arguments: object, gate: bool = False) -> None:
        self.folder, self.gate, self.log = folder, folder / "gate", folder / "log"
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "QUICK_LOG": str(self.log), "OMP_NUM_THREADS": "1"}
        if gate:
            self.gate.touch()
            environment["QUICK_GATE"] = str(self.gate)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "badm", *map(str, arguments)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def said(self, word: str) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split() for line in lines if word in line.split()]

    def wait_until_at_the_gate(self) -> None:
        wait_for(lambda: self.said("gate") or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def signalled(self, number: signal.Signals) -> None:
        """As a terminal does: to all processes of the group."""
        os.killpg(self.process.pid, number)

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, out, err

    def workers_are_gone(self) -> bool:
        return all(not Path(f"/proc/{pid}").exists() for pid, *_ in self.said("model"))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in MEASURED}
    return [without_times(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the comparison has been made, with what it printed in numbers.json."""
    folder = tmp_path_factory.mktemp("unbroken")
    code, out, err = Started(folder, *COMPARED, "--jobs", "1", "--json").ended()
    assert (code, err.strip()) == (0, "")
    (folder / "numbers.json").write_text(out)
    return folder


def numbers(folder: Path) -> Any:
    return without_times(json.loads((folder / "numbers.json").read_text()))


@pytest.mark.slow
def test_in_another_folder_with_two_jobs_the_numbers_are_the_same(
    tmp_path: Path, unbroken: Path
) -> None:
    code, out, _ = Started(tmp_path, *COMPARED, "--jobs", "2", "--json").ended()
    assert code == 0
    found = without_times(json.loads(out))
    assert found == numbers(unbroken)
    assert len(found["curves"]) == 4
    assert [row["trials"] for row in found["rows"]] == [3, 3]


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_ends_with_the_same_numbers(
    tmp_path: Path, unbroken: Path
) -> None:
    broken = Started(tmp_path, *COMPARED, "--jobs", "1", gate=True)
    broken.wait_until_at_the_gate()
    broken.signalled(signal.SIGINT)
    broken.gate.unlink()
    code, out, err = broken.ended()
    assert (code, out) == (130, "")
    assert err.strip() == "badm: interrupted; run the same command to resume"
    wait_for(broken.workers_are_gone)
    code, out, _ = Started(tmp_path, *COMPARED, "--jobs", "1", "--json").ended()
    assert code == 0
    assert without_times(json.loads(out)) == numbers(unbroken)


@pytest.mark.slow
def test_ctrl_c_again_does_not_wait_for_runs(tmp_path: Path) -> None:
    stuck = Started(tmp_path, *COMPARED, "--jobs", "1", gate=True)
    stuck.wait_until_at_the_gate()

    def impatient() -> bool:
        if stuck.process.poll() is None:
            stuck.signalled(signal.SIGINT)
        return stuck.process.poll() is not None

    wait_for(impatient, every=0.2)
    code, _, err = stuck.ended()
    assert code == 130
    assert "Traceback" not in err
    wait_for(stuck.workers_are_gone)


@pytest.mark.slow
def test_after_a_kill_workers_end_and_the_next_command_takes_the_trial_over(
    tmp_path: Path, unbroken: Path
) -> None:
    killed = Started(tmp_path, *COMPARED, "--jobs", "1", gate=True)
    killed.wait_until_at_the_gate()
    killed.process.kill()
    killed.process.wait()
    killed.gate.unlink()
    wait_for(killed.workers_are_gone)
    code, out, _ = Started(tmp_path, *COMPARED, "--jobs", "1", "--json").ended()
    assert code == 0
    assert without_times(json.loads(out)) == numbers(unbroken)


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_twice_failed_and_the_others_go_on(tmp_path: Path) -> None:
    paper = ("compare", QUICK, "-m", "sgd,adam", "--protocol", "paper", "--seeds", "1")
    started = Started(tmp_path, *paper, "--jobs", "1", "--json", gate=True)
    for kills in (1, 2):
        wait_for(lambda kills=kills: len(started.said("gate")) == kills)
        os.kill(int(started.said("gate")[-1][0]), signal.SIGKILL)
    started.gate.unlink()
    code, out, err = started.ended()
    assert (code, err.strip()) == (1, "")
    assert [(row["method"], row["status"], row["message"]) for row in json.loads(out)["rows"]] == [
        (
            "sgd",
            "failed",
            "seed 0: its process died: killed by SIGKILL, perhaps for lack of memory",
        ),
        ("adam", "finished", ""),
    ]


@pytest.mark.slow
def test_two_machines_with_one_study_do_every_trial_once(tmp_path: Path, unbroken: Path) -> None:
    study = ("--study", f"sqlite:///{tmp_path / 'study.db'}", "--jobs", "1", "--json")
    machines = [Started(tmp_path / name, *COMPARED, *study) for name in ("one", "other")]
    found = [json.loads(machine.ended()[1]) for machine in machines]
    files = [path.name for path in tmp_path.glob(f"*/runs/quick/*-seed{TUNING_SEED}-*.jsonl")]
    assert len(files) == len(set(files)) == 6
    for one in found:
        assert without_times(one) == numbers(unbroken)


# What goes wrong, in one sentence each.


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "digit"), "there is no task 'digit'; did you mean digits?"),
        (("compare", "nowhere.py"), "there is no file nowhere.py"),
        (("run", "digits", "-m", "adm"), "there is no method 'adm'; did you mean adam or badm?"),
        (("compare", QUICK, "-m", "adm,sgd"), "there is no method 'adm'"),
        (("compare", QUICK, "-m", "x*"), "there is no method 'x*'"),
        (("compare", QUICK, "-m", ","), "must name at least one method"),
        (("compare", QUICK, "-m", "sgd", "--reference", "adam"), "reference must be one of sgd"),
        (("compare", QUICK, "--trials", "0"), "'--trials'"),
        (("compare", QUICK, "--seeds", "-1"), "'--seeds'"),
        (("compare", QUICK, "--steps", "-5"), "'--steps'"),
        (("compare", QUICK, "--scale", "huge"), "must be one of smoke, cpu, paper, got 'huge'"),
        (("compare", QUICK, "--protocol", "own"), "must be one of tuned, speed, paper, got 'own'"),
        (("compare", QUICK, "--objective", "speed"), "must be one of score, steps, got 'speed'"),
        (("compare", QUICK, "--study", "sqlite:////nowhere/x.db"), "cannot open the search"),
        (("compare", QUICK, "--study", "nonsense"), "cannot open the search database nonsense"),
        (("compare", QUICK, "-o", "nowhere/report.html"), "must be in a folder that exists"),
        (("compare", QUICK, "-o", "report.pdf"), "must be .html (a page)"),
        (("run", QUICK, "-m", "sgd", "--set", "lr"), "must be name=value, got 'lr'"),
        (("run", QUICK, "-m", "sgd", "--set", "speed=1"), "sgd takes lr"),
        (
            ("run", QUICK, "-m", "sgd", "--set", "lr=fast"),
            "lr of sgd must be a finite number of at least 0, got 'fast'",
        ),
        (("run", QUICK, "-m", "sgd", "--seed", "-1"), "'--seed'"),
        (("report", "nowhere"), "there is no folder nowhere"),
        (("report", "."), "has no comparison yet: `badm compare digits` makes one"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = badm(*arguments)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(tmp_path.glob("runs/*/*.jsonl"))


@pytest.mark.slow
def test_steps_without_a_target_are_refused_with_what_to_do(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(QUICK_TASKS.read_text().replace("    target = 0.7\n", ""))
    result = badm("compare", f"{task}:quick", "--objective", "steps", "--runs", tmp_path / "runs")
    assert result.exit_code == 2
    assert "task quick has no target to count steps to: give one with --target" in result.stderr


@pytest.mark.parametrize(
    ("broken", "by", "said"),
    [
        ("import torch", "import torhc", "cannot be imported: ModuleNotFoundError"),
        ("        x = torch.randn(", "        x = torch.rnd(", "data raised AttributeError"),
        ("        self.taken += 1", "        self.taken += ''", "loss raised TypeError"),
    ],
    ids=["import", "data", "loss"],
)
def test_a_broken_task_file_is_named_with_its_line(
    tmp_path: Path, broken: str, by: str, said: str
) -> None:
    task, lines = tmp_path / "task.py", QUICK_TASKS.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith(broken))
    lines[number] = lines[number].replace(broken, by)
    task.write_text("\n".join(lines))
    result = badm("run", f"{task}:quick", "-m", "sgd", "--runs", tmp_path / "runs")
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert f"(task.py, line {number + 1})" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_broken_task_ends_a_comparison_with_the_same_sentence(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(QUICK_TASKS.read_text().replace("self.taken += 1", "raise KeyError('colour')"))
    result = badm(
        "compare", f"{task}:quick", "-m", "sgd", "--runs", tmp_path / "runs", "--jobs", "1"
    )
    assert result.exit_code == 1, result.output
    assert "badm: task quick: loss raised KeyError: 'colour' (task.py, line" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "node-cora-gnn", "-m", "sgd"),
        ("run", "{own}", "-m", "sgd"),  # its first stage has all it needs
        ("compare", QUICK, "node-cora-gnn", "--methods", "sgd", "--trials", "1", "--jobs", "1"),
        ("tune", "node-cora-gnn", "--method", "sgd", "--trials", "1", "--jobs", "1"),
        ("reproduce", "node-classification", "--methods", "sgd", "-o", "{results}"),
    ],
    ids=["run", "run-after-a-stage", "compare", "tune", "reproduce"],
)
def test_a_missing_dataset_is_reported_before_anything_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        f"from badm.bench.tasks.digits import Digits\n"
        f"class Second(Digits):\n    name, after, dataset_name = 'second', {QUICK!r}, 'cora'\n"
    )
    monkeypatch.setenv("BADM_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("QUICK_LOG", str(tmp_path / "log"))
    places = {"{own}": own, "{results}": tmp_path / "results"}
    result = badm(*(places.get(a, a) for a in arguments), "--runs", tmp_path / "runs")
    assert result.exit_code == 1, result.output
    assert "cora is not complete" in result.stderr
    assert "badm data fetch cora" in result.stderr
    assert not (tmp_path / "log").exists()  # no model was made
    assert not list(tmp_path.glob("runs/**/*.jsonl"))


@pytest.mark.slow
def test_diverging_is_a_result_and_cannot_train_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = badm(
        "compare", f"{QUICK_TASKS}:explosive", "-m", "sgd", "--protocol", "paper",
        "--seeds", "1", "--runs", tmp_path, "--jobs", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "diverged: seed 0: the loss is nan at step 3" in " ".join(result.stdout.split())

    def refuse(problem: TrainingSetup, setting: Setting) -> Trainer:
        raise CannotTrain("it wants matrices")

    monkeypatch.setitem(methods.METHODS, "picky", Method("picky", "", "peer", refuse, {}, {}))
    alone = badm("run", QUICK, "-m", "picky", "--runs", tmp_path)
    assert alone.exit_code == 1
    assert alone.stderr == "badm: picky cannot train quick: it wants matrices\n"


@pytest.mark.parametrize(
    "arguments",
    [("compare", QUICK), ("run", QUICK, "-m", "sgd"), ("tune", QUICK, "-m", "sgd")],
    ids=lambda arguments: arguments[0],
)
def test_a_folder_that_cannot_be_written_is_reported_before_any_work(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    result = badm(*arguments, "--runs", tmp_path / "file")
    assert result.exit_code == 4
    assert result.stderr.startswith("badm: cannot write to the folder")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["taken.html", "file"])
def test_an_output_that_cannot_be_written_is_reported_before_any_work(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "taken.html").mkdir()
    (tmp_path / "file").touch()
    runs = tmp_path / "runs"
    result = badm("compare", QUICK, "-m", "sgd", "--runs", runs, "-o", tmp_path / name)
    assert result.exit_code == 4, result.output
    assert f"cannot write {tmp_path / name}" in result.stderr
    assert not list(runs.glob("*/*.jsonl"))


# What is printed and written.


@pytest.mark.slow
def test_a_pipe_gets_a_table_and_no_bar(unbroken: Path) -> None:
    result = badm("report", unbroken / "runs", "-o", unbroken / "again.md")
    assert result.exit_code == 0
    assert result.stderr.strip() == ""
    assert "\x1b" not in result.stdout
    assert "quick: accuracy, target 70.0 %, synthetic data" in result.stdout
    assert result.stdout.endswith(f"written: {unbroken / 'again.md'}\n")
    assert (unbroken / "runs" / "report.html").exists()


@pytest.mark.slow
def test_a_report_made_anew_has_the_same_numbers(unbroken: Path) -> None:
    result = badm("report", unbroken / "runs", "--json", "-o", unbroken / "again.json")
    assert without_times(json.loads(result.stdout)) == numbers(unbroken)
    assert json.loads(result.stdout) == json.loads((unbroken / "again.json").read_text())


@pytest.mark.slow
def test_quiet_prints_paths_alone(unbroken: Path) -> None:
    path = unbroken / "again.html"
    result = badm("report", unbroken / "runs", "--quiet", "-o", path)
    assert result.stdout == f"written: {path}\n"


@pytest.mark.parametrize("damage", ["cut in the first line", "not JSON"])
@pytest.mark.slow
def test_a_damaged_run_is_named_and_the_rest_is_reported(
    tmp_path: Path, unbroken: Path, damage: str
) -> None:
    runs = shutil.copytree(unbroken / "runs", tmp_path / "runs")
    victim = next(runs.glob("quick/adam-seed1-*.jsonl"))
    content = victim.read_bytes()
    victim.write_bytes(content[:40] if damage.startswith("cut") else b"{}\nno\n" + content)
    result = badm("report", runs, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {row["method"]: row["status"] for row in found["rows"]} == {
        "sgd": "finished",
        "adam": "missing",
    }
    assert Counter(victim.name in note for note in found["notes"])[True] == 1
    assert victim.exists()


def test_run_json_is_the_result_and_a_second_one_is_not_run(tmp_path: Path) -> None:
    first, again = (
        badm("run", QUICK, "-m", "sgd", "--set", "lr=0.5", "--runs", tmp_path, "--json")
        for _ in range(2)
    )
    shown = json.loads(first.stdout)
    assert shown["config"]["setting"]["lr"] == 0.5
    assert shown["result"]["status"] == "finished"
    assert 0 < shown["result"]["test"]["accuracy"] <= 1
    assert json.loads(again.stdout) == shown  # seconds too: it was read


def test_what_a_task_prints_is_not_in_the_json(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    noisy = QUICK_TASKS.read_text().replace("self.taken += 1", "self.taken += 1; print('step')")
    task.write_text(f"{noisy}\nprint('imported')\n")
    result = badm("run", f"{task}:quick", "-m", "sgd", "--runs", tmp_path / "runs", "--json")
    assert json.loads(result.stdout)["result"]["status"] == "finished"
    assert result.stderr.count("step") == 12
    assert "imported" in result.stderr


@pytest.mark.slow
def test_tune_shows_what_was_tried_and_leaves_the_comparison_alone(unbroken: Path) -> None:
    arguments = ("tune", QUICK, "-m", "adam", "--trials", "3", "--runs", unbroken / "runs")
    shown = json.loads(badm(*arguments, "--json").stdout)
    adam = next(row for row in numbers(unbroken)["rows"] if row["method"] == "adam")
    assert [entry["setting"] for entry in shown] == [adam["setting"]]
    assert [trial["status"] for trial in shown[0]["trials"]] == ["finished"] * 3
    report = badm("report", unbroken / "runs", "--json")
    assert len(json.loads(report.stdout)["rows"]) == 2


# Help pages.

COMMANDS = (
    *("compare", "run", "reproduce", "tune", "report", "certify"),
    *("list", "list tasks", "list methods", "list datasets"),
    *("data", "data list", "data verify", "data fetch"),
)


def help_page(command: str) -> str:
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(cli.application(), [*command.split(), "--help"], env=environment)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples_that_are_not_broken(command: str) -> None:
    page = help_page(command)
    shown = page.partition("Examples")[2].partition("╭")[0].strip().splitlines()
    assert any(f"badm {command}".strip() in line for line in shown)
    assert all(line.strip().startswith("• ") for line in shown)  # none goes on in the next line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_no_type_of_python(command: str) -> None:
    """Flags and arguments have none, options what people type for them: N, FILE, NAME."""
    page = help_page(command)
    assert not re.findall(r"<\w+|\b(?:bool|BOOLEAN|INTEGER|FLOAT|TEXT|PATH)\b", page)
    assert re.search(r"│ +--help +Show this message and exit", page)
