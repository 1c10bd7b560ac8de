"""What the paper states for a task: its settings and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paper:
    """Settings and scores of one task of the paper; ``None`` where it states nothing.

    Attributes:
        lr: Learning rate of the baselines.
        rho: BADM's proximal weight ρ.
        sigma: BADM's penalty σ; its step is 1/σ.
        scores: Reported test score by name of the method, on the scale of the task's score.
        note: What to know when comparing with the paper, as a sentence without its full stop.

    >>> Paper(lr=1e-3, rho=200, sigma=800, scores={"adam": 0.7358}).scores["adam"]
    0.7358
    """

    lr: float | None = None
    rho: float | None = None
    sigma: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def at_example_lr(self, lr: float) -> Paper:
        """Change to the learning rate of the public example, for which the paper has no scores.

        The penalties keep their ratio: they are divided by what the learning rate is multiplied by.

        >>> paper = Paper(lr=1e-4, rho=6000, sigma=4000).at_example_lr(2e-4)
        >>> paper.rho, paper.sigma
        (3000.0, 2000.0)
        """
        assert self.lr is not None
        assert self.rho is not None
        assert self.sigma is not None
        times = lr / self.lr
        return Paper(
            lr,
            self.rho / times,
            self.sigma / times,
            note=f"The learning rate is that of the public example, {times:g} times the paper's, "
            "and the penalties are as many times less",
        )
