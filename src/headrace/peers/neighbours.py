"""Notices at once that the process of another broker has ended.

The kernel closes the connections of a process that ends, however it ends, and refuses new ones at its port. Each broker
holds a connection to the next ones in the ring of node ids: a few, however many brokers there are. What has no kernel
any more, or no network, says nothing: only its heartbeats are missing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.membership.view import Member, View
from headrace.peers.connections import Streams
from headrace.tasks import end

NEIGHBOURS: Final = 2
"""How many are watched: one may end together with the broker before it."""
_AGAIN_S, _MOST_AGAIN_S = 0.02, 1.0
"""How soon another connection is made, at first and at last."""
_SOME_BYTES: Final = 1 << 10

Open = Callable[[str], Awaitable[Streams]]


class Neighbours:
    """Of one broker."""

    def __init__(self, node_id: int, connect: Open, ended: Callable[[Member], None]) -> None:
        """Watch nobody yet.

        Args:
            node_id: this broker's.
            connect: makes a connection to an HTTP listener; raises OSError, TimeoutError.
            ended: told of each broker whose process has ended.
        """
        self._node_id = node_id
        self._connect = connect
        self._ended = ended
        self._watched: dict[Member, asyncio.Task[None]] = {}
        self._closed = False

    def go_by(self, view: View) -> None:
        """Watch the neighbours in this view, and nobody else; nobody at all after `close`."""
        if self._closed:
            return
        wanted = after(self._node_id, view)
        for member in self._watched.keys() - set(wanted):
            self._watched.pop(member).cancel()
        for member in wanted:
            watching = self._watched.get(member)
            if watching is None or watching.done():
                task = asyncio.get_running_loop().create_task(self._watch(member), name=f"broker {member.node_id}")
                self._watched[member] = task

    async def close(self) -> None:
        """Stop watching the neighbours."""
        self._closed = True
        watched, self._watched = self._watched, {}
        for task in watched.values():
            await end(task)

    async def _watch(self, member: Member) -> None:
        """Until it has ended. Where there was no connection before, a port that refuses says nothing."""
        loop = asyncio.get_running_loop()
        connected, pause_s = False, _AGAIN_S
        while True:
            began = loop.time()
            try:
                reader, writer = await self._connect(member.http)
                connected = True
                try:
                    # A listener closes connections that say nothing: then the next one is made.
                    while await reader.read(_SOME_BYTES):
                        pass
                finally:
                    writer.transport.abort()
            except ConnectionRefusedError:
                if connected:
                    self._ended(member)
                    return
            except (OSError, TimeoutError):
                pass
            pause_s = _AGAIN_S if loop.time() - began > _MOST_AGAIN_S else min(2 * pause_s, _MOST_AGAIN_S)
            await asyncio.sleep(pause_s)


def after(node_id: int, view: View) -> list[Member]:
    """The brokers after this one in the ring of node ids, as many as are watched."""
    others = [each for each in view.members if each.node_id != node_id and each.http]
    return sorted(others, key=lambda each: (each.node_id < node_id, each.node_id))[:NEIGHBOURS]
