"""What ``badm certify`` has printed, and the problem it is about."""

from __future__ import annotations

from typing import Any

import torch

from badm.commands.certify import divide, synthetic
from badm.commands.paper_settings import PAPER_RATIOS
from sources.files import read, results, word

LOGISTIC = "badm certify --problem logistic --batches 4"
PAPERS = "badm certify --paper --steps 300"


def certificate(command: str = "badm certify") -> Any:
    """What a command that docs/theory.md names has printed."""
    return results("certificates")[command]


def falls() -> list[float]:
    """How many times as far as the theorem asks the Lagrangian falls, step by step."""
    found = certificate()
    return [own / asked for own, asked in zip(found["change"], found["allowed"], strict=True)]


def room() -> list[float]:
    """How many times the squared gradient norm is below its bound, from the least."""
    found = certificate()
    return sorted(bound / best for bound, best in zip(found["bound"], found["best"], strict=True))


def ratio(tasks: str) -> tuple[int, int]:
    """ρ : σ of the paper's tasks, in lowest terms."""
    read.add("badm.commands.paper_settings")
    return next((rho, sigma) for names, rho, sigma in PAPER_RATIOS if names == tasks)


def covered_by(limit: float) -> str:
    """How many of the paper's tasks have σ below so many times ρ."""
    read.add("badm.commands.paper_settings")
    below = [names for names, rho, sigma in PAPER_RATIOS if sigma < limit * rho]
    return word(sum(len(names.split(", ")) for names in below))


def failed(tasks: str, scale: float) -> str:
    """Steps at which an inequality failed with the paper's penalties, for both problems."""
    studies = (PAPERS, f"{PAPERS} --problem logistic")
    rows = (next(r for r in certificate(study) if r["tasks"] == tasks) for study in studies)
    return " / ".join(str(row["failed"][str(scale)]) for row in rows)


def smoothness(positions: int = 4) -> tuple[float, float, float]:
    """η of the samples in the default problem of badm certify, of the worst F_s, and of F."""
    read.add("badm.commands.certify.synthetic")
    problem = synthetic("least-squares", 240, 8, 0.0, 0)
    (parts,) = divide(240, 1, positions, 0).batches()

    def of(index: Any) -> float:
        a = problem.features[index]
        return float(torch.linalg.eigvalsh(a.T @ a / len(a))[-1])

    return problem.eta, max(map(of, parts)), of(slice(None))
