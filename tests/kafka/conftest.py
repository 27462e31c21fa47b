"""A real server for tests that speak the protocol byte by byte."""

from collections.abc import Iterator

import pytest
from tests.harness.wire import Wire
from tests.kafka.quota_admin import Admin

from headrace.testing import Server, server
from headrace.testing.inprocess import InProcessServer

MAX_REQUEST = 4 << 20


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    """One server for every test of this folder; each test has topics of its own."""
    with server(socket_request_max_bytes=MAX_REQUEST) as started:
        yield started


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    """A connection of the test's own."""
    with Wire(running.kafka) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own; the topic does not exist yet."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def other(running: Server) -> Iterator[Wire]:
    with Wire(running.kafka) as client:
        yield client


@pytest.fixture(scope="module")
def limited() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


@pytest.fixture
def admin(limited: InProcessServer) -> Iterator[Admin]:
    with Admin(limited.kafka, client_id="admin") as wire:
        yield wire
        # Quotas of one test must not limit another one.
        wire.remove_all()
