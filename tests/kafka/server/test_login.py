"""Logging in on the wire (KIP-43, KIP-152): a listener with virtual clusters, and the access of users."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import msgspec
import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, fetch_request

from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.logins import Admitted, LoginRefused
from headrace.broker.runtime.clock import SystemClock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.kafka.server.listener import KafkaListener
from headrace.kafka.server.login import Login
from headrace.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.sasl.listener import Plain
from headrace.security.access.principal import Principal
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import RedisStorage

TOKEN = b"\0jane\0secret"


class Guests:
    """Jane with her password gets into the pool."""

    def __init__(self, pool: Broker, *, required: bool) -> None:
        self.required = required
        self.mechanisms: tuple[str, ...] = ("PLAIN",)
        self._pool = pool

    def begin(self, mechanism: str) -> Plain:
        assert mechanism == "PLAIN"
        return Plain(self.admit)

    async def refused(self) -> None:
        pass

    async def admit(self, username: str, password: str) -> Admitted:
        if (username, password) != ("jane", "secret"):
            raise LoginRefused("who are you?", "a stranger")
        return Admitted(Principal(username), self._pool)


class Listeners(msgspec.Struct):
    """Addresses."""

    optional: str
    required: str
    without: str
    listeners: dict[str, KafkaListener]

    def principals(self, address: str) -> list[str]:
        """The principals of a listener's connections."""
        return sorted(str(each.principal) for each in tuple(self.listeners[address].connections))


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Listeners]:
    async with contextlib.AsyncExitStack() as stack:
        admin = redis.asyncio.from_url(url)
        stack.push_async_callback(admin.aclose)
        await admin.flushall()
        storage = await RedisStorage.open(url, admin, 1)
        stack.push_async_callback(storage.close)
        clusters = VirtualClusters(
            storage,
            BrokerSettings.of(),
            SystemClock(),
            cluster_id="default-cluster",
            stream_of=lambda cluster, *place: Keyspace(cluster=cluster).stream(*place),
        )
        await clusters.start()
        stack.push_async_callback(clusters.stop)
        pool = await clusters.create("pool", {})
        await clusters.default.topics.create_if_missing("outside", 1)
        await pool.topics.create_if_missing("inside", 1)
        addresses = []
        listeners = {}
        for guests in (Guests(pool, required=False), Guests(pool, required=True), None):
            bound = socket.create_server(("127.0.0.1", 0))
            bound.setblocking(False)
            stack.callback(bound.close)
            host, port = bound.getsockname()
            addresses.append(f"{host}:{port}")
            # One name each: what is advertised belongs to a listener.
            listener = KafkaListener(clusters.default, max_request_bytes=1 << 20, name=addresses[-1], logins=guests)
            clusters.default.advertised[listener.name] = (host, port)
            await listener.start(bound)
            stack.push_async_callback(listener.stop)
            listeners[listener.name] = listener
        optional, required, without = addresses
        yield Listeners(optional, required, without, listeners)


@pytest.fixture(scope="module")
def listeners() -> Iterator[Listeners]:
    """In a thread with a loop of its own: the tests' clients block."""
    ready = threading.Event()
    found: list[Listeners] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve(url: str) -> None:
        async with opened(url) as addresses:
            found.append(addresses)
            ready.set()
            await stop.wait()

    with RedisServer() as server:
        thread = threading.Thread(target=lambda: loop.run_until_complete(serve(server.url)))
        thread.start()
        assert ready.wait(60)
        yield found[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


@pytest.fixture(params=["optional", "required"])
def address(request: pytest.FixtureRequest, listeners: Listeners) -> str:
    return str(getattr(listeners, request.param))


def versions(client: Wire) -> None:
    asked = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    offered = {each.api_key for each in client.ask(asked, 3).api_keys}
    assert {17, 36} <= offered


def handshake(client: Wire, mechanism: str = "PLAIN", version: int = 1) -> Code:
    answer = client.ask(SaslHandshakeRequest(mechanism=mechanism), version)
    assert answer.mechanisms == ([] if answer.error_code == Code.ILLEGAL_SASL_STATE else ["PLAIN"])
    return Code(answer.error_code)


def authenticate(client: Wire, token: bytes = TOKEN, version: int = 2) -> tuple[Code, str | None]:
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), version)
    assert answer.auth_bytes == b""
    return Code(answer.error_code), answer.error_message


