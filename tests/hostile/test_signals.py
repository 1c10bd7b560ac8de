"""Signals at bad moments, dead parents, tasks that end the process, go elsewhere or print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.bench import methods
from badm.bench.method import (
    Method,
    OptimizerTrainer,
    Setting,
    Trainer,
    TrainingSetup,
    trainable_parameters,
)
from badm.bench.records.runs import Run, RunStore
from badm.processes import signals
from tests.helpers import UNRULY_TASK
from tests.helpers.waiting import wait_for

PLACES = (
    *("data", "model", "players", "samples", "batch", "loss", "evaluate"),
    *("after_step", "warning", "artifacts"),
)
DEADLINE_SECONDS = 300.0


def badm(*arguments: object) -> Result:
    # Wide and plain, so that no message is wrapped or coloured.
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


def run(*more: object) -> Result:
    return badm("run", UNRULY_TASK, "--method", "sgd", *more)


def set_snippet(patch: pytest.MonkeyPatch, place: str, code: str) -> None:
    patch.setenv(f"UNRULY_{place.upper()}", code)


def the_run(folder: Path) -> Run:
    (found,), problems = RunStore(folder).read_all()
    assert not problems
    return found


# A task that ends the process, or tries to.


@pytest.mark.parametrize("code", ["sys.exit()", "sys.exit(0)"])
@pytest.mark.parametrize("place", PLACES)
def test_a_task_that_exits_is_an_error_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, code: str
) -> None:
    set_snippet(monkeypatch, place, code)
    result = run("--runs", tmp_path)
    assert result.exit_code == 1, result.output
    what = "SystemExit: 0" if "0" in code else "SystemExit"
    assert f"badm: task unruly: {place} raised {what} (unruly_task.py, line " in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("place", ["import", "constructor"])
def test_a_task_that_exits_before_it_is_one_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    set_snippet(monkeypatch, place, "sys.exit(0)")
    copied = tmp_path / "copied.py"  # a file is imported once in a process
    copied.write_text(UNRULY_TASK.read_text())
    result = badm("run", copied, "--method", "sgd", "--runs", tmp_path / "runs")
    assert result.exit_code == 1, result.output
    assert "SystemExit: 0 (copied.py, line " in result.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit('enough')", "SystemExit: enough"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise asyncio.CancelledError('late')", "CancelledError: late"),
        ("exit()", "SystemExit: None"),
        ("raise BaseException('odd')", "BaseException: odd"),
    ],
)
def test_whatever_else_a_task_raises_is_an_error_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    set_snippet(monkeypatch, "loss", code)
    result = run("--runs", tmp_path)
    assert result.exit_code == 1, result.output
    assert f"loss raised {said} (" in result.stderr


@pytest.mark.parametrize("place", ["data", "loss", "artifacts"])
def test_a_keyboard_interrupt_without_a_signal_is_an_error_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The same command would not go on from there, as it says after Ctrl-C."""
    set_snippet(monkeypatch, place, "raise KeyboardInterrupt")
    with signals.handle_signals():
        result = run("--runs", tmp_path)
    assert result.exit_code == 1, result.output
    assert f"{place} raised KeyboardInterrupt (" in result.stderr


def test_an_exit_where_no_work_was_asked_for_is_not_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "copied.py"
    lazy = "    reduction = property(lambda self: sys.exit(0) if self.taken else 'mean')\n"
    copied.write_text(
        UNRULY_TASK.read_text().replace("    taken = 0\n", f"    taken = 0\n{lazy}", 1)
    )
    result = badm("run", copied, "--method", "sgd", "--runs", tmp_path / "runs")
    assert result.exit_code == 1, result.output
    assert "raised SystemExit: 0 (copied.py, line " in result.stderr


