"""Documents in Redis: `broker.ports.DocumentStorage`."""

from collections.abc import Mapping

from headrace.keyspace.keys import Keyspace
from headrace.keyspace.scripts import script
from headrace.store.connection import Connection
from headrace.store.replies import checked

_SAVE = script("save_documents")


class RedisDocuments:
    """Small values that the doors keep: one hash for each kind."""

    def __init__(self, connection: Connection, keyspace: Keyspace, epoch: int) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._epoch = epoch

    async def load_documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind by id, in id order."""
        found = checked(await self._connection.call("HGETALL", self._keyspace.documents(kind)))
        return {name.decode(): value for name, value in sorted(zip(found[::2], found[1::2], strict=True))}

    async def save_documents(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        """Apply all changes atomically; see `broker.ports.DocumentStorage.save_documents`."""
        if not changes:
            return
        kinds = {kind: place for place, kind in enumerate(sorted({kind for kind, _ in changes}), 1)}
        keys = [self._keyspace.epoch, *(self._keyspace.documents(kind) for kind in kinds)]
        arguments: list[str | bytes | int] = []
        for (kind, name), value in changes.items():
            arguments += ["D", kinds[kind], name] if value is None else ["S", kinds[kind], name, value]
        checked(await self._connection.call("EVALSHA", _SAVE.sha, len(keys), *keys, self._epoch, *arguments))
