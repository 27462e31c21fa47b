import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from tests.harness.commands import Command, run

from headrace.cli.client import Client
from headrace.testing import Server


def test_tail_stops_after_as_many_as_asked_for(headrace: Any) -> None:
    headrace.run("topics", "create", "many", "--partitions", "1")
    headrace.run("records", "produce", "many", stdin="".join(f"{number}\n" for number in range(20)))
    shown = headrace.run("records", "tail", "many", "--from-beginning", "--max", "3")
    assert [line.split()[-1] for line in shown.splitlines()] == ["0", "1", "2"]


def test_tail_from_now_on_to_the_end_shows_nothing(headrace: Any) -> None:
    headrace.run("topics", "create", "silent", "--partitions", "1")
    headrace.run("records", "produce", "silent", stdin="old\n")
    assert headrace.run("records", "tail", "silent", "--exit") == ""


def test_ctrl_c_ends_tail_with_status_0(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "followed", "--partitions", "1")
    headrace.run("records", "produce", "followed", stdin="first\n")
    with Command(running.kafka, "records", "tail", "followed", "--from-beginning") as tail:
        assert tail.out.readline().endswith("first\n")
        headrace.run("records", "produce", "followed", stdin="second\n")
        assert tail.out.readline().endswith("second\n")
        tail.interrupt()
        assert tail.status() == 0


def test_tail_says_when_the_server_goes_away_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as own:
        run(own.kafka, "records", "produce", "kept", stdin="first\n")
        with Command(own.kafka, "records", "tail", "kept", "--from-beginning", "--max", "2") as tail:
            assert tail.out.readline().endswith("first\n")
            own.stop()
            assert f"{own.kafka} no longer responds" in tail.err.readline()
            own.start()
            run(own.kafka, "records", "produce", "kept", stdin="second\n")
            assert tail.out.readline().endswith("second\n")
            assert tail.status() == 0


@pytest.fixture
def timed(headrace: Any) -> str:
    """A topic of one partition with the records 0 to 9, a second apart, of which the first two are gone."""
    if "timed" not in [line["topic"] for line in headrace.json("topics", "list")]:
        headrace.run("topics", "create", "timed", "--partitions", "1", "--config", "message.timestamp.type=CreateTime")
        lines = "".join(
            f'{{"key": "k{number % 3}", "value": "{number}", "timestamp": {1_700_000_000_000 + 1000 * number}}}\n'
            for number in range(10)
        )
        headrace.run("records", "produce", "timed", "--json", stdin=lines)
        headrace.run("records", "trim", "timed", "--offset", "2")
    return "timed"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--from-beginning"], "23456789"),
        (["--offset", "earliest"], "23456789"),
        (["--offset", "latest"], ""),
        (["--offset", "7"], "789"),
        (["--offset", "0"], "23456789"),
        (["--offset", "99"], ""),
        (["--offset", "-3"], "789"),
        (["--offset", "-99"], "23456789"),
        (["--offset", "+3"], "56789"),
        (["--since", "@1700000006500"], "789"),
        (["--since", "2023-11-14T22:13:28Z"], "89"),
        (["--since", "1h"], ""),
        (["--since", "9000d"], "23456789"),
        (["--offset", "earliest", "-n", "2"], "23"),
        (["--offset", "earliest", "--key", "k2"], "258"),
        (["--offset", "earliest", "--key", "k2", "-n", "2"], "25"),
        (["--offset", "earliest", "--key", "nobody"], ""),
    ],
)
def test_where_tail_begins_and_what_it_shows(headrace: Any, timed: str, arguments: list[str], values: str) -> None:
    assert headrace.run("records", "tail", timed, *arguments, "--exit", "--format", "%v") == values


@contextlib.contextmanager
def with_an_open_transaction(running: Server, topic: str) -> Iterator[Producer]:
    """A topic of one partition: a plain record, a committed, an aborted and an open transaction, and a plain record."""
    run(running.kafka, "topics", "create", topic, "--partitions", "1")
    run(running.kafka, "records", "produce", topic, stdin="plain\n")
    producer = Producer({"bootstrap.servers": running.kafka, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(20)
    for value in ("committed", "aborted", "open"):
        producer.begin_transaction()
        producer.produce(topic, value.encode())
        producer.flush(20)
        if value == "committed":
            producer.commit_transaction(20)
        if value == "aborted":
            producer.abort_transaction(20)
    run(running.kafka, "records", "produce", topic, stdin="after\n")
    yield producer
    with contextlib.suppress(KafkaException):
        producer.abort_transaction(20)


@pytest.fixture(scope="module")
def transactions(running: Server) -> Iterator[str]:
    with with_an_open_transaction(running, "transactions-shown"):
        yield "transactions-shown"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], ["plain", "committed"]),
        (["--isolation", "read_committed"], ["plain", "committed"]),
        (["--isolation", "read_uncommitted"], ["plain", "committed", "aborted", "open", "after"]),
        (["--offset", "-1"], []),
        (["--offset", "-1", "--isolation", "read_uncommitted"], ["after"]),
        (["--offset", "latest"], []),
    ],
)
def test_tail_shows_committed_records_by_default(
    headrace: Any, transactions: str, arguments: list[str], values: list[str]
) -> None:
    start = [] if "--offset" in arguments else ["--from-beginning"]
    shown = headrace.run("records", "tail", transactions, *start, *arguments, "--exit", "--format", "%v\\n")
    assert shown.splitlines() == values


def test_tail_shows_a_transaction_once_it_is_committed(running: Server) -> None:
    topic = "transaction-followed"
    arguments = ["--from-beginning", "--max", "4", "--format", "%v\\n"]
    with (
        with_an_open_transaction(running, topic) as producer,
        Command(running.kafka, "records", "tail", topic, *arguments) as tail,
    ):
        assert [tail.out.readline() for _ in range(2)] == ["plain\n", "committed\n"]
        producer.commit_transaction(20)
        assert [tail.out.readline() for _ in range(2)] == ["open\n", "after\n"]
        assert tail.status() == 0


def test_tail_ends_when_the_topic_is_deleted(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "soon-gone", "--partitions", "1")
    headrace.run("records", "produce", "soon-gone", stdin="a\n")
    with Command(running.kafka, "records", "tail", "soon-gone", "--from-beginning") as tail:
        assert tail.out.readline().endswith("a\n")
        headrace.run("topics", "delete", "soon-gone")
        assert tail.err.readline() == "headrace: cannot read topic 'soon-gone': there is no such topic or partition\n"
        assert tail.status() == 4
    assert "soon-gone" not in [line["topic"] for line in headrace.json("topics", "list")]


def test_a_topic_that_goes_while_it_is_looked_at_is_not_there(headrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace.run("topics", "create", "passing")
    offsets = Client.offsets

    def and_it_goes(client: Client, partitions: Any, spec: Any, **options: Any) -> dict[tuple[str, int], int]:
        found = offsets(client, partitions, spec, **options)
        with contextlib.suppress(KafkaException):
            client.admin.delete_topics(["passing"])["passing"].result()
        return found

    monkeypatch.setattr(Client, "offsets", and_it_goes)
    headrace.run("records", "trim", "passing", "-n", "1", status=4)
    assert "no topic 'passing' at " in headrace.err
