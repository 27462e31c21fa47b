"""Transactional IDs in Redis: `broker.ports.TransactionStorage`."""

from collections.abc import Callable
from time import monotonic

from headrace.metrics.unreadable_values import Unreadable
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import DEFAULT_CLUSTER, Keyspace
from headrace.storage.logs.replicas import NoReplicas, RedisReplicas, until_copied
from headrace.storage.names import StoredNames
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, StorageUnreachable, TopicError
from headrace.transactions.model import NEW, DropTransaction, StoredTransaction, TransactionChange
from headrace.transactions.snapshot import decode, encode


class RedisTransactions:
    """One hash per transactional ID."""

    def __init__(
        self,
        scripts: Scripts,
        keyspace: Keyspace,
        fence: Fence,
        copies: RedisReplicas | NoReplicas,
        unreadable: Unreadable | None = None,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """Use a keyspace. `now_s` continues while the process is stopped."""
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._copies = copies
        self._unreadable = unreadable or Unreadable()
        default = keyspace.cluster == DEFAULT_CLUSTER
        self._kind = "transactions" if default else f"transactions:{keyspace.cluster}"
        self._names = StoredNames(scripts, keyspace.transactions, keyspace.epoch, self._unreadable, self._kind, now_s)

    async def names(self) -> list[str]:
        """Return all transactional IDs in order; some may no longer exist."""
        return await self._names.all()

    async def load_one(self, name: str, view: int | None = None) -> StoredTransaction:
        """Return a transactional ID, `NEW` if it does not exist, and fence older owners.

        A decision that is found has its replicas, because it is carried out at once. Raises TopicError.
        """
        number = self._fence.number if view is None else view
        key = self._keyspace.transaction(name)
        try:
            text = await self._scripts.run("load_transaction", [key], self._epoch(number))
            stored = decode(bytes(text)) if text else NEW
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self._unreadable.note(self._kind, name, error)
            raise
        except ValueError as error:
            self._unreadable.note(self._kind, name, error)
            raise TopicError(f"the transactional ID {name!r} is unreadable: {error}") from error
        self._unreadable.clear(self._kind, name)
        if stored.state.prepared:
            await self._replicated(key, stored.copies, self._copies.primary(key))
        return stored

    async def save(self, name: str, change: TransactionChange, view: int | None = None) -> None:
        """Apply a change as the coordinator in the view of this number (None: the present one).

        A decision is also on as many servers as the participants' records. Raises TopicError.
        """
        number = self._fence.number if view is None else view
        key = self._keyspace.transaction(name)
        await self._names.enter(name, number)
        primary = self._copies.primary(key)
        dropped = isinstance(change, DropTransaction)
        text = b"" if isinstance(change, DropTransaction) else encode(change.state)
        try:
            await self._scripts.run("save_transaction", [key], self._epoch(number), text)
        except StorageUnreachable:
            raise
        except StorageUnavailable:
            self._fence.give_up()
            raise
        if dropped:
            await self._names.leave(name, number)
        elif not isinstance(change, DropTransaction) and change.state.state.prepared:
            await self._replicated(key, change.state.copies, primary)

    async def _replicated(self, key: str, copies: int, primary: object) -> None:
        """Return when enough servers have the key.

        The shards of a Redis Cluster lose different writes in a failover. A marker must not outlive its decision.
        """
        await until_copied(self._copies, key, copies, primary)

    def _epoch(self, view: int) -> str:
        given_up = self._fence.given_up
        return f"{view}.{given_up:06}" if given_up else str(view)

    def forget(self, name: str) -> None:
        """Forget a transactional ID that another coordinator owns."""
        self._names.forget(name)
