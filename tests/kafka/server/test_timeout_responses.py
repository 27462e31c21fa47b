"""A stopped Redis: the response to each request, and the later completion of all requests."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from tests.harness.wire import Wire, batch, opened, produce_request
from tests.kafka.conftest import MAX_REQUEST
from tests.kafka.sharer import ACCEPT, Sharer, configure

from headrace.broker.runtime import scheduler
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeout_responses import TimeoutResponses
from headrace.protocol.messages import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterUserScramCredentialsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    ProduceRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    SyncGroupRequest,
)
from headrace.testing.inprocess import InProcessServer

LEAST_MS = 1_000
TIMEOUT_MS = 3_000
STORED_MS = 5_000
UNSAID_MS = 25_000
LATE_MS = 1_000
"""How much later than said an answer may come."""
SEEN_S = 0.6
"""After that what waits is noted, and what is due is answered."""
BIG = bytes(range(256)) * 400
"""Too large to be acknowledged before Valkey has it."""


class Stoppable(InProcessServer):
    """A server whose Valkey can be stopped; time passes by its clock."""

    def start(self) -> None:
        super().start()
        with redis.Redis.from_url(self.storage) as link:
            self._storage_pid = int(link.info("server")["process_id"])

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its Valkey neither answers nor closes its connections."""
        os.kill(self._storage_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._storage_pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def stoppable() -> Iterator[Stoppable]:
    with Stoppable(socket_request_max_bytes=MAX_REQUEST) as started:
        yield started


@pytest.fixture
def client(stoppable: Stoppable) -> Iterator[Wire]:
    with Wire(stoppable.kafka) as made:
        yield made


def answered_at(server: Stoppable, client: Wire, request: Any, version: int, after_ms: int) -> Any:
    """Ask while Valkey is stopped; the answer, which comes at that time and not before."""
    began_ms = server.clock.ticks_ms()
    client.send(request, version)
    assert client.is_silent(SEEN_S)
    return received_at(server, client, began_ms, after_ms)


def received_at(server: Stoppable, client: Wire, began_ms: int, after_ms: int) -> Any:
    """The next answer, of what was asked then: as `answered_at`."""
    # Time goes on by itself as well, and `advance` waits a while for what Valkey keeps from being done.
    server.clock.advance(max(0, began_ms + after_ms - LATE_MS - server.clock.ticks_ms()) / 1000)
    last_ms = 0
    while client.is_silent(SEEN_S):
        assert last_ms <= after_ms + LATE_MS
        last_ms = server.clock.ticks_ms() - began_ms
        server.clock.advance(SEEN_S)
    assert server.clock.ticks_ms() - began_ms >= after_ms
    return client.receive()


def codes(value: Any) -> set[int]:
    """Every error code of the parts of an answer, or of the answer where it has no parts."""
    if isinstance(value, list):
        return {code for each in value for code in codes(each)}
    fields = getattr(type(value), "__struct_fields__", ())
    found = {code for name in fields for code in codes(getattr(value, name))}
    return found or ({int(value.error_code)} if "error_code" in fields else set())


def produce(topic: str, acks: int = -1) -> ProduceRequest:
    request = produce_request(topic, batch(BIG), acks=acks)
    request.timeout_ms = TIMEOUT_MS
    return request


def produce_at_once(topic: str) -> ProduceRequest:
    """Two batches and no time, which is not read by the shortcut."""
    parts = [ProduceRequest.PartitionProduceData(index=0, records=batch(BIG)) for _ in range(2)]
    named = [ProduceRequest.TopicProduceData(name=topic, partition_data=parts)]
    return ProduceRequest(acks=-1, timeout_ms=0, topic_data=named)


def creation(*names: str) -> CreateTopicsRequest:
    topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=-1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)


def growth(topic: str) -> CreatePartitionsRequest:
    asked = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=3, assignments=None)
    return CreatePartitionsRequest(topics=[asked], timeout_ms=TIMEOUT_MS)


def deletion(client: Wire, topic: str, *, by_id: bool) -> DeleteTopicsRequest:
    told = client.metadata(topic).topics[0]
    asked = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=told.topic_id) if by_id else None
    named = DeleteTopicsRequest.DeleteTopicState(name=topic)
    return DeleteTopicsRequest(topics=[asked or named], timeout_ms=TIMEOUT_MS)


