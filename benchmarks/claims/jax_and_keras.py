"""What docs/jax-and-keras.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

JAX_AND_KERAS = PageClaims(
    constants=(
        ("without one, 1e-2 with a warm-up and a decay to 0", "the signature and the schedule"),
        ("Keras 3", "a name"),
    ),
    sections=(
        (
            "## How equal",
            "made from results/adapters.json, compared by tests/adapters/test_page.py",
        ),
    ),
)
