"""Optimizers of the user's own: found in files and packages, unchanged, with stated settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from badm import bench, cli
from badm.bench.compare.choices import method_names, method_sources
from badm.bench.compare.trial_settings import searched_space
from badm.bench.errors import MethodError
from badm.bench.method import Range, TrainingSetup
from badm.bench.methods import find
from badm.bench.methods.own_methods import source_of
from badm.bench.methods.sources import in_brackets, read_settings, split_list
from badm.bench.records.runs import RunConfig, RunStore
from tests.helpers import QUICK_TASKS, own_optimizers
from tests.helpers.own_optimizers import METHOD, Signs

FILE = Path(own_optimizers.__file__)
QUICK = f"{QUICK_TASKS}:quick"


def badm(*arguments: object) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.application(), [str(a) for a in arguments], env=environment)


class FixedBatch:
    """A batch of the loss ‖w − 1‖²/2, for any trainer."""

    loss_weight = 1.0

    def __init__(self, model: nn.Module, lr_factor: float = 1.0) -> None:
        self.model, self.lr_factor = model, lr_factor
        self.gradients = 0

    def gradient(self) -> float:
        self.gradients += 1
        self.model.zero_grad()
        loss = torch.stack([(p - 1).square().sum() for p in self.model.parameters()]).sum() / 2
        loss.backward()
        return loss.item()


def stepped(method: Any, setting: dict[str, Any], *, lr_factor: float = 1.0) -> list[float]:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    trainer = method.build(TrainingSetup(model, 10), method.setting(setting))
    trainer.step(FixedBatch(model, lr_factor))
    return [p.item() for p in model.parameters()]


def test_an_optimizer_in_a_file_is_called_with_parameters_and_lr() -> None:
    method = find(f"{FILE}:Signs")
    assert method.name == "Signs"
    assert method.description == "Sign descent with momentum."
    assert method.defaults == {
        "lr": 0.01,
        "momentum": 0,
        "betas": [0.9, 0.99],
        "nesterov": False,
    }
    assert dict(method.space) == {"lr": Range(1e-4, 0.1)}
    assert stepped(method, {"lr": 0.25}) == [0.25, 0.25]
    assert stepped(method, {"lr": 0.5}, lr_factor=0.5) == [0.25, 0.25]


def test_a_setting_that_is_whole_by_default_may_be_a_fraction() -> None:
    assert find(f"{FILE}:Signs").setting({"momentum": 0.9})["momentum"] == 0.9


def test_settings_in_brackets_are_stated_and_not_searched() -> None:
    method = find(f"{FILE}:Signs[nesterov=True,lr=0.3,betas=(0.5,0.6)]")
    assert method.name == "Signs[nesterov=True,lr=0.3,betas=(0.5,0.6)]"
    assert dict(method.space) == {}
    assert method.setting({}) == {
        "lr": 0.3,
        "momentum": 0,
        "betas": [0.5, 0.6],
        "nesterov": True,
    }
    assert find(method.found_by).identity == method.identity
    assert "beta" not in searched_space(find("badm[beta=0.95]"), "wide")
    assert "beta" in searched_space(find("badm"), "wide")


def test_brackets_are_added_to_a_method_at_its_defaults_and_to_replicas() -> None:
    assert find("adam-untouched").space == {}
    assert find("adam[lr=0.01]-untouched").setting({})["lr"] == 0.01
    assert find("adam+outer[every=7]").setting({})["every"] == 7
    assert find(f"{FILE}:Signs+average").ranks({"ranks": 2}) == 2
    assert find(find(f"{FILE}:Signs[momentum=0.5]-untouched").found_by).setting({})[
        "momentum"
    ] == pytest.approx(0.5)


def test_what_an_optimizer_needs_can_stand_in_brackets() -> None:
    method = find(f"{FILE}:Ranked[rank=3]")
    assert method.setting({}) == {"lr": 1e-3, "rank": 3}
    assert stepped(method, {"lr": 0.5}) == [0.5, 0.5]


def test_a_method_in_a_file_has_its_own_groups_and_search_space() -> None:
    method = find(f"{FILE}:METHOD")
    assert (method.name, dict(method.space)) == ("two-rates", {"lr": Range(0.01, 1.0)})
    assert stepped(method, {"lr": 0.1}) == pytest.approx([0.1, 0.2])
    assert find(f"{FILE}:METHOD[bias_factor=5.0]").name == "two-rates[bias_factor=5.0]"


def test_a_function_may_make_the_optimizer_and_take_any_setting() -> None:
    method = find(f"{FILE}:made_by_a_function[momentum=0.5]")
    assert stepped(method, {"lr": 0.5}) == [0.5, 0.5]
    assert method.defaults == {"lr": 0.2, "momentum": 0.5}
    assert dict(method.space)["lr"] == Range(0.2 / 30, 0.2 * 30)


def test_an_optimizer_that_wants_a_closure_gets_one_and_its_gradients_are_counted() -> None:
    model = nn.Linear(1, 1)
    method = find("torch.optim:LBFGS[max_iter=3]")
    trainer = method.build(TrainingSetup(model, 10), method.setting({"lr": 0.3}))
    batch = FixedBatch(model)
    first, second = trainer.step(batch), trainer.step(batch)
    assert second < first
    assert batch.gradients > 2


def test_an_optimizer_with_modes_evaluates_the_weights_it_says() -> None:
    model = nn.Linear(1, 1)
    method = find(f"{FILE}:Modal")
    before = model.weight.item()
    trainer = method.build(TrainingSetup(model, 10), method.setting({}))
    training = model.weight.item()
    assert training == pytest.approx(before - 1)
    with trainer.evaluation_weights():
        assert model.weight.item() == pytest.approx(before)
    assert model.weight.item() == pytest.approx(training)


def test_a_package_has_its_version_in_the_identity() -> None:
    assert find("torch.optim:AdamW").identity == f"torch {torch.__version__.partition('+')[0]}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        (f"{FILE}:Sings", r"has no 'Sings'; did you mean .*Signs.*\?"),
        (f"{FILE}:NO_METHOD", "must be a torch.optim.Optimizer, a function.*got int"),
        (f"{FILE}:Ranked", r"needs rank: write .*own_optimizers.py:Ranked\[rank=...\]"),
        (f"{FILE}:Rateless", "must take lr, .*: it takes step_size; a badm.bench.Method"),
        (f"{FILE}:Signs[nestrov=True]", r"takes lr, .*, got nestrov; did you mean nesterov\?"),
        (str(FILE), r"has several methods: choose one of .*:Signs, .*:METHOD"),
        ("badm[betta=0.9]", r"badm takes lr, beta, .*, got betta; did you mean beta or beta2\?"),
        ("badm[beta]", r"must have settings as name=value in its brackets, got 'beta'"),
        ("badm[beta=0.9", "there is no method"),
        ("badm]", r"badm\] must have a \[ for its \]"),
        ("badm[beta=0.9,beta=0.8]", "must have every name once, got beta twice"),
        ("badm[beta=high]", "beta of badm must be a finite number, got 'high'"),
        ("nowhere.at.all:Mine", "there is no module nowhere for the method"),
    ],
)
def test_what_cannot_be_a_method_is_refused_in_a_sentence(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(source)


def test_a_file_that_raises_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(MethodError, match=r"ZeroDivisionError: .*\(mine.py, line 2\)"):
        find(f"{file}:Mine")


def test_a_changed_file_or_neighbour_is_another_version(tmp_path: Path) -> None:
    file, beside = tmp_path / "mine.py", tmp_path / "beside_an_optimizer.py"
    beside.write_text("RATE = 0.1\n")
    file.write_text(
        "import torch\nfrom beside_an_optimizer import RATE\n"
        "class Mine(torch.optim.SGD):\n"
        "    def __init__(self, params, lr=RATE): super().__init__(params, lr)\n"
    )
    first = find(f"{file}:Mine")
    assert find(f"{file}:Mine").identity == first.identity
    beside.write_text("RATE = 0.2\n")
    second = find(f"{file}:Mine")
    assert (first.defaults["lr"], second.defaults["lr"]) == (0.1, 0.2)
    assert first.identity != second.identity
    with pytest.raises(MethodError, match=r"mine.py:Mine was changed while it was being compared"):
        second.confirm(first.identity)


def test_a_class_and_a_method_are_found_where_they_are() -> None:
    assert source_of(Signs) == f"{FILE}:Signs"
    assert source_of(torch.optim.AdamW) == "torch.optim.adamw:AdamW"
    assert source_of(METHOD) == f"{FILE}:METHOD"
    assert method_sources([Signs, "badm", find(f"{FILE}:METHOD")]) == (
        f"{FILE}:Signs",
        "badm",
        f"{FILE}:METHOD",
    )

    class Local(torch.optim.SGD): ...

    with pytest.raises(ValueError, match="must be a name, an optimizer class or a Method"):
        source_of(Local)


def test_lists_are_split_outside_of_brackets_and_settings_written_in_one_way() -> None:
    assert split_list("a[x=(1,2),y='b,c'],d, e") == ["a[x=(1,2),y='b,c']", "d", "e"]
    for text in ("lr=0.1", "flag=True,name=fast", "betas=(0.9,0.99),nothing=None", "text='1'"):
        given = read_settings("mine", text)
        assert read_settings("mine", in_brackets(given).strip("[]")) == given
    assert method_names(f"{FILE}:Signs,badm[beta=0.95]") == ("Signs", "badm[beta=0.95]")


def test_a_run_of_a_method_with_brackets_has_a_file_of_plain_letters(tmp_path: Path) -> None:
    config = RunConfig("digits", "1", "cpu", 3, "badm[beta=0.9,x='a/../b']", {"lr": 0.1}, 0)
    path = RunStore(tmp_path).path(config)
    assert path.parent == tmp_path / "digits"
    assert path.name == f"badm-beta-0.9-x-a-..-b-seed0-{config.key}.jsonl"


@pytest.mark.slow
def test_an_own_optimizer_is_compared_by_workers_and_a_changed_file_trains_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILE, tmp_path / "mine.py")
    chosen = "mine.py:Signs,mine.py:Signs[nesterov=True,momentum=0.9],mine.py:METHOD,mine.py:Fails"
    command = ("compare", QUICK, "-m", chosen, "--trials", 2, "--seeds", 1, "--jobs", 1)
    done = badm(*command, "--json", "--reference", "mine.py:METHOD")
    assert done.exit_code == 1, done.output  # one of them fails, the others go on
    rows = {row["method"]: row for row in json.loads(done.stdout)["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "Signs": "finished",
        "Signs[nesterov=True,momentum=0.9]": "finished",
        "two-rates": "finished",
        "Fails": "failed",
    }
    assert rows["Signs[nesterov=True,momentum=0.9]"]["setting"]["momentum"] == 0.9
    assert "RuntimeError: no step today (mine.py, line " in rows["Fails"]["message"]
    files = {path.name for path in tmp_path.glob("runs/quick/Signs-seed0-*.jsonl")}
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n# changed\n")
    only = badm("compare", QUICK, "-m", "mine.py:Signs", "--trials", 2, "--seeds", 1, "--jobs", 1)
    assert only.exit_code == 0, only.output
    again = {path.name for path in tmp_path.glob("runs/quick/Signs-seed0-*.jsonl")}
    assert (len(files), len(again)) == (1, 2)
    assert badm("report", "runs", "-o", "table.md").exit_code == 0


@pytest.mark.slow
def test_python_takes_classes_and_methods(tmp_path: Path) -> None:
    result = bench.compare(
        QUICK, [Signs, METHOD, "sgd"], trials=1, seeds=1, jobs=1, runs=tmp_path, reference=Signs
    )
    rows = {row.method: row for row in result.comparison.rows}
    assert set(rows) == {"Signs", "two-rates", "sgd"}
    assert result.comparison.reference == "Signs"
    assert bench.tune(QUICK, Signs, trials=1, jobs=1, runs=tmp_path).settings == {
        "Signs": rows["Signs"].setting
    }
    done = bench.run(QUICK, Signs, setting={"momentum": 0.5}, runs=tmp_path)
    assert done is not None
    assert done.result.status == "finished"


@pytest.mark.parametrize(
    ("chosen", "code", "message"),
    [
        ("nowhere.py:Mine", 2, "there is no file nowhere.py"),
        ("badm[beta]", 2, "must have settings as name=value"),
        ("raises.py:Mine", 1, "raises.py cannot be imported: ZeroDivisionError"),
        (f"{FILE}:Signs,copied.py:Signs", 2, "methods must have different names, got Signs"),
    ],
)
def test_commands_refuse_what_they_cannot_use_with_a_sentence_and_a_code(
    chosen: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILE, tmp_path / "copied.py")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    commands = [("compare", QUICK, "-m", chosen), ("tune", QUICK, "-m", chosen)]
    commands += [] if "," in chosen else [("run", QUICK, "-m", chosen)]
    for command in commands:
        done = badm(*command)
        assert done.exit_code == code, done.output
        assert message in done.stderr
