"""Follows changes of other brokers: topics, virtual clusters, documents, leader epochs and cluster membership."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from headrace.aio.single_flight import SingleFlight
from headrace.aio.tasks import end
from headrace.broker import virtual_clusters as virtual
from headrace.broker.ports import Change, MembershipStorage
from headrace.broker.topics.reconcile import refresh, refresh_all
from headrace.broker.virtual_clusters import UnknownCluster, VirtualClusters
from headrace.membership.view import Leader, leaders
from headrace.topics.errors import TopicError

_WAIT_MS = 1_000
_AGAIN_S = 0.25
_CATCH_UP_S = 2.0
_CURRENT_S = 1.0
"""Maximum wait for current metadata. Without a response of Redis, known metadata is used."""
_LOOK_S = 0.005
_NOTHING = "0-0"
"""Id before all changes."""
_log = structlog.get_logger("headrace.broker.brokers")

Documents = Callable[[frozenset[str]], Awaitable[None]]


def everything(*loading: Documents) -> Documents:
    """Return a loader that calls all of these."""

    async def load(kinds: frozenset[str]) -> None:
        for each in loading:
            await each(kinds)

    return load


async def nothing_to_settle() -> None:
    """Do nothing: for a single broker."""


def _place(change_id: str) -> tuple[int, int]:
    ms, _, sequence = change_id.partition("-")
    return int(ms), int(sequence or 0)


class MetadataListener:
    """Reads changes and loads the changed data."""

    def __init__(
        self,
        storage: MembershipStorage,
        clusters: VirtualClusters,
        documents: Documents,
        view: Callable[[], None],
        *,
        settled: Callable[[], Awaitable[None]] = nothing_to_settle,
    ) -> None:
        """`view` is called when the cluster membership has changed.

        `settled` returns once a broker that is ending has been removed, if that can be known.
        """
        self._storage = storage
        self._clusters = clusters
        self._documents = documents
        self._view = view
        self._settled = settled
        self._last = self._at_last_beat = _NOTHING
        self._taken = _NOTHING
        """Last change that is loaded."""
        self._everything = False
        """Whether everything must be loaded."""
        self._whole = True
        """Whether everything is loaded up to `_taken`."""
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._looks = SingleFlight(self._look)

    def start(self, last: str) -> None:
        """Follow changes after `last`."""
        self._last = self._at_last_beat = self._taken = last
        self._task = asyncio.get_running_loop().create_task(self._run(), name="changes")

    async def stop(self) -> None:
        """Stop following changes."""
        self._stopped = True
        for task in (self._task, *self._looks.tasks()):
            if task is not None:
                await end(task)

    def last_is(self, change_id: str) -> None:
        """Compare with the last change in Redis. If that is older, Redis has lost some: load everything."""
        if _place(change_id) < _place(self._at_last_beat):
            _log.warning("Redis has lost data: all metadata is reloaded")
            self._last = change_id
            self.load_everything()
        # Those with the response to a heartbeat are often already known.
        self._at_last_beat = self._last

    def load_everything(self) -> None:
        """Load everything again: changes may have been missed."""
        self._everything = True

    @property
    def taken(self) -> str:
        """Last change that is loaded."""
        return self._taken

    async def catch_up(self, since: str | None = None) -> bool:
        """Load all current changes, or time out. Return whether there were any.

        `since` is `taken` as of the caller's failed lookup. None: now. Raises StorageUnavailable.
        """
        before = self._taken if since is None else since
        wanted = await self._storage.last_change()
        if _place(wanted) <= _place(before):
            return False
        await self._load_up_to(wanted)
        return True

    async def is_current(self) -> bool:
        """Load all current changes, or time out. Return whether all are loaded. Raises StorageUnavailable."""
        wanted = await self._storage.last_change()
        await self._load_up_to(wanted)
        return _place(self._taken) >= _place(wanted) and self._whole and not self._everything

    async def _load_up_to(self, wanted: str) -> None:
        deadline = asyncio.get_running_loop().time() + _CATCH_UP_S
        while _place(self._taken) < _place(wanted) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_S)

    async def current(self) -> None:
        """Return when all earlier changes are loaded, or cannot be loaded soon.

        A paused process would otherwise serve requests from stale metadata. Concurrent callers share one lookup.
        """
        if self._stopped:
            return
        await asyncio.wait([self._looks.task(None)])

    async def _look(self, _: None) -> None:
        try:
            async with asyncio.timeout(_CURRENT_S):
                await self._settled()
                await self.catch_up()
                ownership = self._clusters.ownership
                if not ownership.is_current:
                    await ownership.until(lambda: ownership.is_current)
        except (TopicError, TimeoutError) as error:
            _log.debug("metadata changes cannot be read", reason=str(error))
        except Exception:  # callers use known metadata
            _log.exception("metadata changes cannot be read")

    async def _run(self) -> None:
        while not self._stopped:
            try:
                if self._everything:
                    self._everything, self._whole, upto = False, False, self._last
                    await self._load()
                    self._whole, self._taken = True, upto
                last = self._last
                found = await self._storage.changes(last, _WAIT_MS)
                whole = not found or await self._storage.has_change(last)
                if last != self._last:
                    continue
                if found:
                    self._last = found[-1][0]
                if whole:
                    await self._take([change for _, change in found])
                    self._taken = self._last
                else:
                    _log.warning("metadata changes were lost or trimmed in Redis: all metadata is reloaded")
                    self._everything = True
                    # Until all are loaded, this broker must not consider its view the latest.
                    for _, change in found:
                        self._hear_view(change)
            except TopicError as error:
                # The change may not be loaded.
                self._everything = True
                _log.warning("metadata changes cannot be applied", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                self._everything = True
                _log.exception("a metadata change could not be applied")
                await asyncio.sleep(_AGAIN_S)

    async def _take(self, changes: list[Change]) -> None:
        kinds: set[str] = set()
        topics: dict[tuple[str, str], None] = {}
        told: list[Mapping[str, Leader]] = []
        for change in changes:
            self._hear_view(change)
            if change.kind == "topics":
                topics[change.cluster, change.name] = None
            elif change.kind == "documents":
                kinds.update(change.name.split(" "))
            elif change.kind == "leaders":
                told.append(leaders(change.name))
                self._clusters.learn_leaders(told[-1])
        if kinds & {virtual.KIND, virtual.MOVED_TOPICS}:
            await self._clusters.refresh_clusters()
        await self._clusters.take_moves(topics)
        for cluster, name in topics:
            try:
                await refresh(self._clusters.get(cluster).topics, name)
            except UnknownCluster:
                continue
        for opened in told if topics or kinds else ():
            # Of logs that were unknown, or forgotten when their topic moved to another cluster.
            self._clusters.learn_leaders(opened)
        if kinds:
            await self._clusters.access.reload(frozenset(kinds))
            await self._clusters.quotas.reload(frozenset(kinds))
            await self._clusters.group_configs.reload(frozenset(kinds))
            await self._documents(frozenset(kinds))

    def _hear_view(self, change: Change) -> None:
        if change.kind == "view":
            self._clusters.ownership.told = int(change.name)
            self._view()

    async def _load(self) -> None:
        await self._clusters.access.load()
        await self._clusters.quotas.load()
        await self._clusters.group_configs.load()
        await self._clusters.refresh_clusters()
        await self._clusters.take_moves()
        for _, broker in self._clusters:
            await refresh_all(broker.topics)
        told = await self._storage.leaders()
        self._clusters.learn_leaders(told)
        self._clusters.republish(told)
        await self._documents(frozenset())
        self._view()
