"""Calls of the server-side scripts: one object over `storage/layout/lua`, shared by every part of storage."""

from collections.abc import Callable

from headrace.storage.free_space import FreeSpace
from headrace.storage.layout.scripts import script, scripts
from headrace.storage.redis.protocol import PING, Reply, encode
from headrace.storage.redis.replies import checked, error_of
from headrace.storage.redis.shards import Shards

_GROWING = frozenset({"put_topic", "register_group", "save_documents", "save_group"})
"""Refused while the disk is nearly full."""
_PROVEN = _GROWING | {"open", "take_producer_ids"}
"""Believed on a disk that may be filling up only once Redis has taken something sent behind the answer."""


def load_commands() -> list[bytes]:
    """SCRIPT LOAD for every script, to be sent first on each connection."""
    return [encode(["SCRIPT", "LOAD", each.text]) for each in scripts().values()]


class Scripts:
    """The scripts over connections that have them loaded. All keys of a call are in the slot of the first."""

    def __init__(self, shards: Shards, disk: FreeSpace | None = None) -> None:
        """Begin.

        Args:
            shards: with the scripts loaded.
            disk: room on the disk that Redis writes to, where that is known.
        """
        self.shards = shards
        self._disk = disk

    async def call(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        """Call a script; an error that it answers is returned. Raises StorageUnavailable, StorageFull."""
        if self._disk is not None and name in _GROWING:
            self._disk.check(0)
        connection = self.shards.at(keys[0])
        asked = script(name)
        reply = await connection.call("EVALSHA", asked.sha, len(keys), *keys, *arguments, reads=asked.reads)
        if self._disk is not None and name in _PROVEN and self._disk.low():
            if self._disk.gone:
                raise self._disk.refusal()
            checked(await connection.call("PING"))
        return reply

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        """The same; raises an error that it answers, as a class of `topics.errors`."""
        return checked(await self.call(name, keys, *arguments))

    def check_room(self, size: int) -> None:
        """Count bytes that are about to be sent past `call`. Raises StorageFull while the disk is nearly full."""
        if self._disk is not None:
            self._disk.check(size)

    def when_kept(self, key: str, then: Callable[[Exception | None], None]) -> None:
        """Tell when Redis has written to its file what it has just answered for a key, or why nobody knows that."""
        if self._disk is None or not self._disk.low():
            then(None)
            return
        if self._disk.gone:
            then(self._disk.refusal())
            return

        def answered(reply: Reply) -> None:
            then(error_of(reply) if isinstance(reply, Exception) else None)

        self.shards.at(key).send([PING], answered)

    @staticmethod
    def command(name: str, keys: list[str], *arguments: str | bytes | int) -> bytes:
        """The call as RESP, for whoever sends it in a certain place."""
        return encode(["EVALSHA", script(name).sha, len(keys), *keys, *arguments])