def trimming(topic: str) -> DeleteRecordsRequest:
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)


def commit(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    asked = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[asked])]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def own_commit(joined: Any, topic: str, offset: int) -> OffsetCommitRequest:
    """By the member of the group that has the topic's name."""
    request = commit(topic, topic, offset)
    request.generation_id_or_member_epoch, request.member_id = joined.generation_id, joined.member_id
    return request


def offset_deletion(group: str, topic: str) -> OffsetDeleteRequest:
    asked = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
    return OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=asked)]
    )


def join(group: str, member_id: str = "", rebalance_ms: int = 60_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def sync(group: str, generation: int, member_id: str) -> SyncGroupRequest:
    given = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")
    return SyncGroupRequest(group_id=group, generation_id=generation, member_id=member_id, assignments=[given])


def alteration(topic: str) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="100000")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[change]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def replacement(topic: str) -> AlterConfigsRequest:
    given = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="100000")
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[given])
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def quota(user: str) -> AlterClientQuotasRequest:
    entry = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=user)],
        ops=[AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e12, remove=False)],
    )
    return AlterClientQuotasRequest(entries=[entry], validate_only=False)


def credentials(user: str) -> AlterUserScramCredentialsRequest:
    kept = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=4_096, salt=b"s" * 16, salted_password=b"p" * 32
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[kept])


