"""Rounds of accidents to brokers under load: `python -m tests.cluster.rounds --rounds 20 --seed 1`.

Three brokers over one Redis that keeps what it acknowledges. An idempotent producer writes and a group of three
reads all the while. A round is a handful of accidents: a broker is killed, stopped, ended in order, started again;
Redis is stopped, or killed and started again; topics come and go at one broker or another. Then everything has to come
to rest: every acknowledged record is in the log once, at its offset and in order, the group was given each of them, no
offset ever had two records, and nobody's polls went back.

Each round prints its seed and what happened. `--redis-server PROGRAM` runs over another one than the bundled Valkey.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.cluster.history import Watched
from tests.harness.brokers import OverOneRedis, brokers, wait_for
from tests.harness.ledger import Ledger

PARTITIONS = 6
ACCIDENTS = 5
SETTINGS = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 200}


class Round:
    """One round over brokers that are there for all of them."""

    def __init__(self, over: OverOneRedis, seed: int) -> None:
        self.over = over
        self.random = random.Random(seed)
        self.topic = f"round-{seed}"
        self.happened: list[str] = []

    def run(self) -> str:
        """What happened; raises AssertionError where something must not have."""
        over = self.over
        admin = AdminClient({"bootstrap.servers": over.kafka, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        began = time.monotonic()
        with (
            Ledger(over.kafka, self.topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger,
            Watched(over.kafka, self.topic, self.topic) as watched,
        ):
            stop = threading.Event()
            writing = threading.Thread(target=self._write, args=(ledger, stop))
            writing.start()
            try:
                for _ in range(ACCIDENTS):
                    time.sleep(self.random.choice([0.1, 0.5, 1.0, 2.0]))
                    self._accident()
            finally:
                self._start()
                stop.set()
                writing.join()
            ledger.settle()
            over.agree(list(over.servers))
            assert not ledger.refused, ledger.refused
            wait_for(lambda: watched.unseen(ledger) == 0, f"{watched.unseen(ledger)} records that nobody was given")
            watched.check(ledger)
            ledger.check(over.kafka)
            twice = watched.given - sum(map(len, watched.seen.values()))
            count = ledger.acknowledged_count
        admin.delete_topics([self.topic])[self.topic].result(30)
        took = time.monotonic() - began
        return f"{count} records, {twice} given twice, {took:.0f} s: {', '.join(self.happened)}"

    @staticmethod
    def _write(ledger: Ledger, stop: threading.Event) -> None:
        while not stop.is_set():
            ledger.send(60)
            ledger.wait_for(ledger.acknowledged_count)
            time.sleep(0.01)

    def _accident(self) -> None:
        acts: list[Callable[[], str]] = [self._kill, self._sleep, self._end, self._start, self._slow, self._redis]
        acts.append(self._topics)
        self.happened.append(self.random.choice(acts)())

    def _chosen(self) -> int | None:
        """A broker that runs, unless it is the last one."""
        running = self.over.running
        return self.random.choice(running) if len(running) > 1 else None

    def _kill(self) -> str:
        node = self._chosen()
        if node is None:
            return self._start()
        self.over.servers[node].kill()
        return f"{node} killed"

    def _end(self) -> str:
        node = self._chosen()
        if node is None:
            return self._start()
        self.over.servers[node].stop()
        return f"{node} ended"

    def _start(self) -> str:
        dead = [node for node, each in self.over.servers.items() if not each.running]
        for node in dead:
            self.over.start(node)
        return f"{dead} started"

    def _sleep(self) -> str:
        node = self.random.choice(self.over.running)
        length_s = self.random.choice([0.3, 1.0, 3.0, 5.0])
        os.kill(self.over.servers[node].pid, signal.SIGSTOP)
        time.sleep(length_s)
        os.kill(self.over.servers[node].pid, signal.SIGCONT)
        return f"{node} slept {length_s} s"

    def _slow(self) -> str:
        length_s = self.random.choice([0.3, 1.0, 3.0])
        self.over.redis.send(signal.SIGSTOP)
        time.sleep(length_s)
        self.over.redis.send(signal.SIGCONT)
        return f"Redis slept {length_s} s"

    def _redis(self) -> str:
        self.over.redis.kill()
        time.sleep(self.random.choice([0.0, 1.0]))
        self.over.redis.start()
        return "Redis killed and started"

    def _topics(self) -> str:
        name = self.random.choice(["a", "b"])
        resource = ConfigResource(ResourceType.TOPIC, name)
        acts: list[Callable[[AdminClient], Iterable[Future[Any]]]] = [
            lambda admin: admin.create_topics([NewTopic(name, 3, 1)]).values(),
            lambda admin: admin.describe_configs([resource]).values(),
            lambda admin: admin.delete_topics([name]).values(),
        ]
        for act in acts:
            node = self.random.choice(self.over.running)
            admin = AdminClient({"bootstrap.servers": self.over.addresses[node], "log_level": 0})
            with contextlib.suppress(KafkaException):
                for asked in act(admin):
                    asked.result(10)
        return f"topic {name} came and went"


def main() -> int:
    """Run rounds; the exit status is 1 where one found an anomaly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--redis-server", type=Path, default=None, help="a redis-server or valkey-server")
    chosen = parser.parse_args()
    failed = 0
    with brokers(3, chosen.redis_server, **SETTINGS) as over:
        for seed in range(chosen.seed, chosen.seed + chosen.rounds):
            this = Round(over, seed)
            try:
                print(f"seed {seed}: {this.run()}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: ANOMALY {error}: {', '.join(this.happened)}", flush=True)
                for node in [node for node, each in over.servers.items() if not each.running]:
                    over.start(node)
        if failed:
            for node, each in over.servers.items():
                print(f"--- broker {node}\n{each.log()[-20_000:]}", file=sys.stderr)
    print(f"{chosen.rounds} rounds, {failed} with anomalies")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
