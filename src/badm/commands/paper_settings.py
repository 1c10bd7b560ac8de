"""The penalties that the BADM paper lists, and how they fare against its theorem."""

from collections.abc import Sequence
from typing import Any

from badm.paper.partition import Partition
from badm.paper.theory import Certificate, Problem, Start

PAPER_RATIOS = (
    ("Cora, text classification", 1, 4),
    ("PubMed", 3, 7),
    ("Amazon Computers", 2, 3),
    ("Coauthor Physics, CMATERdb, MLM fine-tuning", 1, 1),
    ("Citeseer, conditional GAN", 3, 2),
    ("SVHN, PatchCamelyon, TF Flowers", 7, 3),
    ("DeepWeeds, MLM pre-training", 4, 1),
    ("CIFAR-10", 17, 3),
    ("Coauthor CS", 19, 1),
)
"""Tasks with their ρ : σ in lowest terms; the paper has ρ + σ from 1,000 to 10,000."""

SCALES = (5.0, 1.0, 0.5, 0.1)


def study(
    problems: Sequence[tuple[Problem, Partition]], steps: int, start: Start
) -> list[dict[str, Any]]:
    """Count the steps at which the theorem's inequalities fail, for every setting of the paper.

    Only the ratio of ρ and σ carries over to another problem, so σ is set to several multiples of
    its η and ρ follows.
    """
    rows = []
    for tasks, rho, sigma in PAPER_RATIOS:
        failed = dict.fromkeys(map(str, SCALES), 0)
        for scale in SCALES:
            for problem, partition in problems:
                penalty = scale * problem.eta
                certificate = Certificate.measure(
                    problem,
                    partition,
                    rho=penalty * rho / sigma,
                    sigma=penalty,
                    steps=steps,
                    start=start,
                )
                failed[str(scale)] += len(certificate.violations)
        total = steps * len(problems)
        rows.append({"tasks": tasks, "rho": rho, "sigma": sigma, "steps": total, "failed": failed})
    return rows
