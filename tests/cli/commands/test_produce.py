import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.cli.conftest import CommandLine
from tests.harness.commands import Command
from tests.harness.redis import RedisServer

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.cli import main
from headrace.cli.command import Status
from headrace.testing import Server, server


def test_lines_become_records_in_order(headrace: Any) -> None:
    headrace.run("topics", "create", "lines", "--partitions", "1")
    assert headrace.run("records", "produce", "lines", stdin="one\n\ntwo") == "3 records sent to lines\n"
    read = headrace.records("lines")
    assert [(line["offset"], line["key"], line["value"]) for line in read] == [
        (0, None, "one"),
        (1, None, ""),
        (2, None, "two"),
    ]


@pytest.mark.parametrize("login", [False, True])
def test_a_server_without_idempotent_producers_gets_them_in_order_too(
    login: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OCI Streaming's endpoint."""
    sets: dict[str, Any] = {"oci_kafka": "strict", "auto_create_topics_enable": True, "num_partitions": 1}
    if login:
        sets["oci_auth_kafka"] = "required"
    with server(**sets) as strict:
        if login:
            monkeypatch.setenv("HEADRACE_KAFKA_USERNAME", "acme/jane/ocid1.streampool.oc1.local.default")
            monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "token")
        headrace = CommandLine(strict.kafka, capsys, monkeypatch)
        lines = [f"{number}" for number in range(20_000)]
        assert headrace.run("records", "produce", "plain", stdin="\n".join(lines)) == "20000 records sent to plain\n"
        assert [line["value"] for line in headrace.records("plain")] == lines


def test_keys_decide_the_partition(headrace: Any) -> None:
    headrace.run("topics", "create", "keyed", "--partitions", "4")
    lines = "".join(f"k{number % 5}:{number}\n" for number in range(50))
    headrace.run("records", "produce", "keyed", "--key-separator", ":", stdin=lines)
    read = headrace.records("keyed")
    assert len(read) == 50
    homes: dict[str, set[int]] = {}
    for line in read:
        homes.setdefault(line["key"], set()).add(line["partition"])
    assert len(homes) == 5
    assert all(len(partitions) == 1 for partitions in homes.values())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_lines_come_back_as_they_went_in(headrace: Any, codec: str) -> None:
    topic = f"round-trip-{codec}"
    headrace.run("topics", "create", topic, "--partitions", "1")
    sent: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["h", "x"], ["h", None]], "timestamp": 1_700_000_000_000},
        {"key": None, "value": None, "headers": [], "timestamp": 1_700_000_000_001},
        {"key": "", "value": {"base64": "/wA="}, "headers": [], "timestamp": 1_700_000_000_002},
    ]
    lines = "\n".join(map(json.dumps, sent))
    answer = headrace.json("records", "produce", topic, "--compression", codec, stdin=lines)
    assert answer == {"topic": topic, "records": 3}
    read = headrace.records(topic)
    assert [{name: line[name] for name in sent[0]} for line in read] == sent


def test_bytes_that_are_no_text_are_sent_as_they_are(headrace: Any) -> None:
    headrace.run("topics", "create", "raw", "--partitions", "1")
    headrace.run("records", "produce", "raw", stdin=b"\xff\xfe\n")
    assert [line["value"] for line in headrace.records("raw")] == [{"base64": "//4="}]


def test_a_bad_line_is_named_by_its_number(headrace: Any) -> None:
    headrace.run("records", "produce", "bad-lines", "--json", stdin='{"value": 1}\nnope\n', status=1)
    assert headrace.err.splitlines()[-1].startswith("headrace: line 2 of the input: not JSON")


def test_records_before_an_invalid_line_are_sent_and_counted(headrace: Any) -> None:
    headrace.run("topics", "create", "read-before", "--partitions", "1")
    good = "".join(f"k:{number}\n" for number in range(3_000))
    headrace.run("records", "produce", "read-before", "--key-separator", ":", stdin=f"{good}none\nk:last\n", status=1)
    assert headrace.err == (
        "headrace: line 3001 of the input: expected KEY:VALUE, found 'none'; 3000 records before it were sent\n"
    )
    assert len(headrace.records("read-before")) == 3_000
    headrace.run("records", "produce", "read-before", "--key-separator", ":", stdin="none\n", status=1)
    assert headrace.err.endswith("found 'none'; nothing was sent\n")


def test_the_rejection_of_records_before_a_bad_line_is_explained(headrace: Any) -> None:
    headrace.run("topics", "create", "half-taken", "--partitions", "2", "--config", "max.message.bytes=1000")
    words = ("records", "produce", "half-taken", "--key-separator", ":")
    large = f"a:{os.urandom(5_000).hex()}\n"
    why = "a record is larger than the topic takes: `headrace topics alter` raises its max.message.bytes"
    headrace.run(*words, stdin=f"{large}none\n", status=1)
    assert headrace.err.endswith(f"found 'none'; 1 of 1 record before it was not taken ({why})\n")
    # Of another partition, and so of another batch.
    headrace.run(*words, stdin=f"{large}d:small\nnone\n", status=1)
    assert headrace.err.endswith(f"1 of 2 records before it was not taken ({why}), 1 was sent\n")


