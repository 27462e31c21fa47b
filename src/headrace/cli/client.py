"""The Kafka clients behind the client commands, with short waits and errors for people instead of librdkafka's log."""

import json
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import click
import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from headrace import settings
from headrace.cli.commands import CommandFailed

_CONNECT_S = 3
_ANSWER_S = 10

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

# librdkafka retries for ever and reports every attempt on stderr; what matters of it reaches us as errors.
_SILENT = logging.getLogger("headrace.cli.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class KafkaServer(msgspec.Struct, frozen=True):
    """Where the commands' clients connect to, and as whom; shown as its address."""

    address: str
    """HOST:PORT, or several with commas between, of which one must answer."""
    username: str | None = None
    """None: without a login."""
    password: str = ""

    def __str__(self) -> str:
        return self.address


def client_options(function: F) -> F:
    """Add `--kafka`, `--username` and `--json`, which every client command has; it gets a KafkaServer as `kafka`."""

    @wraps(function)
    def with_server(*arguments: Any, kafka: str, username: str | None, **named: Any) -> object:
        told, password = settings.kafka_login()
        username = username or told
        if username is not None and not password:
            raise CommandFailed(f"a password is missing for {username}: put it into HEADRACE_KAFKA_PASSWORD", status=2)
        return function(*arguments, kafka=KafkaServer(kafka, username, password or ""), **named)

    click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")(with_server)
    click.option(
        "--username",
        metavar="NAME",
        help="Log in by SASL PLAIN, such as TENANCY/USER/OCID of a stream pool; the password is in "
        "HEADRACE_KAFKA_PASSWORD. [HEADRACE_KAFKA_USERNAME]",
    )(with_server)
    click.option(
        "--kafka",
        metavar="HOST:PORT",
        default=settings.kafka_address,
        help="Address of the server, or of any Kafka broker. [HEADRACE_KAFKA, default 127.0.0.1:9092]",
    )(with_server)
    return cast("F", with_server)


class Client:
    """Kafka clients for one server, made when needed. Raises CommandFailed at once when nobody answers there."""

    def __init__(self, server: KafkaServer) -> None:
        """Try the address."""
        self.address = server.address
        self._server = server
        self._refusal = ""
        _connect(self.address)
        self.admin = AdminClient(self._configuration(), logger=_SILENT)
        with self.explained("answer"):
            self.admin.list_topics(timeout=_CONNECT_S)

    def producer(self, **configuration: object) -> Producer:
        """A producer; configuration keys have underscores for dots."""
        return Producer(self._configuration(**configuration), logger=_SILENT)

    def consumer(self, on_error: Callable[[KafkaError], None], **configuration: object) -> Consumer:
        """A consumer; `on_error` hears of what the library does not give up on, such as a server that went away."""
        return Consumer(self._configuration(**configuration) | {"error_cb": on_error}, logger=_SILENT)

    def _configuration(self, **more: object) -> dict[str, Any]:
        configuration: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "client.id": "headrace-cli",
            "socket.connection.setup.timeout.ms": 1000 * _CONNECT_S,
            "log_level": 0,
            "error_cb": self._heard,
        }
        if self._server.username is not None:
            configuration |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": self._server.username,
                "sasl.password": self._server.password,
            }
        return configuration | {name.replace("_", "."): value for name, value in more.items()}

    def _heard(self, error: KafkaError) -> None:
        """The library tries a refused login again and again, and lets us time out meanwhile."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = error.str()

    def result(self, future: "Future[T]", what: str) -> T:
        """An admin call's result; raises CommandFailed, saying what could not be done and why."""
        with self.explained(what):
            return future.result(timeout=_ANSWER_S)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn the client library's errors into CommandFailed: `cannot <what>: <why>`."""
        try:
            yield
        except KafkaException as error:
            raise CommandFailed(self._explain(what, error.args[0])) from None
        except TimeoutError:
            raise CommandFailed(f"cannot {what}: {self.address} did not answer within {_ANSWER_S} s") from None

    def _explain(self, what: str, error: KafkaError) -> str:
        self.admin.poll(0)
        if self._refusal:
            return f"{self.address} refuses the login: {self._refusal}"
        if error.code() in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}:
            return (
                f"{self.address} takes connections but does not answer as a Kafka broker: "
                "is it the right port, and does it want a login (--username)?"
            )
        return f"cannot {what}: {error.str()} ({error.name()})"

    def partitions(self, topic: str) -> dict[int, int]:
        """Partition -> leader's node id, in order; raises CommandFailed when there is no such topic."""
        with self.explained(f"look up topic {topic!r}"):
            # Asking for one topic by name would create it where auto-creation is on; asking for all never does.
            found = self.admin.list_topics(timeout=_ANSWER_S).topics
        if topic not in found:
            raise CommandFailed(
                f"no topic {topic!r} at {self.address}; `headrace topics list` shows those that are there"
            )
        return {number: partition.leader for number, partition in sorted(found[topic].partitions.items())}

    def natives(self, topics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What a Headrace server tells of those topics that are native: records and consumer groups in Redis."""
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in topics}
        if not resources:
            return {}
        found = {}
        for resource, future in self.admin.describe_configs(list(resources)).items():
            entries = self.result(future, "read the configuration of topics")
            if "headrace.native" in entries:
                found[resources[resource]] = json.loads(entries["headrace.native"].value or "{}")
        return found

    def offsets(
        self, partitions: Iterable[tuple[str, int]], spec: Callable[[], OffsetSpec]
    ) -> dict[tuple[str, int], int]:
        """Offsets of (topic, partition) by `OffsetSpec.earliest` or `latest`; those that are gone are left out."""
        wanted = {TopicPartition(topic, number): spec() for topic, number in partitions}
        if not wanted:
            return {}
        offsets = {}
        for partition, future in self.admin.list_offsets(wanted, request_timeout=_ANSWER_S).items():
            try:
                offsets[partition.topic, partition.partition] = future.result(timeout=_ANSWER_S).offset
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise CommandFailed(self._explain("look up offsets", error.args[0])) from None
        return offsets


def _connect(addresses: str) -> None:
    """Raise CommandFailed unless one of the addresses takes a TCP connection."""
    reasons = []
    for text in addresses.split(","):
        try:
            address = settings.Address.parse(text)
        except ValueError as error:
            raise CommandFailed(f"--kafka: {error}", status=2) from None
        try:
            with socket.create_connection((address.host, address.port), timeout=_CONNECT_S):
                return
        except TimeoutError:
            reasons.append(f"no answer within {_CONNECT_S} s")
        except OSError as error:
            reasons.append((error.strerror or str(error)).lower())
    raise CommandFailed(
        f"nobody answers at {addresses} ({', '.join(reasons)}): start a server with `headrace serve`, "
        "or name another address with --kafka HOST:PORT"
    )
