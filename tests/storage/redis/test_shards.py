"""The router over a cluster: which connection a key gets, and what becomes of redirections. Its nodes are scripted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import hiredis
import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import RedisClusterException
from tests.harness.waiting import until

from headrace.records.build import build
from headrace.storage.fence import Fence
from headrace.storage.logs.redis_logs import RedisLogs
from headrace.storage.native.topics import RedisNative
from headrace.storage.native.watch import TurnsWatcher
from headrace.storage.redis.connection import Connection, Readiness
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.redis.shards import ClusterShards, slot_of
from headrace.storage.redis.url import StorageUrl
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append
from headrace.topics.native import NativeStream

INFO = [b"INFO", b"replication"]


class Node:
    """A server on a loopback port that answers each command as configured."""

    def __init__(self) -> None:
        self.heard: list[list[bytes]] = []
        self.answers: dict[bytes, bytes] = {}
        """Command -> answer as RESP; `+OK` to all others."""
        self.port = 0
        self.clients: list[asyncio.StreamWriter] = []
        """Those that are connected."""
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader(notEnoughData=None)
        self.clients.append(writer)
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not None:
                self.heard.append(command)
                writer.write(self.answers.get(command[0], b"+OK\r\n"))
        self.clients.remove(writer)
        writer.close()

    def stop(self) -> None:
        self._server.close()

    def die(self) -> None:
        self.stop()
        for client in self.clients:
            client.transport.abort()

    @property
    def place(self) -> "Place":
        return Place("127.0.0.1", self.port)

    def asked(self) -> list[bytes]:
        return [command[0] for command in self.heard]


class Place(NamedTuple):
    host: str
    port: int


class Topology:
    """What redis-py's client of a cluster knows: the first half of the slots is one's, the second the other's."""

    def __init__(self, first: Node, second: Node) -> None:
        self.halves = [first, second]
        self.asked = 0
        self.uncovered = False
        self.nodes_manager = self

    async def initialize(self) -> None:
        self.asked += 1
        if self.uncovered:
            raise RedisClusterException(
                "All slots are not covered after query all startup_nodes. 9 of 16384 covered..."
            )

    def get_node_from_slot(self, slot: int) -> Place:
        return self.halves[slot * 2 // REDIS_CLUSTER_HASH_SLOTS].place


class Cluster:
    """Two nodes, what is known of them, and the router."""

    def __init__(self) -> None:
        self.one, self.two = Node(), Node()
        self.lost: list[Connection] = []

    async def start(self) -> None:
        await self.one.start()
        await self.two.start()
        self.topology = Topology(self.one, self.two)
        admin: Any = self.topology
        self.shards = ClusterShards(StorageUrl.parse("redis+cluster://u:p@127.0.0.1"), admin, ())
        self.shards.on_lost.append(self.lost.append)
        await self.shards.open()

    @property
    def key(self) -> str:
        """One that is the first node's."""
        return next(key for key in map(str, range(99)) if slot_of(key) < REDIS_CLUSTER_HASH_SLOTS // 2)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    try:
        yield made
    finally:
        await made.shards.close()
        made.one.stop()
        made.two.stop()


def test_keys_with_one_tag_have_one_slot() -> None:
    stream = "headrace:topic:3@0123456789ab"
    assert slot_of(stream) == slot_of(f"{{{stream}}}:state") == slot_of(f"{{{stream}}}:producers".encode())
    assert slot_of("123456789") == 0x31C3 % REDIS_CLUSTER_HASH_SLOTS


async def test_each_key_is_asked_for_where_it_is(cluster: Cluster) -> None:
    other = next(key for key in map(str, range(99)) if slot_of(key) >= REDIS_CLUSTER_HASH_SLOTS // 2)
    for key in (cluster.key, other):
        assert await cluster.shards.at(key).call("GET", key) == b"OK"
    assert cluster.one.heard == [[b"AUTH", b"u", b"p"], INFO, [b"GET", cluster.key.encode()]]
    assert cluster.two.heard == [[b"AUTH", b"u", b"p"], INFO, [b"GET", other.encode()]]


async def test_a_call_follows_what_has_moved_and_the_topology_is_asked_for(cluster: Cluster) -> None:
    cluster.one.answers[b"GET"] = b"-MOVED 1 127.0.0.1:%d\r\n" % cluster.two.port
    cluster.two.answers[b"GET"] = b"$1\r\nx\r\n"
    connection = cluster.shards.at(cluster.key)
    cluster.topology.halves[0] = cluster.two
    assert await connection.call("GET", cluster.key) == b"x"
    assert cluster.two.asked() == [b"AUTH", b"INFO", b"GET"]
    await until(lambda: cluster.shards.at(cluster.key) is not connection)
    # The leader that recovered a log over it is notified.
    await until(lambda: cluster.lost == [connection])


async def test_a_key_on_its_way_is_asked_for_there_and_the_slot_stays(cluster: Cluster) -> None:
    cluster.one.answers[b"GET"] = b"-ASK 1 127.0.0.1:%d\r\n" % cluster.two.port
    cluster.two.answers[b"GET"] = b"$1\r\nx\r\n"
    assert await cluster.shards.at(cluster.key).call("GET", cluster.key) == b"x"
    assert cluster.two.asked() == [b"AUTH", b"INFO", b"ASKING", b"GET"]
    assert cluster.topology.asked == 1


async def test_batches_are_not_sent_elsewhere(cluster: Cluster) -> None:
    """Their log has to be recovered at its new place, with a higher fencing epoch."""
    cluster.one.answers[b"XADD"] = b"-MOVED 1 127.0.0.1:%d\r\n" % cluster.two.port
    answers: list[Any] = []
    cluster.shards.at(cluster.key).send([b"*1\r\n$4\r\nXADD\r\n"], answers.append)
    await until(lambda: bool(answers))
    assert isinstance(answers[0], hiredis.ReplyError)
    assert b"XADD" not in cluster.two.asked()


@pytest.mark.parametrize("word", [b"MOVED", b"ASK"])
async def test_an_append_to_a_native_stream_that_is_elsewhere_may_be_asked_again(cluster: Cluster, word: bytes) -> None:
    cluster.one.answers[b"EVALSHA"] = b"-%b 1 127.0.0.1:%d\r\n" % (word, cluster.two.port)
    native = RedisNative(Scripts(cluster.shards), "", Fence(1), producer_expiry_ms=1)
    answers: list[Any] = []
    native.append(NativeStream(cluster.key, 10), Append(build([(None, b"x", 1, ())]), 1, 1), answers.append)
    await until(lambda: bool(answers))
    assert [isinstance(answer, StorageUnavailable) for answer in answers] == [True]


async def test_going_in_circles_ends(cluster: Cluster) -> None:
    for node, other in ((cluster.one, cluster.two), (cluster.two, cluster.one)):
        node.answers[b"GET"] = b"-MOVED 1 127.0.0.1:%d\r\n" % other.port
    with pytest.raises(StorageUnavailable, match="in a circle"):
        await cluster.shards.at(cluster.key).call("GET", cluster.key)


async def test_a_replica_that_has_just_become_the_primary_is_asked_at_once(cluster: Cluster) -> None:
    promoted = Node()
    await promoted.start()
    promoted.answers[b"GET"] = b"$1\r\nx\r\n"
    cluster.one.answers[b"GET"] = b"-MOVED 1 127.0.0.1:%d\r\n" % promoted.port
    try:
        assert await cluster.shards.at(cluster.key).call("GET", cluster.key) == b"x"
        cluster.topology.halves[0] = promoted
        assert await cluster.shards.at(cluster.key).call("GET", cluster.key) == b"x"
        await until(lambda: cluster.lost != [])
        assert await cluster.shards.at(cluster.key).call("GET", cluster.key) == b"x"
    finally:
        promoted.stop()


async def test_a_node_that_keys_were_on_for_a_while_is_let_go_when_it_is_gone(cluster: Cluster) -> None:
    passing = Node()
    await passing.start()
    cluster.one.answers[b"GET"] = b"-ASK 1 127.0.0.1:%d\r\n" % passing.port
    assert await cluster.shards.at(cluster.key).call("GET", cluster.key) == b"OK"
    passing.stop()
    for client in passing.clients:
        client.transport.abort()
    await until(lambda: cluster.lost != [])
    with pytest.raises(StorageUnavailable, match="the storage is closed"):
        async with asyncio.timeout(60):
            await cluster.lost[0].ready()


async def test_a_node_that_is_met_while_all_is_closed_is_left_again(cluster: Cluster) -> None:
    late = Node()
    await late.start()
    late.answers[b"AUTH"] = b""
    cluster.one.answers[b"GET"] = b"-ASK 1 127.0.0.1:%d\r\n" % late.port
    asked = asyncio.create_task(cluster.shards.at(cluster.key).call("GET", cluster.key))
    try:
        await until(lambda: late.asked()[:1] == [b"AUTH"])
        await cluster.shards.close()
        late.clients[0].write(b"+OK\r\n")
        with pytest.raises(StorageUnavailable, match="the storage is closed"):
            await asked
        await until(lambda: late.clients == [])
    finally:
        late.stop()


@pytest.mark.parametrize("told", [b"-MOVED 1 127.0.0.1:1\r\n", b"-ASK 1 :0\r\n", b"-MOVED nonsense\r\n"])
async def test_an_unknown_node(cluster: Cluster, told: bytes) -> None:
    cluster.one.answers[b"GET"] = told
    with pytest.raises(StorageUnavailable, match="has moved the key"):
        await cluster.shards.at(cluster.key).call("GET", cluster.key)
    await until(lambda: cluster.topology.asked > 1)


async def test_one_that_hangs_is_left(cluster: Cluster) -> None:
    """Its kernel keeps the connection open. Another node may have been promoted, and late replies must be dropped."""
    cluster.one.answers[b"PING"] = b""
    connection = cluster.shards.at(cluster.key)
    patience_s = connection.patience_s
    assert patience_s is not None
    connection.patience_s = 0.01
    with pytest.raises(StorageUnavailable, match="lost"):
        await cluster.shards.ping()
    # What follows is to be answered, however busy the machine.
    connection.patience_s = patience_s
    assert cluster.lost == [connection]
    await until(lambda: cluster.topology.asked > 1)
    await connection.ready()
    assert await connection.call("GET", cluster.key) == b"OK"


async def test_slots_without_a_primary_are_reported(cluster: Cluster) -> None:
    """Each node replies that no node serves the slot of this key."""
    cluster.one.answers[b"GET"] = b"-CLUSTERDOWN Hash slot not served\r\n"
    cluster.topology.uncovered = True
    await cluster.shards.at(cluster.key).call("GET", cluster.key)
    found: tuple[str, ...] = ()
    while not found:
        found = (await cluster.shards.readiness(60)).problems
    assert found == ("the cluster has 16375 slots without a primary: their data can be neither read nor written",)
    cluster.topology.uncovered = False
    while found:
        found = (await cluster.shards.readiness(60)).problems


async def test_unresponsive_nodes_are_reported_unless_all_are(cluster: Cluster) -> None:
    assert await cluster.shards.readiness(60) == Readiness()
    cluster.one.die()
    await until(lambda: len(cluster.lost) == 1)
    told = f"127.0.0.1:{cluster.one.port}: no connection to Redis"
    assert await cluster.shards.readiness(60) == Readiness((told,), writable=True)
    cluster.two.die()
    await until(lambda: len(cluster.lost) == 2)
    with pytest.raises(StorageUnavailable, match=f"{cluster.one.port}: no .*; .*{cluster.two.port}: no"):
        await cluster.shards.readiness(60)


async def test_a_node_that_is_silent_has_not_answered(cluster: Cluster) -> None:
    cluster.one.answers[b"PING"] = cluster.two.answers[b"PING"] = b""
    with pytest.raises(StorageUnavailable, match=r"did not answer within .*; .*did not answer within"):
        await cluster.shards.readiness(0.01)


async def test_a_node_that_refuses_requests_is_reported_as_present(cluster: Cluster) -> None:
    """As one does whose disk is full."""
    cluster.one.answers[b"PING"] = b"-MISCONF No space left on device\r\n"
    found = await cluster.shards.readiness(60)
    assert found.writable, "the other one takes records"
    [told] = found.problems
    assert told.startswith(f"127.0.0.1:{cluster.one.port}: Redis accepts no writes: it cannot write its own files")
    assert told.endswith("it answered: MISCONF No space left on device")
    cluster.two.die()
    await until(lambda: len(cluster.lost) == 1)
    assert len((await cluster.shards.readiness(60)).problems) == 2


def want_copies(cluster: Cluster) -> None:
    for node in (cluster.one, cluster.two):
        node.answers[b"INFO"] = b"+min_slaves_good_slaves:0\r\n"


async def test_a_node_that_refuses_only_writes_is_reported_as_present(cluster: Cluster) -> None:
    """As one does that has lost its replicas; it answers PING."""
    want_copies(cluster)
    cluster.one.answers[b"EVAL"] = cluster.two.answers[b"EVAL"] = b"-NOREPLICAS Not enough good replicas to write.\r\n"
    found = await cluster.shards.readiness(60)
    assert not found.writable
    for told, node in zip(found.problems, (cluster.one, cluster.two), strict=True):
        assert told.startswith(f"127.0.0.1:{node.port}: Redis accepts no writes: NOREPLICAS; connect its replicas")


async def test_a_node_whose_memory_is_full_is_reported_as_present(cluster: Cluster) -> None:
    """It answers PING. Its INFO shows that it may refuse writes, and a write shows that it does."""
    full = b"used_memory:3000\r\nmem_not_counted_for_evict:900\r\nmaxmemory:2000\r\n"
    refused = b"-OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'\r\n"
    for node in (cluster.one, cluster.two):
        node.answers[b"INFO"], node.answers[b"EVAL"] = b"$%d\r\n%b\r\n" % (len(full), full), refused
    found = await cluster.shards.readiness(60)
    assert not found.writable
    assert found.problems[0].startswith(
        f"127.0.0.1:{cluster.one.port}: Redis accepts no writes: its memory is full (OOM)"
    )
    uncounted = full.replace(b":900", b":1000")
    cluster.one.answers[b"INFO"] = b"$%d\r\n%b\r\n" % (len(uncounted), uncounted)
    found = await cluster.shards.readiness(60)
    assert (len(found.problems), found.writable) == (1, True)


async def test_what_else_is_said_of_a_write_does_not_matter(cluster: Cluster) -> None:
    want_copies(cluster)
    cluster.one.answers[b"EVAL"] = b"-NOPERM this user has no permissions to run the 'eval' command\r\n"
    assert await cluster.shards.readiness(60) == Readiness()


@pytest.mark.parametrize("refusal", ["LOADING Redis is loading the dataset in memory", "MASTERDOWN Link", "BUSY Redis"])
async def test_a_node_that_cannot_be_read_is_not_there(cluster: Cluster, refusal: str) -> None:
    cluster.one.answers[b"PING"] = b"-%b\r\n" % refusal.encode()
    told = f"127.0.0.1:{cluster.one.port}: Redis refuses requests: {refusal}"
    assert await cluster.shards.readiness(60) == Readiness((told,), writable=True)
    cluster.two.answers[b"PING"] = b"-MISCONF No space left on device\r\n"
    found = await cluster.shards.readiness(60)
    assert (len(found.problems), found.writable) == (2, False), "what the other one has can be read"
    cluster.two.answers[b"PING"] = cluster.one.answers[b"PING"]
    with pytest.raises(StorageUnavailable, match=refusal):
        await cluster.shards.readiness(60)


async def test_a_silent_node_does_not_block_notifications_of_another(cluster: Cluster) -> None:
    other = next(key for key in map(str, range(99)) if slot_of(key) >= REDIS_CLUSTER_HASH_SLOTS // 2)
    cluster.one.answers[b"XREAD"] = b""
    cluster.two.answers[b"XREAD"] = b"*0\r\n"
    woken: list[str | None] = []
    watcher = TurnsWatcher(cluster.shards)
    try:
        watcher.watch(cluster.key, "0-0", woken.append)
        watcher.watch(other, "0-0", woken.append)
        await until(lambda: cluster.two.asked().count(b"XREAD") > 1)
        cluster.two.answers[b"XREAD"] = b"*1\r\n*2\r\n$1\r\nx\r\n*1\r\n*2\r\n$3\r\n7-1\r\n*0\r\n"
        await until(lambda: woken == ["7-1"])
        assert cluster.one.asked().count(b"XREAD") == 1
    finally:
        await watcher.close()


async def test_only_where_another_may_have_taken_its_place_silence_ends_a_connection() -> None:
    assert Connection("redis://h").patience_s is None
    assert Connection("unix:///p").patience_s is None
    assert Connection("redis+sentinel://h/name").patience_s is not None


async def test_a_log_is_not_opened_over_a_connection_that_is_given_up_with_the_last_answer(cluster: Cluster) -> None:
    """Otherwise no listener would learn of the loss: during recovery a log is already in doubt."""
    cluster.one.answers[b"EVALSHA"] = (
        b"*17\r\n+1\r\n+0\r\n+0\r\n:0\r\n+-1\r\n+0\r\n+0\r\n+0:0:1\r\n+id\r\n:0\r\n:0\r\n+0\r\n+\r\n"
        b"+\r\n+0\r\n+0\r\n+\r\n"
    )
    cluster.one.answers[b"HGETALL"] = b""
    cluster.one.answers[b"SET"] = b"*0\r\n-READONLY You can't write against a read only replica.\r\n"
    lost: list[Exception] = []
    opening = asyncio.create_task(RedisLogs(Scripts(cluster.shards), Fence(1)).open(cluster.key, lost.append))
    await until(lambda: b"HGETALL" in cluster.one.asked())
    with pytest.raises(Exception, match="READONLY"):
        raise await cluster.shards.at(cluster.key).call("SET", "another", "x")
    with pytest.raises(StorageUnavailable, match="lost during an opening"):
        await opening


async def test_one_that_has_become_a_replica_is_left(cluster: Cluster) -> None:
    cluster.one.answers[b"SET"] = b"-READONLY You can't write against a read only replica.\r\n"
    connection = cluster.shards.at(cluster.key)
    with pytest.raises(Exception, match=r"READONLY|lost"):
        raise await connection.call("SET", cluster.key, "x")
    await until(lambda: cluster.lost == [connection])
    await until(lambda: cluster.topology.asked > 1)