def test_a_topic_created_implicitly_is_reported(headrace: Any) -> None:
    headrace.run("topics", "create", "deliveries")
    headrace.run("records", "produce", "delivreies", stdin="a\n")
    assert headrace.err == (
        "headrace: created topic delivreies with 2 partitions; did you mean deliveries? "
        "`headrace topics delete delivreies` takes it back\n"
    )
    headrace.run("records", "produce", "delivreies", stdin="b\n")
    assert headrace.err == ""
    assert len(headrace.records("delivreies")) == 2


def test_nothing_to_send_creates_nothing(headrace: Any) -> None:
    headrace.run("records", "produce", "no-lines", stdin="")
    assert "no-lines" not in [line["topic"] for line in headrace.json("topics", "list")]


def test_a_server_that_creates_no_topics_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\n")
    with server(auto_create_topics_enable="false") as strict:
        assert main.run(["records", "produce", "nowhere", str(lines), "--bootstrap", strict.kafka]) == 4
    assert capsys.readouterr().err == (
        f"headrace: no topic 'nowhere' at {strict.kafka}, which creates none by itself; "
        "`headrace topics create nowhere` creates it\n"
    )


def test_produce_says_at_once_when_the_server_goes_away(tmp_path: Path) -> None:
    """While a person types: nothing is under way when the server goes, and the next line is kept until it is back."""
    with Server(tmp_path / "data") as own, Command(own.kafka, "records", "produce", "typed") as typing:
        typing.write_line("first")
        assert typing.err.readline() == "headrace: created topic typed with 1 partition\n"
        own.stop()
        assert f"{own.kafka} no longer responds" in typing.err.readline()
        own.start()
        typing.write_line("second", last=True)
        assert "answers again" in typing.err.readline()
        assert typing.out.read() == "2 records sent to typed\n"
        assert typing.status() == 0


def test_a_partition_may_be_named(headrace: Any) -> None:
    headrace.run("topics", "create", "placed", "--partitions", "3")
    headrace.run("records", "produce", "placed", "--partition", "2", stdin="a\nb\n")
    assert [line["partition"] for line in headrace.records("placed")] == [2, 2]
    assert headrace.records("placed", "--partition", "1") == []
    headrace.run("records", "tail", "placed", "--partition", "3", status=4)
    assert "has partitions 0 to 2, not 3" in headrace.err


def test_files_are_sent_with_headers_and_a_key(headrace: Any, tmp_path: Path) -> None:
    headrace.run("topics", "create", "from-files", "--partitions", "1")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a\nb\n")
    second.write_text("c")
    arguments = ["--key", "k", "-H", "source=files", "-H", "empty="]
    sent = headrace.run("records", "produce", "from-files", str(first), "-", str(second), *arguments, stdin="in\n")
    assert sent == "4 records sent to from-files\n"
    read = headrace.records("from-files")
    assert [line["value"] for line in read] == ["a", "b", "in", "c"]
    assert {line["key"] for line in read} == {"k"}
    assert read[0]["headers"] == [["source", "files"], ["empty", ""]]


def test_a_whole_file_may_be_one_record(headrace: Any, tmp_path: Path) -> None:
    headrace.run("topics", "create", "whole", "--partitions", "1")
    picture = tmp_path / "picture"
    picture.write_bytes(b"\x00\n\xff\n")
    assert headrace.run("records", "produce", "whole", "--whole", str(picture)) == "1 record sent to whole\n"
    assert [line["value"] for line in headrace.records("whole")] == [{"base64": "AAr/Cg=="}]


def test_json_lines_get_the_headers_too(headrace: Any) -> None:
    headrace.run("topics", "create", "more-headers", "--partitions", "1")
    line = '{"value": "v", "headers": {"h": "1"}}'
    headrace.run("records", "produce", "more-headers", "--json", "--header", "n=2", stdin=line)
    assert headrace.records("more-headers")[0]["headers"] == [["h", "1"], ["n", "2"]]


def test_a_record_that_is_too_large_is_reported_in_a_sentence(headrace: Any) -> None:
    headrace.run("topics", "create", "small-only", "--config", "max.message.bytes=1000")
    headrace.run("records", "produce", "small-only", "--whole", stdin="x" * 2_000_000, status=1)
    assert headrace.err == (
        "headrace: 1 of 1 records were not taken by 'small-only': "
        "a record is larger than the topic takes: `headrace topics alter` raises its max.message.bytes\n"
    )


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    words = ("records", "produce", "given-up", "--timeout", "5")
    with Server(tmp_path / "data") as own, Command(own.kafka, *words) as producing:
        producing.write_line("first")
        assert "created topic given-up" in producing.err.readline()
        own.stop()
        assert f"{own.kafka} no longer responds; a record is tried for 5 s" in producing.err.readline()
        producing.write_line("second", last=True)
        # The first one may not have left either.
        assert re.fullmatch(
            r"headrace: [12] of 2 records were not taken by 'given-up': there was no acknowledgement in time\n",
            producing.err.readline(),
        )
        assert producing.status() == 3


