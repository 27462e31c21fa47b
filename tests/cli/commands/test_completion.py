"""What shells complete, asked as their own functions ask."""

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.testing import Server

BELL = "\a"
BIN = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def environment(headrace: Any, running: Server) -> dict[str, str]:
    """Of a shell whose server has topics and a group to complete."""
    for name in ("completed-flights", "completed-fares"):
        if name not in [line["topic"] for line in headrace.json("topics", "list")]:
            headrace.run("topics", "create", name)
    headrace.run("groups", "reset", "completed-readers", "--to-latest", "--topic", "completed-fares", "--execute")
    return os.environ | {"PATH": BIN, "HEADRACE_BOOTSTRAP": running.kafka}


CASES = [
    ("headrace gro", {"groups"}),
    ("headrace topics des", {"describe"}),
    ("headrace topics describe completed-fl", {"completed-flights"}),
    ("headrace records tail completed-", {"completed-flights", "completed-fares"}),
    ("headrace groups describe completed-", {"completed-readers"}),
    ("headrace groups reset g --topic completed-fa", {"completed-fares"}),
    ("headrace topics list --js", {"--json"}),
    ("headrace completion z", {"zsh"}),
]


def answered(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a shell says as soon as it completes anything: on a busy machine the server may take more than a second."""
    deadline = time.monotonic() + 120
    while True:
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        if answer.stdout.strip() or time.monotonic() > deadline:
            return answer


@pytest.mark.parametrize(("line", "completed"), CASES)
def test_bash(environment: dict[str, str], line: str, completed: set[str]) -> None:
    words = line.split()
    script = (
        'eval "$(headrace completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _headrace_completion "$1"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    answer = answered(["bash", "-c", script, "bash", *words], environment)
    assert set(answer.stdout.split()) == completed
    assert answer.stderr == ""


@pytest.mark.apt
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_fish(environment: dict[str, str], line: str, completed: set[str]) -> None:
    script = "headrace completion fish | source; complete -C $argv[1]"
    answer = answered(["fish", "-c", script, line], environment)
    assert {each.split("\t")[0] for each in answer.stdout.splitlines()} == completed
    if line == "headrace gro":
        assert answer.stdout == "groups\tList, describe, alter, reset and delete groups.\n"


@pytest.fixture
def zsh(environment: dict[str, str]) -> Iterator[int]:
    """The terminal of a zsh that completes."""
    master, slave = pty.openpty()
    plain = environment | {"TERM": "dumb", "PS1": "> "}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, env=plain, close_fds=True
    ) as shell:
        os.close(slave)
        try:
            os.write(master, b'autoload -U compinit; compinit -D; eval "$(headrace completion zsh)"; echo REA""DY\n')
            read_until(master, "READY")
            yield master
        finally:
            shell.kill()
            os.close(master)


def read_until(terminal: int, *wanted: str) -> str:
    """What the terminal shows until it has one of these; pytest's time-out ends a wait in vain."""
    seen = ""
    while not any(each in seen for each in wanted):
        seen += os.read(terminal, 65_536).decode("utf-8", "replace")
    return seen


@pytest.mark.apt
def test_zsh(zsh: int) -> None:
    os.write(zsh, b"headrace topics describe completed-fl\t")
    # It beeps without completions: a server on a busy machine may take more than a second.
    while "completed-flights" not in read_until(zsh, "completed-flights", BELL):
        os.write(zsh, b"\t")


def test_without_a_server_nothing_is_completed_and_nothing_said(environment: dict[str, str]) -> None:
    asking = environment | {
        "HEADRACE_BOOTSTRAP": "127.0.0.1:1",
        "COMP_WORDS": "headrace topics describe a",
        "COMP_CWORD": "3",
        "_HEADRACE_COMPLETE": "bash_complete",
    }
    answer = subprocess.run(["headrace"], env=asking, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.stdout.strip(), answer.stderr) == ("", "")


def test_names_that_a_shell_would_take_apart_are_left_out(
    headrace: Any, running: Server, environment: dict[str, str]
) -> None:
    headrace.run("groups", "reset", "odd name; rm -rf", "--to-latest", "--topic", "completed-fares", "--execute")
    asking = environment | {
        "COMP_WORDS": "headrace groups describe odd",
        "COMP_CWORD": "3",
        "_HEADRACE_COMPLETE": "bash_complete",
    }
    answer = subprocess.run(["headrace"], env=asking, capture_output=True, text=True, timeout=60, check=False)
    assert answer.stdout.strip() == ""


def test_a_shell_without_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
