"""The numbers in README and docs, which ``evidence.py`` compares with the results."""

from claims.choosing import CHOOSING
from claims.clients import CLIENTS
from claims.guides import INDEX, INSTALL, WHY
from claims.hard_problems import HARD_PROBLEMS
from claims.jax_and_keras import JAX_AND_KERAS
from claims.page_claims import PageClaims
from claims.readme import README
from claims.replicas import REPLICAS
from claims.reproduction import REPRODUCTION
from claims.results import RESULTS
from claims.theory import THEORY
from claims.trust import TRUST
from claims.tutorial import TUTORIAL

PAGES = {
    "README.md": README,
    "docs/choosing.md": CHOOSING,
    "docs/clients.md": CLIENTS,
    "docs/hard-problems.md": HARD_PROBLEMS,
    "docs/index.md": INDEX,
    "docs/install.md": INSTALL,
    "docs/jax-and-keras.md": JAX_AND_KERAS,
    "docs/replicas.md": REPLICAS,
    "docs/reproduction.md": REPRODUCTION,
    "docs/results.md": RESULTS,
    "docs/theory.md": THEORY,
    "docs/trust.md": TRUST,
    "docs/tutorial/README.md": TUTORIAL,
    "docs/why.md": WHY,
}

__all__ = ["PAGES", "PageClaims"]
