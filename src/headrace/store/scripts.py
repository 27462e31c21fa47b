"""Calls of the server-side scripts: one object over the whole of `keyspace/lua`, shared by every part of the store."""

from headrace.keyspace.scripts import script, scripts
from headrace.store.connection import Connection, Reply, encode
from headrace.store.replies import checked
from headrace.store.room import NEARLY_FULL, DiskRoom
from headrace.topics.errors import StorageFull

_GROWING = frozenset({"put_topic", "register_group", "save_documents", "save_group"})
"""Refused while the disk is nearly full."""
_PROVEN = _GROWING | {"open"}
"""Believed on a disk that may be filling up only once Redis has taken something sent behind the answer."""


def load_commands() -> list[bytes]:
    """SCRIPT LOAD for every script, to be sent first on each connection."""
    return [encode(["SCRIPT", "LOAD", each.text]) for each in scripts().values()]


class Scripts:
    """The scripts over a connection that has them loaded."""

    def __init__(self, connection: Connection, disk: DiskRoom | None = None) -> None:
        """Begin.

        Args:
            connection: that has the scripts loaded.
            disk: room on the disk that Redis writes to, where that is known.
        """
        self.connection = connection
        self._disk = disk

    async def call(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        """Call a script; an error that it answers is returned. Raises StorageUnavailable, StorageFull."""
        if self._disk is not None and name in _GROWING and not self._disk.has_room(0):
            raise StorageFull(NEARLY_FULL)
        reply = await self.connection.call("EVALSHA", script(name).sha, len(keys), *keys, *arguments)
        if self._disk is not None and name in _PROVEN and self._disk.low():
            checked(await self.connection.call("PING"))
        return reply

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        """The same; raises an error that it answers, as a class of `topics.errors`."""
        return checked(await self.call(name, keys, *arguments))

    @staticmethod
    def command(name: str, keys: list[str], *arguments: str | bytes | int) -> bytes:
        """The call as RESP, for whoever sends it in a certain place."""
        return encode(["EVALSHA", script(name).sha, len(keys), *keys, *arguments])
