"""A transactional Produce request with one batch gets the same response by its shortcut and by the message tables."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.guarded import ROOT, Guarded, guarded
from tests.harness.wire import IDS_FROM, Wire, batch, produce_request
from tests.kafka.transactional import all_of
from tests.kafka.transactions import RETRIED, begun

from headrace.kafka import apis
from headrace.kafka.apis.produce import PRODUCE
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import SHORTCUTS
from headrace.protocol import produce
from headrace.protocol.headers import decode_response_header
from headrace.protocol.messages import ProduceResponse
from headrace.security.access.acls import Acl
from headrace.security.access.required_acls import Operation, ResourceType

apis.load()

pytestmark = pytest.mark.skipif(not hasattr(produce, "_produce"), reason="no C extension here")


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as started:
        yield started


@pytest.fixture
def root(server: Guarded) -> Iterator[Wire]:
    with server.connect(ROOT) as wire:
        yield wire


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each Produce request took the shortcut."""
    found: list[bool] = []
    original = SHORTCUTS[PRODUCE]

    def begin(*arguments: Any) -> Any:
        begun = original.begin(*arguments)
        found.append(begun is not None)
        return begun

    monkeypatch.setitem(SHORTCUTS, PRODUCE, msgspec.structs.replace(original, begin=begin))
    return found


class Send(NamedTuple):
    """A Produce request, by how it differs from a correct one."""

    transactional: bool = True
    named: str | None = "own"
    epoch: int = 0
    sequence: int = 0
    records: int = 1
    acks: int = -1
    partition: int = 0
    version: int = 12


class End(NamedTuple):
    commit: bool


class Add(NamedTuple):
    pass


class Initialize(NamedTuple):
    pass


Action = Send | End | Add | Initialize


class Way:
    """A producer with a topic of its own, whose requests take the shortcut or not."""

    def __init__(self, wire: Wire, version: int, *, direct: bool) -> None:
        self.wire = wire
        self.direct = direct
        self.topic = wire.create(f"topic-{uuid4().hex}", 2)
        self.topic_id = wire.topic_id(self.topic)
        self.id = f"id-{uuid4().hex}"
        self.producer = begun(wire, self.id, version)
        self.numbers: dict[int, str] = {self.producer.producer_id: "PID"}
        self.next = [0, 0, 0]

    def ask(self, sent: Send) -> ProduceResponse:
        made = batch(
            *[b"value"] * sent.records,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch + sent.epoch,
            base_sequence=max(0, self.next[sent.partition] + sent.sequence),
            transactional=sent.transactional,
        )
        by_id = sent.version >= IDS_FROM
        request = produce_request(
            "" if by_id else self.topic, made, topic_id=self.topic_id if by_id else UUID(int=0),
            partition=sent.partition, acks=sent.acks, transactional_id=self.id if sent.named == "own" else sent.named,
        )  # fmt: skip
        frame = self.wire.head(0, sent.version, 7) + b"".join(bytes(chunk) for chunk in request.encode(sent.version))
        # A byte after the request is skipped by the tables, but the request is not plain.
        self.wire.send_frame(frame if self.direct else frame + b"\0")
        answer = self.wire.receive_frame()
        decoded = ProduceResponse.decode(answer, decode_response_header(answer, 0, 0, sent.version)[1], sent.version)
        assert isinstance(decoded, ProduceResponse)
        return decoded

    def send(self, sent: Send) -> ProduceResponse:
        """Produce, again while the previous transaction ends."""
        while True:
            response = self.ask(sent)
            [answer] = response.responses[0].partition_responses
            if answer.error_code not in RETRIED:
                break
        if answer.error_code == 0 and answer.base_offset >= 0 and not sent.sequence and not sent.epoch:
            self.next[sent.partition] += sent.records
        return response

    def act(self, action: Action) -> Any:
        """Act; what a client sees of it, without the names of this way."""
        if isinstance(action, Send):
            return self.plain(repr(self.send(action)))
        if isinstance(action, Add):
            return list(self.producer.add(self.topic, partitions=(0, 1)).values())
        code = self.producer.initialize() if isinstance(action, Initialize) else self.producer.end(commit=action.commit)
        if code == 0 and (isinstance(action, Initialize) or self.producer.version == 2):
            self.next = [0, 0, 0]
        self.numbers.setdefault(self.producer.producer_id, f"PID{len(self.numbers)}")
        return code

    def plain(self, text: str) -> str:
        for name, known in ((self.topic, "TOPIC"), (repr(self.topic_id), "TOPIC-ID"), (self.id, "TID")):
            text = text.replace(name, known)
        for number, known in self.numbers.items():
            text = text.replace(f"producer {number}", f"producer {known}").replace(f"id {number}", f"id {known}")
        return text


