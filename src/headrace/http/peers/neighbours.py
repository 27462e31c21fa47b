"""Notices at once that the process of another broker has ended.

The kernel closes the connections of a process that ends, however it ends, and refuses new ones at its port. Each broker
holds a connection to the next ones in the ring of node ids: a few, however many brokers there are. What has no kernel
any more, or no network, says nothing: only its heartbeats are missing.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from headrace.aio.retry import Backoff
from headrace.aio.tasks import end
from headrace.http.peers.connections import Connections, Lost
from headrace.membership.view import Member, View

NEIGHBOURS: Final = 2
"""How many are watched: one may end together with the broker before it."""
_AGAIN_S, _MOST_AGAIN_S = 0.005, 1.0
"""How soon another connection is made, at first and at last."""
_DOUBTED_S: Final = 0.25
"""How long it may take at most to find out whether a broker that has closed its connection has ended."""
_SLOW_S: Final = 5.0
"""How long a neighbour is not asked again that did not answer in that time."""
_SOME_BYTES: Final = 1 << 10


class Neighbours:
    """Of one broker."""

    def __init__(self, node_id: int, connections: Connections, ended: Callable[[Member], None]) -> None:
        """Watch nobody yet.

        Args:
            node_id: this broker's.
            connections: to HTTP listeners.
            ended: told of each broker whose process has ended.
        """
        self._node_id = node_id
        self._connections = connections
        self._ended = ended
        self._watched: dict[Member, asyncio.Task[None]] = {}
        self._held: set[Member] = set()
        """Those that a connection is held to."""
        self._doubted: dict[Member, asyncio.Event] = {}
        """Those that have closed a connection, until they answer or are out of the view."""
        self._slow: dict[Member, float] = {}
        """Until when those are not asked that did not answer."""
        self._closed = False

    def go_by(self, view: View) -> None:
        """Watch the neighbours in this view, and nobody else; nobody at all after `close`."""
        if self._closed:
            return
        wanted = after(self._node_id, view)
        self._connections.retain({each.http for each in wanted})
        for member in self._watched.keys() - set(wanted):
            self._watched.pop(member).cancel()
            self._slow.pop(member, None)
            self._trust(member)
        for member in wanted:
            watching = self._watched.get(member)
            if watching is None or watching.done():
                task = asyncio.get_running_loop().create_task(self._watch(member), name=f"broker {member.node_id}")
                self._watched[member] = task

    async def close(self) -> None:
        """Stop watching the neighbours."""
        self._closed = True
        watched, self._watched = self._watched, {}
        for member, task in watched.items():
            await end(task)
            self._trust(member)
        self._connections.close()

    async def settled(self) -> None:
        """Return when of each neighbour it is known whether it has ended, or that cannot be known soon.

        A client asks for leaders when it loses its connection to one, and librdkafka only a second or two later again:
        what it is told must not be from before. The kernel closes a process' connections one after the other, so each
        neighbour is asked: one that ends just now does not answer.
        """
        now = asyncio.get_running_loop().time()
        asked = (each for each in self._held | self._doubted.keys() if self._slow.get(each, 0.0) <= now)
        await asyncio.gather(*map(self._ask, asked))
        for fenced_reason in list(self._doubted.values()):
            await fenced_reason.wait()

    async def _ask(self, member: Member) -> None:
        try:
            async with asyncio.timeout(_DOUBTED_S):
                await self._connections.ask(member.http, "GET", b"/livez", {}, b"")
            self._trust(member)
        except Lost:
            if member in self._held:
                self._fenced_reason(member)
        except TimeoutError:
            # Nobody is to wait for it again and again: its heartbeats are missing, or they are not.
            self._slow[member] = asyncio.get_running_loop().time() + _SLOW_S

    def _fenced_reason(self, member: Member) -> None:
        """It has closed a connection."""
        if member not in self._doubted:
            self._doubted[member] = asyncio.Event()
            asyncio.get_running_loop().call_later(_DOUBTED_S, self._trust, member)

    def _trust(self, member: Member) -> None:
        """It answers, or is out of the view."""
        fenced_reason = self._doubted.pop(member, None)
        if fenced_reason is not None:
            fenced_reason.set()

    async def _watch(self, member: Member) -> None:
        """Until it has ended. Where there was no connection before, a port that refuses says nothing."""
        loop = asyncio.get_running_loop()
        connected, backoff = False, Backoff(_AGAIN_S, _MOST_AGAIN_S)
        while True:
            began = loop.time()
            try:
                reader, writer = await self._connections.open(member.http)
            except ConnectionRefusedError:
                if connected:
                    self._ended(member)
                    return
            except (OSError, TimeoutError):
                pass
            else:
                connected = True
                self._held.add(member)
                try:
                    await _until_closed(reader, writer)
                finally:
                    self._held.discard(member)
                self._fenced_reason(member)
            if loop.time() - began > _MOST_AGAIN_S:
                backoff.reset()
            await backoff.pause()


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the other side has closed a connection; a listener does that to those that say nothing."""
    try:
        with contextlib.suppress(OSError):
            while await reader.read(_SOME_BYTES):
                pass
    finally:
        writer.transport.abort()


def after(node_id: int, view: View) -> list[Member]:
    """The brokers after this one in the ring of node ids, as many as are watched."""
    others = [each for each in view.members if each.node_id != node_id and each.http]
    return sorted(others, key=lambda each: (each.node_id < node_id, each.node_id))[:NEIGHBOURS]
