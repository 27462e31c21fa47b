"""The Python libraries, by their own settings."""

import asyncio
import contextlib
import gc
import logging
import ssl
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from tests.clients.secured.interface import CERTIFICATE, MECHANISMS, Login, Refused

with warnings.catch_warnings():
    # It reads its own schema files by a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider

    from kafka import KafkaConsumer, KafkaProducer

_MOST_S = 60
_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError._SSL}


class Confluent:
    """confluent-kafka, which is librdkafka."""

    name: ClassVar[str] = "confluent-kafka"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Nothing is to be built."""

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        heard: list[KafkaError] = []
        settings = self._settings(login) | {"error_cb": heard.append}
        producer = Producer(settings)
        for value in values:
            producer.produce(topic, value.encode())
        until = time.monotonic() + _MOST_S
        while producer.flush(0.05):
            # It takes an alert that follows the handshake, as with TLS 1.3, for a connection that broke.
            refusals = [each.str() for each in heard if each.code() in _REFUSALS or "SSL alert" in each.str()]
            if refusals:
                raise Refused("; ".join(refusals))
            assert time.monotonic() < until, heard
        consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            return [(each.value() or b"").decode() for each in consumer.consume(len(values), _MOST_S)]
        finally:
            consumer.close()

    @staticmethod
    def _settings(login: Login) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": login.address,
            "security.protocol": login.protocol,
            "ssl.ca.location": str(login.authority),
            "log_level": 0,
        }
        if login.mechanism == CERTIFICATE:
            return found | {
                "ssl.certificate.location": str(login.certificate),
                "ssl.key.location": str(login.certificate),
            }
        found["sasl.mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            return found | {"oauth_cb": lambda _config: (login.token, time.time() + 3_600)}
        return found | {"sasl.username": login.name, "sasl.password": login.password}


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class _AioToken(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _of_python(login: Login, token: type[_Token | _AioToken]) -> dict[str, Any]:
    """The settings that kafka-python and aiokafka have in common."""
    context = ssl.create_default_context(cafile=login.authority)
    found: dict[str, Any] = {
        "bootstrap_servers": login.address,
        "security_protocol": login.protocol,
        "ssl_context": context,
    }
    if login.mechanism == CERTIFICATE:
        assert login.certificate is not None
        context.load_cert_chain(login.certificate)
        return found
    found["sasl_mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        return found | {"sasl_oauth_token_provider": token(login.token)}
    return found | {"sasl_plain_username": login.name, "sasl_plain_password": login.password}


class _Said(logging.Handler):
    """What kafka-python says in its log, and in no exception: why a connection ended."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.lines.append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take down what it says."""
        log = logging.getLogger("kafka.net")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)


class KafkaPython:
    """kafka-python."""

    name: ClassVar[str] = "kafka-python"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Nothing is to be built."""

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        settings = _of_python(login, _Token) | {"bootstrap_timeout_ms": login.patience_s * 1000}
        said = _Said()
        with said.listening():
            producer = self._producer(settings)
        if producer is None:
            raise Refused("; ".join(said.lines))
        for value in values:
            producer.send(topic, value.encode()).get(_MOST_S)
        producer.close()
        consumer = KafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
        try:
            return [next(consumer).value.decode() for _ in values]
        finally:
            consumer.close()

    @staticmethod
    def _producer(settings: dict[str, Any]) -> KafkaProducer | None:
        with warnings.catch_warnings():
            try:
                return KafkaProducer(**settings)
            except KafkaPythonError:
                pass
            # Its constructor leaves sockets open when it fails.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
            return None


class AioKafka:
    """aiokafka."""

    name: ClassVar[str] = "aiokafka"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Nothing is to be built."""

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""

        async def work() -> list[str]:
            settings = _of_python(login, _AioToken)
            producer = AIOKafkaProducer(**settings)
            try:
                await producer.start()
                for value in values:
                    await producer.send_and_wait(topic, value.encode())
            finally:
                await producer.stop()
            consumer = AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
            await consumer.start()
            try:
                return [(await consumer.getone()).value.decode() for _ in values]
            finally:
                await consumer.stop()

        try:
            return asyncio.run(asyncio.wait_for(work(), 2 * _MOST_S))
        except AioKafkaError as error:
            raise Refused(repr(error)) from None
