"""Heartbeats of this server and their results, as decided by `headrace.membership.participant`."""

import asyncio
from collections.abc import Callable

import structlog

from headrace.aio.tasks import end
from headrace.broker.ports import MembershipStorage
from headrace.broker.runtime.clock import Clock
from headrace.membership.participant import Participant, Step
from headrace.membership.view import Member, View
from headrace.text.addresses import Address
from headrace.topics.errors import StorageUnavailable

_LATE = "Redis takes too long"
_log = structlog.get_logger("headrace.broker.brokers")


class NodeIdTaken(Exception):
    """Another live server has this `node.id`."""


class Membership:
    """This server's membership in the cluster."""

    def __init__(
        self, storage: MembershipStorage, me: Member, clock: Clock, *, session_ms: int, interval_ms: int
    ) -> None:
        """`session_ms`: uptime without a heartbeat after which a broker is dead. Heartbeats go by ticks."""
        self.me = me
        self.on_view: Callable[[View, bool], None] = lambda _view, _inside: None
        """Called with each adopted view, and whether it has this server."""
        self.on_lost: Callable[[str], None] = lambda _reason: None
        """Called once with the reason when this server must leave."""
        self.on_last_change: Callable[[str], None] = lambda _id: None
        """Called with the id of the last change after each heartbeat."""
        self._storage = storage
        self._clock = clock
        self._session_ms = session_ms
        self._interval_ms = interval_ms
        self._participant = Participant(me, session_ms, interval_ms)
        self._counter = 0
        self._sent_ms: int | None = None
        """Uptime of the last heartbeat."""
        self._ended = False
        self._dead: set[int] = set()
        """Node ids that this server declared dead and has not seen since."""
        self._woken = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    @property
    def view(self) -> View | None:
        """The adopted view."""
        return self._participant.view

    @property
    def is_member(self) -> bool:
        """Whether the adopted view has this server."""
        return self._participant.is_member

    @property
    def certain(self) -> bool:
        """Whether no broker can have declared this server dead.

        A single broker is certain unless it was paused, when another one may have joined.
        """
        view = self._participant.view
        if view is not None and len(view.members) == 1:
            return self.is_member and not self._late_ms()
        return self.is_member and self._clock.uptime_ms() < self._participant.valid_until_ms

    async def join(self, wait: Callable[[str], None]) -> View:
        """Join the cluster. Raises NodeIdTaken, StorageUnavailable.

        `wait` gets a message while another server with this `node.id` may be alive.
        """
        told = False
        while True:
            step = await self._beat()
            if step.lost:
                raise NodeIdTaken(step.lost)
            if step.propose is not None:
                self._participant.changed(await self._storage.change(step.propose))
            if self._participant.view is not None and self.is_member:
                view = self._participant.view
                self._storage.enter(view.number)
                _log.info("joined the cluster", node=self.me.node_id, number=view.number, brokers=len(view.members))
                return view
            if step.propose is None:
                if not told:
                    told = True
                    wait(
                        f"another server had node.id={self.me.node_id} in this keyspace; waiting up to "
                        f"{(self._session_ms + 2 * self._interval_ms) / 1000:.1f} s to see whether it is alive"
                    )
                await self._pause()

    def start(self) -> None:
        """Start the heartbeats."""
        self._beating = asyncio.get_running_loop().create_task(self._run(), name="heartbeats")

    def ended(self, member: Member) -> None:
        """Check at once after a neighbor seems to have ended."""
        _log.warning("a broker has stopped: it closed its connection and accepts no other", node=member.node_id)
        self._participant.ended(member)
        self.wake()

    def wake(self) -> None:
        """Check at once for a changed view."""
        self._woken.set()

    async def leave(self) -> None:
        """Leave the cluster. Without Redis, other brokers detect the missing heartbeats."""
        proposal = self._participant.leave()
        try:
            # Another broker may change the view at the same time.
            for _ in range(4):
                if proposal is None:
                    break
                async with asyncio.timeout(self._session_ms / 1000):
                    self._take(self._participant.changed(await self._storage.change(proposal)))
                proposal = self._participant.leave()
        except (StorageUnavailable, TimeoutError) as error:
            _log.warning(
                "could not leave the cluster: the other brokers wait for the heartbeat timeout",
                reason=str(error) or _LATE,
            )
        if self._beating is not None:
            self._ended = True
            await end(self._beating)
            self._beating = None

    async def _run(self) -> None:
        while not self._ended:
            await self._pause()
            try:
                async with asyncio.timeout(self._session_ms / 1000):
                    step = await self._beat()
                    if step.propose is not None:
                        view = await self._storage.change(step.propose)
                        self._take(self._participant.changed(view))
                        self._log_dead(step, view)
            except (StorageUnavailable, TimeoutError) as error:
                self._failed()
                _log.warning("heartbeat timed out", reason=str(error) or _LATE)
                continue
            except Exception:  # heartbeats must continue
                self._failed()
                _log.exception("heartbeat failed")
                continue
            if step.lost:
                _log.error("this broker is no longer a member of the cluster", reason=step.lost)
                self.on_lost(step.lost)
                return

    def _failed(self) -> None:
        self._participant.failed()
        # Redis was late, as logged.
        self._sent_ms = None

    def _late_ms(self) -> int:
        """Return the time since the last heartbeat if this server made it exceed a session, else 0."""
        since_ms = 0 if self._sent_ms is None else self._clock.uptime_ms() - self._sent_ms
        return since_ms if since_ms > self._session_ms else 0

    async def _beat(self) -> Step:
        self._counter += 1
        now_ms = self._clock.uptime_ms()
        late_ms = self._late_ms()
        if late_ms:
            _log.warning(
                "this broker sent no heartbeat for longer than its session timeout: its process or machine was paused; "
                "other brokers may lead its partitions now",
                seconds=round(late_ms / 1000),
            )
        self._sent_ms = now_ms
        self._participant.sent(now_ms)
        view, counters, last = await self._storage.beat(self.me, self._counter, self._participant.view)
        step = self._participant.answered(self._clock.uptime_ms(), view, counters)
        if self._beating is not None:
            self._take(step)
            self.on_last_change(last)
        return step

    def _take(self, step: Step) -> None:
        view = step.adopt
        if view is None:
            return
        inside = self.is_member
        if inside:
            self._storage.enter(view.number)
        elif not self._participant.leaving:
            _log.warning("the other brokers have declared this broker dead: it leads no partitions until it rejoins")
        nodes = [member.node_id for member in view.members]
        _log.info("cluster membership changed", number=view.number, brokers=nodes, member=inside)
        self.on_view(view, inside)
        self._log_returned(view)

    def _log_dead(self, step: Step, view: View) -> None:
        for member, silent_ms in step.silent:
            if view.has(member):
                continue
            self._dead.add(member.node_id)
            _log.warning(
                "broker declared dead: its heartbeats have stopped; other brokers become leaders of its partitions",
                node=member.node_id,
                address=str(Address(member.host, member.port)),
                process=member.process,
                seconds=round(silent_ms / 1000, 1),
                others=[each.node_id for each in view.members],
                view=view.number,
            )

    def _log_returned(self, view: View) -> None:
        for member in view.members:
            if member.node_id in self._dead:
                self._dead.discard(member.node_id)
                address = str(Address(member.host, member.port))
                _log.info("a broker that was declared dead has rejoined", node=member.node_id, address=address)

    async def _pause(self) -> None:
        self._woken.clear()
        timer = self._clock.call_at(self._clock.ticks_ms() + self._interval_ms, self._woken.set)
        await self._woken.wait()
        timer.cancel()
