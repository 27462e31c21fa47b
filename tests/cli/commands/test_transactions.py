"""`headrace transactions`: shows open transactions, and aborts one by its id or in a partition."""

from collections.abc import Iterator

import pytest
from tests.cli.conftest import CommandLine
from tests.harness.wire import Wire
from tests.kafka.transactions import TransactionalProducer, begun_in

from headrace.cli.command import Status
from headrace.kafka.errors import Code
from headrace.testing import Server


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    with Wire(running.kafka) as client:
        yield client


def test_an_open_transaction_is_listed_described_and_aborted(headrace: CommandLine, wire: Wire) -> None:
    producer = begun_in(wire, "aborted", "bill\x1bing")
    TransactionalProducer(wire, "idle").initialize()
    [row] = headrace.json("transactions", "list")
    assert row["transactional_id"] == "bill\x1bing"
    assert (row["state"], row["timeout_s"], row["partitions"]) == ("Ongoing", 60, ["aborted-0"])
    assert 0 <= row["age_s"] < 60
    listed = {each["transactional_id"]: each for each in headrace.json("transactions", "list", "--all")}
    assert (listed["idle"]["state"], listed["idle"]["age_s"]) == ("Empty", None)
    assert headrace.json("transactions", "list", "--older-than", "3600") == []
    table = headrace.run("transactions", "list")
    assert "\x1b" not in table
    assert "Ongoing" in table
    found = headrace.json("transactions", "describe", "bill\x1bing")
    assert row["age_s"] <= found["age_s"]
    assert found == row | {"age_s": found["age_s"]}
    described = headrace.run("transactions", "describe", "bill\x1bing").splitlines()
    assert described[0].split() == ["state", "Ongoing"]
    assert described[-1].split() == ["partition", "aborted-0"]

    assert headrace.run("transactions", "abort", "bill\x1bing").startswith("aborted bill")
    assert wire.fetch("aborted", 0, isolation=1).last_stable_offset == 2
    assert producer.end(commit=True) == Code.PRODUCER_FENCED
    headrace.run("transactions", "abort", "bill\x1bing", status=Status.MISSING)
    assert "has no open transaction" in headrace.err


def test_a_transaction_is_aborted_in_one_partition(headrace: CommandLine, wire: Wire) -> None:
    producer = begun_in(wire, "hanging", "unknown")
    place = ("--topic", "hanging", "--partition", "0", "--producer-id", str(producer.producer_id))
    aborted = headrace.json("transactions", "abort", *place)
    assert aborted == {
        "topic": "hanging",
        "partition": 0,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "first_offset": 0,
    }
    assert wire.fetch("hanging", 0, isolation=1).last_stable_offset == 2
    headrace.run("transactions", "abort", *place, status=Status.MISSING)
    assert "has no open transaction in hanging-0" in headrace.err
    assert producer.end(commit=False) == Code.NONE


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("describe", "absent"), Status.MISSING, "there is no transactional id 'absent'"),
        (("abort", "absent"), Status.MISSING, "there is no transactional id 'absent'"),
        (("abort",), Status.USAGE, "name a transactional id, or --topic, --partition and --producer-id"),
        (("abort", "a", "--topic", "t"), Status.USAGE, "name a transactional id, or"),
        (("abort", "--topic", "t", "--partition", "0"), Status.USAGE, "name a transactional id, or"),
        (
            ("abort", "--topic", "nowhere", "--partition", "0", "--producer-id", "1"),
            Status.MISSING,
            "no topic 'nowhere'",
        ),
    ],
)
def test_what_cannot_be_done_is_said(headrace: CommandLine, arguments: tuple[str, ...], status: int, said: str) -> None:
    headrace.run("transactions", *arguments, status=status)
    assert said in headrace.err
