"""Archives as several brokers know them."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.harness.memory import MemoryStorage

from headrace.broker.budget import ReadBudget
from headrace.broker.cold import Archives
from headrace.topics.archive import STARTS, start_id


async def test_who_deletes_a_topic_forgets_what_other_brokers_have_written_down_of_its_archive(
    storage: MemoryStorage,
) -> None:
    lake: Any = SimpleNamespace(kind="archive")
    leader, other = (Archives(storage.documents, lake, ReadBudget(1 << 20)) for _ in range(2))
    topic, kept = UUID(int=1), UUID(int=2)
    await storage.documents.save({("archive", str(each)): b"{}" for each in (topic, kept)})
    for each in (topic, kept):
        await leader.keep_start(str(each), 1, 50)
    live: Any = SimpleNamespace(topic=SimpleNamespace(id=topic), partitions=[None] * 2)
    other.forget(live)
    await other.stop()
    await leader.stop()
    assert list(await storage.documents.load("archive")) == [str(kept)]
    assert list(await storage.documents.load(STARTS)) == [start_id(str(kept), 1)]
