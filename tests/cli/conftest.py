import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.testing import Server, server


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    """One server for all tests of client commands; each test has topics and groups of its own.

    It does not look for old records: some tests send records of 2023, which it would delete after five minutes.
    """
    with server(num_partitions=2, log_retention_check_interval_ms=24 * 3600 * 1000) as started:
        yield started


class CommandLine:
    """Runs client commands in this process, against one server."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.address = address
        self._capture = capture
        self._patch = patch
        self.err = ""

    def run(self, *arguments: str, stdin: str | bytes = b"", status: int = 0, person: bool = False) -> str:
        """Run `headrace <arguments> --bootstrap <server>`; gives standard output, and keeps stderr in `err`.

        `person`: standard input looks like a terminal to the command.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        given = io.TextIOWrapper(io.BytesIO(data))
        given.isatty = lambda: person  # type: ignore[method-assign]
        self._patch.setattr(sys, "stdin", given)
        ended = main.run([*arguments, "--bootstrap", self.address])
        out, self.err = self._capture.readouterr()
        assert ended == status, self.err
        return out

    def json(self, *arguments: str, stdin: str | bytes = b"") -> Any:
        """Run with `--json`; gives the answer."""
        return json.loads(self.run(*arguments, "--json", stdin=stdin))

    def records(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        """What `records tail --from-beginning --exit --json` shows, in the order of partitions and offsets."""
        out = self.run("records", "tail", topic, "--from-beginning", "--exit", "--json", *arguments)
        return sorted(map(json.loads, out.splitlines()), key=lambda line: (line["partition"], line["offset"]))


@pytest.fixture(autouse=True)
def nobodys_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ignore the profiles of the user that runs the tests; returns the folder for a test's own profiles."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for name in ("BOOTSTRAP", "PROFILE", "KAFKA", "HTTP", "REDIS", "KAFKA_USERNAME", "KAFKA_PASSWORD"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    return folder


@pytest.fixture
def headrace(running: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, pointed at the running server."""
    return CommandLine(running.kafka, capsys, monkeypatch)
