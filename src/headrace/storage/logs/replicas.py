"""Wait until replicas have what a primary has acknowledged: `broker.log_ports.InSyncReplicas`.

Each primary has a connection per number of replicas. A round is a tiny write and WAIT, for all pending requests. The
write is needed because WAIT considers only its connection's writes. A replica that has it also has everything that the
primary acknowledged before.

A round counts only if the primary has the same replication id (`INFO replication`) as when the batches' connection was
made. It changes with each promotion, so a former primary, or another server at its address, confirms nothing.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import structlog

from headrace.aio.tasks import tell
from headrace.storage.errors import Unreachable
from headrace.storage.layout.keys import barrier_of
from headrace.storage.redis.connection import ANSWER_S, Connection, ReplicationInfo
from headrace.storage.redis.shards import Shards
from headrace.topics.errors import NotEnoughReplicasAfterAppend, StorageUnavailable

ConfirmDone = Callable[[Exception | None], None]

_SLICE_S: Final = 0.25
"""Seconds that one WAIT blocks. New requests wait that long."""
_LOOK_AGAIN_S: Final = 0.1
"""Minimum seconds between rounds while replicas are missing."""
_STATE_MS: Final = 5_000
"""Maximum wait for replicas of a state."""
_KEPT_MS: Final = 60_000
"""Milliseconds until the key of a barrier's write expires."""
_ASKED: Final = "a question for copies"
_OTHER_PRIMARY: Final = "it is not the primary that it was"
_log = structlog.get_logger("headrace.storage.logs")


class _Asked:
    __slots__ = ("deadline", "done", "stream")

    def __init__(self, stream: str, deadline: float, done: ConfirmDone) -> None:
        self.stream = stream
        self.deadline = deadline
        """Time to give up; infinite for never."""
        self.done = done


class RedisReplicas:
    """Barriers of all primaries."""

    can_replicate = True
    """Whether replicas are possible."""

    def __init__(self, shards: Shards, most_wait_ms: int) -> None:
        """Start without requests. `most_wait_ms` is `replica.lag.time.max.ms`."""
        self._shards = shards
        self._most_wait_s = most_wait_ms / 1000
        self._barriers: dict[Connection, dict[int, _Barrier]] = {}
        """By number of servers to wait for."""
        self._ending: set[asyncio.Task[None]] = set()
        shards.on_lost.append(self._lost)

    def primary(self, stream: str) -> object:
        """Return the identity of a stream's connection, which changes when it reconnects."""
        connection = self._shards.at(stream)
        return connection, connection.made

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: ConfirmDone) -> None:
        """Call `done` when `copies` servers have a stream's batches; see `broker.log_ports.InSyncReplicas`."""
        deadline = inf
        if wait_ms is not None:
            deadline = asyncio.get_running_loop().time() + min(wait_ms / 1000, self._most_wait_s)
        self._at(stream, copies).add(_Asked(stream, deadline, done))

    def why_too_few(self, stream: str, copies: int) -> str:
        """Return why fewer than `copies` servers have a stream's batches. Empty if unknown."""
        return self._at(stream, copies).why_too_few(stream)

    def _at(self, stream: str, copies: int) -> "_Barrier":
        connection = self._shards.at(stream)
        barriers = self._barriers.setdefault(connection, {})
        if copies not in barriers:
            barriers[copies] = _Barrier(connection, copies, lambda each: self._shards.at(each) is connection)
        return barriers[copies]

    def _lost(self, connection: Connection) -> None:
        self._end(connection, StorageUnavailable("the connection to Redis was lost before its replicas had all"))

    def _end(self, connection: Connection, error: Exception) -> None:
        for barrier in self._barriers.pop(connection, {}).values():
            barrier.stop(error)
            task = asyncio.get_running_loop().create_task(barrier.close(error))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._barriers):
            # No log must be recovered.
            self._end(connection, NotEnoughReplicasAfterAppend("the server ends before the replicas have all"))
        await asyncio.gather(*self._ending)


class NoReplicas:
    """The embedded Valkey, which has no replicas."""

    can_replicate = False

    def primary(self, _stream: str) -> object:
        """Return None: the primary never changes."""
        return None

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: ConfirmDone) -> None:
        """Reject, or confirm a request without a time limit: no other server can take over."""
        done(None if wait_ms is None else NotEnoughReplicasAfterAppend(self.why_too_few(stream, copies)))

    def why_too_few(self, _stream: str, copies: int) -> str:
        """Return the reason."""
        return f"min.insync.replicas={copies}: the embedded Valkey has no replicas"

    async def close(self) -> None:
        """Do nothing."""


async def until_copied(replicas: RedisReplicas | NoReplicas, key: str, copies: int, primary: object) -> None:
    """Wait until `copies` servers have what was written to a key. Raises StorageUnavailable if that is unknown.

    `primary`: of the key before the write.
    """
    if copies <= 1 or not replicas.can_replicate:
        return
    if replicas.primary(key) != primary:
        raise StorageUnavailable("another primary may have taken over since the write")
    confirmed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not confirmed.done():
            confirmed.set_result(error)

    replicas.confirm(key, copies, _STATE_MS, done)
    error = await confirmed
    if error is not None:
        raise StorageUnavailable(str(error))


