"""What the README shows is run: its commands in their order, against a server, with the output it promises."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import Server

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(?P<kind>console|python)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"


def steps() -> Iterator[tuple[str, str]]:
    """(command, promised output) of every console block, in order."""
    for block in BLOCK.finditer(README):
        if block["kind"] == "console":
            for step in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, _, output = step.partition("\n")
                yield command, output


def needs(command: str) -> str:
    """The marker under which a command is run."""
    if command == "headrace serve":
        return "nothing: the fixture has started it"
    if command.startswith("redis-cli"):
        return "apt"
    return "spark" if "read.py" in command else "plain"


class Shell:
    """Runs the README's commands in a directory of its own, where a server has its data in `.headrace`."""

    def __init__(self, home: Path, started: Server) -> None:
        self._home = home
        self._address = started.kafka
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "HEADRACE_KAFKA": started.kafka}
        for block in BLOCK.finditer(README):
            if block["name"]:
                (home / block["name"]).write_text(block["text"].replace(ADDRESS, started.kafka))

    def run(self, command: str) -> str:
        """Standard output; the status must be 0."""
        ended = subprocess.run(
            command,
            shell=True,
            cwd=self._home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stderr}"
        return ended.stdout


def lines(output: str) -> list[str]:
    """Lines without the blanks around them; sorted, as partitions are read in no particular order."""
    return sorted(line.rstrip() for line in output.strip().splitlines())


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    # A short path, unlike pytest's own: the README finds the Valkey's socket in the data directory.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        yield Shell(Path(folder), started)


@pytest.fixture(scope="module")
def produced(shell: Shell) -> dict[str, str]:
    """What the plain commands printed, run once and in order."""
    chosen = [command for command, _ in steps() if needs(command) == "plain"]
    return {command: shell.run(command) for command in chosen}


def test_the_first_command_is_serve() -> None:
    command, output = next(steps())
    assert command == "headrace serve"
    assert output.startswith(f"ready kafka={ADDRESS} http=http://127.0.0.1:8080 storage=unix://")


def test_plain_commands_print_what_is_promised(produced: dict[str, str]) -> None:
    promised = {command: output for command, output in steps() if command in produced}
    assert {command: lines(output) for command, output in produced.items()} == {
        command: lines(output) for command, output in promised.items()
    }
    assert len(produced) == 4


@pytest.mark.apt
@pytest.mark.usefixtures("produced")
def test_redis_cli_prints_what_is_promised(shell: Shell) -> None:
    chosen = [(command, output) for command, output in steps() if needs(command) == "apt"]
    assert len(chosen) == 2
    for command, output in chosen:
        assert lines(shell.run(command)) == lines(output)


@pytest.mark.spark
@pytest.mark.usefixtures("produced")
def test_spark_prints_what_is_promised(shell: Shell) -> None:
    ((command, output),) = [step for step in steps() if needs(step[0]) == "spark"]
    assert lines(shell.run(command)) == lines(output)
