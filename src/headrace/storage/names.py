"""The set of the names of all groups, or of all transactional IDs, of a virtual cluster.

A name enters before the first write of its keys, and leaves after they were removed.
"""

from collections.abc import Callable, Iterable
from time import monotonic

from headrace.metrics.unreadable_values import WHOLE, Unreadable
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, StorageUnreachable, TopicError

_STANDS_S = 30.0
"""Maximum age of the proof that a server uses the present view, for its first write to a name. The fence of a missing
group lasts a minute (`load_group`).
"""


class StoredNames:
    """One set of names."""

    def __init__(
        self,
        scripts: Scripts,
        key: str,
        epoch_key: str,
        unreadable: Unreadable,
        kind: str,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """Use the set at `key`.

        `kind` is its term for unreadable values. `now_s` continues while the process is stopped.
        """
        self._scripts = scripts
        self._key = key
        self._epoch_key = epoch_key
        self._unreadable = unreadable
        self._kind = kind
        self._now_s = now_s
        self._registered: set[str] = set()
        self._registering: dict[str, object] = {}
        """Names that are being registered, with the call that does it. Names of other coordinators are removed."""
        self._doubted: dict[str, int] = {}
        """Names that left the set without a response, with the number of that write. It may arrive after the name
        exists again. Until a higher number fences it, each write registers the name.
        """

    async def all(self) -> list[str]:
        """Return all names in order; some may no longer exist."""
        try:
            stored = checked(await self._scripts.shards.at(self._key).call("SMEMBERS", self._key))
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self._unreadable.note(self._kind, WHOLE, error)
            return []
        self._unreadable.clear(self._kind, WHOLE)
        return sorted(text for name in stored if (text := _text(name)) is not None)

    def loaded(self, names: Iterable[str]) -> None:
        """Note the names that are in the set."""
        self._registered = set(names).difference(self._doubted)

    async def enter(self, name: str, number: int) -> None:
        """Add a name. Raises Fenced if a later view exists, or did until recently."""
        if name in self._registered:
            return
        call = self._registering[name] = object()
        standing = False
        while not standing:
            began_s = self._now_s()
            await self._register(name, number, "add")
            standing = self._now_s() - began_s < _STANDS_S
        if number > self._doubted.get(name, -1):
            self._doubted.pop(name, None)
            if self._registering.get(name) is call:
                self._registered.add(name)
        self._registering.pop(name, None)

    async def leave(self, name: str, number: int) -> None:
        """Remove a name."""
        self._registered.discard(name)
        try:
            await self._register(name, number, "remove")
        except StorageUnreachable:
            raise
        except StorageUnavailable:
            self._doubted[name] = max(number, self._doubted.get(name, number))
            raise

    def forget(self, name: str) -> None:
        """Forget a name that another coordinator owns."""
        self._registered.discard(name)
        self._registering.pop(name, None)

    async def _register(self, name: str, view: int, what: str) -> None:
        await self._scripts.run("register_group", [self._key, self._epoch_key], view, what, name)


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
