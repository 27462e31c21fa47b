"""What others put into topics, groups and records reaches a terminal as text, and a program as it was."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.harness.wire import Wire

from headrace.records import accelerator
from headrace.records.build import build
from headrace.testing import Server

EVIL = "\x1b[2J\x1b]0;owned\x07\u202eevil\x9b31m\x7f"
ESCAPED = r"\x1b[2J\x1b]0;owned\x07\u202eevil\x9b31m\x7f"


@pytest.fixture
def hostile(headrace: Any, running: Server) -> str:
    """A topic and a group from a malicious client."""
    if "hostile" not in [line["topic"] for line in headrace.json("topics", "list")]:
        headrace.run("topics", "create", "hostile", "--partitions", "1")
        now = 1_700_000_000_000
        records = [
            (EVIL.encode(), EVIL.encode(), now, ((EVIL, EVIL.encode()), ("none", None))),
            (b"\xff\x00", b"x" * 1_000_000, now, ()),
            (b"k" * 100_000, b"\xff" * 10, now, ()),
            (None, None, now, ()),
        ]
        with Wire(running.kafka) as wire:
            for record in records:
                assert wire.produce("hostile", bytes(build([record]))).error_code == 0
        for group in (EVIL, "g" * 1_000):
            member = Consumer({"bootstrap.servers": running.kafka, "group.id": group, "client.id": EVIL})
            member.commit(offsets=[TopicPartition("hostile", 0, 1)], asynchronous=False)
            member.close()
    return "hostile"


def on_terminal(running: Server, *arguments: str) -> str:
    """What a terminal of 80 columns gets to see, on standard output and error."""
    master, slave = pty.openpty()
    environment = os.environ | {"HEADRACE_BOOTSTRAP": running.kafka, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "headrace", *arguments]
    seen = b""
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        while True:
            try:
                piece = os.read(master, 65_536)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            seen += piece
        process.wait(60)
    os.close(master)
    return seen.decode()


COMMANDS = [
    ["records", "tail", "hostile", "--from-beginning", "--exit"],
    ["records", "tail", "hostile", "--from-beginning", "--exit", "--json"],
    ["records", "tail", "hostile", "--from-beginning", "--exit", "--format", "%k %v %h\\n"],
    ["groups", "list"],
    ["groups", "list", "--json"],
    ["groups", "lag"],
    ["groups", "describe", EVIL],
    ["groups", "describe", f"{EVIL}!"],
    ["groups", "reset", EVIL, "--to-earliest"],
    ["topics", "describe", EVIL],
    ["topics", "create", EVIL],
    ["records", "produce", "hostile", EVIL],
    ["records", "tail", "hostile", "--since", EVIL],
    ["topics", EVIL],
    ["topics", "list", f"--{EVIL}"],
    ["topics", "list", "--bootstrap", EVIL],
    ["topics", "list", "--profile", EVIL],
]


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments).replace(EVIL, "EVIL"))
def test_nothing_but_text_reaches_a_terminal(running: Server, arguments: list[str]) -> None:
    shown = on_terminal(running, *arguments)
    assert shown
    assert {letter for letter in shown if not letter.isprintable()} <= set("\r\n\t")


def test_a_megabyte_does_not_flood_a_terminal(running: Server, hostile: str) -> None:
    shown = on_terminal(running, "records", "tail", hostile, "--from-beginning", "--exit")
    assert "… (1,000,000 bytes)" in shown
    assert "… (100,000 bytes)" in shown
    assert len(shown) < 10_000
    # A cell is folded where its column ends, which depends on the other groups.
    groups = on_terminal(running, "groups", "list").split()
    assert {"(1,000", "characters)"} <= set(groups)
    assert len("".join(groups)) < 20_000


def test_a_pipe_gets_all_of_it(headrace: Any, hostile: str) -> None:
    lines = headrace.records(hostile)
    assert [lines[0]["key"], lines[0]["value"]] == [EVIL, EVIL]
    assert lines[0]["headers"] == [[EVIL, EVIL], ["none", None]]
    assert lines[1]["value"] == "x" * 1_000_000
    assert lines[1]["key"] == {"base64": "/wA="}
    assert len(headrace.run("records", "tail", hostile, "--offset", "1", "-n", "1", "--exit")) > 1_000_000
    raw = headrace.run("records", "tail", hostile, "--offset", "0", "-n", "1", "--exit", "--format", "%v")
    assert raw == EVIL


def test_a_program_gets_groups_as_they_are(headrace: Any, hostile: str) -> None:
    names = [line["group"] for line in headrace.json("groups", "list")]
    assert {EVIL, "g" * 1_000} <= set(names)
    assert headrace.json("groups", "describe", EVIL)["positions"][0]["topic"] == hostile
    assert ESCAPED in headrace.run("groups", "list")


def test_a_header_whose_name_is_no_text(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "odd-headers", "--partitions", "1")
    batch = build([(b"k", b"v", 1_700_000_000_000, (("h~\x1b", b"x"),))]).replace(b"~", b"\xff")
    batch[17:21] = accelerator.crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    many = 50  # the interpreter looks less closely at what it has called often
    with Wire(running.kafka) as wire:
        for _ in range(many):
            assert wire.produce("odd-headers", bytes(batch)).error_code == 0
    line, *rest = headrace.run("records", "tail", "odd-headers", "--from-beginning", "--exit", "--json").splitlines()
    assert len(rest) == many - 1
    assert (json.loads(line)["value"], json.loads(line)["headers"]) == ("v", None)
    assert headrace.run("records", "tail", "odd-headers", "--offset", "-1", "--exit", "-f", "%h %v") == "? v"
    assert headrace.run("records", "produce", "odd-headers", "--json", stdin=line)
