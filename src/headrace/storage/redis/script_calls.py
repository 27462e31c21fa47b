"""Calls of the server-side scripts in `storage/layout/lua`."""

from collections.abc import Callable

from headrace.storage.free_space import FreeSpace
from headrace.storage.layout.scripts import script, scripts
from headrace.storage.redis.protocol import PING, Reply, encode
from headrace.storage.redis.replies import checked, error_of
from headrace.storage.redis.shards import Shards

_GROWING = frozenset(
    {"put_topic", "register_group", "save_documents", "save_group", "save_transaction", "share_init", "share_save"}
)
"""Rejected while the disk is nearly full."""
_PROVEN = _GROWING | {"open", "take_producer_ids"}
"""On a nearly full disk, their replies count only after a later command has succeeded."""


def load_commands() -> list[bytes]:
    """Return SCRIPT LOAD for all scripts, to be sent first on each connection."""
    return [encode(["SCRIPT", "LOAD", each.text]) for each in scripts().values()]


class Scripts:
    """Scripts over connections that have loaded them. All keys of a call are in one slot."""

    def __init__(self, shards: Shards, disk: FreeSpace | None = None) -> None:
        """Use connections. `disk` is the room on the disk of Redis, if known."""
        self.shards = shards
        self._disk = disk

    async def call(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        """Call a script, and return its reply, which may be an error. Raises StorageUnavailable, StorageFull."""
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
        """Call a script, and raise its errors."""
        return checked(await self.call(name, keys, *arguments))

    def check_room(self, size: int) -> None:
        """Count bytes that are sent without `call`. Raises StorageFull."""
        if self._disk is not None:
            self._disk.check(size)

    def when_kept(self, key: str, then: Callable[[Exception | None], None]) -> None:
        """Call `then` when Redis has written its last reply for a key to its file."""
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
        """Return the encoded call."""
        return encode(["EVALSHA", script(name).sha, len(keys), *keys, *arguments])
