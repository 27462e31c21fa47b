"""Servers for Spark's exactly-once sink, whose processes can be killed: Headrace with its storage, and Apache Kafka."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.testing import server
from tests.harness.apache_kafka import apache_kafka


@dataclass(frozen=True)
class Target:
    """What a sink writes to."""

    name: str
    kafka: str
    victims: Mapping[str, Callable[[], None]]
    """Its processes: each call kills one and starts it again."""


@contextlib.contextmanager
def target(name: str, folder: Path) -> Iterator[Target]:
    """Start `headrace` or `kafka`; Kafka has its data in the folder."""
    if name == "kafka":
        with apache_kafka(folder) as kafka:
            node = kafka.node
            assert node is not None

            def restart_kafka() -> None:
                node.kill()
                node.start()

            yield Target(name, kafka.plain, {"broker": restart_kafka})
        return
    with server() as running:

        def restart_server() -> None:
            running.kill()
            running.start()

        def restart_storage() -> None:
            running.kill_storage()
            running.wait()
            running.start()

        yield Target(name, running.kafka, {"broker": restart_server, "storage": restart_storage})
