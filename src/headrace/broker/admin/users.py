"""Users with passwords, stored as SCRAM credentials, common to all virtual clusters and listeners."""

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
"""Kind of the documents: `<mechanism> <user>` -> the credential."""
_SECRETS = "users.secrets"
_SALTS = "salts"
MOST_USERS = 10_000
LONGEST_NAME = 256
LONGEST_PASSWORD = 1_024

_AT_A_TIME = 2
"""Concurrent password checks. Each takes a thread and a core for some milliseconds."""
MOST_WAITING = 500
"""Maximum queued checks. Further ones are rejected."""
MOST_WAITING_OF_ONE = 50
"""Maximum queued checks by HTTP from one address, or IPv6 network."""
_REMEMBERED_MS = 60_000
_MOST_REMEMBERED = 10_000

Key = tuple[str, Mechanism]


def _credential(key: str, text: bytes) -> tuple[Key, Credential]:
    mechanism, _, name = key.partition(" ")
    return (name, Mechanism(mechanism)), msgspec.json.decode(text, type=Credential)


class TooManyLogins(Exception):
    """Too many passwords are waiting to be checked."""


class TooManyUsers(Exception):
    """`MOST_USERS` is reached."""


class Users:
    """All users with passwords."""

    def __init__(self, documents: DocumentStorage, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._known: dict[Key, Credential] = {}
        self._secret = b""
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="passwords")
        self._waiting = 0
        self._waiting_of = Counter[str]()
        """Queued checks by address."""
        self._remembered: OrderedDict[bytes, tuple[int, Credential]] = OrderedDict()
        self._remembering = secrets.token_bytes(32)

    async def load(self) -> None:
        """Load stored users. Raises StorageUnavailable."""
        self._secret = await self._documents.keep(_SECRETS, _SALTS, secrets.token_bytes(32))
        await self.reload(frozenset())

    async def reload(self, kinds: frozenset[str]) -> None:
        """See `AclAuthorizer.reload`."""
        if kinds and KIND not in kinds:
            return
        found = await readable(self._documents, KIND, _credential)
        self._known = dict(found.values())

    def close(self) -> None:
        """Stop the threads and drop queued checks."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def names(self) -> list[str]:
        """Return all user names, sorted."""
        return sorted({name for name, _ in self._known})

    @property
    def exist(self) -> bool:
        """Whether any user exists. Fast: each request of the web console calls it."""
        return bool(self._known)

    def find(self, name: str) -> dict[Mechanism, Credential]:
        """Return a user's credentials by mechanism."""
        return {each: self._known[name, each] for each in Mechanism if (name, each) in self._known}

    def shown(self, name: str, mechanism: Mechanism) -> Credential:
        """Return the credential for a SCRAM login. For an unknown user, one that no password fits."""
        return self._known.get((name, mechanism)) or invented(mechanism, self._secret, name)

    async def save(self, changes: Mapping[Key, Credential | None]) -> None:
        """Store credentials, or remove those that are None. Raises TooManyUsers, StorageUnavailable, StorageFull."""
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
        """Store a password. Raises as `save`."""
        made = {}
        for mechanism in mechanisms:
            own = secrets.token_bytes(16)
            salted = await self._salted(mechanism, password, own, LEAST_ITERATIONS)
            made[name, mechanism] = credential(mechanism, salted, own, LEAST_ITERATIONS)
        await self.save(made)

    async def check(self, name: str, password: str, host: str = "") -> bool:
        """Whether a password is correct. An unknown user takes as long.

        `host` is the address whose share of queued checks is limited. Raises TooManyLogins.
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
        # The password may have changed during the check.
        if not fits or self._known.get((name, mechanism)) != kept:
            return False
        self._remembered[token] = (self._clock.ticks_ms() + _REMEMBERED_MS, kept)
        self._remembered.move_to_end(token)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    @contextmanager
    def _share(self, host: str) -> Iterator[None]:
        """Count a queued check of an address. Raises TooManyLogins."""
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
        if self._waiting >= MOST_WAITING:
            raise TooManyLogins
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, salt, mechanism, password, with_salt, iterations)
        finally:
            self._waiting -= 1
