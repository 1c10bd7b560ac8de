"""What README and docs say in numbers: ``evidence.py`` holds it against the results."""

from claims.readme import README
from claims.replicas import REPLICAS
from claims.said import Said
from claims.theory import THEORY
from claims.tutorial import TUTORIAL

PAGES = {
    "README.md": README,
    "docs/replicas.md": REPLICAS,
    "docs/theory.md": THEORY,
    "docs/tutorial/README.md": TUTORIAL,
}

__all__ = ["PAGES", "Said"]
