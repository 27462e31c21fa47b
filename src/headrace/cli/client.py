"""Kafka clients of the client commands, with short timeouts and readable errors.

The functions at the end complete names in a shell, within a second or not at all.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from headrace.cli.command import LOST, CommandFailed, Status, exit_status, sentence
from headrace.cli.reachability import connect, lacks, unanswered
from headrace.server import config, profiles
from headrace.text.escaping import quoted, shown
from headrace.topics.config_keys import suggestion
from headrace.topics.model import is_reserved

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster

_CONNECT_S = 3
_ANSWER_S = 10
_PATIENCE_S = (1.5, 3.0, _ANSWER_S)
"""Seconds to wait for partition leaders before looking for other ones."""
SOME_S = (1.5, 3.0, 3.0)
"""The same for less important requests. The total is the time of a failover after a broker dies."""
_HEARS_S = 0.02
"""Seconds before a broker that has not learned of a change is asked again."""
_LED_ELSEWHERE = LOST | {
    *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT),
    *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH),
    # No leader was found.
    KafkaError._NOENT,
}
"""Codes of a broker that is no longer, or not yet, a partition's leader."""
_AT_ONCE = 4_000
"""Partitions or topics per request. Each may be two elements, and a server accepts 10,000."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

# librdkafka logs every retry. Its important errors arrive as exceptions.
_SILENT = logging.getLogger("headrace.cli.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class KafkaServer(msgspec.Struct, frozen=True):
    """A server's address and login, shown as its address."""

    address: str
    """HOST:PORT, or several separated by commas, of which one must answer."""
    username: str | None = None
    """None: no login."""
    password: str = ""
    ca: str | None = None
    """PEM file with the CA of the server's certificate; None: no TLS."""
    where: str = ""
    """Source of the address if it was not a flag: a variable or a profile."""
    flag: str = "--bootstrap"
    """Flag that sets another address in the current command."""

    def options(self, properties: Path | None = None) -> dict[str, str]:
        """Return the login, or a properties file, as options of `format("headrace")`."""
        from headrace.client import options  # noqa: PLC0415  # of an extra

        if properties is not None:
            return {options.PROPERTIES: str(properties.absolute())}
        login = options.plain_login(self.username, self.password, self.ca)
        return {options.PREFIX + name: value for name, value in login.items()}

    def __str__(self) -> str:
        return shown(self.address)


USERNAME = click.option(
    "--username",
    metavar="NAME",
    help="User for SASL PLAIN, or TENANCY/USER/OCID of a stream pool. HEADRACE_KAFKA_PASSWORD has "
    "the password. [HEADRACE_KAFKA_USERNAME]",
)
CA = click.option(
    "--ca",
    metavar="FILE",
    help="Connect with TLS, and trust the certificate authority in FILE (PEM). [HEADRACE_KAFKA_CA]",
)
KAFKA_PROPERTIES = click.option(
    "--kafka-properties",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with client settings, as for --command-config of Kafka's tools, such as SCRAM or a "
    "client certificate (PEM). It overrides --username and --ca.",
)


def client_options(function: F) -> F:
    """Add the common flags, as arguments `kafka` (a KafkaServer) and `as_json`."""

    @wraps(function)
    def with_server(
        *arguments: Any, bootstrap: str | None, username: str | None, ca: str | None, profile: str | None, **named: Any
    ) -> object:
        return function(*arguments, kafka=named_server(bootstrap, username, profile, ca), **named)

    click.option("--json", "as_json", is_flag=True, help="Print JSON.")(with_server)
    return cast("F", server_flags(with_server))


def server_flags(function: F) -> F:
    """Add the flags for a server and a user: `bootstrap`, `username` and `profile`."""
    click.option(
        "--profile", metavar="NAME", shell_complete=_profiles, help="A profile of profiles.toml. [HEADRACE_PROFILE]"
    )(function)
    CA(function)
    USERNAME(function)
    click.option(
        "--bootstrap",
        "--kafka",
        "bootstrap",
        metavar="HOST:PORT",
        help="Address of the server, or of any Kafka broker. [HEADRACE_BOOTSTRAP, default 127.0.0.1:9092]",
    )(function)
    return function


