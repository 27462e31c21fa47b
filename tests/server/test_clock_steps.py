"""The wall clock is set, by hand, by NTP or because the machine slept: what goes by it follows, nothing else does."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.harness.member import Member
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, batches, produce_request
from tests.oci.conftest import Api

import oci
from headrace.cli import main
from headrace.kafka.errors import Code
from headrace.protocol.messages import ProduceRequest
from headrace.records.batch import peek
from headrace.storage.layout.keys import Keyspace
from headrace.testing import InProcessServer, MovableClock, Server, server

FAR_HOURS = 24 * 400
BOTH_WAYS = pytest.mark.parametrize("hours", [-FAR_HOURS, -2, 2, FAR_HOURS])
CHECK_MS = 60_000


@pytest.fixture
def running() -> Iterator[InProcessServer]:
    with InProcessServer(log_retention_check_interval_ms=CHECK_MS) as started:
        yield started


@BOTH_WAYS
def test_producers_with_the_new_time_are_let_in(running: InProcessServer, hours: int) -> None:
    with Wire(running.kafka) as client:
        client.create("limited", message_timestamp_after_max_ms=60_000, message_timestamp_before_max_ms=60_000)
        client.create("stamped", message_timestamp_type="LogAppendTime")
        before = running.clock.now_ms()
        assert client.produce("limited", batch(b"x", timestamp=before)).error_code == Code.NONE
        running.clock.step(hours=hours)
        now = running.clock.now_ms()
        assert client.produce("limited", batch(b"x", timestamp=now)).error_code == Code.NONE
        assert client.produce("limited", batch(b"x", timestamp=before)).error_code == Code.INVALID_TIMESTAMP
        assert client.produce("stamped", batch(b"x")).log_append_time_ms >= now


@BOTH_WAYS
def test_members_stay_for_their_session_and_no_longer(running: InProcessServer, hours: int) -> None:
    with Wire(running.kafka) as client, Member(running.kafka, "readers", client.create("flights")) as member:
        member.join()
        running.clock.step(hours=hours)
        assert member.heartbeat() == Code.NONE
        running.clock.advance(seconds=15)
        assert member.heartbeat() == Code.NONE
        running.clock.step(hours=-hours)
        running.clock.advance(seconds=35)
        assert member.heartbeat() == Code.UNKNOWN_MEMBER_ID


@BOTH_WAYS
def test_a_fetch_waits_as_long_as_it_was_asked_to(running: InProcessServer, hours: int) -> None:
    with Wire(running.kafka) as client:
        client.create("empty")
        running.clock.step(hours=hours)
        assert client.fetch("empty", 0, max_wait_ms=50).error_code == Code.NONE


@BOTH_WAYS
def test_retention_goes_by_the_wall_clock(running: InProcessServer, hours: int) -> None:
    with Wire(running.kafka) as client:
        client.create("short", retention_ms=3_600_000, segment_ms=1)
        client.produce("short", batch(b"x", timestamp=running.clock.now_ms()))
        client.produce("short", batch(b"y", timestamp=running.clock.now_ms()))
        running.clock.step(hours=hours)
        running.clock.advance(seconds=CHECK_MS / 1000 + 1)
        if hours < 0:
            assert client.offset("short", -2).offset == 0
            running.clock.step(hours=-hours + 2)
        # Trimming is not waited for by `advance`, nor is the next check arranged before it is done.
        while client.offset("short", -2).offset == 0:
            running.clock.advance(seconds=CHECK_MS / 1000)


@BOTH_WAYS
def test_positions_of_a_group_expire_by_the_wall_clock(running: InProcessServer, hours: int) -> None:
    with Wire(running.kafka) as client, Member(running.kafka, "readers", client.create("flights")) as member:
        member.join()
        assert member.commit(3) == Code.NONE
        member.leave()
    running.clock.step(hours=hours)
    # Time enough for the group to look again, and too little for Kafka's seven days.
    running.clock.advance(hours=25)
    with Wire(running.kafka) as client:
        assert client.committed("readers", "flights") == (-1 if hours == FAR_HOURS else 3)
    running.clock.step(hours=-hours)
    running.clock.advance(hours=8 * 24)
    with Wire(running.kafka) as client:
        assert client.committed("readers", "flights") == -1


@BOTH_WAYS
def test_cursors_of_oci_go_by_the_wall_clock(hours: int) -> None:
    with InProcessServer(oci_auth="off") as running:
        api = Api(running.http)
        made = api.done("POST", "/streams", {"name": "s", "partitions": 1, "compartmentId": "ocid1.compartment.oc1..a"})
        before = api.cursor(made["id"])
        running.clock.step(hours=hours)
        assert api.get(made["id"], before).status == (200 if hours < 0 else 400)
        after = api.cursor(made["id"])
        assert api.get(made["id"], after).status == 200
        running.clock.advance(minutes=6)
        assert api.get(made["id"], after).status == 400
        api.close()


def test_signatures_are_good_by_the_new_time(tmp_path: Path) -> None:
    assert main.run(["oci-config", str(tmp_path / "profile"), "--keys", str(tmp_path / "keys")]) == 0
    config: dict[str, Any] = oci.config.from_file(str(tmp_path / "profile" / "config"))
    with InProcessServer(oci_auth="verify", oci_auth_keys=tmp_path / "keys") as running:
        client = oci.streaming.StreamAdminClient(
            config, service_endpoint=running.http, retry_strategy=oci.retry.NoneRetryStrategy()
        )
        for hours in (2, -4, FAR_HOURS):
            running.clock.step(hours=hours)
            with pytest.raises(oci.exceptions.ServiceError, match="NotAuthenticated"):
                client.list_streams(compartment_id="x")
        running.clock.step(hours=2 - FAR_HOURS)
        assert client.list_streams(compartment_id="x").status == 200


@pytest.mark.apt
@pytest.mark.parametrize("hours", [-FAR_HOURS, FAR_HOURS])
def test_a_server_on_a_machine_whose_clock_is_set(tmp_path: Path, hours: int) -> None:
    """The machine's own clock, as the server sees it, set by libfaketime; with its heartbeats on an external Redis."""
    library = subprocess.run(["faketime", "now", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True)
    offset = tmp_path / "offset"
    offset.write_text("+0")
    environment = {
        "LD_PRELOAD": library.stdout.strip().split(":")[0],
        "FAKETIME_TIMESTAMP_FILE": os.fspath(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with (
        RedisServer() as external,
        server(redis=external.url, environment=environment) as started,
        Wire(started.kafka) as client,
        Member(started.kafka, "readers", client.create("flights")) as member,
    ):
        client.create("stamped", message_timestamp_type="LogAppendTime")
        member.join()
        # In one step: the server must never see an empty file.
        draft = offset.with_suffix(".new")
        draft.write_text(f"{hours * 3600:+d}")
        draft.replace(offset)
        then = time.time() * 1000 + hours * 3_600_000
        assert abs(client.produce("stamped", batch(b"x")).log_append_time_ms - then) < 60_000
        late = batch(b"x", timestamp=int(time.time() * 1000 + hours * 3_600_000))
        assert client.produce("flights", late).error_code == Code.NONE
        assert member.heartbeat() == Code.NONE
        _beaten(external, started)
        assert member.heartbeat() == Code.NONE
        assert client.produce("flights", late).error_code == Code.NONE


def _beaten(external: RedisServer, started: Server) -> None:
    """Wait until the server has sent more heartbeats than one."""
    with redis.Redis.from_url(external.url) as link:

        def beats() -> int:
            return sum(map(int, link.hvals(Keyspace().heartbeats)))

        before = beats()
        while beats() < before + 3:
            assert started.running


class RestlessClock(MovableClock):
    """Each look at it is a millisecond later than the one before."""

    looks = 0

    def now_ms(self) -> int:
        self.looks += 1
        return super().now_ms() + self.looks


def test_the_append_time_that_is_answered_is_the_one_that_is_stored() -> None:
    """By both ways through the listener: one batch in a request, and several."""
    with InProcessServer(clock=RestlessClock()) as running, Wire(running.kafka) as client:
        client.create("stamped", 2, message_timestamp_type="LogAppendTime")
        answered = [client.produce("stamped", batch(b"x")).log_append_time_ms]
        request = produce_request("stamped", batch(b"y"))
        request.topic_data[0].partition_data.append(ProduceRequest.PartitionProduceData(index=1, records=batch(b"z")))
        [topic] = client.ask(request, 9).responses
        answered += [each.log_append_time_ms for each in topic.partition_responses]
        first, second = batches(client.fetch("stamped", 0).records)
        assert [peek(first).max_timestamp, peek(second).max_timestamp] == answered[:2]
        assert answered[1] == answered[2]


@pytest.mark.parametrize("several", [False, True])
def test_a_partition_below_0_is_unknown(running: InProcessServer, several: bool) -> None:
    with Wire(running.kafka) as client:
        client.create("flights")
        request = produce_request("flights", batch(b"y"), partition=-5)
        if several:
            request.topic_data[0].partition_data.append(
                ProduceRequest.PartitionProduceData(index=0, records=batch(b"z"))
            )
        [topic] = client.ask(request, 9).responses
        codes = [each.error_code for each in topic.partition_responses]
        assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE][: len(codes)]
