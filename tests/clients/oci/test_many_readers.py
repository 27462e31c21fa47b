"""Instances in separate threads, in real time, under load: no message is missed while instances come and go."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import oci
from headrace.testing.oci import GroupReader, OciClients, put, text_of

MESSAGES = 600
PATIENCE_S = 60


class Reading(threading.Thread):
    """An instance that reads until it is stopped; after `dies_after` messages it stops without a commit."""

    def __init__(
        self, clients: OciClients, stream_id: str, name: str, seen: Callable[[str], None], dies_after: int = 0
    ) -> None:
        super().__init__(name=name)
        self._clients, self._stream_id, self._seen = clients, stream_id, seen
        self._dies_after = dies_after
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        client = self._clients.stream_client()
        reader = self._open(client)
        got = 0
        while not self.stop.is_set():
            try:
                messages = reader.get(20)
            except oci.exceptions.ServiceError as error:
                # What a consumer is expected to get over: it was silent for too long on a busy machine.
                if "unreserved partition" not in error.message:
                    raise
                reader = self._open(client)
                continue
            for message in messages:
                self._seen(text_of(message.value))
            got += len(messages)
            if self._dies_after and got >= self._dies_after:
                return
            if not messages:
                time.sleep(0.02)

    def _open(self, client: Any) -> GroupReader:
        return GroupReader(client, self._stream_id, "g", self.name, timeout_in_ms=2_000)


def publish(clients: OciClients, stream_id: str) -> list[str]:
    client = clients.stream_client()
    values = [str(number) for number in range(MESSAGES)]
    for number in range(0, MESSAGES, 5):
        put(client, stream_id, *values[number : number + 5], key=f"key {number}")
    return values


def wait_for(seen: "Counter[str]", values: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < len(values):
        assert time.monotonic() < deadline, f"{len(values) - len(seen)} messages have not come"
        time.sleep(0.02)


def end(readings: list[Reading]) -> None:
    for reading in readings:
        reading.stop.set()
    for reading in readings:
        reading.join(PATIENCE_S)
    assert [reading.error for reading in readings] == [None] * len(readings)


def test_readers_come_while_others_publish(headrace_oci: OciClients, wide: Any) -> None:
    seen: Counter[str] = Counter()
    readings: list[Reading] = []
    try:
        for number in range(4):
            readings.append(Reading(headrace_oci, wide.id, f"reader {number}", lambda value: seen.update([value])))
            readings[-1].start()
        values = publish(headrace_oci, wide.id)
        wait_for(seen, values)
    finally:
        end(readings)
    assert seen.keys() == set(values)


@pytest.mark.crash
def test_readers_that_die_are_replaced(headrace_oci: OciClients, wide: Any) -> None:
    seen: Counter[str] = Counter()
    readings = [
        Reading(headrace_oci, wide.id, f"reader {number}", lambda value: seen.update([value]), dies_after=dies_after)
        for number, dies_after in enumerate((30, 60, 0, 0))
    ]
    try:
        for reading in readings:
            reading.start()
        values = publish(headrace_oci, wide.id)
        wait_for(seen, values)
    finally:
        end(readings)
    assert seen.keys() == set(values)