class Exits(OptimizerTrainer):
    """Gradient steps, and an exit at one of the places of a method."""

    place = ""

    def __init__(self, problem: TrainingSetup, setting: Setting) -> None:
        import torch

        self.at("build")
        super().__init__(torch.optim.SGD(trainable_parameters(problem.module), **setting))

    def at(self, place: str) -> None:
        if place == self.place:
            sys.exit(0)

    def step(self, work: Any) -> float:
        self.at("step")
        return super().step(work)

    def state_dict(self) -> dict[str, Any]:
        self.at("state_dict")
        return super().state_dict()

    def evaluation_weights(self) -> AbstractContextManager[None]:
        self.at("evaluating")

        @contextmanager
        def inside() -> Iterator[None]:
            yield
            self.at("evaluated")

        return inside()


@pytest.mark.parametrize("place", ["build", "step", "state_dict", "evaluating", "evaluated"])
def test_a_method_that_exits_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
        return Exits(problem, setting)

    monkeypatch.setattr(Exits, "place", place)
    method = Method("exits", "", "peer", build, {"lr": 0.1}, {})
    monkeypatch.setitem(methods.METHODS, "exits", method)
    result = badm("run", UNRULY_TASK, "--method", "exits", "--runs", tmp_path, "--checkpoint", 0)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("badm: exits failed on unruly: SystemExit: 0 (test_signals.py")
    done = the_run(tmp_path)
    assert done.result is not None
    assert done.result.status == "failed"


# A task that goes elsewhere.


@pytest.mark.parametrize("place", ["constructor", *PLACES])
def test_a_task_that_changes_the_directory_leads_no_path_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    set_snippet(monkeypatch, place, f"os.chdir({str(elsewhere)!r})")
    (here / "task.py").write_text(UNRULY_TASK.read_text())
    result = badm("run", "task.py", "-m", "sgd", "--runs", "runs", "--checkpoint", 0, "--weights")
    assert result.exit_code == 0, result.output
    assert Path.cwd() == here
    assert list(elsewhere.iterdir()) == []
    (written,) = here.glob("runs/unruly/*.jsonl")
    assert result.stdout.splitlines()[-1] == f"written: {written.relative_to(here)}"
    assert written.with_suffix(".weights").exists()
    assert (written.with_suffix(".exhibits") / "6-0.txt").exists()


def test_a_task_may_go_where_its_data_are_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.txt").write_text("here")
    (tmp_path / "task.py").write_text(UNRULY_TASK.read_text())
    monkeypatch.chdir(tmp_path)
    set_snippet(monkeypatch, "import", "os.chdir('sub')")
    set_snippet(monkeypatch, "data", "open('data.txt').close()")
    result = badm("run", "task.py", "--method", "sgd")
    assert result.exit_code == 0, result.output
    assert list(tmp_path.glob("runs/unruly/*.jsonl"))


def test_a_task_that_removes_the_directory_does_not_lose_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    set_snippet(monkeypatch, "loss", f"os.path.exists({str(gone)!r}) and os.rmdir({str(gone)!r})")
    result = run("--runs", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert the_run(tmp_path / "runs").result is not None


# A task that prints and reads, not only as Python does.

PRINTS = {
    "a program": "subprocess.run(['echo', 'noise'])",
    "a system call": "os.write(1, b'noise\\n')",
    "C code": "ctypes.CDLL(None).puts(b'noise')",
    "a buffer": "ctypes.CDLL(None).printf(b'noise')",
    "python": "print('noise')",
    "the first stdout": "sys.__stdout__.write('noise'); sys.__stdout__.flush()",
}


@pytest.mark.parametrize("place", ["data", "loss", "artifacts"])
@pytest.mark.parametrize("how", list(PRINTS))
def test_what_a_task_lets_others_print_is_not_in_the_json(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    how: str,
    place: str,
) -> None:
    set_snippet(monkeypatch, place, PRINTS[how])
    result = run("--runs", tmp_path, "--json")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "noise" in printed.err + result.stderr
    assert json.loads(result.stdout)["result"]["status"] == "finished"


READS = {
    "a program": "subprocess.run(['cat'], stdout=subprocess.DEVNULL)",
    "a system call": "os.read(0, 100)",
    "a shell": "os.system('read line')",
}


@pytest.fixture
def stdin() -> Iterator[int]:
    """The end of a pipe that is stdin, with a line in it."""
    before = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"for others\n")
    os.dup2(reading, 0)
    os.close(writing)
    yield reading
    os.dup2(before, 0)
    os.close(before)
    os.close(reading)


