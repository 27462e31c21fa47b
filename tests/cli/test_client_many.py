"""More partitions than one request may ask for."""

from collections.abc import Iterator

import pytest
from tests.cli.conftest import CommandLine

from headrace.cli import client
from headrace.testing import Server, server


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    with server(headrace_request_max_elements=8) as started:
        yield started


def test_every_command_asks_a_piece_at_a_time(
    narrow: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_AT_ONCE", 3)
    headrace = CommandLine(narrow.kafka, capsys, monkeypatch)
    headrace.run("topics", "create", "wide", "--partitions", "10")
    for number in range(9):
        headrace.run("topics", "create", f"other-{number}")
    headrace.run("records", "produce", "wide", "--partition", "9", stdin="a\nb\n")
    assert len(headrace.json("topics", "list")) == 10
    assert headrace.json("topics", "describe", "wide")["partitions"][9]["log_end"] == 2
    headrace.run("groups", "reset", "readers", "--topic", "wide", "--to-offset", "1", "--execute")
    [lag] = headrace.json("groups", "lag", "readers")
    assert (lag["topic"], lag["lag"]) == ("wide", 1)
    trimmed = headrace.json("records", "trim", "wide", "-n", "1")["partitions"]
    assert [each["log_start"] for each in trimmed] == [0] * 9 + [1]
    assert [record["value"] for record in headrace.records("wide")] == ["b"]
