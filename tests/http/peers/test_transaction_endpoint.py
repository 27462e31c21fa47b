"""Two brokers: questions and ends go through the signed endpoint of the other one."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import msgspec
import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.cluster_transactions import TransactionRefused
from headrace.broker.coordinator.remote_transactions import RemoteEnd, RemoteQuestion, packed
from headrace.broker.services import Services
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.batches import MOST_BYTES, MOST_ITEMS
from headrace.http.peers.connections import Lost, PeerAnswer
from headrace.http.peers.peers import Peers
from headrace.http.peers.signature import HEADER, SECRET_SIZE, PeerSigner
from headrace.http.peers.transaction_endpoint import TransactionEndpoint
from headrace.http.peers.transactions import ENDS, QUESTIONS, HttpTransactionPeers
from headrace.membership.view import FEATURES, Member, View
from headrace.security.access.principal import ANONYMOUS
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable
from headrace.transactions.effects import InitResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Init, Verify
from headrace.transactions.model import GroupId

MEMBERS = tuple(
    Member(node_id=node, incarnation="a", process="", host="h", port=node, http=f"http://{node}", features=FEATURES)
    for node in (1, 2)
)
SIGNER = PeerSigner(bytes(SECRET_SIZE))
GROUP = GroupId("g")


class Wire(Peers):
    """Requests of broker 1 to the endpoint of broker 2, in this process."""

    def __init__(self, ownership: Ownership, endpoint: TransactionEndpoint, clock: ManualClock) -> None:
        super().__init__(ownership, SIGNER, clock, 3_000, lambda: pytest.fail("no connection"))
        self.endpoint = endpoint
        self.requests: list[tuple[bytes, int]] = []
        self.lost = 0
        self.content: bytes | None = None

    async def ask(
        self, member: Member, method: str, target: bytes, body: bytes | bytearray = b"", **_: Any
    ) -> PeerAnswer:
        self.requests.append((target, len(msgspec.json.decode(body))))
        if self.lost:
            self.lost -= 1
            raise Lost("away", sent=True)
        seal = SIGNER.seal(method, target, body, ANONYMOUS, self.clock.now_ms())
        status, content = await sent(self.endpoint, method, target, bytes(body), seal)
        return PeerAnswer(status, {}, content if self.content is None else self.content)


async def sent(
    endpoint: TransactionEndpoint, method: str, target: bytes, body: bytes, seal: str | None
) -> tuple[int, bytes]:
    """Status and body of the response."""
    answers: list[MutableMapping[str, Any]] = []
    half = len(body) // 2
    chunks: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:]},
    ]

    async def receive() -> MutableMapping[str, Any]:
        return chunks.pop(0) if chunks else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": target.decode(),
        "raw_path": target,
        "query_string": b"",
        "headers": [] if seal is None else [(HEADER.encode(), seal.encode())],
    }
    await endpoint(scope, receive, send)
    return answers[0]["status"], answers[1]["body"]


class Two:
    """Broker 1, and broker 2 behind its endpoint."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        storage: Any = MemoryStorage()
        self.clusters: dict[int, VirtualClusters] = {}
        for node in (1, 2):
            ownership = Ownership(node)
            ownership.adopt(View(1, MEMBERS), inside=True)
            settings = BrokerSettings.of({"node.id": str(node)})
            parts = Services(storage.documents, settings, self.clock, ownership=ownership)
            self.clusters[node] = VirtualClusters(
                storage, settings, self.clock, cluster_id="c", stream_of=lambda *_: "s", parts=parts
            )
        self.endpoint = TransactionEndpoint(self.clusters[2], SIGNER)
        self.wire = Wire(self.clusters[1].ownership, self.endpoint, self.clock)
        self.peers = HttpTransactionPeers(self.wire, self.is_current)
        self.clusters[1].services.transaction_peers = self.peers
        self.clusters[2].services.transaction_peers = self.peers
        ownership = self.clusters[1].ownership
        self.name = next(
            name
            for name in map("id-{}".format, range(100))
            if ownership.owner_of(ownership.transaction_key("default", name)) == 2
        )

    async def is_current(self) -> bool:
        return True

    async def init(self) -> tuple[int, int]:
        event = Init(token=object(), timeout_ms=60_000)
        result = await self.clusters[2].default.transactions.request(self.name, event)
        assert isinstance(result, InitResult)
        assert result.error is None
        return result.producer_id, result.epoch

    async def join(self, producer: tuple[int, int], *, adds: bool) -> int:
        return await self.clusters[1].default.transactions.join(self.name, *producer, GROUP, adds=adds)


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    yield made
    made.peers.close()
    for clusters in made.clusters.values():
        await clusters.default.transactions.stop()


