"""What becomes at a start of what an earlier server acknowledged from the journal: stored once, or set aside."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import hiredis
import pytest
import structlog
from tests.harness.owning import STREAM, Contents, Owner, batch, epoch_of
from tests.harness.rawlog import RawLog
from tests.harness.redis import RedisServer

from headrace.records.markers import Marker, build_marker
from headrace.storage.journal.journal import SMALLEST, Journal
from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace, state_of
from headrace.storage.logs.replay import replay
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.script_calls import load_commands
from headrace.topics.errors import Fenced, StorageUnavailable
from headrace.topics.model import Append, Topic

OTHER = "headrace:u:0"


@pytest.fixture
async def connection(any_redis: RedisServer, link: Any) -> AsyncIterator[Connection]:
    made = Connection(any_redis.url, load_commands())
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def entered(path: Path, *batches: tuple[int, Append], log_id: bytes = b"id") -> None:
    """A journal with batches and the offsets that they were acknowledged with, as a killed server leaves it."""
    journal = Journal.open(path, SMALLEST).renewed(SMALLEST)
    for offset, append in batches:
        assert journal.add(STREAM.encode(), log_id, offset, 5, append)
    journal.close()


async def replayed(connection: Connection, path: Path, epoch: int = 1, *, empty: bool = False) -> Path | None:
    """Start on it; the file that was set aside, if one was."""
    journal = await replay(connection, epoch, Journal.open(path, SMALLEST), SMALLEST, empty=empty)
    assert journal is not None
    assert journal.in_doubt() == []
    journal.close()
    found = list(path.parent.glob("journal.set-aside-*"))
    return found[0] if found else None


async def test_what_is_missing_is_stored_behind_the_end(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    epoch = raw.open().term
    entered(path, (0, batch(0)), (1, batch(1, 2)), (3, batch(3)))
    assert await replayed(connection, path) is None
    found = Contents(link)
    assert found.by_offset == {0: 0, 1: 1, 2: 2, 3: 3}
    # Under the leader epoch that clients received, although a later owner has stored them.
    assert {int.from_bytes(bytes(each.batch[12:16]), "big") for each in found.batches} == {epoch}
    assert [epoch_of(found.epochs, offset) for offset in (0, 3)] == [epoch, epoch]
    assert raw.open().log_end == 4


async def test_markers_and_what_follows_them_are_stored(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    raw.open()
    entered(path, (0, batch(0)), (1, Append(build_marker(Marker(7, 1, True, 3), 5), 1, 5)), (2, batch(2)))
    assert await replayed(connection, path) is None
    assert raw.offsets() == [(0, 1), (1, 2), (2, 3)]


async def test_done_twice_it_is_the_same_as_once(connection: Connection, link: Any, path: Path) -> None:
    RawLog(link).open()
    entered(path, (0, batch(0)), (1, batch(1)))
    kept = path.read_bytes()  # noqa: ASYNC240
    for _ in range(3):
        path.write_bytes(kept)  # noqa: ASYNC240
        assert await replayed(connection, path) is None
        assert Contents(link).by_offset == {0: 0, 1: 1}


@pytest.mark.parametrize("stored", range(4))
async def test_what_is_there_in_part_is_completed(connection: Connection, link: Any, path: Path, stored: int) -> None:
    raw = RawLog(link)
    told = raw.open()
    for offset in range(stored):
        append = batch(offset)
        append.batch[:8] = offset.to_bytes(8, "big")
        fields = {"b": bytes(append.batch), "t": 5, "s": 100 * offset + 100}
        link.xadd(STREAM, fields, id=f"{told.term}-{offset + 1}")
    entered(path, *((offset, batch(offset)) for offset in range(3)))
    assert await replayed(connection, path) is None
    assert Contents(link).by_offset == {0: 0, 1: 1, 2: 2}


async def test_times_and_sizes_go_on(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    told = raw.open()
    raw.put(told.term, 0, time=50, size=700)
    entered(path, (1, batch(1, time=20)), (2, batch(2, time=90)))
    await replayed(connection, path)
    fields = [fields for _, fields in link.xrange(STREAM)]
    assert [int(each[b"t"]) for each in fields] == [50, 50, 90]
    size = len(batch(1).batch)
    assert [int(each[b"s"]) for each in fields] == [700, 700 + size, 700 + 2 * size]


async def test_a_full_redis_takes_what_was_acknowledged(connection: Connection, link: Any, path: Path) -> None:
    RawLog(link).open()
    entered(path, (0, batch(0)))
    link.config_set("maxmemory", 1)
    assert await replayed(connection, path) is None
    assert Contents(link).by_offset == {0: 0}


async def test_an_offset_that_something_else_has_sets_the_journal_aside(
    connection: Connection, link: Any, path: Path
) -> None:
    raw = RawLog(link)
    raw.put(raw.open().term, 0)
    entered(path, (0, batch(7)), (1, batch(8)))
    with structlog.testing.capture_logs() as told:
        kept = await replayed(connection, path)
    assert kept is not None
    [unfit] = [line for line in told if "cannot be appended" in line["event"]]
    assert (unfit["offset"], unfit["kept_in"]) == (0, str(kept))
    # What could be placed was.
    assert raw.offsets() == [(0, 1), (1, 2)]
    aside = Journal.open(kept, SMALLEST)
    assert [entry.base_offset for entry in aside.in_doubt()] == [0, 1]
    aside.close()


async def test_a_log_that_has_less_than_it_had_sets_it_aside(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    raw.put(raw.open().term, 0)
    entered(path, (4, batch(4)), (5, batch(5)))
    with structlog.testing.capture_logs() as told:
        assert await replayed(connection, path) is not None
    assert sum("cannot be appended" in line["event"] for line in told) == 2
    assert raw.offsets() == [(0, 1)]


def spoil(path: Path, at: bytes) -> None:
    """Write a wrong byte where this text is in the journal."""
    content = bytearray(path.read_bytes())
    content[content.index(at)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("size", [SMALLEST, 0])
async def test_a_damaged_last_entry_of_a_log_is_reported(
    connection: Connection, link: Any, path: Path, size: int
) -> None:
    """All that is whole can be placed; only the numbers say that something is missing."""
    for stream in (STREAM, OTHER):
        RawLog(link, stream).open()
    lost = bytes(batch(1).batch)
    journal = Journal.open(path, SMALLEST).renewed(SMALLEST)
    for stream, offset in ((STREAM, 0), (STREAM, 1), (OTHER, 0)):
        assert journal.add(stream.encode(), b"id", offset, 5, batch(offset))
    journal.close()
    spoil(path, lost[20:])
    with structlog.testing.capture_logs() as told:
        after = await replay(connection, 1, Journal.open(path, SMALLEST), size)
    [line] = [line for line in told if line["log_level"] == "error"]
    assert "may be missing" in line["event"]
    assert (line["entries"], line["numbers"]) == (1, "2")
    aside = Journal.open(Path(line["kept_in"]), SMALLEST)
    assert [entry.number for entry in aside.in_doubt()] == [1, 3]
    aside.close()
    # What could be placed was, and a start after this one has nothing to say.
    assert [RawLog(link, stream).offsets() for stream in (STREAM, OTHER)] == [[(0, 1)], [(0, 1)]]
    assert (after is None) == (size == 0)
    if after is not None:
        assert after.found() == ([], [])
        after.close()


async def test_concurrently_trimmed_entries_are_not_missed(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    told = raw.fill(3)
    raw.save(told.term, 3)
    raw.trim(told.term, before=3)
    entered(path, (1, batch(1)), (2, batch(2)), (3, batch(3)))
    assert await replayed(connection, path) is None
    assert raw.offsets() == [(3, 4)]


async def test_entries_of_a_deleted_topic_went_with_it(connection: Connection, link: Any, path: Path) -> None:
    entered(path, (0, batch(0)))
    assert await replayed(connection, path) is None
    assert not link.exists(STREAM)


@pytest.mark.parametrize("lost", ["a log of the default cluster", "a log of another cluster", "everything"])
async def test_entries_of_a_log_that_is_lost_are_set_aside(
    connection: Connection, link: Any, path: Path, lost: str
) -> None:
    """Its keys are gone but its topic exists: it was not deleted."""
    keyspace = Keyspace()
    topic = Topic(name="t", id=uuid4(), streams=(STREAM,), config={}, created_ms=0)
    if lost == "a log of another cluster":
        keyspace = Keyspace(cluster="other")
        link.hset(keyspace.documents("clusters"), "other", "{}")
    if lost != "everything":
        link.hset(keyspace.topics, "t", registry.encode(topic))
    entered(path, (0, batch(0)), (1, batch(1)))
    kept = await replayed(connection, path, empty=lost == "everything")
    assert kept is not None
    aside = Journal.open(kept, SMALLEST)
    assert [entry.base_offset for entry in aside.in_doubt()] == [0, 1]
    aside.close()


async def test_an_earlier_log_under_the_key_is_not_mixed_into_a_later_one(
    connection: Connection, link: Any, path: Path
) -> None:
    entered(path, (0, batch(0)), log_id=b"earlier")
    RawLog(link).open(log_id="later")
    await replayed(connection, path)
    assert Contents(link).by_offset == {}


async def test_a_log_whose_state_is_gone_is_still_the_same_log(connection: Connection, link: Any, path: Path) -> None:
    raw = RawLog(link)
    raw.put(raw.open().term, 0)
    link.delete(state_of(STREAM))
    entered(path, (1, batch(1)))
    assert await replayed(connection, path) is None
    assert raw.offsets() == [(0, 1), (1, 2)]


@pytest.mark.parametrize("there", [True, False])
async def test_entries_older_than_the_topic_are_set_aside_where_the_logs_id_is_lost(
    connection: Connection, link: Any, path: Path, *, there: bool
) -> None:
    """They went with an earlier log, or the clock was set back when the topic was created."""
    topic = Topic(name="t", id=uuid4(), streams=(STREAM,), config={}, created_ms=6)
    link.hset(Keyspace().topics, "t", registry.encode(topic))
    raw = RawLog(link)
    if there:
        raw.put(raw.open().term, 0)
        link.delete(state_of(STREAM))
    journal = Journal.open(path, SMALLEST).renewed(SMALLEST)
    for offset, now_ms in ((1, 6), (2, 5)):
        assert journal.add(STREAM.encode(), b"id", offset, now_ms, batch(offset))
    journal.close()
    with structlog.testing.capture_logs() as told:
        kept = await replayed(connection, path)
    assert kept is not None
    unfit = [line["offset"] for line in told if "cannot be appended" in line["event"]]
    assert sorted(unfit) == ([2] if there else [1, 2])
    if there:
        assert raw.offsets() == [(0, 1), (1, 2)]
    else:
        assert not link.exists(STREAM)
    aside = Journal.open(kept, SMALLEST)
    assert [entry.base_offset for entry in aside.in_doubt()] == [1, 2]
    aside.close()


async def test_all_entries_of_a_log_may_be_older_than_its_topic(connection: Connection, link: Any, path: Path) -> None:
    topic = Topic(name="t", id=uuid4(), streams=(STREAM,), config={}, created_ms=6)
    link.hset(Keyspace().topics, "t", registry.encode(topic))
    entered(path, (0, batch(0)))
    assert await replayed(connection, path) is not None
    assert not link.exists(STREAM)


async def test_several_logs(connection: Connection, link: Any, path: Path) -> None:
    for stream in (STREAM, OTHER):
        RawLog(link, stream).open()
    journal = Journal.open(path, SMALLEST).renewed(SMALLEST)
    for stream, offset in ((STREAM, 0), (OTHER, 0), (STREAM, 1)):
        assert journal.add(stream.encode(), b"id", offset, 5, batch(offset))
    journal.close()
    assert await replayed(connection, path) is None
    assert [RawLog(link, stream).offsets() for stream in (STREAM, OTHER)] == [[(0, 1), (1, 2)], [(0, 1)]]


async def test_a_server_whose_time_is_over_stores_nothing(connection: Connection, link: Any, path: Path) -> None:
    RawLog(link).open(view=5)
    entered(path, (0, batch(0)))
    with pytest.raises(Fenced):
        await replay(connection, 4, Journal.open(path, SMALLEST), SMALLEST)
    assert RawLog(link).offsets() == []
    assert len(Journal.open(path, SMALLEST).in_doubt()) == 1


@pytest.mark.parametrize("refused", ["EVALSHA", "HDEL", "PING"])
async def test_nothing_is_given_up_before_redis_has_proven_it(
    connection: Connection, link: Any, path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A Valkey whose disk is full takes what comes in one turn, answers, and takes nothing more."""
    RawLog(link).open()
    entered(path, (0, batch(0)))
    call = connection.call

    async def full(*arguments: Any, **options: Any) -> Any:
        if arguments[0] == refused:
            return hiredis.ReplyError("MISCONF Errors writing to the AOF file: No space left on device")
        return await call(*arguments, **options)

    monkeypatch.setattr(connection, "call", full)
    with pytest.raises(StorageUnavailable):
        await replay(connection, 1, Journal.open(path, SMALLEST), SMALLEST)
    assert len(Journal.open(path, SMALLEST).in_doubt()) == 1


@pytest.mark.parametrize("size", [0, 4 * SMALLEST])
async def test_a_journal_of_another_size_or_none_from_now_on(
    connection: Connection, link: Any, path: Path, size: int
) -> None:
    RawLog(link).open()
    entered(path, (0, batch(0)))
    journal = await replay(connection, 1, Journal.open(path, SMALLEST), size)
    assert (journal is None) == (size == 0)
    assert path.exists() == (size != 0)  # noqa: ASYNC240
    if journal is not None:
        assert journal.size > 4 * SMALLEST
        journal.close()
    assert Contents(link).by_offset == {0: 0}


async def test_producers_are_known_after_a_replay(any_redis: RedisServer, link: Any, path: Path) -> None:
    RawLog(link).open()
    entered(path, (0, batch(0, producer=7, sequence=0)), (1, batch(1, producer=7, sequence=1)))
    owner = await Owner.start(any_redis.url, 1, path)
    for number in (0, 1, 2):
        assert await owner.acknowledged(batch(number, producer=7, sequence=number)) == number
    await owner.close()
    assert Contents(link).by_offset == {0: 0, 1: 1, 2: 2}