@pytest.mark.parametrize("how", list(READS))
def test_a_task_does_not_eat_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdin: int, how: str
) -> None:
    """In a loop over the lines of a file, each command would take the lines of the next."""
    set_snippet(monkeypatch, "data", READS[how])
    assert run("--runs", tmp_path).exit_code == 0
    assert os.read(stdin, 100) == b"for others\n"


# Processes of their own, without torch.


class Process:
    """A program, and whatever it starts: all that has its mark."""

    def __init__(self, folder: Path, *words: object, **snippets: str) -> None:
        folder.mkdir(exist_ok=True)
        self.log, self.gate, self.mark = folder / "log", folder / "gate", uuid.uuid4().hex
        self.gate.touch()
        variables = {f"UNRULY_{name.upper()}": code for name, code in snippets.items()}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env={
                **os.environ,
                **variables,
                "UNRULY_LOG": str(self.log),
                "UNRULY_GATE": str(self.gate),
                "MARK": self.mark,
                "TMPDIR": str(folder),
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def said(self, word: str) -> list[int]:
        """The processes that have said so."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[0]) for line in lines if line.split()[1:2] == [word]]

    def wait_until_said(self, word: str, times: int = 1) -> list[int]:
        wait_for(lambda: len(self.said(word)) >= times or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        return self.said(word)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_until_ended(self, number: signal.Signals) -> None:
        """As somebody does who is in a hurry."""

        def ended() -> bool:
            self.send(number)
            return self.process.poll() is not None

        wait_for(ended, every=0.1)

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Processes with the mark, but zombies."""
        mark, found = f"MARK={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def wait_until_all_are_gone(self) -> None:
        wait_for(lambda: not self.left())


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

IN_C = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # half an hour
IN_C_ALONE = "import re; re.match('(a+)+b', 'a' * 60)"  # no other thread gets its turn
SAY = "import os; open(os.environ['UNRULY_LOG'], 'a').write(f'{os.getpid()} here\\n')"


QUICK_GRACE = "from badm.processes import signals; signals.GRACE_SECONDS = 0.2"


@pytest.mark.slow
@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "block", ["signals.handle_signals()", "signals.handle_signals(), signals.defer_stop()"]
)
def test_signals_end_a_process_whose_main_thread_is_in_c_code(
    tmp_path: Path, number: signal.Signals, block: str
) -> None:
    code = f"{QUICK_GRACE}\nwith {block}:\n try: {SAY}; {IN_C}\n finally: {IN_C}"
    stuck = Process(tmp_path, "-c", code)
    stuck.wait_until_said("here")
    stuck.send_until_ended(number)
    assert stuck.ended()[0] == 128 + number


CHILD = {
    "waiting": "import threading; threading.Event().wait()",
    "in C code": IN_C,
    "alone": IN_C_ALONE,
}


@linux
@pytest.mark.parametrize("how", list(CHILD))
def test_a_child_does_not_outlive_its_parent(tmp_path: Path, how: str) -> None:
    (tmp_path / "child.py").write_text(f"{SAY}; {CHILD[how]}")
    parent = (
        "import subprocess, sys; from badm.processes.parent_death import child_environment;"
        "command = [sys.executable, '-m', 'badm.processes.parent_death', 'child'];"
        "subprocess.run(command, env=child_environment())"
    )
    started = Process(tmp_path, "-c", parent)
    started.wait_until_said("here")
    assert len(started.left()) == 2
    started.send(signal.SIGKILL)
    started.ended()
    started.wait_until_all_are_gone()


