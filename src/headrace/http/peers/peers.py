"""Execution of requests by their owner, with retries during a takeover."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from headrace.aio.retry import Backoff, retry
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import Clock
from headrace.http.peers.connections import Connections, Lost, PeerAnswer, Tls
from headrace.http.peers.signature import HEADER, SECRET_SIZE, PeerSigner
from headrace.membership.view import Member
from headrace.security.access.principal import Principal

_TAKEOVER_MS = 5_000
"""Maximum time until a new owner serves, after the old one is declared dead."""
_AGAIN_S = 0.05
SECRETS, SEALS = "peer.secrets", "seals"
"""Kind and id of the document with the secret."""
T = TypeVar("T")


async def keyspace_signer(documents: DocumentStorage) -> PeerSigner:
    """Return the signer with the keyspace's secret, which the first broker creates. Raises StorageUnavailable."""
    return PeerSigner(await documents.keep(SECRETS, SEALS, secrets.token_bytes(SECRET_SIZE)))


class NotHere(Exception):
    """This broker is not the owner or is not ready. Ask the current owner."""


class Peers:
    """The other brokers, for a listener."""

    def __init__(self, ownership: Ownership, seals: PeerSigner, clock: Clock, session_ms: int, tls: Tls) -> None:
        """`session_ms` is the time until a silent broker is declared dead."""
        self.ownership = ownership
        self.seals = seals
        self.clock = clock
        self._patience_ms = session_ms + _TAKEOVER_MS
        self._connections = Connections(tls)

    async def owner_does(
        self, key: str, here: Callable[[], Awaitable[T]], there: Callable[[Member], Awaitable[T]]
    ) -> T:
        """Execute a request `here` or `there`, and retry with the next owner after NotHere.

        Raises NotHere for longer than a takeover takes, and other errors of both.
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
        """Send a request to another broker.

        Raises Lost if it is unreachable or leaves the cluster membership. It may have handled the request.
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
        """Close idle connections."""
        self._connections.close()
