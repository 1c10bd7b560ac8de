"""What docs/hard-problems.md says in numbers: all of it is made from the results."""

from claims.page_claims import PageClaims

HARD_PROBLEMS = PageClaims(
    sections=(
        (
            "# Hard problems",
            "made from results/hard_problems.json, compared by tests/test_hard_problems.py",
        ),
    ),
)
