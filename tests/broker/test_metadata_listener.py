"""Changes by other brokers are applied before a request that depends on them continues."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness.waiting import until

from headrace.broker import metadata_listener
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.metadata_listener import MetadataListener
from headrace.broker.virtual_clusters import UnknownCluster
from headrace.membership.view import Leader, View
from headrace.storage.layout.registry import Change
from headrace.topics.errors import StorageUnavailable

STREAM = "headrace:t:0"


class Changes:
    """The changes as Redis has them; they reach the follower when it is let read."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Change]] = []
        self._number = 0
        self.may_read = asyncio.Event()
        self.looks = 0
        self.away = self.dropped = False
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.stored: dict[str, Leader] = {}

    def tell(self, leader: Leader) -> None:
        self.change("leaders", f"{STREAM} {leader.text}")

    def change(self, kind: str, name: str) -> None:
        self._number += 1
        self.told.append((f"{self._number}-0", Change(kind, name)))

    def lose(self) -> None:
        """A primary takes over that has nothing of it."""
        self.told.clear()

    async def changes(self, after: str, wait_ms: int) -> Sequence[tuple[str, Change]]:
        await self.may_read.wait()
        if self.away:
            raise StorageUnavailable("Redis does not answer")
        await asyncio.sleep(0)
        return [each for each in self.told if int(each[0][:-2]) > int(after[:-2])]

    async def has_change(self, change_id: str) -> bool:
        if change_id == "0-0":
            return not self.dropped
        return any(each[0] == change_id for each in self.told)

    async def leaders(self) -> dict[str, Leader]:
        if self.away:
            raise StorageUnavailable("Redis does not answer")
        await self.may_load.wait()
        return dict(self.stored)

    async def last_change(self) -> str:
        self.looks += 1
        await asyncio.sleep(0)
        if self.away:
            raise StorageUnavailable("Redis does not answer")
        return self.told[-1][0] if self.told else "0-0"


class _Clusters(SimpleNamespace):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Site:
    """A follower over such changes, and what it has learnt."""

    def __init__(self) -> None:
        self.redis = Changes()
        self.learnt: dict[str, Leader] = {}
        self.ownership = Ownership(1)
        self.told_again: list[dict[str, Leader]] = []
        self.moves: list[object] = []
        loaded = SimpleNamespace(load=lambda: asyncio.sleep(0))
        self.clusters = _Clusters(
            access=loaded,
            quotas=loaded,
            group_configs=loaded,
            refresh_clusters=loaded.load,
            learn_leaders=self.learnt.update,
            republish=self.told_again.append,
            ownership=self.ownership,
            take_moves=self._take_moves,
        )
        storage: Any = self.redis
        clusters: Any = self.clusters
        self.follower = MetadataListener(storage, clusters, lambda _: asyncio.sleep(0), lambda: None)
        self.follower.start("0-0")

    async def _take_moves(self, *places: Iterable[tuple[str, str]]) -> None:
        self.moves.extend(list(each) for each in places)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    # A paused machine must not end a wait.
    monkeypatch.setattr(metadata_listener, "_CURRENT_S", 300.0)
    monkeypatch.setattr(metadata_listener, "_CATCH_UP_S", 300.0)
    made = Site()
    yield made
    await made.follower.stop()


async def _some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_dependent_request_waits_for_earlier_announcements(site: Site) -> None:
    site.redis.tell(Leader(10, 2))
    waiting = asyncio.ensure_future(site.follower.current())
    await _some_turns()
    assert not waiting.done()
    site.redis.may_read.set()
    await waiting
    assert site.learnt == {STREAM: Leader(10, 2)}


async def test_a_dependent_request_waits_for_the_announced_membership(site: Site) -> None:
    site.redis.may_read.set()
    site.redis.change("view", "5")
    waiting = asyncio.ensure_future(site.follower.current())
    await _some_turns()
    site.ownership.adopt(View(4), inside=False)
    await _some_turns()
    assert not waiting.done()
    site.ownership.adopt(View(5), inside=False)
    await waiting


async def test_changes_announced_with_a_topics_move_are_known_after_it(site: Site) -> None:
    """Where the topic was goes with all that was known of its logs."""

    before: list[object] = []

    def forget(_: str) -> None:
        # Moves are applied first: no request may find the topic missing in between.
        before.extend(site.moves)
        site.learnt.clear()
        raise UnknownCluster("the topic is forgotten")

    site.clusters.get = forget
    site.redis.change("topics", "t")
    site.redis.tell(Leader(10, 2))
    site.redis.may_read.set()
    await site.follower.current()
    assert before == [[("", "t")]]
    assert site.learnt == {STREAM: Leader(10, 2)}


