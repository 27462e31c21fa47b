"""A broker over the primary that Sentinels name, which becomes another one."""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.harness.ledger import Ledger
from tests.harness.redis import debian_redis_program, valkey_program
from tests.harness.redis_cluster import wait_for

from headrace.spark.log import LogReader
from headrace.spark.logs import Subscription
from headrace.testing import ServerFailed, server

PARTITIONS = 3
PORT, SENTINEL_PORT = 6379, 26379


class Process:
    """A server of a configuration file of its own, on a loopback address of its own."""

    def __init__(self, program: Path, folder: Path, host: str, port: int, *lines: str) -> None:
        folder.mkdir()
        self.host, self.port = host, port
        file = folder / "conf"
        own = (f"bind {host}", f"port {port}", "protected-mode no", f"dir {folder}", f"logfile {folder / 'log'}")
        file.write_text("\n".join((*own, *lines)) + "\n")
        sentinel = ["--sentinel"] if port == SENTINEL_PORT else []
        self._process = subprocess.Popen([os.fspath(program), os.fspath(file), *sentinel])
        wait_for(self._answers, f"{host} to answer")

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def ask(self, *command: str | int) -> list[object]:
        # Whoever demotes a primary ends its connections, perhaps this one.
        with redis.Redis(self.host, self.port, decode_responses=True, retry=Retry(NoBackoff(), 3)) as link:
            link.response_callbacks.clear()
            found = link.execute_command(*command)
            return found if isinstance(found, list) else [found]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Watched:
    """A primary, its replica and a Sentinel that may decide alone."""

    def __init__(self, program: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-sentinel-"))
        network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        kept = ("appendonly yes", "appendfsync no", 'save ""', "repl-diskless-sync-delay 0")
        self.processes: list[Process] = []
        try:
            one, two = (
                self._started(program, name, f"{network}.{name}", PORT, *kept, f"replica-announce-ip {network}.{name}")
                for name in "12"
            )
            two.ask("REPLICAOF", one.host, PORT)
            self.primary, self.replica = one, two
            wait_for(lambda: self.replica.ask("ROLE")[3] == "connected", "the replica to follow")
            self.sentinel = self._started(
                program,
                "3",
                f"{network}.3",
                SENTINEL_PORT,
                f"sentinel monitor main {network}.1 {PORT} 1",
                "sentinel down-after-milliseconds main 500",
                "sentinel failover-timeout main 1000",
            )
            # It asks the primary for its replicas every ten seconds.
            wait_for(lambda: len(self.sentinel.ask("SENTINEL", "REPLICAS", "main")) == 1, "the replica to be known")
        except BaseException:
            self.end()
            raise

    def _started(self, program: Path, name: str, host: str, port: int, *lines: str) -> Process:
        process = Process(program, self._folder / name, host, port, *lines)
        self.processes.append(process)
        return process

    @property
    def url(self) -> str:
        """With a Sentinel that is not there: one that answers is enough."""
        return f"redis+sentinel://{self.primary.host}:1,{self.sentinel.host}:{SENTINEL_PORT}/main"

    def named(self) -> str:
        """The primary's host, as the Sentinel has it."""
        return str(self.sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[0])

    def failing_over(self) -> bool:
        """Ask for a failover; whether it has begun."""
        try:
            self.sentinel.ask("SENTINEL", "FAILOVER", "main")
        except redis.ResponseError as error:
            return str(error).startswith("INPROG")
        return True

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        shutil.rmtree(self._folder)


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


@pytest.mark.timeout(300)
def test_a_broker_goes_on_at_the_primary_that_is_named_next(watched: Watched) -> None:
    topic = f"topic-{uuid4().hex[:8]}"
    with server(redis=watched.url) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        with Ledger(broker.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger:
            ledger.send(600)
            ledger.settle()
            # In order, as for an upgrade: the old one stays, as a replica, and takes no writes any more.
            wait_for(watched.failing_over, "the Sentinel to know enough to begin")
            ledger.send(600)
            wait_for(lambda: watched.named() == watched.replica.host, "the replica to be named")
            wait_for(lambda: watched.replica.ask("ROLE")[0] == "master", "the replica to be the primary")
            wait_for(lambda: watched.primary.ask("ROLE")[0] == "slave", "the primary to be a replica")
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)
            # Killed, with everything replicated before.
            wait_for(lambda: watched.primary.ask("ROLE")[3] == "connected", "the new replica to follow")
            watched.replica.ask("CLIENT", "PAUSE", 60_000, "WRITE")
            wait_for(lambda: watched.primary.ask("ROLE")[4] == watched.replica.ask("ROLE")[1], "it to have all")
            watched.replica.kill()
            ledger.send(600)
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)
        with LogReader(broker.storage) as log:
            extents = log.extents(log.topics(Subscription((topic,))))
        assert [extents[place].end for place in sorted(extents)] == [600] * PARTITIONS
    with pytest.raises(ServerFailed, match=r"is a Sentinel: name it with redis\+sentinel://"):
        server(redis=f"redis://{watched.sentinel.host}:{SENTINEL_PORT}").__enter__()
    with pytest.raises(ServerFailed, match="No master found for 'other'"):
        server(redis=watched.url.replace("/main", "/other")).__enter__()
