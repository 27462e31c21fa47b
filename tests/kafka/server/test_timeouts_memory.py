"""A Redis that is stopped: what it has not answered is counted, whether its client is there or not."""

from pathlib import Path

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.server.test_timeout_responses import (
    BIG,
    SEEN_S,
    STORED_MS,
    TIMEOUT_MS,
    Stoppable,
    codes,
    commit,
    join,
    produce,
    sync,
)

from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetCommitRequest, ProduceRequest


def given_up(server: Stoppable, client: Wire, most: int) -> int:
    """Batches sent one after the other, until one has no answer in time: how many had one."""
    for count in range(most):
        client.send(produce("t"), 9)
        assert client.is_silent(SEEN_S)
        server.clock.advance(TIMEOUT_MS / 1000)
        if client.is_silent(SEEN_S):
            return count
        assert codes(client.receive()) == {Code.REQUEST_TIMED_OUT}
    return most


def test_what_is_still_under_way_is_counted_until_it_is_through(tmp_path: Path) -> None:
    """Neither the answer nor the end of a connection gives its memory to the next batch."""
    room = 1 << 20
    most = room // len(BIG) + 1
    with Stoppable(tmp_path / "data", queued_max_request_bytes=room) as server, Wire(server.kafka) as first:
        first.create("t")
        with server.stopped():
            with Wire(server.kafka) as client:
                taken = given_up(server, client, most + 5)
                assert most - 3 < taken <= most + 1
            # Each connection is read from once.
            for _ in range(3):
                with Wire(server.kafka) as client:
                    assert given_up(server, client, 2) == 1
                taken += 1
        # All that was taken is stored, and there is room again.
        assert first.produce("t", batch(BIG)).base_offset >= taken
        with Wire(server.kafka) as client:
            assert [client.produce("t", batch(BIG)).error_code for _ in range(2 * most)] == [0] * (2 * most)


def test_so_is_a_request_that_names_many_partitions(tmp_path: Path) -> None:
    many = produce("t")
    nowhere = [ProduceRequest.PartitionProduceData(index=index, records=batch(b"")) for index in range(1, 102)]
    many.topic_data[0].partition_data += nowhere
    room = 2 * len(BIG)
    with Stoppable(tmp_path / "data", queued_max_request_bytes=room) as server, Wire(server.kafka) as first:
        first.create("t")
        with server.stopped():
            for _ in range(3):
                with Wire(server.kafka) as client:
                    client.send(many, 9)
                    assert client.is_silent(SEEN_S)
            with Wire(server.kafka) as client:
                assert given_up(server, client, 2) == 1
        with Wire(server.kafka) as client:
            assert [client.produce("t", batch(BIG)).error_code for _ in range(6)] == [0] * 6


@pytest.mark.parametrize("told", [False, True])
def test_so_is_what_a_group_is_to_store_though_its_client_has_gone(tmp_path: Path, told: bool) -> None:
    """`told`: its client was answered that it takes too long, before."""
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[])
    places = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata="m" * 4_000
        )
        for index in range(50)
    ]
    request.topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=places)]
    room = 3 * len(BIG)
    with Stoppable(tmp_path / "data", queued_max_request_bytes=room) as server, Wire(server.kafka) as first:
        first.create("t", partitions=50)
        with server.stopped():
            for _ in range(2):
                with Wire(server.kafka) as client:
                    client.send(request, 8)
                    assert client.is_silent(SEEN_S)
                    if told:
                        server.clock.advance(STORED_MS / 1000)
                        assert codes(client.receive()) == {Code.REQUEST_TIMED_OUT}
            with Wire(server.kafka) as client:
                assert given_up(server, client, 2) == 1
        with Wire(server.kafka) as client:
            assert [client.produce("t", batch(BIG)).error_code for _ in range(6)] == [0] * 6
            assert client.committed("g", "t", 49) == 49


def test_so_is_a_member_that_joins_behind_what_its_group_stores(tmp_path: Path) -> None:
    """And no longer: then it waits for other members, and no request waits for it."""
    request = join("g", rebalance_ms=1_800_000)
    request.protocols[0].metadata = BIG * 2
    # Half of it is for those that wait for other members.
    with (
        Stoppable(tmp_path / "data", queued_max_request_bytes=10 * len(BIG)) as server,
        Wire(server.kafka) as first,
        Wire(server.kafka) as member,
    ):
        first.create("t")
        # A rebalance waits for it.
        joined = member.ask(join("g", rebalance_ms=1_800_000), 3)
        assert member.ask(sync("g", joined.generation_id, joined.member_id), 3).error_code == 0
        stored = commit("g", "t", 1)
        stored.generation_id_or_member_epoch, stored.member_id = joined.generation_id, joined.member_id
        with server.stopped():
            first.send(stored, 8)
            assert first.is_silent(SEEN_S)
            for _ in range(2):
                with Wire(server.kafka) as client:
                    client.send(request, 3)
                    assert client.is_silent(SEEN_S)
            with Wire(server.kafka) as client:
                assert given_up(server, client, 12) in {6, 7}
        with Wire(server.kafka) as client:
            assert [client.produce("t", batch(BIG)).error_code for _ in range(6)] == [0] * 6
