"""Forms where Redis is stopped, where Kafka is restricted to what OCI Streaming has, and in a virtual cluster."""

import re
import threading
from collections.abc import Iterator

import pytest
import redis
from tests.console.test_record_search import following
from tests.console.views.test_records import offsets_of
from tests.console.visiting import Answer, Visit, ask, commit, create, produce
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.kafka.server.test_timeout_responses import Stoppable

import oci
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import views
from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

views.load()
ACL = {
    "principal": "User:jane", "permission": "Allow", "operation": "Read", "type": "Topic", "pattern": "LITERAL",
    "name": "orders", "host": "*",
}  # fmt: skip
FORMS = {
    "/new-topic": {"name": "new", "partitions": "1"},
    "/topics/kept/partitions": {"count": "3"},
    "/topics/kept/config": {"key": "retention.ms", "value": "3600000"},
    "/topics/doomed/delete": {"confirm": "doomed"},
    "/users": {"name": "jane", "password": "first", "again": "first"},
    "/acls": ACL,
    "/quotas": {"user": "jane", "key": "producer_byte_rate", "value": "1000"},
    "/groups/readers": {"to": "latest", "at": "", "topic": "kept"},
}
"""Address of each form, with what is typed."""
WITHHELD = {
    "/topics/kept/partitions": "CreatePartitions",
    "/topics/kept/config": "IncrementalAlterConfigs",
    "/users": "AlterUserScramCredentials",
    "/quotas": "AlterClientQuotas",
}
"""Forms whose API `oci.kafka=strict` withholds."""


@pytest.fixture(scope="module")
def stoppable() -> Iterator[Stoppable]:
    with Stoppable(
        console_write=True, oci_enable=False, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS"
    ) as started:
        create(started, ("kept", 2), ("doomed", 1))
        produce(started, "kept", (b"k", b"v"))
        commit(started, "readers", "kept", p0=0)
        wait_for(lambda: ask(started, "/groups/readers").status == 200, "the group")
        yield started


@pytest.mark.parametrize("path", FORMS)
def test_a_form_ends_with_an_error_where_redis_is_stopped(stoppable: Stoppable, path: str) -> None:
    visit = Visit(stoppable)
    visit.ask("/new-topic")
    answers: list[Answer] = []
    with stoppable.stopped():
        thread = threading.Thread(target=lambda: answers.append(visit.post(path, FORMS[path])))
        thread.start()
        for _ in range(12):
            thread.join(0.3)
            if answers:
                break
            stoppable.clock.advance(seconds=5)
        assert answers, "it waits for longer than a minute"
        assert ask(stoppable, "/").status == 200
    thread.join(60)
    assert answers[0].status == 400
    assert "Redis has not answered yet" in answers[0].text


def test_a_record_is_kept_by_the_journal_where_redis_is_stopped(stoppable: Stoppable) -> None:
    visit = Visit(stoppable)
    visit.ask("/topics/kept/produce")
    with stoppable.stopped():
        answer = visit.post("/topics/kept/produce", {"key": "k", "value": "kept", "partition": "1"})
        assert answer.status == 303
        assert answer.headers["location"].endswith("partition=1&at=1&stored=0")
    wait_for(lambda: offsets_of(stoppable, "/topics/kept/records?partition=1&q=kept") == [(1, 0)], "the record")


@pytest.fixture(scope="module")
def strict() -> Iterator[InProcessServer]:
    with InProcessServer(oci_kafka="strict", oci_auth="off", console_write=True) as started:
        yield started


def test_forms_of_apis_that_the_restriction_withholds_show_the_setting(strict: InProcessServer) -> None:
    visit = Visit(strict)
    visit.ask("/new-topic")
    assert "2 partitions" in visit.done("/new-topic", {"name": "kept", "partitions": "2"}).text
    visit.done("/topics/kept/produce", {"key": "k", "value": "v", "partition": "0"})
    wrong = visit.wrong("/new-topic", {"name": "compacted", "config": "cleanup.policy=compact"})
    assert "oci.kafka=strict" in wrong
    for path, api in WITHHELD.items():
        answer = visit.post(path, FORMS[path])
        assert (answer.status, f"This server does not support {api} (oci.kafka=strict)" in answer.text) == (
            400,
            True,
        ), path
    for path in ("/users", "/acls", "/quotas"):
        answer = ask(strict, path)
        assert (answer.status, "(oci.kafka=strict)" in answer.text) == (400, True), path
    visit.done("/topics/kept/delete", {"confirm": "kept"})
    assert ask(strict, "/topics/kept").status == 404


@pytest.fixture(scope="module")
def pool(server: InProcessServer) -> tuple[str, str]:
    """A stream pool with a stream `inside`: its virtual cluster, and its ID."""
    clients = OciClients(server.http)
    details = oci.streaming.models.CreateStreamPoolDetails(name="forms", compartment_id=clients.compartment_id)
    made = clients.admin_client().create_stream_pool(details).data.id
    clients.create_stream("inside", stream_pool_id=made)
    found = re.findall(r"<option[^>]*>([^<]+)</option>", ask(server, "/").html)
    return next(name for name in found if ask(server, f"/topics/inside?cluster={name}").status == 200), made


def test_forms_of_a_virtual_cluster_change_only_it(server: InProcessServer, pool: tuple[str, str]) -> None:
    cluster, _ = pool
    create(server, ("inside", 1))
    visit = Visit(server)
    visit.ask(f"/new-topic?cluster={cluster}")
    visit.done(f"/new-topic?cluster={cluster}", {"name": "formed", "partitions": "2"})
    assert ask(server, f"/topics/formed?cluster={cluster}").status == 200
    assert ask(server, "/topics/formed").status == 404
    done = visit.done(
        f"/topics/inside/produce?cluster={cluster}", {"key": "k", "value": "in the pool", "partition": "0"}
    )
    assert "Stored at offset 0 of partition 0 ." in done.text
    search = "/topics/inside/records?q=in+the+pool"
    assert offsets_of(server, f"{search}&cluster={cluster}") == [(0, 0)]
    assert offsets_of(server, search) == []
    assert f"cluster={cluster}" in ask(server, f"{search}&cluster={cluster}").html
    visit.done(f"/topics/formed/delete?cluster={cluster}", {"confirm": "formed"})
    assert ask(server, f"/topics/formed?cluster={cluster}").status == 404
    refused = visit.wrong(f"/new-topic?cluster={cluster}", {"name": "inside"})
    assert "exists already" in refused


def test_a_search_finds_records_of_native_topics(server: InProcessServer) -> None:
    """Offsets of native topics have gaps."""
    with Wire(server.kafka) as wire:
        wire.create("plain", 2, headrace_storage="native")
    produce(server, "plain", *((b"key-%d" % n, b'{"n": %d}' % n) for n in range(120)), partition=1)
    with redis.Redis.from_url(server.storage) as storage:
        (stream,) = [
            name for name in storage.scan_iter(_type="stream") if b"plain" in name and storage.xlen(name) == 120
        ]
        storage.xadd(stream, {"v": "by redis", "k": "needle"})
    path = "/topics/plain/records?"
    assert [partition for partition, _ in offsets_of(server, path + "q=key-119")] == [1]
    assert len(offsets_of(server, path + "q=7&field=n")) == 1
    wait_for(lambda: len(offsets_of(server, path + "q=by+redis")) == 1, "the record of a Redis client")
    found, address = [], path + "q=key-"
    while address:
        found += offsets_of(server, address)
        address = following(server, address)
    assert len(set(found)) == len(found) == 120
    page = ask(server, path + "q=key-11").text
    assert "Searched offsets " in page
