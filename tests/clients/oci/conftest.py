"""Oracle's clients on the server that the plugin shares among the tests of a session."""

from typing import Any

import pytest

from headrace.testing.oci import OciClients


@pytest.fixture
def client(headrace_oci: OciClients) -> Any:
    """What is put and got with; it tries nothing twice."""
    return headrace_oci.stream_client()


@pytest.fixture
def admin(headrace_oci: OciClients) -> Any:
    return headrace_oci.admin_client()


@pytest.fixture
def stream(headrace_oci: OciClients) -> Any:
    """A stream of one partition."""
    return headrace_oci.create_stream("one")


@pytest.fixture
def wide(headrace_oci: OciClients) -> Any:
    """A stream of eight partitions."""
    return headrace_oci.create_stream("wide", 8)
