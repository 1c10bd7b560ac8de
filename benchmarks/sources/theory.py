"""Output of ``badm certify``, and the problem it is about."""

from __future__ import annotations

from typing import Any

import torch

from badm.commands.certify import divide, synthetic
from badm.commands.paper_settings import PAPER_RATIOS
from sources.files import read, results, word

LOGISTIC = "badm certify --problem logistic --batches 4"
PAPERS = "badm certify --paper --steps 300"


def certificate(command: str = "badm certify") -> Any:
    """Return the output of a command in docs/theory.md."""
    return results("certificates")[command]


def falls() -> list[float]:
    """Return the decrease of the Lagrangian over that of the theorem, step by step."""
    found = certificate()
    return [own / asked for own, asked in zip(found["change"], found["allowed"], strict=True)]


def room() -> list[float]:
    """Return the bound over the squared gradient norm, ascending."""
    found = certificate()
    return sorted(bound / best for bound, best in zip(found["bound"], found["best"], strict=True))


def ratio(tasks: str) -> tuple[int, int]:
    """Return ρ : σ of the paper's tasks, in lowest terms."""
    read.add("badm.commands.paper_settings")
    return next((rho, sigma) for names, rho, sigma in PAPER_RATIOS if names == tasks)


def covered_by(limit: float) -> str:
    """Count the paper's tasks whose σ is below a multiple of ρ."""
    read.add("badm.commands.paper_settings")
    below = [names for names, rho, sigma in PAPER_RATIOS if sigma < limit * rho]
    return word(sum(len(names.split(", ")) for names in below))


def failed(tasks: str, scale: float) -> str:
    """Count the steps at which an inequality failed with the paper's penalties, per problem."""
    studies = (PAPERS, f"{PAPERS} --problem logistic")
    rows = (next(r for r in certificate(study) if r["tasks"] == tasks) for study in studies)
    return " / ".join(str(row["failed"][str(scale)]) for row in rows)


def smoothness(positions: int = 4) -> tuple[float, float, float]:
    """Return η of the samples in badm certify's default problem, of the worst F_s, and of F."""
    read.add("badm.commands.certify.synthetic")
    problem = synthetic("least-squares", 240, 8, 0.0, 0)
    (parts,) = divide(240, 1, positions, 0).batches()

    def of(index: Any) -> float:
        a = problem.features[index]
        return float(torch.linalg.eigvalsh(a.T @ a / len(a))[-1])

    return problem.eta, max(map(of, parts)), of(slice(None))
