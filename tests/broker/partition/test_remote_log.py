"""Archives as several brokers know them."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
from tests.harness.memory import MemoryStorage
from tests.harness.waiting import until

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.remote_log import Archives
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.services import Services
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.membership.view import Member, Rendezvous, View
from headrace.testing.clock import ManualClock
from headrace.topics.archive import STARTS, start_id
from headrace.topics.model import Topic


async def test_who_deletes_a_topic_forgets_what_other_brokers_have_written_down_of_its_archive(
    storage: MemoryStorage,
) -> None:
    lake: Any = SimpleNamespace(kind="archive")
    leader, other = (Archives(storage.documents, lake, ReadBudget(1 << 20)) for _ in range(2))
    topic, kept = UUID(int=1), UUID(int=2)
    await storage.documents.save({("archive", str(each)): b"{}" for each in (topic, kept)})
    for each in (topic, kept):
        await leader.keep_start(str(each), 1, 50)
    deleted: Any = SimpleNamespace(id=topic, partitions=2)
    other.forget(deleted)
    await other.stop()
    await leader.stop()
    assert list(await storage.documents.load("archive")) == [str(kept)]
    assert list(await storage.documents.load(STARTS)) == [start_id(str(kept), 1)]


async def test_so_it_does_of_partitions_that_it_has_not_heard_of(storage: MemoryStorage) -> None:
    lake: Any = SimpleNamespace(kind="archive")
    settings, clock = BrokerSettings.of({}), ManualClock()
    clusters = VirtualClusters(
        storage,  # type: ignore[arg-type]
        settings,
        clock,
        cluster_id="c",
        stream_of=lambda _, *place: ":".join(map(str, place)),
        parts=Services(storage.documents, settings, clock, lake=lake),
    )
    topic = (await clusters.default.topics.create("archived", 1, {})).topic
    # Another broker has added a partition, and archived it.
    storage.topics.stored["archived"] = msgspec.structs.replace(topic, streams=(*topic.streams, "added"))
    await storage.documents.save({(STARTS, start_id(str(topic.id), index)): b"5" for index in range(2)})
    await clusters.default.topics.delete("archived")
    await clusters.stop()
    assert await storage.documents.load(STARTS) == {}


async def test_who_takes_a_log_over_reads_the_archive_from_where_it_begins_by_then() -> None:
    """Until the next check of retention the archive was not read, or deleted records of it were."""

    def view(number: int, *nodes: int) -> View:
        members = (Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes)
        return View(number, tuple(members))

    stream = next(name for name in map(str, range(100)) if Rendezvous((1, 2)).choose(name) == 2)
    storage: Any = MemoryStorage()
    config = {"remote.storage.enable": "true"}
    topic = Topic(name="archived", id=UUID(int=1), streams=(stream,), config=config, created_ms=0)
    await storage.topics.create(topic)
    ownership = Ownership(1)
    ownership.adopt(view(1, 1, 2), inside=True)
    lake: Any = SimpleNamespace(kind="archive")
    settings, clock = BrokerSettings.of({}), ManualClock()
    parts = Services(storage.documents, settings, clock, lake=lake, ownership=ownership)
    clusters = VirtualClusters(storage, settings, clock, cluster_id="c", stream_of=lambda *_: stream, parts=parts)
    await clusters.start()
    log = clusters.default.topics.partition("archived", 0).log
    assert log is not None
    assert (log.is_leader, log.cold) == (False, None)
    # By the one that leads it: records below have been deleted.
    await storage.documents.save({(STARTS, start_id(str(topic.id), 0)): b"50"})
    ownership.adopt(view(2, 1), inside=True)
    clusters.view_changed()
    await until(lambda: log.is_leader)
    assert log.cold is not None
    assert log.cold.start == 50
    await clusters.stop()
