"""Runs the tutorial: its files, its commands in order, and their printed output."""

import re
import tempfile
from pathlib import Path

import pytest
from tests.harness.pages import ADDRESS, Shell, lines, steps

from headrace.testing import Server

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
SPARKS = TUTORIAL.index("## 5.")
VARYING = ("headrace groups reset", "headrace archive", "headrace pipeline run")
"""Which partitions were read first, and how long things take, is another thing each time."""


def shown(command: str, output: str) -> list[str]:
    """What can be promised of a command's output."""
    if command.startswith(VARYING):
        output = re.sub(r"\d[\d.]*", "#", re.sub(r"[ ─]+", " ", output))
    return lines(output)


def as_run(command: str) -> str:
    """The archive reports progress on standard error; the page shows its last lines."""
    if not command.startswith("headrace archive"):
        return command
    return f"{command} > said 2>&1 || {{ cat said >&2; false; }}; cat said >&2; tail -n 1 said"


def test_the_first_command_is_serve() -> None:
    command, output = next(steps(TUTORIAL))
    assert command == "headrace serve"
    assert output.startswith(f"ready kafka={ADDRESS} http=http://127.0.0.1:8080 storage=unix://")


@pytest.mark.timeout(300)
def test_until_spark_everything_is_as_the_tutorial_says() -> None:
    # A short path, unlike pytest's own: the tutorial finds the Valkey's socket in the data directory.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, TUTORIAL)
        for command, output in list(steps(TUTORIAL[:SPARKS]))[1:]:
            assert shown(command, shell.run(command)) == shown(command, output), command


@pytest.mark.pipelines
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_from_the_first_topic_to_a_declared_pipeline() -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, TUTORIAL)
        done = [
            (command, output)
            for command, output in list(steps(TUTORIAL))[1:]
            if "billing" not in command  # looked at by the test before
        ]
        for command, output in done:
            assert shown(command, shell.run(as_run(command), seconds=580)) == shown(command, output), command
        assert len(done) == 10
