"""The pytest plugin: fixtures for a server, its clients and its clock. See docs/guides/testing.md.

pytest imports this module at every start, so each fixture imports its dependencies on first use.
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
    """Settings of the shared server, with underscores for dots. Override it: `{"oci_limits": "strict"}`."""
    return {}


@pytest.fixture(scope="session")
def headrace_server(headrace_settings: dict[str, Any]) -> "Iterator[InProcessServer]":
    """The server of the test session, in a thread of this process."""
    from headrace.testing.inprocess import InProcessServer

    with InProcessServer(**headrace_settings) as server:
        yield server


@pytest.fixture
def headrace_clock(headrace_server: "InProcessServer") -> "Iterator[MovableClock]":
    """The server's clock: `headrace_clock.advance(seconds=31)` lets time pass, `step(hours=-1)` sets it.

    After a test that moved it, the server is restarted with the system's time, on the same addresses. Otherwise records
    of the next test would look old.
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
def headrace_schema_registry(headrace_server: "InProcessServer", headrace_settings: dict[str, Any]) -> Iterator[str]:
    """URL of the schema registry; every subject is removed when the test ends.

    `headrace_settings` must contain `{"schema_registry_enable": True}`.
    """
    if str(headrace_settings.get("schema_registry_enable", "")).lower() != "true":
        pytest.fail(
            "the fixture headrace_schema_registry needs a server with a registry: override headrace_settings to return "
            '{"schema_registry_enable": True}',
            pytrace=False,
        )
    from headrace.testing.cleanup import sweep_schemas

    yield headrace_server.schema_registry
    sweep_schemas(headrace_server.schema_registry)


@pytest.fixture
def headrace_oci(headrace_server: "InProcessServer") -> "Iterator[OciClients]":
    """Clients of Oracle's `oci` package with a separate compartment, which is emptied when the test ends."""
    if importlib.util.find_spec("oci") is None:
        pytest.fail("the fixture headrace_oci needs Oracle's SDK: pip install oci", pytrace=False)
    from headrace.testing.cleanup import sweep
    from headrace.testing.oci import OciClients

    clients = OciClients(headrace_server.http)
    yield clients
    clients.sweep()
    sweep(headrace_server.kafka)
