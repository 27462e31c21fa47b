"""Share partitions in Redis, next to their logs: `broker.ports.ShareStorage`."""

from headrace.groups.sharing.state import ShareState
from headrace.storage.layout.keys import Keyspace, shares_of, state_of
from headrace.storage.logs.redis_logs import RedisLogs
from headrace.storage.logs.replicas import NoReplicas, RedisReplicas, until_copied
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import TopicError


class RedisShares:
    """A field of `{<stream>}:shares` for each group."""

    def __init__(
        self, scripts: Scripts, keyspace: Keyspace, logs: RedisLogs, replicas: RedisReplicas | NoReplicas
    ) -> None:
        self._scripts = scripts
        self._replicas = replicas
        self._keyspace = keyspace
        self._logs = logs
        self._writes = 0

    async def init(self, stream: str, group: str, state: ShareState, copies: int = 1) -> bool:
        """See `broker.ports.ShareStorage.init`."""
        return await self._written(
            "share_init", [shares_of(stream)], copies, state.epoch, self._field(group), state.encode()
        )

    async def look(self, stream: str, group: str) -> ShareState | None:
        """See `broker.ports.ShareStorage.look`."""
        key = shares_of(stream)
        return _decoded(key, checked(await self._scripts.shards.at(key).call("HGET", key, self._field(group))))

    async def load(self, stream: str, group: str) -> tuple[int, ShareState | None]:
        """See `broker.ports.ShareStorage.load`."""
        term = self._logs.term(stream)
        keys = [state_of(stream), shares_of(stream)]
        return term, _decoded(keys[1], await self._scripts.run("share_load", keys, term, self._field(group)))

    async def save(self, stream: str, group: str, term: int, state: ShareState, copies: int = 1) -> bool:
        """See `broker.ports.ShareStorage.save`."""
        self._writes += 1
        keys = [state_of(stream), shares_of(stream)]
        arguments = (term, self._field(group), self._writes, state.epoch, state.encode())
        return await self._written("share_save", keys, copies, *arguments)

    async def _written(self, name: str, keys: list[str], copies: int, *arguments: str | int) -> bool:
        key = keys[-1]
        primary = self._replicas.primary(key)
        result = bool(await self._scripts.run(name, keys, *arguments))
        await until_copied(self._replicas, key, copies, primary)
        return result

    async def drop(self, stream: str, group: str, epoch: int) -> None:
        """See `broker.ports.ShareStorage.drop`."""
        await self._scripts.run("share_drop", [shares_of(stream)], epoch, self._field(group))

    def _field(self, group: str) -> str:
        # A topic may change its virtual cluster.
        return f"{self._keyspace.cluster}/{group}"


def _decoded(key: str, text: bytes | None) -> ShareState | None:
    if not text:
        return None
    try:
        return ShareState.decode(text.decode().partition(" ")[2])
    except ValueError as error:
        raise TopicError(f"{key} is unreadable: {error}") from None
