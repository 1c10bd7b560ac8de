"""Every client trains, saves, is killed and resumes, and ends where an unbroken run ends."""

from __future__ import annotations

import pytest

from tests.clients.clients import CLIENTS, holds, installed
from tests.clients.harness import ADAMW, METRICS, Client, outcome

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@every_client
@pytest.mark.parametrize("metric", METRICS)
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(client: Client, metric: str) -> None:
    if not installed(client):
        pytest.skip(f"{' and '.join(client.packages)} not installed")
    found = outcome(client, metric)
    if not holds(client, found):
        beside = outcome(client, ADAMW)  # the client's own fault shows there too
        assert not holds(client, beside), f"{found}, and AdamW {beside}"
        pytest.xfail(f"with AdamW too: {found}, AdamW {beside}")