Asking = Callable[[Wire, str], tuple[Any, int]]
ASKED: dict[str, tuple[Asking, int, Code]] = {
    "Produce": (lambda _, topic: (produce(topic), 9), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "Produce, acks=1": (lambda _, topic: (produce(topic, 1), 9), UNSAID_MS, Code.REQUEST_TIMED_OUT),
    "Produce, no time": (lambda _, topic: (produce_at_once(topic), 9), LEAST_MS, Code.REQUEST_TIMED_OUT),
    "CreateTopics": (lambda _, topic: (creation(topic + "-new"), 7), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "CreatePartitions": (lambda _, topic: (growth(topic), 3), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "DeleteTopics": (lambda c, topic: (deletion(c, topic, by_id=False), 6), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "DeleteTopics, by id": (lambda c, topic: (deletion(c, topic, by_id=True), 6), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "DeleteRecords": (lambda _, topic: (trimming(topic), 2), TIMEOUT_MS, Code.REQUEST_TIMED_OUT),
    "OffsetCommit": (lambda _, topic: (commit(topic, topic, 1), 8), STORED_MS, Code.REQUEST_TIMED_OUT),
    "OffsetDelete": (
        lambda _, topic: (offset_deletion("o" + topic, topic), 0),
        STORED_MS,
        Code.COORDINATOR_NOT_AVAILABLE,
    ),
    "DeleteGroups": (
        lambda _, topic: (DeleteGroupsRequest(groups_names=["o" + topic]), 2),
        STORED_MS,
        Code.COORDINATOR_NOT_AVAILABLE,
    ),
    "JoinGroup": (
        lambda c, topic: (join(topic, c.ask(join(topic), 9).member_id), 9),
        STORED_MS,
        Code.COORDINATOR_NOT_AVAILABLE,
    ),
    "AlterConfigs": (lambda _, topic: (replacement(topic), 2), UNSAID_MS, Code.REQUEST_TIMED_OUT),
    "IncrementalAlterConfigs": (lambda _, topic: (alteration(topic), 1), UNSAID_MS, Code.REQUEST_TIMED_OUT),
    "AlterClientQuotas": (lambda _, topic: (quota(topic), 1), UNSAID_MS, Code.REQUEST_TIMED_OUT),
    "AlterUserScramCredentials": (lambda _, topic: (credentials(topic), 0), UNSAID_MS, Code.REQUEST_TIMED_OUT),
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_a_request_is_answered_in_time_where_redis_is_stopped(
    asked: str, stoppable: Stoppable, client: Wire, topic: str
) -> None:
    make, after_ms, code = ASKED[asked]
    client.create(topic)
    client.produce(topic, batch(b"one", b"two"))
    client.ask(commit("o" + topic, topic, 1), 8)
    request, version = make(client, topic)
    with stoppable.stopped():
        assert codes(answered_at(stoppable, client, request, version, after_ms)) == {code}
        # The connection goes on.
        assert client.metadata(topic).topics[0].name == topic
    # It has come to pass: the same once more finds it.
    while (again := codes(client.ask(request, version))) == {Code.COORDINATOR_NOT_AVAILABLE}:
        pass  # the group is just about to go
    assert again <= {0, Code.TOPIC_ALREADY_EXISTS, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID,
                     Code.INVALID_PARTITIONS, Code.GROUP_ID_NOT_FOUND}  # fmt: skip


@pytest.mark.parametrize("kind", [ShareAcknowledgeRequest, ShareFetchRequest])
def test_a_share_session_that_got_a_timeout_can_begin_again(
    kind: Any, stoppable: Stoppable, client: Wire, topic: str
) -> None:
    client.create(topic)
    configure(client, topic, share_auto_offset_reset="earliest")
    client.produce(topic, batch(b"one", b"two"))
    (sharer := Sharer(client, topic, topic)).beat()
    sharer.fetch(0)
    given = [kind.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[ACCEPT])]
    base: Any = {}
    if kind is ShareFetchRequest:
        parts = [kind.FetchPartition(partition_index=0, acknowledgement_batches=given)]
        topics = [kind.FetchTopic(topic_id=sharer.topic_id, partitions=parts)]
        base = dict.fromkeys(("min_bytes", "max_bytes", "max_records", "batch_size", "max_wait_ms"), 1)
        base["forgotten_topics_data"] = []
    else:
        parts = [kind.AcknowledgePartition(partition_index=0, acknowledgement_batches=given)]
        topics = [kind.AcknowledgeTopic(topic_id=sharer.topic_id, partitions=parts)]
    request = kind(group_id=topic, member_id=sharer.member, share_session_epoch=1, topics=topics, **base)
    with stoppable.stopped():
        answer = answered_at(stoppable, client, request, 2, UNSAID_MS)
        assert (answer.error_code, answer.responses) == (Code.KAFKA_STORAGE_ERROR, [])
        assert client.metadata(topic).topics[0].name == topic
    sharer.session = 0
    assert sharer.fetch(0).error_code == 0


def test_requests_are_carried_out_after_a_timeout(stoppable: Stoppable, client: Wire, topic: str) -> None:
    client.create(topic)
    with stoppable.stopped(), Wire(stoppable.kafka) as other:
        other.send(creation(topic + "-late"), 7)
        assert codes(answered_at(stoppable, client, commit("g" + topic, topic, 7), 8, STORED_MS)) == {
            Code.REQUEST_TIMED_OUT
        }
        assert codes(other.receive()) == {Code.REQUEST_TIMED_OUT}
    assert codes(client.ask(creation(topic + "-late"), 7)) == {Code.TOPIC_ALREADY_EXISTS}
    # Its turn comes behind the first one.
    assert codes(client.ask(commit("g" + topic, topic, 8), 8)) == {0}
    assert client.committed("g" + topic, topic) == 8


def test_commits_sent_ahead_are_given_up_together(stoppable: Stoppable, client: Wire, topic: str) -> None:
    """The heartbeat after them is answered, in order, as all requests of a connection."""
    client.create(topic)
    joined = client.ask(join(topic), 3)
    assert client.ask(sync(topic, joined.generation_id, joined.member_id), 3).error_code == 0
    ahead = range(1, 21)
    began_ms = stoppable.clock.ticks_ms()
    with stoppable.stopped():
        for offset in ahead:
            client.send(own_commit(joined, topic, offset), 8)
            # Half of them come when others wait already.
            assert offset != len(ahead) // 2 or client.is_silent(SEEN_S)
        beat = HeartbeatRequest(group_id=topic, generation_id=joined.generation_id, member_id=joined.member_id)
        client.send(beat, 4)
        assert client.is_silent(SEEN_S)
        answers: list[Any] = []
        while len(answers) <= len(ahead):
            if client.is_silent(SEEN_S):
                stoppable.clock.advance(SEEN_S)
            else:
                answers.append(client.receive())
        assert [codes(each) for each in answers[:-1]] == [{Code.REQUEST_TIMED_OUT}] * len(ahead)
        assert answers[-1].error_code == 0
        # Those of one read have their answers together: each by itself would take twenty times as long.
        assert stoppable.clock.ticks_ms() - began_ms < 4 * STORED_MS
    # What was never begun is not stored behind what comes now.
    assert codes(client.ask(own_commit(joined, topic, 40), 8)) == {0}
    assert client.committed(topic, topic) == 40


def test_commits_behind_one_that_is_stored_at_last_are_stored(stoppable: Stoppable, client: Wire, topic: str) -> None:
    client.create(topic)
    with stoppable.stopped():
        began_ms = stoppable.clock.ticks_ms()
        for offset in range(1, 4):
            client.send(commit(topic, topic, offset), 8)
        assert client.is_silent(SEEN_S)
        # A busy machine takes seconds for the rest.
        stoppable.clock.advance(max(0, began_ms + STORED_MS - 3 * LATE_MS - stoppable.clock.ticks_ms()) / 1000)
    assert [codes(client.receive()) for _ in range(1, 4)] == [{0}] * 3
    assert client.committed(topic, topic) == 3


def test_of_several_topics_none_is_created_after_the_answer(stoppable: Stoppable, client: Wire, topic: str) -> None:
    with stoppable.stopped():
        request = creation(topic + "-first", topic + "-second")
        assert codes(answered_at(stoppable, client, request, 7, TIMEOUT_MS)) == {Code.REQUEST_TIMED_OUT}
    # Its connection is served in order, and the storage, too.
    assert codes(client.ask(creation(topic + "-third"), 7)) == {0}
    told = client.metadata(topic + "-first", topic + "-second").topics
    assert [each.error_code for each in told] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_creation_without_a_timeout_gets_an_error_visible_in_librdkafka(
    stoppable: Stoppable, client: Wire, topic: str
) -> None:
    """It would take a time-out for a success."""
    with stoppable.stopped():
        request = creation(topic)
        request.timeout_ms = 0
        assert codes(answered_at(stoppable, client, request, 7, UNSAID_MS)) == {Code.KAFKA_STORAGE_ERROR}
    assert codes(client.ask(request, 7)) == {Code.TOPIC_ALREADY_EXISTS}


def test_a_batch_that_comes_again_is_answered_with_the_offset_of_the_first(
    stoppable: Stoppable, client: Wire, topic: str
) -> None:
    client.create(topic)
    producer = client.producer_id()
    sent = [batch(BIG, b"%d" % number, producer_id=producer, producer_epoch=0, base_sequence=2 * number)
            for number in range(3)]  # fmt: skip
    with stoppable.stopped():
        for each in sent:
            request = produce_request(topic, each)
            request.timeout_ms = TIMEOUT_MS
            client.send(request, 9)
        assert client.is_silent(SEEN_S)
        stoppable.clock.advance(TIMEOUT_MS / 1000)
        assert [codes(client.receive()) for _ in sent] == [{Code.REQUEST_TIMED_OUT}] * 3
        for each in sent:
            client.send(produce_request(topic, each), 9)
    answers = [client.receive().responses[0].partition_responses[0] for _ in sent]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0), (0, 2), (0, 4)]
    stored = opened(client.fetch(topic, 0, max_bytes=10 << 20).records)
    assert [(each.offset, each.value) for each in stored if each.value != BIG] == [(1, b"0"), (3, b"1"), (5, b"2")]


def test_stored_partitions_succeed_next_to_a_failed_one(stoppable: Stoppable, client: Wire, topic: str) -> None:
    client.create(topic, partitions=2)
    # The journal acknowledges once Redis has taken something.
    client.produce(topic, batch(b"first"))
    data = ProduceRequest.PartitionProduceData
    # The small one is acknowledged from the journal.
    parts = [data(index=0, records=batch(b"small")), data(index=1, records=batch(BIG))]
    asked = ProduceRequest(
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=parts)],
    )
    with stoppable.stopped():
        answer = answered_at(stoppable, client, asked, 9, TIMEOUT_MS)
    [small, big] = answer.responses[0].partition_responses
    assert (small.error_code, small.base_offset, small.error_message) == (0, 1, None)
    assert (big.error_code, big.base_offset) == (Code.REQUEST_TIMED_OUT, -1)


def test_members_that_wait_for_one_another_are_not_hurried(stoppable: Stoppable, client: Wire, topic: str) -> None:
    """A held JoinGroup waits as long as its group allows; what Redis keeps from being stored does not."""
    first = client.ask(join(topic), 3)
    assert first.error_code == 0
    assert client.ask(sync(topic, first.generation_id, first.member_id), 3).error_code == 0
    with Wire(stoppable.kafka) as other:
        other.send(join(topic), 3)
        assert other.is_silent(SEEN_S)
        stoppable.clock.advance(3 * STORED_MS / 1000)
        assert other.is_silent(SEEN_S)
        beat = HeartbeatRequest(group_id=topic, generation_id=first.generation_id, member_id=first.member_id)
        assert client.ask(beat, 4).error_code == Code.REBALANCE_IN_PROGRESS
        client.send(join(topic, first.member_id), 3)
        leader, follower = client.receive(), other.receive()
        assert [leader.error_code, follower.error_code] == [0, 0]
        other.send(sync(topic, follower.generation_id, follower.member_id), 3)
        with stoppable.stopped():
            answer = answered_at(stoppable, client, sync(topic, leader.generation_id, leader.member_id), 3, STORED_MS)
            assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
            assert other.receive().error_code == Code.COORDINATOR_NOT_AVAILABLE
        # Both are still members, and ask again.
        again = client.ask(sync(topic, leader.generation_id, leader.member_id), 3)
        assert (again.error_code, again.assignment) == (0, b"all")
        leaving = [LeaveGroupRequest.MemberIdentity(member_id=each.member_id) for each in (leader, follower)]
        assert [
            each.error_code for each in client.ask(LeaveGroupRequest(group_id=topic, members=leaving), 4).members
        ] == [0, 0]


def test_an_answer_that_fails_ends_its_connection_alone(
    stoppable: Stoppable, client: Wire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create(topic)
    answer = TimeoutResponses.answer

    def fail(overdue: TimeoutResponses, context: RequestContext) -> None:
        if context.api_key == HeartbeatRequest.API_KEY:
            raise ValueError("a bug")
        answer(overdue, context)

    monkeypatch.setattr(TimeoutResponses, "answer", fail)
    with stoppable.stopped(), Wire(stoppable.kafka) as other:
        client.send(commit(topic, topic, 1), 8)
        assert client.is_silent(SEEN_S)
        other.send(HeartbeatRequest(group_id=topic, generation_id=1, member_id="m"), 4)
        assert other.is_silent(SEEN_S)
        stoppable.clock.advance(STORED_MS / 1000)
        assert codes(client.receive()) == {Code.REQUEST_TIMED_OUT}
        with pytest.raises(ConnectionEnded):
            other.receive()
        assert codes(answered_at(stoppable, client, produce(topic), 9, TIMEOUT_MS)) == {Code.REQUEST_TIMED_OUT}


def test_others_go_first_while_many_are_answered(
    stoppable: Stoppable, client: Wire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create(topic)
    turns = 0
    given: list[int] = []
    turn, finished = CooperativeScheduler.turn, Connection.finished

    async def take_turn(lane: CooperativeScheduler) -> None:
        nonlocal turns
        turns += 1
        await turn(lane)

    def note(connection: Connection, context: RequestContext) -> None:
        given.append(turns)
        finished(connection, context)

    with stoppable.stopped():
        for _ in range(3):
            client.send(produce(topic), 9)
        assert client.is_silent(SEEN_S)
        monkeypatch.setattr(scheduler, "SLICE_S", 0.0)
        monkeypatch.setattr(CooperativeScheduler, "turn", take_turn)
        monkeypatch.setattr(Connection, "finished", note)
        stoppable.clock.advance(TIMEOUT_MS / 1000)
        for _ in range(3):
            assert codes(client.receive()) == {Code.REQUEST_TIMED_OUT}
    assert len(set(given[:3])) == 3
