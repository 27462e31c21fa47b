"""What tests of several rooms ask for: a server of a module's own, a folder that is gone afterwards."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import Server, server


@pytest.fixture(scope="module")
def broker() -> Iterator[Server]:
    """A server in a process of its own, for the tests of one module."""
    with server() as started:
        yield started


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for tables and checkpoints. Unlike `tmp_path` it does not outlive the test: they are big."""
    # A task that Spark has given up may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)