def named_server(
    bootstrap: str | None, username: str | None, profile: str | None, ca: str | None = None
) -> KafkaServer:
    """Return the server of flags, variables or the profile, in this order. Raise CommandFailed."""
    try:
        told = config.client(profile)
    except config.SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    username = username or told.username
    if username is not None and not told.password:
        raise CommandFailed(
            f"a password is missing for {username}: put it into HEADRACE_KAFKA_PASSWORD or a profile", Status.USAGE
        )
    where = "--bootstrap" if bootstrap else told.bootstrap_where
    return KafkaServer(bootstrap or told.bootstrap, username, told.password or "", ca or told.ca, where)


def _profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        return [name for name in profiles.names(config.profiles_file()) if name.startswith(incomplete)]
    except profiles.ProfileError:
        return []


class Client:
    """Lazy Kafka clients for one server. Raise CommandFailed at once if it does not answer."""

    def __init__(self, server: KafkaServer, patience_s: float = _CONNECT_S) -> None:
        self.address = shown(server.address)
        self._server = server
        self._patience_s = patience_s
        self._refusal = ""
        self._answered = False
        connect(server.address, server.ca, server.where, server.flag, patience_s)
        self.admin = AdminClient(self._configuration(), logger=_SILENT)
        with self.explained("answer"):
            # Metadata for one topic could auto-create it.
            self.metadata = self.admin.list_topics(timeout=patience_s)
        self._answered = True

    def lacks(self, api_key: int) -> bool:
        """Return whether the server lacks an API."""
        return lacks(self._server.address, self._server.ca, api_key)

    def producer(self, on_error: Callable[[KafkaError], None], **configuration: object) -> Producer:
        """Return a producer. Configuration keys have underscores for dots. `on_error` gets errors that are retried."""
        return Producer(self._configuration(**configuration) | {"error_cb": on_error}, logger=_SILENT)

    def consumer(self, on_error: Callable[[KafkaError], None], **configuration: object) -> Consumer:
        """Return a consumer; see `producer`."""
        return Consumer(self._configuration(**configuration) | {"error_cb": on_error}, logger=_SILENT)

    def _configuration(self, **more: object) -> dict[str, Any]:
        configuration: dict[str, Any] = {
            "bootstrap.servers": self._server.address,
            "client.id": "headrace-cli",
            "socket.connection.setup.timeout.ms": 1000 * _CONNECT_S,
            "log_level": 0,
            "error_cb": self._heard,
        }
        tls = self._server.ca is not None
        if tls:
            configuration |= {"security.protocol": "SSL", "ssl.ca.location": self._server.ca}
        if self._server.username is not None:
            configuration |= {
                "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": self._server.username,
                "sasl.password": self._server.password,
            }
        return configuration | {name.replace("_", "."): value for name, value in more.items()}

    def _heard(self, error: KafkaError) -> None:
        """Remember a refused login, which the library retries until a timeout."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = sentence(error)

    def result(self, future: "Future[T]", what: str) -> T:
        """Return an admin call's result. Raise CommandFailed."""
        with self.explained(what):
            return future.result(timeout=_ANSWER_S)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn the client library's errors into CommandFailed: `cannot <what>: <why>`."""
        try:
            yield
        except KafkaException as error:
            raise self.failure(what, error.args[0]) from None
        except TimeoutError:
            late = f"cannot {what}: {self.address} did not answer within {_ANSWER_S} s"
            raise CommandFailed(late, Status.UNREACHABLE) from None

    def failure(self, what: str, error: KafkaError) -> CommandFailed:
        """Return the error `cannot <what>: <why>`, with an exit status."""
        self.admin.poll(0)
        if self._refusal:
            return CommandFailed(f"{self.address} refuses the login: {self._refusal}", Status.REFUSED)
        if error.code() in LOST and not self._answered:
            login = self._server.username is not None
            why = unanswered(self._server.address, self._server.ca, self._patience_s, login=login)
            return CommandFailed(why, Status.UNREACHABLE)
        return CommandFailed(f"cannot {what}: {sentence(error)}", exit_status(error))

    def write_failure(self, topic: str, partition: int, error: KafkaError) -> tuple[str, Status]:
        """Return why records were not stored, and the exit status.

        The client library shows neither the server's message nor the reason of a timeout, so this asks the server.
        """
        from headrace.client import errors, offsets, produce  # noqa: PLC0415  # only for failures

        try:
            with self.cluster() as asking:
                found = produce.refusal(asking, offsets.TopicPartition(topic, max(0, partition)))
        except errors.SparkError:
            return sentence(error), exit_status(error)
        if found is not None:
            code, message = found
            return shown(message, 1_000).rstrip("."), Status.REFUSED if code in errors.REFUSALS else Status.FAILED
        status = exit_status(error)
        # The server answers.
        return sentence(error), Status.FAILED if status is Status.UNREACHABLE else status

    @contextmanager
    def cluster(self) -> "Iterator[Cluster]":
        """Connect with the blocking client, for what the client library does not show."""
        from headrace.client import cluster, options  # noqa: PLC0415  # only where it is needed

        given = {options.SERVERS: self._server.address, options.PREFIX + "request.timeout.ms": f"{1000 * _CONNECT_S}"}
        asked = options.parse(given | self._server.options())
        assert asked is not None
        found = cluster.Cluster(asked)
        try:
            yield found
        finally:
            found.close()

    @property
    def topics(self) -> dict[str, Any]:
        """Return the topics without Kafka's internal ones."""
        return {name: topic for name, topic in self.metadata.topics.items() if not is_reserved(name)}

    def partitions(self, topic: str) -> dict[int, int]:
        """Return partition -> leader's node ID, sorted. Raise CommandFailed for a missing topic."""
        self.refresh()
        found = self.metadata.topics
        if topic not in found:
            raise self.no_topic(topic, found)
        return {number: partition.leader for number, partition in sorted(found[topic].partitions.items())}

    def partitions_of_new(self, topic: str) -> dict[int, int]:
        """Return a new topic's partitions, which the broker may not know yet."""
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                return self.partitions(topic)
            except CommandFailed as error:
                if error.status is not Status.MISSING or time.monotonic() > until:
                    raise
            time.sleep(_HEARS_S)

    def refresh(self) -> None:
        """Reload the metadata."""
        with self.explained("list topics"):
            self.metadata = self.admin.list_topics(timeout=_ANSWER_S)

    def no_partition(self, topic: str, number: int, there: Iterable[int]) -> CommandFailed:
        """Return the error for a missing partition."""
        last = max(there, default=-1)
        return CommandFailed(f"topic {quoted(topic)} has partitions 0 to {last}, not {number}", Status.MISSING)

    def no_topic(self, topic: str, found: Iterable[str]) -> CommandFailed:
        """Return the error for a missing topic, with the nearest name."""
        hint = suggestion(topic, found) or "`headrace topics list` shows the existing ones"
        return CommandFailed(f"no topic {quoted(topic)} at {self.address}; {shown(hint)}", Status.MISSING)

    def groups(self) -> list[str]:
        """Return the names of the consumer groups."""
        listed = self.result(self.admin.list_consumer_groups(), "list consumer groups")
        return sorted(str(group.group_id) for group in listed.valid)

    def no_group(self, group: str) -> CommandFailed:
        """Return the error for a missing group, with the nearest name."""
        hint = suggestion(group, self.groups()) or "`headrace groups list` shows the existing ones"
        return CommandFailed(f"no group {quoted(group)} at {self.address}; {shown(hint)}", Status.MISSING)

    def natives(self, topics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return a Headrace server's records and Redis consumer groups of native topics."""
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in topics}
        with self.explained("read the configuration of topics"):
            for patience_s in _PATIENCE_S[:-1]:
                began = time.monotonic()
                try:
                    return self._natives(resources, patience_s)
                except KafkaException as error:
                    if error.args[0].code() not in _LED_ELSEWHERE:
                        raise
                self._look_elsewhere(began, patience_s)
            return self._natives(resources, _PATIENCE_S[-1])

    def _natives(self, resources: dict[ConfigResource, str], patience_s: float) -> dict[str, dict[str, Any]]:
        found = {}
        asked = (
            self.admin.describe_configs(list(some), request_timeout=patience_s) for some in in_pieces(list(resources))
        )
        for resource, future in chain.from_iterable(answers.items() for answers in asked):
            entries = future.result(timeout=_ANSWER_S)
            told = entries.get("headrace.native")
            if told is not None:
                found[resources[resource]] = json.loads(told.value or "{}")
            elif "headrace.storage" in entries and entries["headrace.storage"].value == "native":
                # Too many partitions for the client library's version of the request.
                found[resources[resource]] = {"records": [], "groups": {}}
        return found

    def offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: Callable[[], OffsetSpec],
        *,
        some: bool = False,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        """Return offsets of (topic, partition) by `OffsetSpec.earliest` or `latest`, without deleted ones.

        `some`: also leave out partitions without an answer in a few seconds. `isolation`: with READ_COMMITTED, the
        latest offset is the last stable one.
        """
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        offsets: dict[tuple[str, int], int] = {}
        with self.explained("look up offsets"):
            *tries, last = SOME_S if some else _PATIENCE_S
            for patience_s in tries:
                began = time.monotonic()
                wanted = self._some_offsets(wanted, spec, patience_s, offsets, isolation, final=False)
                if not wanted:
                    return offsets
                self._look_elsewhere(began, patience_s)
            self._some_offsets(wanted, spec, last, offsets, isolation, final=not some)
        return offsets

    def _look_elsewhere(self, began: float, patience_s: float) -> None:
        """Find the new leader after a failure or handover. It may not be ready."""
        time.sleep(max(0.0, began + patience_s - time.monotonic()))
        try:
            self.metadata = self.admin.list_topics(timeout=patience_s)
        except KafkaException as error:
            # The asked server may be the dead one. If none answers, the next request reports it.
            if error.args[0].code() not in _LED_ELSEWHERE:
                raise

    def _some_offsets(
        self,
        wanted: Sequence[TopicPartition],
        spec: Callable[[], OffsetSpec],
        patience_s: float,
        offsets: dict[tuple[str, int], int],
        isolation: IsolationLevel,
        *,
        final: bool,
    ) -> list[TopicPartition]:
        """Add answers and return unanswered partitions, an error if `final`. Deleted ones are in neither."""
        asked = (
            self.admin.list_offsets(
                {place: spec() for place in some}, isolation_level=isolation, request_timeout=patience_s
            )
            for some in in_pieces(wanted)
        )
        again = []
        for partition, future in chain.from_iterable(answers.items() for answers in asked):
            try:
                found = future.result(timeout=_ANSWER_S).offset
                if found == OFFSET_INVALID:
                    # The client library (2.16) reports this for a leader that never answered.
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                offsets[partition.topic, partition.partition] = found
            except KafkaException as error:
                code = error.args[0].code()
                if code in _LED_ELSEWHERE and not final:
                    again.append(partition)
                elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return again


def in_pieces(several: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices for one request (`headrace.request.max.elements`)."""
    return (several[start : start + _AT_ONCE] for start in range(0, len(several), _AT_ONCE))


_COMPLETION_S = 1.0
_MOST_COMPLETIONS = 1_000

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(names: Callable[[Client], Iterable[str]]) -> Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        """Return nothing without an answer: completion cannot show errors."""
        given = context.params
        try:
            server = named_server(given.get("bootstrap"), given.get("username"), given.get("profile"))
            found = names(Client(server, patience_s=_COMPLETION_S))
            # A shell would split names with blanks.
            fit = sorted(name for name in found if name.startswith(incomplete) and _is_word(name))
        except (CommandFailed, KafkaException):
            return []
        return fit[:_MOST_COMPLETIONS]

    return complete


def _is_word(name: str) -> bool:
    return name.isprintable() and not any(letter.isspace() or letter in "'\"`$\\;&|<>()*?[]{}!~#," for letter in name)


complete_topics = _completer(lambda client: client.topics)
complete_groups = _completer(lambda client: client.groups())