async def test_a_coordinator_elsewhere_is_asked(two: Two) -> None:
    producer = await two.init()
    with pytest.raises(TransactionRefused) as refused:
        await two.join(producer, adds=False)
    assert refused.value.error is TransactionError.TRANSACTION_ABORTABLE
    number = await two.join(producer, adds=True)
    assert await two.join(producer, adds=False) == number
    with pytest.raises(TransactionRefused) as refused:
        await two.join((producer[0], producer[1] + 1), adds=True)
    assert refused.value.error is TransactionError.PRODUCER_FENCED
    assert {path for path, _ in two.wire.requests} == {QUESTIONS.encode()}


async def test_a_question_without_a_response_is_asked_again_for_a_while(two: Two) -> None:
    producer = await two.init()
    two.wire.lost = 2
    joining = asyncio.ensure_future(two.join(producer, adds=True))
    while not joining.done():
        await asyncio.sleep(0.001)
        two.clock.advance(50)
    assert await joining == 1
    assert len(two.wire.requests) == 3
    two.wire.lost = 1_000
    asked = asyncio.ensure_future(two.join(producer, adds=True))
    while not asked.done():
        await asyncio.sleep(0.001)
        two.clock.advance(500)
    with pytest.raises(TransactionRefused) as refused:
        await asked
    assert refused.value.error is TransactionError.NOT_COORDINATOR


async def test_clients_must_find_the_coordinator_themselves(two: Two) -> None:
    event = Init(token=object(), timeout_ms=60_000)
    result = await two.clusters[1].default.transactions.request(two.name, event)
    assert result.error is TransactionError.NOT_COORDINATOR
    assert two.clusters[1].default.transactions.coordinator_of(two.name) == 2
    assert two.wire.requests == []


async def test_an_end_for_another_cluster_or_topic_is_asked_again(two: Two) -> None:
    for cluster, wanted in (("default", [GROUP]), ("unknown", [])):
        end = RemoteEnd(cluster, 7, 0, True, 1, packed([GROUP]))
        found = await two.peers.end(MEMBERS[1], end)
        owner = two.clusters[2].ownership.owner_of(f"group {cluster}/g")
        assert found.participants.as_list() == (wanted if owner == 2 else [])
    event = Verify(token=object(), producer_id=7, epoch=0, participants=(GROUP,))
    answer = await two.peers.ask(MEMBERS[1], RemoteQuestion.of("unknown", two.name, event))
    assert answer.error == "COORDINATOR_LOAD_IN_PROGRESS"


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"[1]"])
async def test_an_unreadable_response_is_asked_again(two: Two, content: bytes) -> None:
    two.wire.content = content
    with pytest.raises(StorageUnavailable):
        await two.peers.end(MEMBERS[1], RemoteEnd("default", 7, 0, True, 1, packed([GROUP])))
    two.wire.content, two.wire.lost = None, 1
    with pytest.raises(StorageUnavailable):
        await two.peers.end(MEMBERS[1], RemoteEnd("default", 7, 0, True, 1, packed([GROUP])))


async def test_only_signed_requests_of_bounded_size_are_read(two: Two) -> None:
    async def status(body: bytes, seal: str | None, path: str = ENDS) -> int:
        return (await sent(two.endpoint, "POST", path.encode(), body, seal))[0]

    def seal(body: bytes, path: str = ENDS) -> str:
        return SIGNER.seal("POST", path.encode(), body, ANONYMOUS, two.clock.now_ms())

    assert await status(b"[]", seal(b"[]")) == 200
    assert await status(b"[]", None) == 401
    assert await status(b"[]", seal(b"[]", QUESTIONS)) == 401
    assert await status(b"[ ]", seal(b"[]")) == 400
    assert await status(b"{}", seal(b"{}")) == 400
    long = b" " * (2 * MOST_BYTES + 1)
    assert await status(long, seal(long)) == 400
    event = Verify(token=object(), producer_id=7, epoch=0, participants=(GROUP,))
    many = msgspec.json.encode([RemoteQuestion.of("default", two.name, event)] * (MOST_ITEMS + 1))
    assert await status(many, seal(many, QUESTIONS), QUESTIONS) == 400
