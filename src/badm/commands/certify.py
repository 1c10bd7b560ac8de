"""``badm certify``: the paper's theorem, measured against its bounds on a synthetic problem."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from badm.bench.files import os_error_reason
from badm.bench.report.terminal import console
from badm.commands.certificate_plot import FORMATS, draw
from badm.commands.exit_codes import STORE_FAILED, exit_with
from badm.processes import signals

if TYPE_CHECKING:
    import torch

    from badm.paper.partition import Partition
    from badm.paper.theory import Certificate, Problem

HOLDS, VIOLATED, NOT_COVERED = 0, 1, 3
MOST = 100_000_000  # steps, or numbers in a matrix: 0.8 GB


class ProblemName(str, Enum):
    least_squares = "least-squares"
    logistic = "logistic"


class StartName(str, Enum):
    gradient = "gradient"
    zero = "zero"


def _positive(value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"must be a finite number greater than 0, got {value}")
    return value


def _at_least_0(value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise typer.BadParameter(f"must be a finite number of at least 0, got {value}")
    return value


def _at_least_1(value: int) -> int:
    if not 1 <= value <= MOST:
        most = f" and at most {MOST:,}" if value > MOST else ""
        raise typer.BadParameter(f"must be a whole number of at least 1{most}, got {value}")
    return value


def _seed(value: int) -> int:
    if not 0 <= value < 2**32:
        raise typer.BadParameter(f"must be a whole number from 0 to 4,294,967,295, got {value}")
    return value


def _writable(path: Path) -> Path:
    if path.suffix not in FORMATS:
        raise typer.BadParameter(f"must end in one of {', '.join(FORMATS)}, got {path}")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"must be in a folder that exists, got {path}")
    return path


def certify(
    problem: Annotated[
        ProblemName,
        typer.Option(help="Loss of the problem: least-squares or logistic.", metavar="NAME"),
    ] = ProblemName.least_squares,
    samples: Annotated[
        int, typer.Option(callback=_at_least_1, help="Number of samples.", metavar="N")
    ] = 240,
    features: Annotated[
        int, typer.Option(callback=_at_least_1, help="Number of features.", metavar="N")
    ] = 8,
    l2: Annotated[
        float,
        typer.Option(callback=_at_least_0, help="Weight of (l2/2)‖w‖² in every loss.", metavar="X"),
    ] = 0.0,
    batches: Annotated[
        int, typer.Option(callback=_at_least_1, help="Number of batches.", metavar="B")
    ] = 1,
    sub_batches: Annotated[
        int,
        typer.Option(
            callback=_at_least_1, help="Number of sub-batches in each batch.", metavar="S"
        ),
    ] = 4,
    rho: Annotated[
        float | None,
        typer.Option(callback=_positive, help="Proximal weight ρ > 0. Default: η.", metavar="ρ"),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(callback=_positive, help="Penalty σ > 0. Default: 5·max(η, ρ).", metavar="σ"),
    ] = None,
    steps: Annotated[
        int, typer.Option(callback=_at_least_1, help="Number of iterations.", metavar="K")
    ] = 200,
    seed: Annotated[
        int, typer.Option(callback=_seed, help="Seed of data and partition.", metavar="N")
    ] = 0,
    start: Annotated[
        StartName,
        typer.Option(
            help="First duals: gradient, −∇F_s(w⁰), which the theorem covers, or zero.",
            metavar="NAME",
        ),
    ] = StartName.gradient,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", callback=_writable, help="File for the picture.", metavar="FILE"
        ),
    ] = Path("certificate.png"),
    picture: Annotated[bool, typer.Option(help="Draw the picture.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the verdict only.")] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Instead of one run: every (ρ, σ) of the paper, five seeds each."
        ),
    ] = False,
) -> None:
    """Check the convergence theorem of BADM on a run of Algorithm 1, step by step.

    Generates a synthetic problem, runs Algorithm 1 on it and prints what the theorem bounds beside
    the bound: the change of the augmented Lagrangian L at every iteration k, and the smallest
    squared gradient norm so far. The theorem asks for σ ≥ 5·max(η, ρ).

    **Exit codes**

    - 0: the theorem covers the run and held at every step
    - 1: the theorem covers the run and was violated
    - 2: invalid value
    - 3: the theorem does not cover the run (σ is too small); what was measured is printed
    - 4: the picture cannot be written

    **Examples**

    - `badm certify`
    - `badm certify --problem logistic --batches 4 -o logistic.png`
    - `badm certify --start zero --no-picture`
    - `badm certify --rho 2 --sigma 8 --json --no-picture`
    - `badm certify --paper`
    """
    with signals.exit_on_signal():
        from badm.commands.paper_settings import study
        from badm.paper.theory import Certificate
    out = console()
    if paper:
        if rho is not None or sigma is not None:
            raise typer.BadParameter(
                "cannot be used with --paper, which has its own", param_hint="--rho, --sigma"
            )
        problems = [synthetic(problem.value, samples, features, l2, seed + i) for i in range(5)]
        partitions = [divide(samples, batches, sub_batches, seed + i) for i in range(5)]
        rows = study(list(zip(problems, partitions, strict=True)), steps, start.value)
        if as_json:
            print(json.dumps(rows, indent=2))
        else:
            out.print(paper_table(rows))
        return

    made = synthetic(problem.value, samples, features, l2, seed)
    certificate = Certificate.measure(
        made,
        divide(samples, batches, sub_batches, seed),
        rho=made.eta if rho is None else rho,
        sigma=sigma,
        steps=steps,
        start=start.value,
    )
    title = (
        f"{problem.value}, synthetic: {samples} samples, {features} features, "
        f"B = {batches}, S = {sub_batches}, seed {seed}"
    )
    if picture:
        try:
            draw(certificate, title, output)
        except OSError as error:
            exit_with(f"cannot write {output}: {os_error_reason(error)}", STORE_FAILED)
    if as_json:
        print(json.dumps({"problem": title, **to_dict(certificate)}, indent=2))
    elif quiet:
        print(certificate.verdict)
    else:
        out.print(step_table(certificate, title))
        out.print(certificate.verdict)
        if picture:
            out.print(f"picture: {output}", soft_wrap=True)
    if not certificate.covered:
        raise typer.Exit(NOT_COVERED)
    raise typer.Exit(HOLDS if certificate.holds else VIOLATED)


def synthetic(name: str, samples: int, features: int, l2: float, seed: int) -> Problem:
    """A random problem: Gaussian features, targets of a linear model with noise."""
    if max(samples, features) * features > MOST:
        raise typer.BadParameter(
            f"must make matrices of at most {MOST:,} numbers, got {samples} x {features}",
            param_hint="--samples, --features",
        )
    import torch

    from badm.paper.theory import LeastSquares, LogisticRegression

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    a = normal(samples, features) / math.sqrt(features)
    scores = 3 * (a @ normal(features)) + normal(samples)
    return (
        LeastSquares(a, scores, l2)
        if name == "least-squares"
        else LogisticRegression(a, scores > 0, l2)
    )


def divide(samples: int, batches: int, sub_batches: int, seed: int) -> Partition:
    """That many batches, all of one size but for a smaller last one."""
    size = -(-samples // batches)
    count = -(-samples // size)
    if count != batches:
        raise typer.BadParameter(
            f"must divide {samples} samples into equal batches and a smaller last one: "
            f"batches of {size} make {count}, got {batches}",
            param_hint="--batches",
        )
    smallest = samples - (batches - 1) * size
    if sub_batches > smallest:
        raise typer.BadParameter(
            f"must be at most the {smallest} samples of the smallest batch, got {sub_batches}",
            param_hint="--sub-batches",
        )
    import torch

    from badm.paper.partition import Partition

    generator = torch.Generator().manual_seed(seed)
    return Partition(samples, size, sub_batches=sub_batches, generator=generator)


def iterations_shown(steps: int, always: list[int]) -> list[int]:
    """The iterations a table shows: all if few, else ever wider apart, with first and last."""
    if steps <= 20:
        return list(range(1, steps + 1))
    spaced = {round(steps ** (i / 15)) for i in range(16)}
    return sorted(spaced | set(always[:3]) | {1, steps})


def step_table(certificate: Certificate, title: str) -> Table:
    """Measured against bound for each iteration shown."""
    table = Table(title=title, caption=constants(certificate), title_justify="left")
    headings = ("k", "L^k", "L^k − L^(k−1)", "at most", "min ‖∇F‖²", "at most", "")
    for heading in headings:
        table.add_column(heading, justify="right")
    failed = certificate.violations
    for k in iterations_shown(len(certificate.change), failed):
        outside = "not covered" if k < certificate.first else "holds"
        table.add_row(
            str(k),
            f"{certificate.lagrangian[k]:.6g}",
            f"{certificate.change[k - 1]:+.2e}",
            f"{certificate.allowed[k - 1]:+.2e}",
            f"{certificate.best[k - 1]:.2e}",
            f"{certificate.bound[k - 1]:.2e}",
            Text("FAILS", style="red") if k in failed else outside,
        )
    return table


def constants(certificate: Certificate) -> str:
    """η, ρ, σ, δ and F* in a line."""
    exact = "=" if certificate.minimum.point is not None else "≥ (no minimiser)"
    return (
        f"η = {certificate.eta:.4g}, ρ = {certificate.rho:.4g}, σ = {certificate.sigma:.4g}, "
        f"δ ≤ {certificate.delta:.4g} ({certificate.delta_visited:.4g} at the points visited), "
        f"F* {exact} {certificate.minimum.value:.4g}, duals start at {certificate.start}"
    )


def paper_table(rows: list[dict[str, Any]]) -> Table:
    """How often the theorem's inequalities failed, for each setting of the paper."""
    table = Table(
        title=f"Synthetic problem: steps of {rows[0]['steps']} at which the theorem failed"
    )
    table.add_column("settings of")
    for heading in ("ρ : σ", *(f"σ = {scale}η" for scale in rows[0]["failed"])):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        counts = map(str, row["failed"].values())
        table.add_row(row["tasks"], f"{row['rho']} : {row['sigma']}", *counts)
    return table


def to_dict(certificate: Certificate) -> dict[str, Any]:
    """Numbers and lists for JSON."""
    scalars = ("rho", "sigma", "eta", "delta", "delta_visited", "threshold")
    lists = ("lagrangian", "spread", "movement", "gradient")
    derived = ("change", "allowed", "slack", "best", "bound")
    return {
        **{name: _number(getattr(certificate, name)) for name in scalars},
        "start": certificate.start,
        "minimum": certificate.minimum.value,
        "minimum_attained": certificate.minimum.point is not None,
        **{
            name: [_number(x) for x in getattr(certificate, name).tolist()]
            for name in (*lists, *derived)
        },
        "violations": certificate.violations,
        "covered": certificate.covered,
        "holds": certificate.holds,
        "verdict": certificate.verdict,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity
