import json
import os
import signal
from typing import Any
from uuid import UUID

import pytest
import redis
from tests.harness.brokers import brokers
from tests.harness.redis import RedisServer

from headrace.cli import client, main
from headrace.cli.client import Client
from headrace.testing import Server, server

QUICK_S = (0.2, 0.2, 10.0)
"""For `SOME_S`. The last is as long as the commands wait elsewhere, and ends with no error all the same."""


def test_a_topic_is_created_listed_described_and_deleted(headrace: Any) -> None:
    assert headrace.run("topics", "create", "life", "--partitions", "3") == "created topic life with 3 partitions\n"
    assert {"topic": "life", "partitions": 3, "records": 0} in headrace.json("topics", "list")
    described = headrace.json("topics", "describe", "life")
    assert described["topic"] == "life"
    assert UUID(described["id"]).int != 0
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert headrace.run("topics", "delete", "life") == "deleted topic life\n"
    assert "life" not in [line["topic"] for line in headrace.json("topics", "list")]


def test_a_person_is_asked_before_a_topic_is_deleted(headrace: Any) -> None:
    headrace.run("topics", "create", "doomed")
    question = headrace.run("topics", "delete", "doomed", stdin="n\n", person=True, status=130)
    assert question.startswith(f"Delete 'doomed' with all records, at {headrace.address}?")
    assert "doomed" in headrace.run("topics", "list")
    assert "deleted topic doomed" in headrace.run("topics", "delete", "doomed", stdin="y\n", person=True)
    headrace.run("topics", "create", "doomed")
    assert headrace.run("topics", "delete", "doomed", "--yes", person=True) == "deleted topic doomed\n"


def test_a_broker_that_hears_of_the_new_topic_a_moment_later_is_asked_again(
    headrace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    heard = Client.refresh

    def refresh(client: Client) -> None:
        asked.append(client)
        if len(asked) > 2:
            heard(client)

    monkeypatch.setattr(Client, "refresh", refresh)
    assert headrace.run("topics", "create", "heard-late", "--partitions", "1").startswith("created topic heard-late")


def test_without_a_number_of_partitions_the_server_decides(headrace: Any) -> None:
    created = headrace.json("topics", "create", "default-partitions")
    assert created == {"topic": "default-partitions", "partitions": 2, "config": {}}


def test_a_description_has_log_ends_configuration_and_streams(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "described", "--partitions", "1", "--config", "retention.ms=3600000")
    headrace.run("records", "produce", "described", stdin="a\nb\n")
    described = headrace.json("topics", "describe", "described")
    assert described["config"]["retention.ms"] == "3600000"
    assert described["config"]["max.message.bytes"] == "1048588"
    assert "headrace.streams" not in described["config"]
    (partition,) = described["partitions"]
    stream = partition.pop("stream")
    assert partition == {"partition": 0, "leader": 1, "log_start": 0, "log_end": 2}
    with redis.Redis.from_url(running.storage) as storage:
        assert storage.type(stream) == b"stream"


def test_a_description_for_people_shows_what_was_set(headrace: Any) -> None:
    headrace.run("topics", "create", "shown", "--partitions", "1", "--config", "retention.ms=3600000")
    shown = headrace.run("topics", "describe", "shown")
    assert "  retention.ms=3600000\n" in shown
    assert "max.message.bytes" not in shown
    assert "log start" in shown


def test_the_list_counts_records(headrace: Any) -> None:
    headrace.run("topics", "create", "counted")
    headrace.run("records", "produce", "counted", stdin="a\nb\nc\n")
    assert {"topic": "counted", "partitions": 2, "records": 3} in headrace.json("topics", "list")
    assert "counted" in headrace.run("topics", "list")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["create", "a b"], "cannot create topic 'a b': "),
        (["create", "odd", "--config", "retention.msec=1"], "did you mean retention.ms?"),
        (["create", "odd", "--config", "cleanup.policy=shrink"], "String must be one of: compact, delete"),
    ],
)
def test_a_refusal_is_reported_in_one_line(headrace: Any, arguments: list[str], reason: str) -> None:
    assert headrace.run("topics", *arguments, status=1) == ""
    assert reason in headrace.err
    assert headrace.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "delete", "__consumer_offsets", "--yes"],
        ["records", "produce", "__consumer_offsets"],
        ["records", "produce", "__transaction_state"],
    ],
)
def test_internal_topics_are_named_as_the_reason(headrace: Any, arguments: list[str]) -> None:
    """The client library has the code and no message for these."""
    headrace.run(*arguments, stdin="one\n", status=1)
    assert "is none of Kafka's internal topics" in headrace.err


def test_a_topic_is_not_created_twice(headrace: Any) -> None:
    headrace.run("topics", "create", "twice")
    headrace.run("topics", "create", "twice", status=1)
    assert headrace.err == "headrace: cannot create topic 'twice': topic 'twice' exists already\n"


def test_asking_for_a_missing_topic_does_not_create_it(headrace: Any) -> None:
    headrace.run("topics", "describe", "never", status=4)
    headrace.run("records", "tail", "never", status=4)
    assert "never" not in [line["topic"] for line in headrace.json("topics", "list")]


