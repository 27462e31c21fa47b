"""`headrace archive --forget` removes the reports of ended archives, and nothing else."""

import time
from collections.abc import Iterator

import msgspec
import pytest
import redis
from tests.harness.storage import BareStorage, bare_storage

from headrace.cli import main
from headrace.cli.command import Status
from headrace.metrics.runs import ARCHIVE_RUNS, ArchiveReport, State
from headrace.storage.layout.keys import Keyspace

KEY = Keyspace().documents(ARCHIVE_RUNS)


@pytest.fixture(scope="module")
def storage() -> Iterator[BareStorage]:
    with bare_storage() as started:
        yield started


@pytest.fixture
def reports(storage: BareStorage) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(storage.url) as connection:
        connection.delete(KEY)
        for name, topic, table, state in (
            ("a", "flights", "./lake/flights", State.DONE),
            ("b", "orders", "./lake/orders", State.FAILED),
            ("c", "flights", "s3://lake/flights", State.STOPPED),
            ("d", "busy", "./lake/busy", State.RUNNING),
        ):
            now_ms = round(time.time() * 1000)
            told = ArchiveReport(topic=topic, table=table, state=state, started_ms=now_ms, told_ms=now_ms, host="h")
            connection.hset(KEY, name, msgspec.json.encode(told))
        connection.hset(KEY, "e", b"\xff{")
        yield connection


def left(reports: "redis.Redis") -> str:
    return "".join(sorted(name.decode() for name in reports.hkeys(KEY)))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "remaining"),
    [
        (["--topic", "flights", "--table", "lake/flights/"], "bcde"),
        (["--topic", "flights,orders", "--table", "lake/{topic}"], "cde"),
        (["--pattern", "f.*|o.*", "--table", "./lake/{topic}"], "cde"),
        (["--topic", "flights", "--table", "s3://lake/{topic}/"], "abde"),
    ],
)
def test_the_options_of_the_archive_name_its_cards(
    options: list[str], remaining: str, storage: BareStorage, reports: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["archive", "--forget", "--redis", storage.url, *options]) == 0
    assert left(reports) == remaining
    assert capsys.readouterr().out.startswith("removed the card of flights into ")


def test_a_running_archive_keeps_its_card_and_so_do_the_others(
    storage: BareStorage, reports: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["archive", "--forget", "--redis", storage.url, "--table", "lake/{topic}", "--pattern", "busy|flights"]
    assert main.run(command) == Status.FAILED
    assert left(reports) == "abcde"
    assert capsys.readouterr().err == "headrace: the archive of 'busy' into ./lake/busy reports from h: stop it first\n"


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        (
            ["--topic", "absent", "--table", "t"],
            Status.MISSING,
            "no archive of absent into t has reported; the console",
        ),
        (["--pattern", "(", "--table", "t"], Status.USAGE, "--pattern '(' is not a regular expression: "),
        (
            ["--topic", "x", "--table", "t", "--redis", "redis://127.0.0.1:1"],
            Status.UNREACHABLE,
            "the storage at redis://127.0.0.1:1 does not answer: ",
        ),
    ],
)
def test_what_cannot_be_removed_is_one_line(
    options: list[str],
    status: Status,
    line: str,
    storage: BareStorage,
    reports: "redis.Redis",
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["archive", "--forget", "--redis", storage.url, *options]) == status
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"headrace: {line}")
    assert left(reports) == "abcde"
