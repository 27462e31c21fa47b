"""What the README and the OCI guide show is run: commands in their order, on a server, with the output they promise."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import Server, server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
OCI_GUIDE = (ROOT / "docs" / "guides" / "oci.md").read_text("utf-8").partition("## Pointing a program at it")[0]
NATIVE_GUIDE = (ROOT / "docs" / "guides" / "native-topics.md").read_text("utf-8")
COMMANDS_GUIDE = (ROOT / "docs" / "guides" / "command-line.md").read_text("utf-8")
BLOCK = re.compile(r"^```(?P<kind>console|python)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# A backslash at its end continues a line.
STEP = re.compile(r"(?P<command>(?:[^\n]*\\\n)*[^\n]*)\n")
ADDRESS = "127.0.0.1:9092"


def steps(page: str = README) -> Iterator[tuple[str, str]]:
    """(command, promised output) of every console block, in order."""
    for block in BLOCK.finditer(page):
        if block["kind"] == "console":
            for step in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                parts = STEP.match(step)
                assert parts is not None, step
                yield parts["command"], step[parts.end() :]


def needs(command: str) -> str:
    """The marker under which a command is run."""
    if command == "headrace serve":
        return "nothing: the fixture has started it"
    if command.startswith("redis-cli"):
        return "apt"
    if "oci" in command:
        return "cli"
    return "spark" if "read.py" in command else "plain"


class Shell:
    """Runs commands in a directory of its own, where a server has its data in `.headrace`; variables are kept."""

    def __init__(self, home: Path, started: Server) -> None:
        self._home = home
        self._address = started.kafka
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("OCI_")} | {
            "PATH": path,
            "HOME": str(home),
            "HEADRACE_BOOTSTRAP": started.kafka,
            "HEADRACE_HTTP": started.http.removeprefix("http://"),
        }
        for block in BLOCK.finditer(README):
            if block["name"]:
                (home / block["name"]).write_text(block["text"].replace(ADDRESS, started.kafka))

    def run(self, command: str) -> str:
        """Standard output; the status must be 0."""
        left = self._home / ".variables"
        ended = subprocess.run(
            ["bash", "-c", f"set -ae; {command}\nenv -0 > {left}"],
            cwd=self._home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stderr}"
        self._environment = dict(pair.split("=", 1) for pair in left.read_text().split("\0") if pair)
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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("produced")
def test_spark_prints_what_is_promised(shell: Shell) -> None:
    ((command, output),) = [step for step in steps() if needs(step[0]) == "spark"]
    assert lines(shell.run(command)) == lines(output)


@pytest.mark.cli
def test_oracles_clients_print_what_is_promised() -> None:
    """On a server of its own: a group that OCI's clients make is seen by redis-cli, which comes first in the README."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started)
        chosen = [step for step in steps() if needs(step[0]) in {"plain", "cli"}]
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 7


def test_the_guide_to_the_command_line(tmp_path: Path) -> None:
    with server() as started:
        shell = Shell(tmp_path, started)
        for command, output in steps(COMMANDS_GUIDE):
            assert lines(shell.run(command)) == lines(output), command


@pytest.mark.apt
def test_the_guide_to_native_topics() -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started)
        chosen = list(steps(NATIVE_GUIDE))
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 8


@pytest.mark.cli
def test_the_minute_of_the_oci_guide(tmp_path: Path) -> None:
    with server() as started:
        shell = Shell(tmp_path, started)
        chosen = [step for step in steps(OCI_GUIDE) if step[0] != "headrace serve"]
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 5
