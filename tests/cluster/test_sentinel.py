"""A broker over the primary that Sentinels name, which becomes another one."""

import asyncio
import itertools
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.ledger import Ledger
from tests.harness.ports import loopback_network
from tests.harness.redis import debian_redis_program, valkey_program
from tests.harness.redis_tls import PASSWORD, SENTINEL_PASSWORD, RedisTls
from tests.harness.replicated import PORT, SENTINEL_PORT, Process
from tests.harness.waiting import wait_for

from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.storage.errors import Unreachable
from headrace.storage.redis.clients import asynchronous, blocking
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.endpoint import finder
from headrace.testing import ServerFailed, server

PARTITIONS = 3
_ASK_AGAIN_S = 10.0
_CALM_MS, _WATCHFUL_MS = 60_000, 2_000
"""How long a silence means death: before anybody is killed more than a busy machine keeps a process waiting."""


class Watched:
    """A primary, its replica and a Sentinel that may decide alone; with TLS, all three speak nothing else."""

    def __init__(self, program: Path, *, tls: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-sentinel-"))
        self._program = program
        self._again_s = time.monotonic() + _ASK_AGAIN_S
        network = self._network = loopback_network()
        self.tls = RedisTls(self._folder, [f"{network}.{name}" for name in "123"]) if tls else None
        kept = ["appendonly yes", "appendfsync no", 'save ""', "repl-diskless-sync-delay 0"]
        watching = [
            f"sentinel monitor main {network}.1 {PORT} 1",
            f"sentinel down-after-milliseconds main {_CALM_MS}",
            "sentinel failover-timeout main 1000",
        ]
        if self.tls is not None:
            kept += as_lines(self.tls.options(PORT))
            watching += as_lines(self.tls.sentinel_options(SENTINEL_PORT, "main"))
        self.processes: list[Process] = []
        try:
            one, two = (
                self._started(program, name, f"{network}.{name}", PORT, *kept, f"replica-announce-ip {network}.{name}")
                for name in "12"
            )
            two.ask("REPLICAOF", one.host, PORT)
            self.primary, self.replica = one, two
            wait_for(lambda: self.replica.ask("ROLE")[3] == "connected", "the replica to follow")
            self.sentinel = self._started(program, "3", f"{network}.3", SENTINEL_PORT, *watching)
            # It asks the primary for its replicas every ten seconds.
            wait_for(lambda: len(self.sentinel.ask("SENTINEL", "REPLICAS", "main")) == 1, "the replica to be known")
        except BaseException:
            self.end()
            raise

    def _started(self, program: Path, name: str, host: str, port: int, *lines: str) -> Process:
        login = self.tls.admin if self.tls else {}
        process = Process(program, self._folder / name, host, port, *lines, login=login)
        self.processes.append(process)
        return process

    @property
    def url(self) -> str:
        """With a Sentinel that is not there: one that answers is enough."""
        return f"redis+sentinel://{self.primary.host}:1,{self.sentinel.host}:{SENTINEL_PORT}/main"

    def named(self) -> str:
        """The primary's host, as the Sentinel has it."""
        return str(self.sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[0])

    def sentinel_of(self, process: Process) -> Process:
        """One that takes this one for the primary, and knows of no other Sentinel."""
        lines = f"sentinel monitor main {process.host} {PORT} 2", "sentinel down-after-milliseconds main 600000"
        stale = self._started(self._program, "4", f"{self._network}.4", SENTINEL_PORT, *lines)
        wait_for(lambda: "master" in str(stale.ask("SENTINEL", "MASTERS")), "it to know of it")
        return stale

    def sentinel_of_the_dead(self, process: Process) -> Process:
        """A Sentinel that was unreachable still names the lost server: the other servers meet there."""
        lines = f"sentinel monitor main {process.host} {PORT} 1", "sentinel down-after-milliseconds main 600000"
        return self._started(self._program, "5", f"{self._network}.5", SENTINEL_PORT, *lines)

    def second_replica(self) -> Process:
        """Another one of the primary, which the Sentinel knows."""
        host = f"{self._network}.6"
        made = self._started(
            self._program, "6", host, PORT, f"replicaof {self.primary.host} {PORT}", "replica-priority 0"
        )
        wait_for(lambda: made.ask("ROLE")[3] == "connected", "it to follow")
        wait_for(lambda: len(self.sentinel.ask("SENTINEL", "REPLICAS", "main")) == 2, "it to be known")
        return made

    def kill(self, primary: Process) -> None:
        """SIGKILL; from now on the Sentinel is quick to notice."""
        self.sentinel.ask("SENTINEL", "SET", "main", "down-after-milliseconds", _WATCHFUL_MS)
        primary.kill()

    def failing_over(self) -> bool:
        """Ask for a failover; whether it has begun."""
        try:
            self.sentinel.ask("SENTINEL", "FAILOVER", "main")
        except redis.ResponseError as error:
            return str(error).startswith("INPROG")
        return True

    def failed_over(self) -> bool:
        """Whether the replica is named; asks for a failover again where one was given up, as on a busy machine."""
        if self.named() == self.replica.host:
            return True
        if time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _ASK_AGAIN_S
            self.failing_over()
        return False

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        shutil.rmtree(self._folder)


def has_all(replica: Process, primary: Process) -> bool:
    """Whether one has all that the other has; or is the primary already: a Sentinel may be quick on a busy machine."""
    has, got = primary.ask("ROLE"), replica.ask("ROLE")
    if got[0] == "master":
        return True
    return has[0] == "master" and got[3] == "connected" and int(str(got[4])) >= int(str(has[1]))


def as_lines(options: Mapping[str, str]) -> list[str]:
    """As a file of configuration has them."""
    return [f"{name} {value}" for name, value in options.items()]


@pytest.fixture(
    params=[
        pytest.param("valkey", marks=pytest.mark.redis_cluster),
        pytest.param("redis", marks=pytest.mark.apt),
    ],
)
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(debian_redis_program() if request.param == "redis" else valkey_program())
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def watched_over_tls() -> Iterator[Watched]:
    made = Watched(debian_redis_program(), tls=True)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.timeout(300)
def test_a_broker_goes_on_at_the_primary_that_is_named_next(watched: Watched) -> None:
    topic = f"topic-{uuid4().hex[:8]}"
    with server(redis=watched.url) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
        with Ledger(broker.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger:
            ledger.send(600)
            ledger.settle()
            # An orderly failover, as for an upgrade: the old primary stays as a replica. Until it is one, which takes a
            # Sentinel ten seconds, it acknowledges writes that will be lost: the broker does not wait for that.
            wait_for(lambda: has_all(watched.replica, watched.primary), "the replica to have all")
            wait_for(watched.failing_over, "the Sentinel to know enough to begin")
            wait_for(watched.failed_over, "the replica to be named")
            wait_for(lambda: watched.replica.ask("ROLE")[0] == "master", "the replica to be the primary")
            wait_for(lambda: "the Sentinels name another primary" in broker.log(), "the broker to hear of it")
            ledger.send(600)
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)
            # Killed, with everything replicated before.
            wait_for(lambda: watched.primary.ask("ROLE")[0] == "slave", "the primary to be a replica")
            wait_for(lambda: has_all(watched.primary, watched.replica), "the new replica to have all")
            watched.kill(watched.replica)
            ledger.send(600)
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)
        with LogReader(broker.storage) as log:
            extents = log.extents(log.topics(Subscription((topic,))))
        assert [extents[place].end for place in sorted(extents)] == [600] * PARTITIONS
    with pytest.raises(ServerFailed, match=r"is a Sentinel: name it with redis\+sentinel://"):
        server(redis=f"redis://{watched.sentinel.host}:{SENTINEL_PORT}").__enter__()
    reasons = r"\(\S+:1: Error .*; \S+: knows none of that name\)"
    with pytest.raises(ServerFailed, match=f"no Sentinel names a primary 'other' {reasons}"):
        server(redis=watched.url.replace("/main", "/other")).__enter__()


