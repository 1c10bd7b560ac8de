"""What docs/clients.md says in numbers: all of it is made from the results."""

from claims.page_claims import PageClaims

CLIENTS = PageClaims(
    sections=(
        (
            "# Other packages",
            "made from results by docs/make_clients.py, compared by tests/test_clients_page.py",
        ),
    ),
)
