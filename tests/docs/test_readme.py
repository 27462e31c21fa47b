"""Run the commands of the README and of four guides in their order, and compare their output with the page."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.pages import ADDRESS, Shell, guides, lines, steps

from headrace.testing import Server, server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
OCI_GUIDE, NATIVE_GUIDE, COMMANDS_GUIDE, INTERFACES = (
    guides(name) for name in ("oci", "native-topics", "command-line", "interfaces")
)


def needs(command: str) -> str:
    """The marker under which a command is run."""
    if command == "headrace serve":
        return "nothing: the fixture has started it"
    if command.startswith("redis-cli"):
        return "apt"
    if "oci" in command:
        return "cli"
    return "spark" if "read.py" in command else "plain"


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    # A short path, unlike pytest's own: the page finds the Valkey's socket in the data directory.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        yield Shell(Path(folder), started, INTERFACES)


@pytest.fixture(scope="module")
def produced(shell: Shell) -> dict[str, str]:
    """What the plain commands printed, run once and in order."""
    chosen = [command for command, _ in steps(INTERFACES) if needs(command) == "plain"]
    return {command: shell.run(command) for command in chosen}


@pytest.mark.parametrize("page", [README, INTERFACES], ids=["README", "interfaces"])
def test_the_first_command_is_serve(page: str) -> None:
    command, output = next(steps(page))
    assert command == "headrace serve"
    assert output.startswith(f"ready kafka={ADDRESS} http=http://127.0.0.1:8080 storage=unix://")


def test_the_quick_start(tmp_path: Path) -> None:
    with server() as started:
        shell = Shell(tmp_path, started, README)
        chosen = [step for step in steps(README) if step[0] != "headrace serve"]
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 3


def test_plain_commands_print_what_is_promised(produced: dict[str, str]) -> None:
    promised = {command: output for command, output in steps(INTERFACES) if command in produced}
    assert {command: lines(output) for command, output in produced.items()} == {
        command: lines(output) for command, output in promised.items()
    }
    assert len(produced) == 4


@pytest.mark.apt
@pytest.mark.usefixtures("produced")
def test_redis_cli_prints_what_is_promised(shell: Shell) -> None:
    chosen = [(command, output) for command, output in steps(INTERFACES) if needs(command) == "apt"]
    assert len(chosen) == 2
    for command, output in chosen:
        assert lines(shell.run(command)) == lines(output)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("produced")
def test_spark_prints_what_is_promised(shell: Shell) -> None:
    ((command, output),) = [step for step in steps(INTERFACES) if needs(step[0]) == "spark"]
    assert lines(shell.run(command)) == lines(output)


@pytest.mark.cli
def test_oracles_clients_print_what_is_promised() -> None:
    """Use another server: redis-cli, which comes first on the page, would list the group of OCI's clients."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, INTERFACES)
        chosen = [step for step in steps(INTERFACES) if needs(step[0]) in {"plain", "cli"}]
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 7


def test_the_guide_to_the_command_line(tmp_path: Path) -> None:
    with server() as started:
        shell = Shell(tmp_path, started, README)
        for command, output in steps(COMMANDS_GUIDE):
            assert lines(shell.run(command)) == lines(output), command


@pytest.mark.apt
def test_the_guide_to_native_topics() -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, README)
        chosen = list(steps(NATIVE_GUIDE))
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 8


@pytest.mark.cli
def test_the_minute_of_the_oci_guide(tmp_path: Path) -> None:
    with server() as started:
        shell = Shell(tmp_path, started, README)
        chosen = [step for step in steps(OCI_GUIDE) if step[0] != "headrace serve"]
        assert [lines(shell.run(command)) for command, _ in chosen] == [lines(output) for _, output in chosen]
        assert len(chosen) == 5