def test_a_configuration_is_altered_and_shown_before_and_after(headrace: Any) -> None:
    headrace.run("topics", "create", "altered", "--config", "max.message.bytes=5000")
    arguments = ["--config", "retention.ms=60000", "--unset", "max.message.bytes"]
    assert headrace.json("topics", "alter", "altered", *arguments) == {
        "topic": "altered",
        "config": {
            "retention.ms": {"before": "604800000", "after": "60000"},
            "max.message.bytes": {"before": "5000", "after": "1048588"},
        },
    }
    shown = headrace.run("topics", "alter", "altered", "--unset", "retention.ms")
    assert shown.splitlines()[-1].split() == ["retention.ms", "60000", "604800000"]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["alter", "unaltered"], 2, "what is to change?"),
        (["alter", "unaltered", "--config", "a=1", "--unset", "a"], 2, "a is both set and unset"),
        (["alter", "unaltered", "--config", "retention.msec=1"], 1, "did you mean retention.ms?"),
        (["alter", "unaltered", "--config", "retention.ms=soon"], 1, "cannot alter topic 'unaltered': "),
        (["alter", "unatlered", "--config", "retention.ms=1"], 4, "did you mean unaltered?"),
        (["grow", "unaltered", "--partitions", "2"], 1, "has 2 partitions already: their number can only grow"),
        (["grow", "unatlered", "--partitions", "3"], 4, "did you mean unaltered?"),
        (["describe", "unatlered"], 4, "no topic 'unatlered' at "),
        (["delete", "unaltered", "unatlered"], 4, "no topic 'unatlered' at "),
    ],
)
def test_an_immutable_setting_is_reported_in_one_line(
    headrace: Any, arguments: list[str], status: int, reason: str
) -> None:
    if "unaltered" not in [line["topic"] for line in headrace.json("topics", "list")]:
        headrace.run("topics", "create", "unaltered")
    assert headrace.run("topics", *arguments, status=status) == ""
    assert reason in headrace.err
    assert headrace.err.count("\n") == 1
    assert headrace.json("topics", "describe", "unaltered")["config"]["retention.ms"] == "604800000"


def test_more_partitions_than_one_request_may_create_say_how_there_can_be_so_many(headrace: Any) -> None:
    headrace.run("topics", "create", "widest", "--partitions", "10001", status=1)
    assert "10001 partitions in one request, where 10000 are the most" in headrace.err
    assert "add the others afterwards (headrace topics grow)" in headrace.err


def test_a_topic_grows(headrace: Any) -> None:
    headrace.run("topics", "create", "growing", "--partitions", "2")
    headrace.run("records", "produce", "growing", "--partition", "1", stdin="a\n")
    assert headrace.run("topics", "grow", "growing", "--partitions", "5") == (
        "topic growing has 5 partitions, 3 of them new\n"
    )
    ends = [part["log_end"] for part in headrace.json("topics", "describe", "growing")["partitions"]]
    assert ends == [0, 1, 0, 0, 0]


def test_thousands_of_partitions_are_described(headrace: Any) -> None:
    """More than the client library's version of DescribeConfigs has room for to name their streams."""
    headrace.run("topics", "create", "wide", "--partitions", "3000")
    described = headrace.json("topics", "describe", "wide")
    assert len(described["partitions"]) == 3000
    assert described["partitions"][2999]["stream"] is None
    assert described["config"]["retention.ms"] == "604800000"
    headrace.run("groups", "reset", "wide-group", "--topic", "wide", "--to-latest", "--execute")
    assert len(headrace.json("groups", "describe", "wide-group")["positions"]) == 3000
    headrace.run("topics", "delete", "wide")


def test_leaders_are_shown_where_replicas_are_away_that_the_end_of_a_log_waits_for(
    any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "SOME_S", QUICK_S)
    with redis.Redis.from_url(any_redis.url) as admin:
        admin.flushall()
    with server(redis=any_redis.url, min_insync_replicas=2) as alone:
        bootstrap = ("--bootstrap", alone.kafka)
        assert main.run(["topics", "create", "waits", "--partitions", "2", *bootstrap]) == 0
        capsys.readouterr()
        assert main.run(["topics", "describe", "waits", *bootstrap]) == 0
        said = capsys.readouterr().out
        assert "careful: where 2 of the partitions end is not known" in said
        assert main.run(["topics", "describe", "waits", "--json", *bootstrap]) == 0
    partitions = json.loads(capsys.readouterr().out)["partitions"]
    assert [(each["leader"], each["log_start"], each["log_end"]) for each in partitions] == [(1, 0, None)] * 2


def test_a_description_shows_known_facts_while_a_leader_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    # No broker takes over in the meantime.
    with brokers(2, broker_session_timeout_ms=120_000) as both:
        name = both.new_topic(8)
        leaders = both.leaders(1, name)
        # The one with the least id, which nothing else may hang on either.
        away = 1
        os.kill(both.servers[away].pid, signal.SIGSTOP)
        try:
            assert main.run(["topics", "describe", name, "--json", "--bootstrap", both.servers[3 - away].kafka]) == 0
        finally:
            os.kill(both.servers[away].pid, signal.SIGCONT)
    told = json.loads(capsys.readouterr().out)["partitions"]
    assert {each["partition"]: each["leader"] for each in told} == leaders
    for each in told:
        assert (each["log_start"], each["log_end"]) == ((None, None) if each["leader"] == away else (0, 0))
