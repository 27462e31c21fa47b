"""Send requests that the client library lacks."""

import socket
import ssl
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaError

from headrace.cli.client import Client, KafkaServer
from headrace.cli.command import CommandFailed, Status, exit_status, sentence
from headrace.client.channel import Channel, ConnectionEnded, connect
from headrace.protocol.errors import DecodeError
from headrace.protocol.message import Message
from headrace.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.text.escaping import shown

_ANSWER_S = 10


def node_ids(kafka: KafkaServer) -> list[int]:
    """Return the node IDs of the live brokers. Raise CommandFailed."""
    return sorted(Client(kafka).metadata.brokers)


def leader(kafka: KafkaServer, topic: str, partition: int) -> int | None:
    """Return the node ID of a partition's leader. None: there is none. Raise CommandFailed."""
    found = Client(kafka).metadata.topics.get(topic)
    place = None if found is None else found.partitions.get(partition)
    return None if place is None or place.leader < 0 else place.leader


def ask(kafka: KafkaServer, request: Message, version: int, what: str, node_id: int | None = None) -> Any:
    """Send one request to a broker. None: any. Raise CommandFailed, `cannot <what>: <why>`."""
    # The client library explains an unreachable server or a refused login.
    client = Client(kafka)
    brokers = client.metadata.brokers
    if node_id is not None and node_id not in brokers:
        raise CommandFailed(f"cannot {what}: broker {node_id} is not alive", Status.UNREACHABLE)
    broker = next(iter(brokers.values())) if node_id is None else brokers[node_id]
    try:
        with closing(Channel(connect(str(broker.host), broker.port, _ANSWER_S), "headrace-cli")) as connection:
            if kafka.ca is not None:
                context = ssl.create_default_context(cafile=kafka.ca)
                connection.socket = context.wrap_socket(connection.socket, server_hostname=broker.host)
            if kafka.username is not None:
                _log_in(connection, kafka.username, kafka.password)
            return connection.ask(request, version)
    except ConnectionEnded:
        raise CommandFailed(f"cannot {what}: {kafka} does not have this request, or ended the connection") from None
    except (OSError, DecodeError) as error:
        late = isinstance(error, TimeoutError | socket.gaierror)
        reason = f"no answer within {_ANSWER_S} s" if late else getattr(error, "strerror", None) or str(error)
        raise CommandFailed(f"cannot {what}: {kafka}: {reason}", Status.UNREACHABLE) from None


def _log_in(connection: Channel, username: str, password: str) -> None:
    connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    answer = connection.ask(SaslAuthenticateRequest(auth_bytes=f"\0{username}\0{password}".encode()), 2)
    if answer.error_code:
        raise CommandFailed(f"the server refuses the login: {shown(answer.error_message or '')}", Status.REFUSED)


def check(code: int, message: str | None, what: str) -> None:
    """Raise CommandFailed for an error response."""
    if code:
        error = KafkaError(code, message) if message else KafkaError(code)
        raise CommandFailed(f"cannot {what}: {sentence(error)}", exit_status(error))
