"""The guide to share groups is run as it is printed: its programs and commands in their order."""

import tempfile
from pathlib import Path

import pytest
from tests.harness.pages import Shell, lines, steps

from headrace.testing import Server

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "share-groups.md").read_text("utf-8")


@pytest.mark.timeout(300)
def test_a_topic_becomes_a_queue() -> None:
    # A short path: the socket of the embedded Valkey is in it.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, GUIDE)
        done = [step for step in steps(GUIDE) if step[0] != "headrace serve"]
        for command, output in done:
            assert lines(shell.run(command)) == lines(output), command
        assert len(done) == 12
