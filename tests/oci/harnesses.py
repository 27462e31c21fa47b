"""Connect harnesses of a test."""

from typing import Any

import pytest

import oci
from headrace.testing.oci import OciClients

M = oci.streaming.models


def make(clients: OciClients, name: str = "h", **details: Any) -> Any:
    asked = M.CreateConnectHarnessDetails(name=name, compartment_id=clients.compartment_id, **details)
    return clients.admin_client().create_connect_harness(asked)


def error(caught: "pytest.ExceptionInfo[Any]") -> tuple[int, str]:
    return caught.value.status, caught.value.code