def test_a_bad_line_after_a_rejected_record_ends_like_the_rejection(tmp_path: Path) -> None:
    words = ("records", "produce", "half", "--timeout", "5", "--json")
    with Server(tmp_path / "data") as own, Command(own.kafka, *words) as producing:
        producing.write_line('{"value": "first"}')
        assert "created topic half" in producing.err.readline()
        own.stop()
        assert "no longer responds" in producing.err.readline()
        producing.write_line('{"value": "second"}\nnone', last=True)
        # The first one may not have left either.
        assert re.search(
            r"[12] of 2 records before it (was|were) not taken \(there was no acknowledgement in time\)",
            producing.err.readline(),
        )
        assert producing.status() == Status.UNREACHABLE


def test_a_hanging_server_is_reported_too(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as own, Command(own.kafka, "records", "produce", "hanging") as producing:
        producing.write_line("first")
        assert "created topic hanging" in producing.err.readline()
        os.kill(own.pid, signal.SIGSTOP)
        try:
            producing.write_line("second", last=True)
            # Which of the two it is depends on whether the library was connected already.
            told = producing.err.readline()
            assert re.search("has acknowledged nothing for 5 s|no longer responds", told)
            assert told.endswith("; a record is tried for 30 s (Ctrl-C ends)\n")
        finally:
            os.kill(own.pid, signal.SIGCONT)
        assert "answers again" in producing.err.readline()
        assert producing.out.read() == "2 records sent to hanging\n"
        assert producing.status() == 0


def test_a_server_without_room_is_asked_for_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library shows only that the time is over."""
    with RedisServer() as storage, server(redis=storage.url, num_partitions=2) as own:
        headrace = CommandLine(own.kafka, capsys, monkeypatch)
        headrace.run("topics", "create", "full")
        headrace.run("records", "produce", "full", stdin="before")
        with redis.Redis.from_url(storage.url) as link:
            link.config_set("maxmemory", 1)
        headrace.run("records", "produce", "full", "--timeout", "2", stdin="one\ntwo", status=Status.FAILED)
        assert "2 of 2 records were not taken by 'full': Redis accepts no writes: its memory is full" in headrace.err
        assert len(headrace.records("full")) == 1


def test_a_server_without_room_is_named_while_records_are_tried() -> None:
    with (
        RedisServer() as storage,
        redis.Redis.from_url(storage.url) as link,
        server(redis=storage.url) as own,
        Command(own.kafka, "records", "produce", "full") as producing,
    ):
        producing.write_line("first")
        assert "created topic full" in producing.err.readline()
        used = link.info("memory")["used_memory"]
        link.config_set("maxmemory", 1)
        producing.write_line("second", last=True)
        told = producing.err.readline()
        assert "does not accept the records: Redis accepts no writes: its memory is full (OOM)" in told
        assert told.endswith("; a record is tried for 30 s (Ctrl-C ends)\n")
        link.config_set("maxmemory", 100 * used)
        assert "answers again" in producing.err.readline()
        assert producing.out.read() == "2 records sent to full\n"
        assert producing.status() == 0


def test_a_missing_right_is_reported_as_the_server_states_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the topic is visible, and whether the client library gets as far as the topic."""
    first, password, keys = tmp_path / "first", tmp_path / "password", tmp_path / "keys"
    first.write_text("admin:secret\n")
    password.write_text("secret")
    keys.mkdir()
    settings: dict[str, Any] = {
        "super_users": "User:admin",
        "oci_auth": "verify",
        "oci_auth_keys": keys,
        "num_partitions": 1,
    }
    with server(
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        authorizer_class_name=STANDARD_AUTHORIZER,
        arguments=["--bootstrap-user", str(first)],
        **settings,
    ) as own:
        headrace = CommandLine(own.kafka, capsys, monkeypatch)
        monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "secret")

        def run(user: str, *words: str, **more: Any) -> None:
            headrace.run(*words, "--username", user, **more)

        def is_refused(topic: str, *words: str) -> None:
            run("bob", "records", "produce", topic, *words, stdin="one\ntwo", status=Status.REFUSED)
            [line] = headrace.err.splitlines()
            assert line.endswith(f": User:bob may not Write Topic {topic}")

        run("admin", "topics", "create", "orders")
        run("admin", "users", "create", "bob", "--password-file", str(password))
        rule = ("acls", "create", "--principal", "User:bob", "--operation")
        is_refused("orders")
        is_refused("nowhere")
        run("admin", *rule, "read", "--topic", "orders")
        for _ in range(5):  # the errors come in no particular order
            is_refused("orders")
        is_refused("orders", "--partition", "0")
        run("admin", *rule, "write", "--topic", "other")
        is_refused("orders")
        run("admin", *rule, "write", "--topic", "orders")
        run("bob", "records", "produce", "orders", stdin="one")
