"""Oracle's clients on the server that the plugin shares among the tests of a session."""

from collections.abc import Callable
from typing import Any

import pytest

import oci
from headrace.testing.oci import GroupReader, OciClients

Models = oci.streaming.models
StartReader = Callable[..., GroupReader]


@pytest.fixture
def client(headrace_oci: OciClients) -> oci.streaming.StreamClient:
    """What is put and got with; it tries nothing twice."""
    return headrace_oci.stream_client()


@pytest.fixture
def admin(headrace_oci: OciClients) -> oci.streaming.StreamAdminClient:
    return headrace_oci.admin_client()


@pytest.fixture
def stream(headrace_oci: OciClients) -> Any:
    """A stream of one partition."""
    return headrace_oci.create_stream("one")


@pytest.fixture
def wide(headrace_oci: OciClients) -> Any:
    """A stream of eight partitions."""
    return headrace_oci.create_stream("wide", 8)
