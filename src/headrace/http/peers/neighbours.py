"""Detect at once that the process of another broker has ended.

The kernel closes its connections and refuses new ones. Each broker holds connections to the next ones in the ring of
node ids. Missing heartbeats detect other failures.
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
"""Number of watched neighbors; a broker may end together with its neighbor."""
_AGAIN_S, _MOST_AGAIN_S = 0.005, 1.0
"""First and maximum delay before a reconnect, in seconds."""
_DOUBTED_S: Final = 0.25
"""Maximum seconds to find out whether a broker that closed its connection has ended."""
_SLOW_S: Final = 5.0
"""Seconds before a neighbor that did not respond is asked again."""
_SOME_BYTES: Final = 1 << 10


class Neighbours:
    """Neighbors of one broker."""

    def __init__(self, node_id: int, connections: Connections, ended: Callable[[Member], None]) -> None:
        """`ended` is called for each broker whose process has ended."""
        self._node_id = node_id
        self._connections = connections
        self._ended = ended
        self._watched: dict[Member, asyncio.Task[None]] = {}
        self._held: set[Member] = set()
        """Brokers with an open connection."""
        self._doubted: dict[Member, asyncio.Event] = {}
        """Brokers that closed a connection, until they respond or leave the cluster membership."""
        self._slow: dict[Member, float] = {}
        """Time until which unresponsive brokers are not asked."""
        self._closed = False

    def go_by(self, view: View) -> None:
        """Watch only the neighbors in this cluster membership."""
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
        """Stop watching."""
        self._closed = True
        watched, self._watched = self._watched, {}
        for member, task in watched.items():
            await end(task)
            self._trust(member)
        self._connections.close()

    async def settled(self) -> None:
        """Wait until the state of each neighbor is known, or cannot be known soon.

        A client that loses a connection requests leaders, and librdkafka retries only after 1 to 2 s, so the response
        must be current. Each neighbor is asked, as an ending process does not respond.
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
            # Heartbeats decide.
            self._slow[member] = asyncio.get_running_loop().time() + _SLOW_S

    def _fenced_reason(self, member: Member) -> None:
        if member not in self._doubted:
            self._doubted[member] = asyncio.Event()
            asyncio.get_running_loop().call_later(_DOUBTED_S, self._trust, member)

    def _trust(self, member: Member) -> None:
        fenced_reason = self._doubted.pop(member, None)
        if fenced_reason is not None:
            fenced_reason.set()

    async def _watch(self, member: Member) -> None:
        """Watch a broker until it ends. A refused first connection proves nothing."""
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
    try:
        with contextlib.suppress(OSError):
            while await reader.read(_SOME_BYTES):
                pass
    finally:
        writer.transport.abort()


def after(node_id: int, view: View) -> list[Member]:
    """Return the next brokers in the ring of node ids."""
    others = [each for each in view.members if each.node_id != node_id and each.http]
    return sorted(others, key=lambda each: (each.node_id < node_id, each.node_id))[:NEIGHBOURS]
