"""Sends the flights to the topic, at a pace that can be watched, in a thread of its own."""

import logging
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.demo.flights import Flight, in_order

# What matters of the log of librdkafka comes as an error of a record.
_SILENT = logging.getLogger("headrace.demo.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_SLICE_S = 0.02
_AT_ONCE = 2_000
"""Flights between two looks at what was acknowledged and at the stop sign."""


class Sender:
    """An idempotent producer; `sent` and `acknowledged` count while it runs."""

    def __init__(self, kafka: str, topic: str, flights: Path, *, rate: int, limit: int | None) -> None:
        """Prepare.

        Args:
            kafka: HOST:PORT.
            topic: which exists.
            flights: the package's file.
            rate: flights per second; 0: as fast as it goes.
            limit: how many of the first flights; None: all.
        """
        self.sent = 0
        self.acknowledged = 0
        self.checksum = 0
        """The sum of the CRC-32 of every value sent."""
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
        """Begin to send."""
        self._thread.start()

    def join(self) -> None:
        """Wait until all was sent and acknowledged."""
        self._thread.join()

    def stop(self) -> None:
        """Send no more, and wait for the thread."""
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
        except Exception as error:  # a thread's error reaches nobody by itself
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
        """Send so many, or what is left; whether there may be more."""
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
            except BufferError:  # as many as may wait for their acknowledgement do
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.error = f"a record was not delivered: {error.str()}"
