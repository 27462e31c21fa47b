"""Keeps this server among the brokers of its keyspace: sends heartbeats, and carries out what they lead to.

What they lead to is decided in `headrace.membership.participant`.
"""

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
    """Another server has this one's `node.id` and is alive."""


class Membership:
    """This server's place in the view."""

    def __init__(
        self, storage: MembershipStorage, me: Member, clock: Clock, *, session_ms: int, interval_ms: int
    ) -> None:
        """Begin outside.

        Args:
            storage: where the view is.
            me: this server, as the others are to know it.
            clock: its uptime says what the others may have done; its ticks say when a heartbeat is due.
            session_ms: after how long without a heartbeat a broker is declared dead.
            interval_ms: time between two heartbeats.
        """
        self.me = me
        self.on_view: Callable[[View, bool], None] = lambda _view, _inside: None
        """Called with each view that this server goes by, and whether it is in it."""
        self.on_lost: Callable[[str], None] = lambda _reason: None
        """Called once, with why, when this server can be no member any more."""
        self.on_last_change: Callable[[str], None] = lambda _id: None
        """Called with the id of the last change, as each heartbeat tells it."""
        self._storage = storage
        self._clock = clock
        self._session_ms = session_ms
        self._interval_ms = interval_ms
        self._participant = Participant(me, session_ms, interval_ms)
        self._counter = 0
        self._sent_ms: int | None = None
        """When the last heartbeat left, by the uptime."""
        self._ended = False
        self._dead: set[int] = set()
        """Node ids that this server has declared dead and not seen since."""
        self._woken = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    @property
    def view(self) -> View | None:
        """The view that this server goes by."""
        return self._participant.view

    @property
    def is_member(self) -> bool:
        """Whether it is in that view."""
        return self._participant.is_member

    @property
    def certain(self) -> bool:
        """Whether nobody can have declared this server dead by now.

        Where there is nobody else nobody does, unless somebody came while this server stood still.
        """
        view = self._participant.view
        if view is not None and len(view.members) == 1:
            return self.is_member and not self._late_ms()
        return self.is_member and self._clock.uptime_ms() < self._participant.valid_until_ms

    async def join(self, wait: Callable[[str], None]) -> View:
        """Enter the view.

        Args:
            wait: called with one line where it is not known yet whether another server of this `node.id` is alive.

        Raises:
            NodeIdTaken; StorageUnavailable.
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
        """Keep the heartbeats going from now on."""
        self._beating = asyncio.get_running_loop().create_task(self._run(), name="heartbeats")

    def ended(self, member: Member) -> None:
        """The process of another broker has ended, as far as a neighbour can tell: look at once."""
        _log.warning("a broker has stopped: it closed its connection and accepts no other", node=member.node_id)
        self._participant.ended(member)
        self.wake()

    def wake(self) -> None:
        """The view has changed, as somebody says: look at once."""
        self._woken.set()

    async def leave(self) -> None:
        """Let the others have what this server owns; they find out by themselves where Redis does not answer."""
        proposal = self._participant.leave()
        try:
            # Twice: somebody else may change the view at the same time.
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
            except Exception:  # nobody would beat any more
                self._failed()
                _log.exception("heartbeat failed")
                continue
            if step.lost:
                _log.error("this broker is no longer a member of the cluster", reason=step.lost)
                self.on_lost(step.lost)
                return

    def _failed(self) -> None:
        self._participant.failed()
        # It was Redis that stood still: the next heartbeat is late for that, as has been told.
        self._sent_ms = None

    def _late_ms(self) -> int:
        """The time since the last heartbeat, where that is longer than a session and not for Redis; else 0."""
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
        """Say whom this server has missed, where they are out of the view now."""
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
        """The time between two heartbeats, unless somebody says that the view has changed."""
        self._woken.clear()
        timer = self._clock.call_at(self._clock.ticks_ms() + self._interval_ms, self._woken.set)
        await self._woken.wait()
        timer.cancel()
