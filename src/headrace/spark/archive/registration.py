"""Tells the server where a topic's archive lies and how far it is, by a document beside the topics.

This is the only thing of Headrace's that Spark's side writes into Redis.
"""

import time
from collections.abc import Mapping

import msgspec

from headrace.client.errors import StorageUnavailable
from headrace.lakehouse.write.commit import Target
from headrace.spark.source.redis_log import connect
from headrace.storage.layout import archives
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS


class Registrar:
    """Writes the documents of one archive's topics."""

    def __init__(self, url: str) -> None:
        """Connects with the first document."""
        self._redis = connect(url)
        self._key = Keyspace().documents(archives.KIND)
        self._elsewhere: dict[str, str] = {}

    def close(self) -> None:
        """Give the connection back."""
        self._redis.close()

    def register(self, target: Target, archived: Mapping[int, int]) -> str | None:
        """Say where a topic's table lies and how far it is; a line when another table stands there, once.

        Raises:
            StorageUnavailable: Redis does not answer.
        """
        document = archives.ArchiveDocument(
            topic=target.topic,
            table=target.table.place.url,
            archived=dict(archived),
            updated_ms=int(time.time() * 1000),
        )
        try:
            if self._redis.hsetnx(self._key, target.topic_id, archives.encode(document)):
                return None
            stored = self._redis.hget(self._key, target.topic_id)
            there = _table(stored)  # type: ignore[arg-type]
            if there in {document.table, None}:
                self._redis.hset(self._key, target.topic_id, archives.encode(document))
                return None
        except ERRORS as error:
            raise StorageUnavailable(f"the archive was not registered: {' '.join(str(error).split())}") from error
        if self._elsewhere.get(target.topic_id) == there:
            return None
        self._elsewhere[target.topic_id] = str(there)
        return (
            f"old records of {target.topic!r} are read back from {there}, which was there first; "
            f"to have this table read instead: HDEL {self._key} {target.topic_id}"
        )


def _table(text: bytes | None) -> str | None:
    """The registered table; None for a document that is gone or cannot be read."""
    try:
        return None if text is None else archives.decode(text).table
    except msgspec.MsgspecError:
        return None