@linux
def test_a_child_whose_parent_was_gone_before_it_looked_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(SAY)
    code = (
        "import runpy, os; os.environ['BADM_PARENT'] = '1';"
        "runpy.run_module('badm.processes.parent_death', run_name='__main__')"
    )
    late = Process(tmp_path, "-c", code, "child")
    assert late.ended()[0] == 1
    assert not late.said("here")


# The commands, in processes of their own.


class Command(Process):
    """``badm`` with the unruly task."""

    def __init__(self, folder: Path, command: str, *more: object, **snippets: str) -> None:
        runs = ("--runs", folder / "runs")
        super().__init__(folder, "-m", "badm", command, UNRULY_TASK, *runs, *more, **snippets)

    def wait_until_it_has_handlers(self) -> None:
        """Which it has before it imports torch: a Python without them does not catch SIGTERM."""
        status, bit = Path(f"/proc/{self.process.pid}/status"), 1 << (signal.SIGTERM - 1)

        def caught() -> bool:
            (line,) = [one for one in status.read_text().splitlines() if one.startswith("SigCgt")]
            return bool(int(line.split()[1], 16) & bit)

        wait_for(caught)


RUN = ("--method", "sgd", "--checkpoint", "1000")
REPLICAS = ("--method", "sgd", "--replicas", "average", "--set", "ranks=2", "--set", "every=2")
COMPARE = ("--methods", "sgd,adam", "--trials", "1", "--seeds", "1", "--jobs", "2", "--steps", "99")
AT_STEP_3 = "step == 3 and wait('loss')"
UNTIL_ASKED_TO_STOP = "step == 3 and wait_until_asked_to_stop('loss')"
STOPPING = (
    "badm: stopping after this step and saving a checkpoint; press Ctrl-C again to stop now\n"
)
RESUME = "badm: interrupted; run the same command to resume"


def weights(folder: Path) -> dict[str, str]:
    """Digests of all runs that have ended, by file."""
    found, problems = RunStore(folder).read_all()
    assert not problems
    return {run.path.name: run.result.weights for run in found if run.result is not None}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """What a command ends with that nobody disturbs."""
    known: dict[tuple[str, ...], dict[str, str]] = {}

    def look(*command: str) -> dict[str, str]:
        if command not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            code, _, err = Command(folder, *command).ended()
            assert code == 0, err
            known[command] = weights(folder / "runs")
        return known[command]

    return look


@linux
@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_torch_is_imported_ends_the_command_with_a_word(
    tmp_path: Path, number: signal.Signals, command: str
) -> None:
    started = Command(tmp_path, command, "--method", "sgd")
    started.wait_until_it_has_handlers()
    started.send(number)
    assert started.ended() == (128 + number, "", "badm: interrupted\n")


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_a_command_has_ended_does_not_change_its_exit_code(
    tmp_path: Path, number: signal.Signals
) -> None:
    """While Python takes everything down, which after torch takes a second."""
    code = (
        "import atexit, os\nfrom badm.processes import signals\n"
        "from tests.helpers.waiting import wait_for\n"
        f"def late():\n {SAY}\n wait_for(lambda: not os.path.exists(os.environ['UNRULY_GATE']))\n"
        "atexit.register(late)\nwith signals.handle_signals(announce=True): pass"
    )
    ended = Process(tmp_path, "-c", code)
    ended.wait_until_said("here")
    ended.send(number)
    ended.gate.unlink()
    assert ended.ended() == (0, "", "")


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "place"), [(signal.SIGINT, "data"), (signal.SIGTERM, "model")], ids=str
)
def test_a_signal_while_a_task_has_not_begun_to_train_ends_the_run(
    tmp_path: Path, number: signal.Signals, place: str
) -> None:
    started = Command(tmp_path, "run", *RUN, **{place: f"wait({place!r})"})
    started.wait_until_said(place)
    started.send(number)
    code, out, err = started.ended()
    assert (code, out) == (128 + number, "")
    assert err == f"{RESUME}\n"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_step_and_writes_a_checkpoint(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]], number: signal.Signals
) -> None:
    started = Command(tmp_path, "run", *RUN, loss=UNTIL_ASKED_TO_STOP)
    started.wait_until_said("loss")
    started.send(number)
    code, out, err = started.ended()
    assert (code, out) == (128 + number, "")
    assert err == STOPPING + f"{RESUME} from its checkpoint\n"
    assert list(tmp_path.glob("runs/unruly/*.checkpoint"))
    again = Command(tmp_path, "run", *RUN, loss="say('step')")
    assert again.ended()[0] == 0
    assert len(again.said("step")) == 3  # of 6
    assert weights(tmp_path / "runs") == undisturbed("run", *RUN)


