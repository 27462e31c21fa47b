"""The pytest plugin: a server, clients for it and a clock to move, as fixtures. See docs/guides/testing.md.

pytest imports this module at every start wherever Headrace is installed, so nothing is imported here but pytest:
whatever a fixture needs is imported when it is first used.
"""

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.testing.clock import MovableClock
    from headrace.testing.inprocess import InProcessServer
    from headrace.testing.oci import OciClients

# ruff: noqa: PLC0415  # see above


@pytest.fixture(scope="session")
def headrace_settings() -> dict[str, Any]:
    """Settings of the server that the tests share, underscores for dots; override it: `{"oci_limits": "strict"}`."""
    return {}


@pytest.fixture(scope="session")
def headrace_server(headrace_settings: dict[str, Any]) -> "Iterator[InProcessServer]":
    """The server that the tests of a session share, in a thread of this process. It is started when first used."""
    from headrace.testing.inprocess import InProcessServer

    with InProcessServer(**headrace_settings) as server:
        yield server


@pytest.fixture
def headrace_clock(headrace_server: "InProcessServer") -> "Iterator[MovableClock]":
    """The server's clock: `headrace_clock.advance(seconds=31)` lets time pass, `step(hours=-1)` sets it.

    After a test that moved it the server is started anew, on the same addresses and with the machine's time: in the
    future, records that the next test's Kafka clients stamp with the present would be old ones.
    """
    clock = headrace_server.clock
    yield clock
    if clock.moved:
        headrace_server.stop()
        clock.reset()
        headrace_server.start()


@pytest.fixture
def headrace_kafka(headrace_server: "InProcessServer") -> Iterator[str]:
    """`HOST:PORT` for bootstrap.servers; every topic and group is removed when the test ends."""
    from headrace.testing.cleanup import sweep

    yield headrace_server.kafka
    sweep(headrace_server.kafka)


@pytest.fixture
def headrace_oci(headrace_server: "InProcessServer") -> "Iterator[OciClients]":
    """Clients of Oracle's `oci` package with a compartment of the test's own; what it made is removed when it ends."""
    if importlib.util.find_spec("oci") is None:
        pytest.fail("the fixture headrace_oci needs Oracle's SDK: pip install oci", pytrace=False)
    from headrace.testing.cleanup import sweep
    from headrace.testing.oci import OciClients

    clients = OciClients(headrace_server.http)
    yield clients
    clients.sweep()
    sweep(headrace_server.kafka)
