from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.errors import GroupError
from headrace.groups.events import NO_ID, DropTopic
from headrace.groups.model import DropOffsets, GroupSettings, OffsetAndMetadata, SaveOffsets, TopicPartition
from headrace.groups.offsets import CommittedOffsets

SETTINGS = GroupSettings(offset_metadata_max=10, offsets_retention_ms=100)
A, B, C = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
D = TopicPartition("t", 2)
OLD, NEW = UUID(int=1), UUID(int=2)


def test_a_commit_is_stamped_with_the_time() -> None:
    positions = CommittedOffsets()
    changes, outcome = positions.commit({A: OffsetAndMetadata(offset=5, committed_ms=999)}, SETTINGS, 42)

    assert outcome == {A: None}
    assert changes == [SaveOffsets({A: OffsetAndMetadata(offset=5, committed_ms=42)})]
    assert positions.get(A) == OffsetAndMetadata(offset=5, committed_ms=42)


def test_metadata_that_is_too_long_fails_its_own_partition_only() -> None:
    positions = CommittedOffsets()
    changes, outcome = positions.commit(
        {A: OffsetAndMetadata(offset=1, metadata="x" * 11), B: OffsetAndMetadata(offset=2, metadata="x" * 10)},
        SETTINGS,
        0,
    )

    assert outcome == {A: GroupError.OFFSET_METADATA_TOO_LARGE, B: None}
    assert positions.get(A) is None
    assert changes == [SaveOffsets({B: OffsetAndMetadata(offset=2, metadata="x" * 10)})]


def test_a_commit_of_which_nothing_is_taken_changes_nothing() -> None:
    assert CommittedOffsets().commit({}, SETTINGS, 0) == ([], {})
    changes, _ = CommittedOffsets().commit({A: OffsetAndMetadata(offset=1, metadata="x" * 11)}, SETTINGS, 0)
    assert changes == []


def test_an_offset_may_go_back() -> None:
    positions = CommittedOffsets({A: OffsetAndMetadata(offset=9)})
    positions.commit({A: OffsetAndMetadata(offset=3)}, SETTINGS, 0)

    position = positions.get(A)
    assert position is not None
    assert position.offset == 3


def test_a_topic_is_dropped_with_all_its_partitions() -> None:
    positions = CommittedOffsets(
        {A: OffsetAndMetadata(offset=1), B: OffsetAndMetadata(offset=1), C: OffsetAndMetadata(offset=1)}
    )

    assert positions.drop_topic(DropTopic("t")) == [DropOffsets((A, B))]
    assert positions.drop_topic(DropTopic("t")) == []
    assert set(positions.all()) == {C}


def test_only_what_is_out_of_use_for_the_whole_retention_expires() -> None:
    positions = CommittedOffsets(
        {A: OffsetAndMetadata(offset=1, committed_ms=10), B: OffsetAndMetadata(offset=1, committed_ms=11)}
    )

    def since(partition: TopicPartition, position: OffsetAndMetadata) -> int | None:
        return position.committed_ms

    assert positions.next_expiry_ms(since, SETTINGS) == 110
    assert positions.expire(since, SETTINGS, 109) == []
    assert positions.expire(since, SETTINGS, 110) == [DropOffsets((A,))]
    assert positions.next_expiry_ms(since, SETTINGS) == 111


def test_offsets_in_use_never_expire() -> None:
    positions = CommittedOffsets({A: OffsetAndMetadata(offset=1)})

    assert positions.next_expiry_ms(lambda *_: None, SETTINGS) is None
    assert positions.expire(lambda *_: None, SETTINGS, 10**15) == []


@given(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 300)), st.integers(0, 500))
def test_what_is_due_by_the_next_expiry_expires_then(committed: dict[TopicPartition, int], now_ms: int) -> None:
    positions = CommittedOffsets({each: OffsetAndMetadata(offset=0, committed_ms=ms) for each, ms in committed.items()})

    def since(partition: TopicPartition, position: OffsetAndMetadata) -> int | None:
        return position.committed_ms

    due = positions.next_expiry_ms(since, SETTINGS)
    assert bool(positions.expire(since, SETTINGS, now_ms)) == (due is not None and due <= now_ms)
    after = positions.next_expiry_ms(since, SETTINGS)
    assert after is None or after > now_ms


@pytest.mark.parametrize(
    ("drop", "gone"),
    [
        (DropTopic("t"), (A, B, D)),
        (DropTopic("t", OLD), (A, B)),
        (DropTopic("t", OLD, strict=True), (A,)),
        (DropTopic("t", NO_ID, strict=True), (B,)),
    ],
)
def test_a_drop_takes_what_it_means(drop: DropTopic, gone: tuple[TopicPartition, ...]) -> None:
    """A position that says no topic is of the one that has the name: a deleted one's, or a later one's."""
    stored = {
        A: OffsetAndMetadata(offset=1, topic_id=OLD),
        B: OffsetAndMetadata(offset=1),
        D: OffsetAndMetadata(offset=1, topic_id=NEW),
    }
    positions = CommittedOffsets({**stored, C: OffsetAndMetadata(offset=1, topic_id=OLD)})
    assert positions.drop_topic(drop) == [DropOffsets(gone)]
