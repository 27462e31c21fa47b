"""Members of groups in Java and Go: programs of the tests, each in a process of its own.

A test module has a folder with its sources, and a fixture `command` for each language:

    @pytest.fixture(params=LANGUAGES)
    def command(request: pytest.FixtureRequest) -> Command: ...
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.harness import fetching
from tests.harness.apache_kafka import jars, java_command

PATIENCE_S = 60
_BUILD_S = 300
LANGUAGES = [pytest.param("java", marks=pytest.mark.maven), pytest.param("go", marks=pytest.mark.go)]
"""Each needs what its lane has."""
Command = Callable[..., list[str]]
"""Makes the command line of a member."""


def compiled_java(sources: Path, name: str, folder: Path) -> Command:
    """Compile a class into a folder. Return its command."""
    fetching.run(["javac", "-d", str(folder), "-cp", jars(), f"{name}.java"], sources, each_s=_BUILD_S)
    return lambda *words: java_command(name, *words, classes=f"{folder}:{jars()}")


def compiled_go(sources: Path, folder: Path) -> Command:
    """Compile a program into a folder. Return its command."""
    program = str(folder / "member")
    fetching.run([*fetching.GO_BUILD, "-o", program, "."], sources, each_s=_BUILD_S)
    return lambda *words: [program, *words]


class MemberProgram:
    """A member that runs until it is killed, or until its input ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill(self) -> None:
        """End it without a word to the server."""
        self.process.kill()
        self.ended()

    def close(self) -> None:
        """Let it leave the group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.ended()

    def ended(self) -> None:
        """Wait for its end."""
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
