"""Servers that clients log in to."""

from collections.abc import Iterator

import pytest
from tests.kafka.transactional import transactional_server  # noqa: F401

from headrace.testing import InProcessServer


@pytest.fixture(scope="module")
def login_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    first = tmp_path_factory.mktemp("users") / "first"
    first.write_text("jane:secret")
    with InProcessServer(
        bootstrap_user=first,
        listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        connections_max_reauth_ms=60_000,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield running
