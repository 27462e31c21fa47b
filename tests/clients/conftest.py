"""Real clients on a real server. A client more is one adapter in `tests.harness.clients` and one line here."""

import time
from collections.abc import Callable, Iterator

import pytest
from tests.harness.clients import Client
from tests.harness.clients.aio import AioKafka
from tests.harness.clients.confluent import Confluent
from tests.harness.clients.kafka_python import KafkaPython
from tests.harness.clients.kcat import Kcat
from tests.harness.wire import Wire

from headrace.testing import Server, server

ADAPTERS: dict[str, type[Client]] = {one.name: one for one in (Confluent, KafkaPython, AioKafka, Kcat)}
FROM_DEBIAN = {"kcat"}


def _parameters() -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.apt] if name in FROM_DEBIAN else []) for name in ADAPTERS]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """A server that the tests of a module share; each has topics and groups of its own."""
    with server(num_partitions=1) as started:
        yield started


@pytest.fixture(scope="module")
def restartable() -> Iterator[Server]:
    """A server that tests stop and start again."""
    with server(num_partitions=1) as started:
        yield started


@pytest.fixture(params=_parameters())
def client_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=_parameters())
def reader_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(client_name: str, running: Server) -> Client:
    return ADAPTERS[client_name](running.kafka)


@pytest.fixture
def reader(reader_name: str, running: Server) -> Client:
    return ADAPTERS[reader_name](running.kafka)


@pytest.fixture
def restarted_client(client_name: str, restartable: Server) -> Client:
    return ADAPTERS[client_name](restartable.kafka)


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    """A raw connection for setup and checks."""
    with Wire(running.kafka) as raw:
        yield raw


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own; the topic does not exist yet."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Asks until the answer is true; a failure after a minute."""

    def eventually(question: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not question():
            assert time.monotonic() < deadline, "it has not come true"

    return eventually