async def test_one_look_serves_all_who_ask_before_it_begins(site: Site) -> None:
    site.redis.may_read.set()
    first = asyncio.ensure_future(site.follower.current())
    while not site.redis.looks:
        await asyncio.sleep(0)
    # The lookup may end before this announcement: later requests use the next lookup.
    site.redis.tell(Leader(11, 3))
    others = [asyncio.ensure_future(site.follower.current()) for _ in range(100)]
    await asyncio.wait([first, *others])
    assert site.learnt == {STREAM: Leader(11, 3)}
    assert site.redis.looks == 2


async def test_no_request_waits_for_an_unavailable_redis_or_a_stopped_follower(site: Site) -> None:
    site.redis.tell(Leader(10, 2))
    site.redis.away = True
    await site.follower.current()
    assert site.redis.looks == 1
    site.redis.away = False
    waiting = asyncio.ensure_future(site.follower.current())
    await _some_turns()
    assert site.redis.looks == 2
    assert not waiting.done()
    await site.follower.stop()
    await waiting
    await site.follower.current()
    assert site.redis.looks == 2
    assert site.learnt == {}


async def test_leaders_announce_their_logs_again_after_an_outage_of_redis(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last announcement may be lost with its primary; the remaining ones reveal the gap."""
    monkeypatch.setattr(metadata_listener, "_AGAIN_S", 0)
    site.redis.stored = {STREAM: Leader(10, 2)}
    site.redis.away = True
    site.redis.may_read.set()
    await _some_turns()
    assert site.told_again == []
    site.redis.away = False
    await _some_turns()
    assert site.told_again == [{STREAM: Leader(10, 2)}]
    assert site.learnt == {STREAM: Leader(10, 2)}


async def test_everything_is_loaded_where_changes_are_gone_that_newer_ones_hide(site: Site) -> None:
    """For example, Redis failed over unnoticed, and another broker announced a leader before the next heartbeat."""
    site.redis.may_read.set()
    site.redis.tell(Leader(10, 2))
    await site.follower.current()
    assert site.told_again == []
    site.redis.lose()
    site.redis.stored = {STREAM: Leader(11, 3)}
    site.redis.tell(Leader(11, 3))
    await site.follower.current()
    assert site.told_again == [{STREAM: Leader(11, 3)}]
    # Once: what is there is followed from then on.
    site.redis.tell(Leader(12, 2))
    await site.follower.current()
    await _some_turns()
    assert len(site.told_again) == 1
    assert site.learnt == {STREAM: Leader(12, 2)}


async def test_an_announced_membership_is_known_while_everything_is_loaded(site: Site) -> None:
    """Before it arrives, the answer of another broker is not taken for the earlier state."""
    site.redis.may_read.set()
    site.redis.tell(Leader(10, 2))
    await site.follower.current()
    site.redis.lose()
    site.redis.may_load.clear()
    site.redis.change("view", "5")
    await _some_turns()
    assert site.ownership.told == 5
    assert not site.ownership.is_current
    site.redis.may_load.set()
    await _some_turns()
    assert site.told_again == [{}]


async def test_everything_is_loaded_where_the_first_changes_were_dropped_before_they_were_read(site: Site) -> None:
    """A broker that started before all changes was paused since."""
    site.redis.dropped = True
    site.redis.stored = {STREAM: Leader(10, 2)}
    site.redis.tell(Leader(11, 3))
    site.redis.may_read.set()
    await site.follower.current()
    await _some_turns()
    assert site.told_again == [{STREAM: Leader(10, 2)}]


async def test_what_comes_while_the_last_change_is_asked_for_was_not_known_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that got "no such stream" has to look again, although nothing is left to wait for."""
    last_change = site.redis.last_change

    async def asked_late() -> str:
        site.redis.may_read.set()
        await until(lambda: STREAM in site.learnt)
        await _some_turns()
        return await last_change()

    site.redis.tell(Leader(10, 2))
    monkeypatch.setattr(site.redis, "last_change", asked_late)
    assert await site.follower.catch_up()
    assert not await site.follower.catch_up()


async def test_changes_before_a_catch_up_count_even_if_they_arrive_after_a_lookup(site: Site) -> None:
    """Between the look and the call other things may be done, of which some take their time."""
    before = site.follower.taken
    site.redis.tell(Leader(10, 2))
    site.redis.may_read.set()
    await until(lambda: STREAM in site.learnt)
    await _some_turns()
    assert site.follower.taken != before
    assert await site.follower.catch_up(before)
    assert not await site.follower.catch_up()


async def test_metadata_is_current_once_all_changes_are_loaded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a topic was deleted is certain only then."""
    monkeypatch.setattr(metadata_listener, "_CATCH_UP_S", 0.01)
    assert await site.follower.is_current()
    site.redis.tell(Leader(10, 2))
    assert not await site.follower.is_current()
    site.redis.may_read.set()
    await until(lambda: STREAM in site.learnt)
    await _some_turns()
    assert await site.follower.is_current()
    site.follower.load_everything()
    assert not await site.follower.is_current()