def login(client: Wire) -> None:
    assert handshake(client) is Code.NONE
    assert authenticate(client) == (Code.NONE, None)


def topics(client: Wire) -> list[str]:
    return [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics if not topic.is_internal]


def ended(client: Wire) -> bool:
    try:
        client.receive_frame()
    except ConnectionEnded:
        return True
    return False


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_name_chooses_the_cluster_of_the_connection(address: str, version: int) -> None:
    with Wire(address) as client:
        versions(client)
        assert handshake(client) is Code.NONE
        assert authenticate(client, version=version) == (Code.NONE, None)
        assert topics(client) == ["inside"]
        assert client.metadata().cluster_id == "pool"
        assert client.produce("inside", batch(b"value")).error_code == 0


def test_who_logged_in_is_the_principal_and_anonymous_before(listeners: Listeners) -> None:
    with Wire(listeners.required) as client:
        versions(client)
        assert "User:ANONYMOUS" in listeners.principals(listeners.required)
        login(client)
        assert "User:jane" in listeners.principals(listeners.required)
    with Wire(listeners.required) as client:
        assert handshake(client, version=0) is Code.NONE
        client.send_frame(TOKEN)
        assert client.receive_frame() == b""
        assert "User:jane" in listeners.principals(listeners.required)


def test_version_0_has_the_token_bare_after_it(address: str) -> None:
    with Wire(address) as client:
        assert handshake(client, version=0) is Code.NONE
        client.send_frame(TOKEN)
        assert client.receive_frame() == b""
        assert topics(client) == ["inside"]


@pytest.mark.parametrize("behind", [TOKEN, b"\0joe\0secret", b"\0\3\0\x0c"])
def test_behind_a_bare_token_nothing_may_be_sent_ahead(address: str, behind: bytes) -> None:
    with Wire(address) as client:
        assert handshake(client, version=0) is Code.NONE
        client.send_bytes(b"".join(len(each).to_bytes(4) + each for each in (TOKEN, behind)))
        assert ended(client)


def test_everything_may_be_sent_ahead(address: str) -> None:
    with Wire(address) as client:
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        client.send_frame(TOKEN)
        assert client.receive().error_code == 0
        assert client.receive_frame() == b""
    with Wire(address) as client:
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.send(SaslAuthenticateRequest(auth_bytes=TOKEN), 2)
        assert client.receive().error_code == 0
        assert client.receive().error_code == 0
        assert topics(client) == ["inside"]


def test_connections_are_for_one_cluster_each(listeners: Listeners) -> None:
    with Wire(listeners.optional) as anonymous, Wire(listeners.optional) as jane:
        login(jane)
        for _ in range(2):
            assert topics(anonymous) == ["outside"]
            assert topics(jane) == ["inside"]
        assert jane.fetch("outside", 0).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_another_mechanism_is_refused_with_those_that_are_served(address: str) -> None:
    with Wire(address) as client:
        assert handshake(client, "SCRAM-SHA-256") is Code.UNSUPPORTED_SASL_MECHANISM
        assert ended(client)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (b"\0jane\0wrong", "who are you?"),
        (b"\0joe\0secret", "who are you?"),
        (b"jane\0jane\0wrong", "who are you?"),
        (b"joe\0jane\0secret", "Authentication failed: the authorization id is not the user name"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0jane\0", "Authentication failed: password not specified"),
        (b"", "Authentication failed: a PLAIN token is"),
        (b"jane", "Authentication failed: a PLAIN token is"),
        (b"\0jane\0secret\0", "Authentication failed: a PLAIN token is"),
        (b"\0jane\0\xff", "Authentication failed: a PLAIN token is"),
    ],
)
def test_an_invalid_token_ends_the_connection(address: str, token: bytes, told: str) -> None:
    with Wire(address) as client:
        assert handshake(client) is Code.NONE
        code, message = authenticate(client, token)
        assert code is Code.SASL_AUTHENTICATION_FAILED
        assert message is not None
        assert message.startswith(told)
        assert "stranger" not in message
        assert ended(client)
    if token:
        with Wire(address) as client:
            assert handshake(client, version=0) is Code.NONE
            client.send_frame(token)
            assert ended(client)