class _Barrier:
    def __init__(self, batches: Connection, copies: int, has: Callable[[str], bool]) -> None:
        self._batches = batches
        self._copies = copies
        self._has = has
        self._own = Connection(batches.url, follows=batches)
        self._own.on_misplaced = batches.misplaced
        self._waiting: list[_Asked] = []
        self._task: asyncio.Task[None] | None = None
        self._reached: int | None = None
        """Number of servers in the last decisive round: enough, or too few for too long."""
        self._next_look = -inf

    def add(self, asked: _Asked) -> None:
        self._waiting.append(asked)
        self._begin(asked.stream)

    def why_too_few(self, stream: str) -> str:
        """See `RedisReplicas.why_too_few`. Starts another round."""
        reached = self._reached
        if reached is not None and reached >= self._copies:
            return ""
        if asyncio.get_running_loop().time() >= self._next_look:
            self._begin(stream)
        return "" if reached is None else self._few(reached)

    def _begin(self, stream: str) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(stream), name="replicas")

    async def _run(self, stream: str) -> None:
        loop, copies = asyncio.get_running_loop(), self._copies
        while True:
            asked, self._waiting = self._waiting, []
            if asked:
                # Rotate the keys: during resharding, a key may not be writable.
                asked.append(asked.pop(0))
                stream = asked[-1].stream
            reached = attached = None
            try:
                reached, attached = await self._round(stream)
            except _Deposed as error:
                self._waiting = [*asked, *self._waiting]
                self._batches.give_up(str(error))
                self.stop(StorageUnavailable(str(error)))
                return
            except (StorageUnavailable, Unreachable, TimeoutError) as error:
                _log.debug("replicas not checked", reason=str(error))
            except BaseException:
                self._waiting = [*asked, *self._waiting]
                raise
            asked = self._without_moved(asked)
            now = loop.time()
            enough = reached is not None and reached >= copies
            never = attached is not None and attached + 1 < copies
            told, left = asked, []
            if not enough:
                told = [each for each in asked if now >= each.deadline or (never and each.deadline < inf)]
                left = [each for each in asked if now < each.deadline and not (never and each.deadline < inf)]
            if reached is not None and (enough or never or told):
                self._know(reached)
            self._waiting = [*left, *self._waiting]
            for each in told:
                tell(each.done, None if enough else NotEnoughReplicasAfterAppend(self._few(reached)), _ASKED)
            self._next_look = now + _LOOK_AGAIN_S
            if not self._waiting:
                return
            if reached is None:
                await asyncio.sleep(_LOOK_AGAIN_S)

    def _without_moved(self, asked: list[_Asked]) -> list[_Asked]:
        here: list[_Asked] = []
        for each in asked:
            if self._has(each.stream):
                here.append(each)
            else:
                tell(each.done, StorageUnavailable(f"{each.stream} has moved to another shard"), _ASKED)
        return here

    def _know(self, reached: int) -> None:
        copies, was_short = self._copies, self._reached is not None and self._reached < self._copies
        self._reached = reached
        if reached < copies and not was_short:
            _log.warning("acknowledged batches are under-replicated", wanted=copies, have=reached)
        elif reached >= copies and was_short:
            _log.info("acknowledged batches are replicated again", wanted=copies, have=reached)

    def _few(self, reached: int | None) -> str:
        wanted = f"min.insync.replicas={self._copies}"
        if reached is None:
            return f"{wanted}: Redis has not said in time how many of its servers have all that it acknowledged"
        have = f"{reached} server has" if reached == 1 else f"{reached} servers have"
        return f"{wanted}: {have} all that Redis acknowledged, its primary included; replicas are away or lag behind"

    async def _round(self, stream: str) -> tuple[int, int]:
        own = self._own
        try:
            # Requests with less time share this limit: an aborted round costs the connection.
            async with asyncio.timeout(_SLICE_S + ANSWER_S):
                if not own.made:
                    await own.open()
                await own.ready()
                written, reached, info = await asyncio.gather(
                    own.call("SET", barrier_of(stream), "", "PX", _KEPT_MS),
                    own.call("WAIT", self._copies - 1, int(_SLICE_S * 1000)),
                    own.call("INFO", "replication"),
                    return_exceptions=True,
                )
        except TimeoutError:
            own.give_up("it does not answer")
            raise
        if str(written).startswith("READONLY"):
            raise _Deposed(_OTHER_PRIMARY)
        if isinstance(info, bytes):
            standing = ReplicationInfo.read(info)
            if not standing.same_reign(self._batches.standing):
                raise _Deposed(_OTHER_PRIMARY)
        for reply in (written, reached, info):
            if isinstance(reply, BaseException):
                raise StorageUnavailable(f"Redis does not report the progress of its replicas: {reply}")
        return 1 + int(str(reached)), standing.replicas

    def stop(self, error: Exception) -> None:
        asked, self._waiting = self._waiting, []
        if self._task is not None:
            self._task.cancel()
        for each in asked:
            tell(each.done, error, _ASKED)

    async def close(self, error: Exception) -> None:
        """Close the connection. Call `stop` first, with the same error."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self.stop(error)
        await self._own.close()


class _Deposed(Exception):
    """The primary has changed since the batches were written."""
