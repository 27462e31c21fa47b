"""Send the flights at a visible pace, in a thread."""

import logging
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.demo.flights import Flight, in_order

# Relevant errors arrive with the records.
_SILENT = logging.getLogger("headrace.demo.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_SLICE_S = 0.02
_AT_ONCE = 2_000
"""Flights between checks of acknowledgments and of the stop flag."""


class Sender:
    """An idempotent producer that counts `sent` and `acknowledged`."""

    def __init__(self, kafka: str, topic: str, flights: Path, *, rate: int, limit: int | None) -> None:
        """`rate` per second, 0 for unlimited; `limit` None for all flights."""
        self.sent = 0
        self.acknowledged = 0
        self.checksum = 0
        """Sum of the CRC-32 of every sent value."""
        self.error: str | None = None
        self.done = False
        self._topic = topic
        self._rate = rate
        self._flights = in_order(flights, limit)
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "client.id": "flights-sender",
                "enable.idempotence": True,
                "linger.ms": 50,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 200_000,
            },
            logger=_SILENT,
        )
        self._thread = threading.Thread(target=self._run, name="flights sender", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def join(self) -> None:
        """Wait until all records are acknowledged."""
        self._thread.join()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._send_all()
            while self._producer.flush(0.2) and not self._stop.is_set():
                pass
        except KafkaException as error:
            self.error = str(error)
        except Exception as error:  # otherwise not reported from a thread
            self.error = f"{type(error).__name__}: {error}"
        self.done = True

    def _send_all(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.sent if self._rate else _AT_ONCE
            if not self._send(self._flights, min(due, _AT_ONCE)):
                return
            if self._rate and due < _AT_ONCE:
                self._stop.wait(_SLICE_S)

    def _send(self, flights: Iterator[Flight], due: int) -> bool:
        encode = msgspec.json.Encoder().encode
        for _ in range(due):
            flight = next(flights, None)
            if flight is None:
                return False
            value = encode(flight)
            self.checksum += zlib.crc32(value)
            self._produce(flight.carrier.encode(), value)
            self.sent += 1
        self._producer.poll(0)
        return True

    def _produce(self, key: bytes, value: bytes) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, key=key, value=value, on_delivery=self._delivered)
            except BufferError:  # full queue
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.error = f"a record was not delivered: {error.str()}"
