"""Has something done by whoever owns it: here, or by another broker, and once more where it has just moved."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from headrace.aio.retry import Backoff, retry
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.runtime.clock import Clock
from headrace.http.peers.connections import Connections, Lost, PeerAnswer, Tls
from headrace.http.peers.signature import HEADER, PeerSigner
from headrace.membership.view import Member
from headrace.security.access.principal import Principal

_TAKEOVER_MS = 5_000
"""How long a new owner may take until it serves, once the old one is declared dead."""
_AGAIN_S = 0.05
T = TypeVar("T")


class NotHere(Exception):
    """Who was asked does not own it, or cannot do it just now: the owner by the next view may."""


class Peers:
    """The other brokers, as a listener of this one asks them."""

    def __init__(self, ownership: Ownership, seals: PeerSigner, clock: Clock, session_ms: int, tls: Tls) -> None:
        """Begin.

        Args:
            ownership: who owns what, by the present view.
            seals: prove who asks.
            clock: the time.
            session_ms: how long a broker may be silent before it is declared dead.
            tls: what those that serve HTTPS are asked with.
        """
        self.ownership = ownership
        self.seals = seals
        self.clock = clock
        self._patience_ms = session_ms + _TAKEOVER_MS
        self._connections = Connections(tls)

    async def owner_does(
        self, key: str, here: Callable[[], Awaitable[T]], there: Callable[[Member], Awaitable[T]]
    ) -> T:
        """Have something done by the owner of a key; again by the next owner while one raises NotHere.

        Args:
            key: what `Ownership.owner_of` takes.
            here: does it on this server.
            there: has another broker do it.

        Raises:
            NotHere: for longer than a takeover takes; what `here` and `there` raise else.
        """
        ownership = self.ownership
        deadline_ms = self.clock.ticks_ms() + self._patience_ms

        async def ask_owner() -> T:
            owner = ownership.member(ownership.owner_of(key))
            if owner is None:
                raise NotHere("no broker is alive")
            if owner.node_id == ownership.node_id:
                return await here()
            return await there(owner)

        return await retry(ask_owner, NotHere, Backoff(_AGAIN_S), is_over=lambda: self.clock.ticks_ms() >= deadline_ms)

    async def ask(
        self,
        member: Member,
        method: str,
        target: bytes,
        body: bytes | bytearray = b"",
        *,
        principal: Principal,
        headers: Mapping[str, str],
    ) -> PeerAnswer:
        """What another broker answers.

        Raises:
            Lost: it cannot be reached, or it went out of the view before it had answered. It may have done it.
        """
        self._connections.retain({each.http for each in self.ownership.others})
        seal = self.seals.seal(method, target, body, principal, self.clock.now_ms())
        asking = asyncio.ensure_future(
            self._connections.ask(member.http, method, target, {**headers, HEADER: seal}, body)
        )
        gone = self.ownership.until(lambda: self.ownership.member(member.node_id) != member)
        try:
            waiting: list[asyncio.Future[Any]] = [asking, gone]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise Lost(f"broker {member.node_id} was declared dead", sent=True)
        finally:
            gone.cancel()
            asking.cancel()

    def close(self) -> None:
        """End the connections that are not used just now."""
        self._connections.close()
