"""Follows what other brokers change: topics, virtual clusters, listeners' documents, leader epochs, the view itself."""

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
"""Whoever has to know all waits so long for it, and goes by what is known when Redis does not answer."""
_LOOK_S = 0.005
_NOTHING = "0-0"
"""The id before all changes."""
_log = structlog.get_logger("headrace.broker.brokers")

Documents = Callable[[frozenset[str]], Awaitable[None]]


def everything(*loading: Documents) -> Documents:
    """Loads what each of these loads."""

    async def load(kinds: frozenset[str]) -> None:
        for each in loading:
            await each(kinds)

    return load


async def nothing_to_settle() -> None:
    """Where nobody can have ended without its being seen."""


def _place(change_id: str) -> tuple[int, int]:
    ms, _, sequence = change_id.partition("-")
    return int(ms), int(sequence or 0)


class MetadataListener:
    """Reads the changes, and has what they are about loaded."""

    def __init__(
        self,
        storage: MembershipStorage,
        clusters: VirtualClusters,
        documents: Documents,
        view: Callable[[], None],
        *,
        settled: Callable[[], Awaitable[None]] = nothing_to_settle,
    ) -> None:
        """Prepare.

        Args:
            storage: where changes are told.
            clusters: what has topics.
            documents: loads listeners' documents of these kinds.
            view: called when the view has changed.
            settled: returns when a broker that ends just now is out of the view, as far as that can be known.
        """
        self._storage = storage
        self._clusters = clusters
        self._documents = documents
        self._view = view
        self._settled = settled
        self._last = self._at_last_beat = _NOTHING
        self._taken = _NOTHING
        """The last change that all is loaded for."""
        self._everything = False
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._looks = SingleFlight(self._look)

    def start(self, last: str) -> None:
        """Follow from a change on; what was before it is known."""
        self._last = self._at_last_beat = self._taken = last
        self._task = asyncio.get_running_loop().create_task(self._run(), name="changes")

    async def stop(self) -> None:
        """Stop following changes."""
        self._stopped = True
        for task in (self._task, *self._looks.tasks()):
            if task is not None:
                await end(task)

    def last_is(self, change_id: str) -> None:
        """Redis says what the last change is. Where it is an earlier one than is known, Redis has lost some."""
        if _place(change_id) < _place(self._at_last_beat):
            _log.warning("Redis has lost data: all metadata is reloaded")
            self._last = change_id
            self.load_everything()
        # Changes that come with the answer to a heartbeat are often known before that is.
        self._at_last_beat = self._last

    def load_everything(self) -> None:
        """Something may have been missed."""
        self._everything = True

    @property
    def taken(self) -> str:
        """The last change that all is loaded for."""
        return self._taken

    async def catch_up(self, since: str | None = None) -> bool:
        """Return when every change there is has been taken over, or it takes too long; whether there was any.

        One that is taken over while Redis is asked for the last one counts: whoever calls this had not found it yet.

        Args:
            since: what `taken` said before the caller looked for what it did not find; None: what it says now.

        Raises:
            StorageUnavailable.
        """
        before = self._taken if since is None else since
        wanted = await self._storage.last_change()
        if _place(wanted) <= _place(before):
            return False
        deadline = asyncio.get_running_loop().time() + _CATCH_UP_S
        while _place(self._taken) < _place(wanted) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_S)
        return True

    async def current(self) -> None:
        """Return when all that was told before this call is known here, or cannot be known soon.

        A process that stood still would go by what was so before: its clients' requests have waited as the changes
        have. One look serves all who ask before it begins.
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
        except Exception:  # whoever asks goes by what is known
            _log.exception("metadata changes cannot be read")

    async def _run(self) -> None:
        while not self._stopped:
            try:
                if self._everything:
                    self._everything, upto = False, self._last
                    await self._load()
                    self._taken = upto
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
                    # The load takes a while: until then this broker is not to think that its view is the last one.
                    for _, change in found:
                        self._hear_view(change)
            except TopicError as error:
                # What it was about may not have been loaded.
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
            # What was told of logs that were not known, or of a topic behind its move to another cluster, which was
            # forgotten with the topic.
            self._clusters.learn_leaders(opened)
        if kinds:
            await self._clusters.access.reload(frozenset(kinds))
            await self._clusters.quotas.reload(frozenset(kinds))
            await self._documents(frozenset(kinds))

    def _hear_view(self, change: Change) -> None:
        if change.kind == "view":
            self._clusters.ownership.told = int(change.name)
            self._view()

    async def _load(self) -> None:
        await self._clusters.access.load()
        await self._clusters.quotas.load()
        await self._clusters.refresh_clusters()
        await self._clusters.take_moves()
        for _, broker in self._clusters:
            await refresh_all(broker.topics)
        told = await self._storage.leaders()
        self._clusters.learn_leaders(told)
        self._clusters.republish(told)
        await self._documents(frozenset())
        self._view()