sends = st.builds(
    Send,
    transactional=st.sampled_from([True, True, True, False]),
    named=st.sampled_from(["own", "own", "own", "own", "unknown", "", None]),
    epoch=st.sampled_from([0, 0, 0, 0, -1, 1]),
    sequence=st.sampled_from([0, 0, 0, 0, -1, 1]),
    records=st.integers(1, 3),
    acks=st.sampled_from([-1, 1]),
    partition=st.sampled_from([0, 0, 0, 1, 2]),
    version=st.integers(3, 13),
)
actions = st.lists(sends | sends | st.builds(End, st.booleans()) | st.builds(Add) | st.builds(Initialize), max_size=12)


@settings(max_examples=60, deadline=None)
@given(actions=actions, version=st.sampled_from([1, 2]))
def test_any_requests_get_the_same_responses_both_ways(server: Guarded, actions: list[Action], version: int) -> None:
    with server.connect(ROOT) as wire:
        ways = [Way(wire, version, direct=direct) for direct in (True, False)]
        for action in actions:
            direct, by_tables = (way.act(action) for way in ways)
            assert direct == by_tables
        for isolation in (0, 1):
            found = []
            for way in ways:
                values, listed = all_of(wire, way.topic, isolation)
                found.append((values, {(way.numbers.get(producer), first) for producer, first in listed}))
            assert found[0] == found[1]


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", range(3, 14))
def test_a_transaction_takes_the_shortcut(root: Wire, taken: list[bool], version: int, acks: int) -> None:
    way = Way(root, 2 if version >= 12 else 1, direct=True)
    if version < 12:
        way.act(Add())
    for _ in range(3):
        [answer] = way.send(Send(version=version, acks=acks)).responses[0].partition_responses
        assert answer.error_code == 0
    assert taken
    assert all(taken)
    assert way.act(End(commit=True)) == Code.NONE
    assert all_of(root, way.topic, 1)[0] == [b"value"] * 3


class Writer:
    """A principal without rights, who uses an open transaction of another one."""

    def __init__(self, server: Guarded, root: Wire) -> None:
        self.server = server
        self.name = f"writer-{uuid4().hex}"
        self.way = Way(root, 1, direct=True)
        self.way.act(Add())

    def allow(self, kind: ResourceType, name: str) -> None:
        principal, operation = f"User:{self.name}", Operation.WRITE
        self.server.allow(Acl(allow=True, principal=principal, operation=operation, type=kind, name=name))

    def codes(self) -> list[Code]:
        """The errors of the same request by both ways."""
        found = []
        with self.server.connect(self.name) as self.way.wire:
            for self.way.direct in (True, False):
                [answer] = self.way.ask(Send(version=11)).responses[0].partition_responses
                found.append(Code(answer.error_code))
        return found


def test_the_shortcut_requires_the_rights_of_the_transaction(server: Guarded, root: Wire, taken: list[bool]) -> None:
    writer = Writer(server, root)
    writer.allow(ResourceType.TOPIC, writer.way.topic)
    assert writer.codes() == [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    writer.allow(ResourceType.TRANSACTIONAL_ID, "another-id")
    assert writer.codes() == [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert root.offset(writer.way.topic, -1).offset == 0
    writer.allow(ResourceType.TRANSACTIONAL_ID, writer.way.id)
    assert writer.codes() == [Code.NONE] * 2  # the second one is a duplicate
    assert root.offset(writer.way.topic, -1).offset == 1
    assert taken == [True, False] * 3


def test_the_shortcut_requires_the_rights_of_the_topic(server: Guarded, root: Wire) -> None:
    writer = Writer(server, root)
    writer.allow(ResourceType.TRANSACTIONAL_ID, writer.way.id)
    assert writer.codes() == [Code.TOPIC_AUTHORIZATION_FAILED] * 2