async def test_a_replica_that_a_sentinel_names_as_the_primary_is_not_believed(watched: Watched) -> None:
    stale = watched.sentinel_of(watched.replica)
    with pytest.raises(Unreachable, match="the Sentinels name a replica as the primary"):
        await Connection(f"redis+sentinel://{stale.host}:{SENTINEL_PORT}/main").open()
    connection = Connection(watched.url)
    await connection.open()
    assert await connection.call("PING") == b"PONG"
    await connection.close()


def urls_of(*sentinels: Process) -> list[str]:
    """They are named in any order."""
    places = [f"{each.host}:{SENTINEL_PORT}" for each in sentinels]
    return [f"redis+sentinel://{','.join(order)}/main" for order in itertools.permutations(places)]


async def named_by(url: str) -> set[tuple[str, int]]:
    """Whom each of our clients takes for the primary."""
    _, found = finder(url)
    assert found is not None
    connection = Connection(url)
    await connection.open()
    places = {connection.place, await found.find()}
    await connection.close()
    async with asynchronous(url) as client:
        await client.ping()
        pool: Any = client.connection_pool
        places.add(await pool.get_master_address())
        await pool.sentinel_manager.aclose()
    with blocking(url) as threads:
        assert await asyncio.to_thread(threads.ping)
        pool = threads.connection_pool
        places.add(await asyncio.to_thread(pool.get_master_address))
    return places


