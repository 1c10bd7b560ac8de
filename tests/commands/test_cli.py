"""The badm command: what it prints, draws and returns."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from badm import cli
from badm.commands import certify as command
from badm.paper.theory import Certificate

FEW = ("--samples", "40", "--features", "3", "--steps", "30")


def badm(*arguments: str) -> Result:
    # Wide and plain, so that no message is wrapped or coloured.
    return CliRunner().invoke(
        cli.application(), list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def test_version_is_that_of_the_package() -> None:
    result = badm("--version")
    assert (result.exit_code, result.output) == (0, f"badm {version('badm')}\n")


def test_certify_prints_measured_against_bound_first_and_last_included() -> None:
    result = badm("certify", *FEW, "--no-picture")
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
    assert [int(rows[0][0]), int(rows[-1][0])] == [1, 30]
    assert len(rows) < 30
    for _, _, change, allowed, best, bound, word in rows:
        assert float(change) < float(allowed) < 0
        assert float(best) < float(bound)
        assert word.strip() == "holds"
    assert "synthetic" in result.output
    assert "holds: σ =" in result.output


@pytest.mark.parametrize("problem", ["least-squares", "logistic"])
@pytest.mark.parametrize("batches", ["1", "4"])
def test_certify_exits_0_where_the_theorem_covers_the_run(problem: str, batches: str) -> None:
    result = badm("certify", *FEW, "--problem", problem, "--batches", batches, "--no-picture")
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_certify_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "certificate.png"
    assert badm("certify", *FEW, "-o", str(picture)).exit_code == 0
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000


def test_certify_json_holds_what_the_certificate_measured() -> None:
    result = badm("certify", *FEW, "--rho", "1", "--seed", "3", "--json", "--no-picture")
    shown = json.loads(result.stdout)
    problem = command.synthetic("least-squares", 40, 3, 0.0, 3)
    expected = Certificate.measure(problem, command.divide(40, 1, 4, 3), rho=1.0, steps=30)
    assert shown["lagrangian"] == expected.lagrangian.tolist()
    assert shown["bound"] == expected.bound.tolist()
    assert (len(shown["lagrangian"]), len(shown["slack"])) == (31, 30)
    assert shown["covered"] is shown["holds"] is True
    assert shown["sigma"] == pytest.approx(5 * max(shown["eta"], 1.0))
    assert "synthetic" in shown["problem"]


def test_certify_json_of_a_run_that_diverged_is_valid() -> None:
    result = badm("certify", "--sigma", "1e-4", "--rho", "1e-4", "--json", "--no-picture")
    shown = json.loads(result.stdout, parse_constant=pytest.fail)
    assert result.exit_code == 3
    assert shown["lagrangian"][-1] is None
    assert shown["delta"] == 0


def test_certify_quiet_prints_one_line() -> None:
    result = badm("certify", *FEW, "--quiet", "--no-picture")
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith("holds")


def test_certify_exits_3_when_sigma_is_too_small_for_the_theorem() -> None:
    result = badm("certify", *FEW, "--rho", "200", "--sigma", "800", "--no-picture")
    assert result.exit_code == 3
    assert "not covered: σ = 800 < 5·max(η, ρ) = 1000" in result.stdout


def test_certify_exits_1_when_a_covered_run_violates_the_theorem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Certificate, "violations", property(lambda self: [7]))
    result = badm("certify", *FEW, "--no-picture")
    assert result.exit_code == 1
    assert "VIOLATED" in result.stdout
    assert "FAILS" in result.stdout


def test_certify_from_zero_says_what_is_not_covered() -> None:
    result = badm("certify", *FEW, "--start", "zero", "--no-picture")
    assert result.exit_code == 0
    assert "Duals started at 0" in result.stdout
    first = next(line for line in result.stdout.splitlines() if line.startswith("│"))
    assert "not covered" in first


@pytest.mark.slow
def test_certify_paper_lists_every_ratio_of_the_paper() -> None:
    result = badm("certify", "--samples", "20", "--steps", "3", "--paper", "--json")
    rows = json.loads(result.stdout)
    assert sum(len(row["tasks"].split(", ")) for row in rows) == 16
    assert all(row["sigma"] < 5 * row["rho"] for row in rows)  # none is covered
    assert all(count <= row["steps"] for row in rows for count in row["failed"].values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rho", "0"), ("--rho", "greater than 0", "0.0")),
        (("--rho", "nan"), ("--rho", "finite", "nan")),
        (("--sigma", "-2"), ("--sigma", "greater than 0", "-2.0")),
        (("--l2", "-1"), ("--l2", "at least 0", "-1.0")),
        (("--steps", "0"), ("--steps", "at least 1", "got 0")),
        (("--samples", "10", "--sub-batches", "11"), ("--sub-batches", "at most the 10", "11")),
        (("--samples", "10", "--batches", "7"), ("--batches", "10 samples", "7")),
        (("--samples", "9", "--batches", "2", "--sub-batches", "5"), ("--sub-batches", "4", "5")),
        (("--problem", "lasso"), ("--problem", "lasso", "least-squares")),
        (("--start", "warm"), ("--start", "warm", "gradient")),
        (("-o", "nowhere/x.png"), ("--output", "folder that exists", "nowhere/x.png")),
        (("-o", "x.exe"), ("--output", ".png", "x.exe")),
        (("--paper", "--rho", "1"), ("--rho", "--paper")),
    ],
)
def test_bad_values_exit_2_and_name_argument_value_and_what_it_takes(
    arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = badm("certify", *arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in result.output


def test_help_states_exit_codes_and_examples() -> None:
    output = badm("certify", "--help").output
    assert "Exit codes" in output
    assert "badm certify --problem logistic" in output


@pytest.mark.parametrize("package", cli.EXTRA)
def test_without_the_extra_main_says_in_one_sentence_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == package or "badm.commands" in n]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("badm.commands", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    message = capsys.readouterr().err
    assert exit_.value.code == 2
    assert message.count("\n") == 1
    assert 'pip install "badm[bench]"' in message


def test_python_m_badm_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["badm", "certify", *FEW, "--quiet", "--no-picture"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("badm", run_name="__main__")
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("holds")


@pytest.mark.slow
def test_the_library_does_not_need_the_extra() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'matplotlib', 'numpy']));"
        "import badm.paper.theory, badm.cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