@linux
@pytest.mark.slow
def test_the_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    started = Command(tmp_path, "run", *RUN, loss=AT_STEP_3)
    started.wait_until_said("loss")
    started.send_until_ended(signal.SIGINT)
    code, out, err = started.ended()
    assert (code, out) == (130, "")
    assert err == STOPPING + f"{RESUME}\n"


@linux
@pytest.mark.slow
def test_a_signal_while_another_process_has_the_run_ends_the_wait(tmp_path: Path) -> None:
    holder = Command(tmp_path, "run", *RUN, loss=AT_STEP_3)
    holder.wait_until_said("loss")
    waiting = Command(tmp_path, "run", *RUN, samples="say('samples')", constructor="say('found')")
    waiting.wait_until_said("found")
    waiting.send(signal.SIGTERM)
    assert waiting.ended()[0] == 143
    assert not waiting.said("samples")
    holder.send(signal.SIGKILL)
    holder.ended()


@linux
@pytest.mark.slow
def test_replicas_write_a_checkpoint_when_a_signal_comes(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]]
) -> None:
    started = Command(tmp_path, "run", *REPLICAS, loss=AT_STEP_3)
    started.wait_until_said("loss", times=2)
    started.send(signal.SIGTERM)
    wait_for(lambda: list(tmp_path.glob("badm-*/stop")))
    started.gate.unlink()
    code, out, err = started.ended()
    assert (code, out) == (143, "")
    assert err == STOPPING + f"{RESUME} from its checkpoint\n"
    started.wait_until_all_are_gone()
    assert not list(tmp_path.glob("badm-*"))
    assert Command(tmp_path, "run", *REPLICAS).ended()[0] == 0
    assert weights(tmp_path / "runs") == undisturbed("run", *REPLICAS)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("where", ["the command", "torchrun"])
def test_ranks_do_not_outlive_who_has_started_them(tmp_path: Path, where: str) -> None:
    started = Command(tmp_path, "run", *REPLICAS, loss="step == 3 and (say('loss'), hang())")
    rank, _ = started.wait_until_said("loss", times=2)
    torchrun = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    assert torchrun != started.process.pid
    os.kill(started.process.pid if where == "the command" else torchrun, signal.SIGKILL)
    code, _, err = started.ended()
    if where == "torchrun":
        assert code == 1
        assert "torchrun was killed by SIGKILL, perhaps for lack of memory" in err
    started.wait_until_all_are_gone()


@linux
@pytest.mark.slow
def test_a_rank_that_is_killed_again_and_again_is_named_with_the_signal(tmp_path: Path) -> None:
    kills = "step == 3 and os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL)"
    code, _, err = Command(tmp_path, "run", *REPLICAS, loss=kills).ended()
    assert code == 1
    assert err == (
        "badm: the ranks of sgd+average on unruly failed: "
        "rank 1 was killed by SIGKILL, perhaps for lack of memory\n"
    )


@linux
@pytest.mark.slow
def test_a_rank_that_exits_is_an_error_of_the_task(tmp_path: Path) -> None:
    code, out, err = Command(tmp_path, "run", *REPLICAS, loss="step == 3 and sys.exit(0)").ended()
    assert (code, out) == (1, "")
    assert err.startswith("badm: task unruly: loss raised SystemExit: 0 (unruly_task.py, line ")


