"""Who has a password here: kept as SCRAM credentials, for all virtual clusters and all listeners together."""

import asyncio
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec

from headrace.broker.documents import readable
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import Clock
from headrace.security.access.credentials import LEAST_ITERATIONS, Credential, Mechanism, credential, invented, salt
from headrace.text.addresses import holder

KIND = "users"
"""Kind of documents: `<mechanism> <user>` -> the credential."""
_SECRETS = "users.secrets"
_SALTS = "salts"
MOST_USERS = 10_000
LONGEST_NAME = 256
LONGEST_PASSWORD = 1_024

_AT_A_TIME = 2
"""Passwords that are checked at the same time; each takes a thread and a core for some milliseconds."""
MOST_WAITING = 500
"""Passwords that wait for that; who comes then is told to come again."""
MOST_WAITING_OF_ONE = 50
"""Of these, passwords that came by HTTP from one address, of IPv6 from one network."""
_REMEMBERED_MS = 60_000
_MOST_REMEMBERED = 10_000

Key = tuple[str, Mechanism]


def _credential(key: str, text: bytes) -> tuple[Key, Credential]:
    mechanism, _, name = key.partition(" ")
    return (name, Mechanism(mechanism)), msgspec.json.decode(text, type=Credential)


class TooManyLogins(Exception):
    """More passwords wait to be checked than the server takes."""


class TooManyUsers(Exception):
    """There are `MOST_USERS` already."""


class Users:
    """Everybody who has a password. One for a server."""

    def __init__(self, documents: DocumentStorage, clock: Clock) -> None:
        """Nobody; `load` reads who is stored."""
        self._documents = documents
        self._clock = clock
        self._known: dict[Key, Credential] = {}
        self._secret = b""
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="passwords")
        self._waiting = 0
        self._waiting_of = Counter[str]()
        """The same by address."""
        self._remembered: OrderedDict[bytes, tuple[int, Credential]] = OrderedDict()
        self._remembering = secrets.token_bytes(32)

    async def load(self) -> None:
        """Read who is stored; raises StorageUnavailable."""
        self._secret = await self._documents.keep(_SECRETS, _SALTS, secrets.token_bytes(32))
        await self.reload(frozenset())

    async def reload(self, kinds: frozenset[str]) -> None:
        """Another broker has stored documents of these kinds; none: it may have been any. Raises StorageUnavailable."""
        if kinds and KIND not in kinds:
            return
        found = await readable(self._documents, KIND, _credential)
        self._known = dict(found.values())

    def close(self) -> None:
        """End the threads that check passwords; checks that are queued are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def names(self) -> list[str]:
        """All user names, sorted."""
        return sorted({name for name, _ in self._known})

    @property
    def exist(self) -> bool:
        """Whether anyone has a password. Every request of the web console asks: it costs the same for any number."""
        return bool(self._known)

    def find(self, name: str) -> dict[Mechanism, Credential]:
        """What is kept of a user; empty: there is nobody of that name."""
        return {each: self._known[name, each] for each in Mechanism if (name, each) in self._known}

    def shown(self, name: str, mechanism: Mechanism) -> Credential:
        """What a login by SCRAM goes by: a user's credential, or one that no password fits."""
        return self._known.get((name, mechanism)) or invented(mechanism, self._secret, name)

    async def save(self, changes: Mapping[Key, Credential | None]) -> None:
        """Keep credentials, or drop those that are None. Raises TooManyUsers, StorageUnavailable, StorageFull."""
        added = {name for (name, _), kept in changes.items() if kept is not None}
        if len(added | {name for name, _ in self._known}) > MOST_USERS:
            raise TooManyUsers
        await self._documents.save(
            {
                (KIND, f"{mechanism.value} {name}"): None if kept is None else msgspec.json.encode(kept)
                for (name, mechanism), kept in changes.items()
            }
        )
        for key, kept in changes.items():
            if kept is None:
                self._known.pop(key, None)
            else:
                self._known[key] = kept

    async def create(self, name: str, password: str, mechanisms: Iterable[Mechanism] = Mechanism) -> None:
        """Keep a password. Raises as `save`."""
        made = {}
        for mechanism in mechanisms:
            own = secrets.token_bytes(16)
            salted = await self._salted(mechanism, password, own, LEAST_ITERATIONS)
            made[name, mechanism] = credential(mechanism, salted, own, LEAST_ITERATIONS)
        await self.save(made)

    async def check(self, name: str, password: str, host: str = "") -> bool:
        """Return whether this is the user's password. It takes as long for a name that does not exist.

        Args:
            name: the user's.
            password: to be checked.
            host: the address that asks and has a share of the checks that wait; empty: it has none.

        Raises:
            TooManyLogins: as many wait as may.
        """
        if len(name) > LONGEST_NAME or len(password) > LONGEST_PASSWORD:
            return False
        mechanism = next(iter(self.find(name)), Mechanism.SCRAM_SHA_256)
        kept = self.shown(name, mechanism)
        token = hmac.digest(self._remembering, f"{name}\0{password}".encode(), "sha256")
        until, before = self._remembered.get(token, (0, None))
        if before is kept and self._clock.ticks_ms() < until:
            return True
        with self._share(host):
            fits = kept.fits(mechanism, await self._salted(mechanism, password, kept.salt, kept.iterations))
        # Another password may have been set meanwhile.
        if not fits or self._known.get((name, mechanism)) != kept:
            return False
        self._remembered[token] = (self._clock.ticks_ms() + _REMEMBERED_MS, kept)
        self._remembered.move_to_end(token)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    @contextmanager
    def _share(self, host: str) -> Iterator[None]:
        """Take a place among those of an address. Raises TooManyLogins."""
        if not host:
            yield
            return
        who = holder(host)
        if self._waiting_of[who] >= MOST_WAITING_OF_ONE:
            raise TooManyLogins
        self._waiting_of[who] += 1
        try:
            yield
        finally:
            self._waiting_of[who] -= 1
            if not self._waiting_of[who]:
                del self._waiting_of[who]

    async def _salted(self, mechanism: Mechanism, password: str, with_salt: bytes, iterations: int) -> bytes:
        """Salt a password in another thread."""
        if self._waiting >= MOST_WAITING:
            raise TooManyLogins
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, salt, mechanism, password, with_salt, iterations)
        finally:
            self._waiting -= 1
