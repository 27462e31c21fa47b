"""kcat from Debian: the oldest librdkafka in use (2.0.2), driven through its command line.

It gives records no timestamp of the caller's, commits by itself, and prints headers as text: tests keep to simple ones.
"""

import itertools
import queue
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

from tests.harness.clients.interface import Client, ClientFailed, Codec, Headers, Member, Received, Record, Reset

_BETWEEN = "\x1e\x02\x1e"
"""Between records on its input; tests do not use it inside values."""
_AFTER_KEY = "\x1f\x02\x1f"
_FORMAT = "%p %o %T %K %S\n%k%s%h\n"
_STOP_S = 60
_AWAY = b"Local: Broker transport failure"
_OWNED = re.compile(r"rebalanced .*: (assigned|revoked): (.*)")
_PARTITION = re.compile(r"\[(\d+)\]")


def _headers(text: str) -> Headers:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in pairs)


def _records(output: IO[bytes]) -> Iterator[Received]:
    """What `_FORMAT` wrote, as far as it is whole."""
    while (line := output.readline()).endswith(b"\n"):
        partition, offset, timestamp, key_size, value_size = map(int, line.split())
        key = output.read(max(0, key_size))
        value = output.read(max(0, value_size))
        headers = output.readline()
        if not headers.endswith(b"\n"):
            return
        yield Received(
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            key=None if key_size < 0 else key,
            value=None if value_size < 0 else value,
            headers=_headers(headers[:-1].decode()),
        )


class KcatMember(Member):
    """`kcat -G`; its output is read in a thread."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._records: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._owned: frozenset[int] = frozenset()
        self._threads = [threading.Thread(target=work) for work in (self._read, self._watch)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for record in _records(self._process.stdout):
            self._records.put(record)

    def _watch(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said = _OWNED.search(line.decode())
            if said is not None:
                numbers = frozenset(map(int, _PARTITION.findall(said[2])))
                self._owned = numbers if said[1] == "assigned" else frozenset()

    def poll(self, seconds: float, count: int = 500) -> list[Received]:
        """See Member."""
        found: list[Received] = []
        deadline = time.monotonic() + seconds
        while len(found) < count:
            try:
                found.append(self._records.get(timeout=0 if found else max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return found

    def owned(self) -> frozenset[int]:
        """See Member."""
        return self._owned

    def commit(self) -> None:
        """It commits by itself, every 5 s: it takes `auto.commit.interval.ms` for a topic's setting, without effect."""

    def close(self) -> None:
        """See Member; it commits first."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        finally:
            self._process.kill()
            self._process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()


class Kcat(Client):
    """See Client. Further settings of librdkafka go to every call."""

    name = "kcat"
    sets_timestamps = False
    cannot_send = frozenset({(None, None), (None, b"")})

    def __init__(self, address: str, **settings: Any) -> None:
        super().__init__(address)
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def _command(self, *arguments: str, **settings: Any) -> list[str]:
        given = {name.replace("_", "."): value for name, value in settings.items()} | self._settings
        options = [part for name, value in given.items() for part in ("-X", f"{name}={value}")]
        return ["kcat", "-b", self.address, *options, *arguments]

    def send(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: Codec = "none",
        acks: Literal["0", "1", "all"] = "all",
        idempotent: bool = False,
        largest: int = 1_000_000,
    ) -> None:
        """See Client. One run for each stretch of records that have the same headers, or no value."""
        base = self._command(
            "-P", "-t", topic, "-p", str(partition), "-z", codec, "-D", _BETWEEN, "-K", _AFTER_KEY,
            acks=acks, enable_idempotence=str(idempotent).lower(), message_max_bytes=largest, linger_ms=20,
            message_timeout_ms=60_000,
        )  # fmt: skip
        for (headers, is_null), alike in itertools.groupby(records, lambda one: (one.headers, one.value is None)):
            named = [part for name, value in headers for part in ("-H", _header(name, value))]
            data = _BETWEEN.encode().join(
                (b"" if one.key is None else one.key + _AFTER_KEY.encode()) + (one.value or b"") for one in alike
            )
            # What is not ended by a delimiter and is empty would be no record at all.
            data += _BETWEEN.encode()
            done = subprocess.run(
                [*base, *named, *(["-Z"] if is_null else [])], input=data, capture_output=True, check=False, timeout=120
            )
            # Of several brokers one may be away: it says so, and goes on at the others.
            errors = [line for line in done.stderr.splitlines() if b"ERROR" in line and _AWAY not in line]
            if done.returncode or errors:
                raise ClientFailed(None, done.stderr.decode())

    def read(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        offset: int = 0,
        reset: Reset = "error",
        seconds: float = 60,
    ) -> list[Received]:
        """See Client."""
        command = self._command(
            "-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-u", "-f", _FORMAT,
            topic_auto_offset_reset=reset,
        )  # fmt: skip
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        timer = threading.Timer(seconds, process.terminate)
        timer.start()
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            found = list(_records(process.stdout))
            said = process.stderr.read().decode()
        timer.cancel()
        if len(found) < count and "ERROR" in said:
            raise ClientFailed(None, said)
        return found

    def member(self, group: str, topic: str, *, instance: str | None = None, reset: Reset = "earliest") -> Member:
        """See Client."""
        static = {} if instance is None else {"group_instance_id": instance}
        return KcatMember(
            self._command(
                "-E", "-G", group, "-u", "-f", _FORMAT, topic,
                auto_offset_reset=reset, session_timeout_ms=6_000,
                heartbeat_interval_ms=200, topic_metadata_refresh_interval_ms=1_000, reconnect_backoff_max_ms=200,
                **static,
            )
        )  # fmt: skip


def _header(name: str, value: bytes | None) -> str:
    return name if value is None else f"{name}={value.decode()}"