@pytest.mark.timeout(300)
async def test_an_outdated_sentinel_is_ignored_and_a_paused_one_is_not_waited_for(
    watched: Watched,
) -> None:
    wait_for(lambda: has_all(watched.replica, watched.primary), "the replica to have all")
    watched.kill(watched.primary)
    wait_for(watched.failed_over, "the replica to be named")
    stale = watched.sentinel_of_the_dead(watched.primary)
    assert stale.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[0] == watched.primary.host
    promoted = {(watched.replica.host, PORT)}
    for url in urls_of(stale, watched.sentinel):
        assert await named_by(url) == promoted
    # Then it stands still: it takes connections, and says nothing.
    stale.send(signal.SIGSTOP)
    try:
        for url in urls_of(stale, watched.sentinel):
            assert await named_by(url) == promoted
    finally:
        stale.send(signal.SIGCONT)


@pytest.mark.timeout(300)
async def test_the_promoted_server_is_gone_to_before_all_replicas_follow_it(watched: Watched) -> None:
    """Until then, SENTINEL MASTERS has the old primary, which acknowledges writes that will be lost."""
    second = watched.second_replica()
    watched.sentinel.ask("SENTINEL", "SET", "main", "failover-timeout", 600_000)
    second.send(signal.SIGSTOP)
    try:
        wait_for(watched.failing_over, "the Sentinel to know enough to begin")
        wait_for(lambda: watched.named() == watched.replica.host, "the replica to be promoted")
        state: Any = watched.sentinel.ask("SENTINEL", "MASTER", "main")[0]
        assert state["ip"] == watched.primary.host
        assert await named_by(urls_of(watched.sentinel)[0]) == {(watched.replica.host, PORT)}
    finally:
        second.send(signal.SIGCONT)


@pytest.mark.apt
@pytest.mark.timeout(300)
def test_redis_and_its_sentinel_speak_tls_only_and_have_users(watched_over_tls: Watched) -> None:
    watched, tls, topic = watched_over_tls, watched_over_tls.tls, f"topic-{uuid4().hex[:8]}"
    assert tls is not None
    url = f"{watched.url}?sentinel_username=headrace&sentinel_password={SENTINEL_PASSWORD}"
    # The password of the Sentinels is for no list of processes.
    given = {"HEADRACE_REDIS": tls.url(url)}
    with server(environment=given, arguments=tls.arguments) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
        with Ledger(broker.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger:
            ledger.send(600)
            ledger.settle()
            wait_for(lambda: has_all(watched.replica, watched.primary), "the replica to have all")
            watched.kill(watched.primary)
            ledger.send(600)
            wait_for(watched.failed_over, "the replica to be named")
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)
        with LogReader(tls.whole(url)) as log:
            extents = log.extents(log.topics(Subscription((topic,))))
        assert [extents[place].end for place in sorted(extents)] == [400] * PARTITIONS
        told = broker.storage + broker.log()
    assert PASSWORD not in told
    assert SENTINEL_PASSWORD not in told
    with pytest.raises(ServerFailed, match=r"no Sentinel names a primary 'main' \(.* certificate verify failed"):
        server(environment=given, arguments=tls.arguments[:2]).__enter__()