def test_the_name_may_be_given_twice(address: str) -> None:
    with Wire(address) as client:
        assert handshake(client) is Code.NONE
        assert authenticate(client, b"jane" + TOKEN) == (Code.NONE, None)


@pytest.mark.parametrize(
    "other",
    [
        lambda client: client.metadata(),
        versions,
        handshake,
        lambda client: client.send_frame(b"\0"),
    ],
    ids=["Metadata", "ApiVersions", "SaslHandshake", "half a request"],
)
def test_between_handshake_and_token_nothing_else_may_come(address: str, other: Callable[[Wire], object]) -> None:
    with Wire(address) as client:
        assert handshake(client) is Code.NONE
        with contextlib.suppress(ConnectionEnded):
            other(client)
        assert ended(client)


def test_a_token_without_a_handshake_is_an_error(listeners: Listeners) -> None:
    with Wire(listeners.optional) as client:
        code, message = authenticate(client)
        assert code is Code.ILLEGAL_SASL_STATE
        assert message == "SaslAuthenticate comes once, after SaslHandshake"
        assert topics(client) == ["outside"]


def test_a_second_login_is_rejected(address: str) -> None:
    with Wire(address) as client:
        login(client)
        assert handshake(client) is Code.ILLEGAL_SASL_STATE
        assert authenticate(client)[0] is Code.ILLEGAL_SASL_STATE
        assert topics(client) == ["inside"]


def test_a_login_waits_for_the_requests_before_it(listeners: Listeners) -> None:
    with Wire(listeners.optional) as client:
        client.send(fetch_request([("outside", 0, 0)], max_wait_ms=300, min_bytes=1), 12)
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert client.receive().error_code == 0
        assert client.receive().error_code == 0
        assert authenticate(client)[0] is Code.NONE
        assert topics(client) == ["inside"]


def test_a_required_login_precedes_every_other_request(listeners: Listeners) -> None:
    with Wire(listeners.required) as client:
        versions(client)
        with pytest.raises(ConnectionEnded):
            client.metadata()
    with Wire(listeners.required) as client, pytest.raises(ConnectionEnded):
        authenticate(client)


def test_strangers_get_little_memory(listeners: Listeners) -> None:
    for address, size, fine in ((listeners.required, 600 << 10, False), (listeners.optional, 600 << 10, True)):
        with Wire(address) as client:
            client.send_bytes(size.to_bytes(4, "big") + bytes(10))
            assert client.is_silent(0.2) if fine else client.ends()


def test_without_logins_a_handshake_changes_nothing(listeners: Listeners) -> None:
    with Wire(listeners.without) as client:
        assert handshake(client) is Code.ILLEGAL_SASL_STATE
        assert authenticate(client)[0] is Code.ILLEGAL_SASL_STATE
        assert topics(client) == ["outside"]


HEADS = [b"\0\x11\0\0", b"\0\x11\0\1", b"\0\x24\0\2", b"\0\x24\0\0", b"\0\x12\0\3", b"\0\3\0\x0c", b"\0\0\0\x09", b""]


@given(st.lists(st.builds(bytes.__add__, st.sampled_from(HEADS), st.binary(max_size=40)), min_size=1, max_size=5))
def test_garbage_is_rejected_without_harm(listeners: Listeners, frames: list[bytes]) -> None:
    with Wire(listeners.required) as client:
        with contextlib.suppress(OSError):
            for frame in frames:
                client.send_frame(frame)
            client.socket.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.socket.recv(65_536):
                received += chunk
        assert b"inside" not in received
        assert b"outside" not in received
    with Wire(listeners.required) as client:
        login(client)
        assert topics(client) == ["inside"]


@given(st.binary() | st.lists(st.sampled_from([b"\0", b"jane", b"secret", b"\xff"]), max_size=6).map(b"".join))
def test_only_jane_gets_in(token: bytes) -> None:
    pool = cast("Broker", object())
    login = Login(Guests(pool, required=True))
    assert login.begin("PLAIN", 1) is Code.NONE
    try:
        admitted = asyncio.run(login.take(token)).admitted
    except LoginRefused:
        assert login.pending
    else:
        assert admitted is not None
        assert token in {b"\0jane\0secret", b"jane\0jane\0secret"}
        assert (str(admitted.principal), admitted.broker) == ("User:jane", pool)
        assert not login.pending


def test_a_connection_without_required_login_checks_nothing() -> None:
    assert not Login(None).pending