@linux
@pytest.mark.slow
def test_torchrun_passes_a_signal_on_and_ranks_write_a_checkpoint(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]]
) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "badm")
    given = ("run", UNRULY_TASK, "--runs", tmp_path / "runs", *REPLICAS)
    started = Process(tmp_path, *torchrun, *given, loss=UNTIL_ASKED_TO_STOP)
    started.wait_until_said("loss", times=2)
    started.send(signal.SIGTERM)
    assert started.ended()[0] != 0
    started.wait_until_all_are_gone()
    assert list(tmp_path.glob("runs/unruly/*.checkpoint"))
    assert Command(tmp_path, "run", *REPLICAS).ended()[0] == 0
    assert weights(tmp_path / "runs") == undisturbed("run", *REPLICAS)


@linux
@pytest.mark.slow
def test_workers_write_checkpoints_when_a_signal_comes(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]]
) -> None:
    started = Command(tmp_path, "compare", *COMPARE, loss=UNTIL_ASKED_TO_STOP)
    started.wait_until_said("loss", times=2)
    started.send(signal.SIGTERM)
    code, out, err = started.ended()
    assert (code, out) == (143, "")
    assert err == f"{RESUME}\n"
    started.wait_until_all_are_gone()
    assert len(list(tmp_path.glob("runs/unruly/*.checkpoint"))) == 2
    assert Command(tmp_path, "compare", *COMPARE).ended()[0] == 0
    assert weights(tmp_path / "runs") == undisturbed("compare", *COMPARE)


@linux
@pytest.mark.slow
def test_a_killed_comparison_leaves_no_worker_behind_that_hangs(tmp_path: Path) -> None:
    started = Command(tmp_path, "compare", *COMPARE, data=f"say('data'); {IN_C_ALONE}")
    started.wait_until_said("data", times=2)
    started.send(signal.SIGKILL)
    started.ended()
    started.wait_until_all_are_gone()


@linux
@pytest.mark.slow
def test_a_worker_that_hangs_before_training_does_not_hold_up_ctrl_c(tmp_path: Path) -> None:
    started = Command(tmp_path, "tune", "--method", "sgd", data="wait('data')")
    started.wait_until_said("data")
    started.send(signal.SIGINT)
    assert started.ended()[0] == 130
    started.wait_until_all_are_gone()


@linux
@pytest.mark.slow
def test_a_worker_that_is_ended_alone_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]]
) -> None:
    once = f"step == 3 and 'loss' not in open({str(tmp_path / 'log')!r}).read()"
    waits = f"say('step'); {once} and wait_until_asked_to_stop('loss')"
    started = Command(tmp_path, "compare", *COMPARE, "--jobs", "1", loss=waits)
    (worker,) = started.wait_until_said("loss")
    os.kill(worker, signal.SIGTERM)
    code, _, err = started.ended()
    assert code == 0, err
    assert weights(tmp_path / "runs") == undisturbed("compare", *COMPARE)
    assert len(started.said("step")) == 4 * 99  # none was taken twice


@linux
@pytest.mark.slow
def test_what_a_worker_lets_others_read_and_print_is_not_the_commands(tmp_path: Path) -> None:
    code, out, _ = Command(
        tmp_path, "compare", *COMPARE, "--json", data="os.system('cat; echo noise')"
    ).ended()
    assert code == 0
    assert len(json.loads(out)["rows"]) == 2


@linux
@pytest.mark.slow
def test_relative_paths_of_a_comparison_are_meant_from_where_it_was_started(
    tmp_path: Path, undisturbed: Callable[..., dict[str, str]]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "task.py").write_text(UNRULY_TASK.read_text())
    given = ("compare", "task.py", "--runs", "runs", "-o", "report.json", *COMPARE)
    goes = "os.chdir('elsewhere')"
    code, out, err = Process(tmp_path, "-m", "badm", *given, **{"import": goes}).ended()
    assert code == 0, err
    assert out.endswith("written: report.json\n")
    assert len(json.loads((tmp_path / "report.json").read_text())["rows"]) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []
