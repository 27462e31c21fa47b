import pytest
import redis.crc
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.layout.keys import Keyspace, barrier_of, producers_of, shares_of, state_of

key_slot = redis.crc.key_slot
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True)
groups = st.text(min_size=1, max_size=50)
clusters = st.from_regex(r"[a-z0-9-]{1,30}", fullmatch=True)


def slot(key: str) -> int:
    return int(key_slot(key.encode()))


@given(topics, st.integers(0, 100_000), clusters, st.sampled_from(["", "0a1b2c3d"]))
def test_the_keys_of_a_partition_share_a_slot(topic: str, partition: int, cluster: str, generation: str) -> None:
    stream = Keyspace(cluster=cluster).stream(topic, partition, generation)
    assert {slot(stream)} == {slot(state_of(stream)), slot(producers_of(stream)), slot(shares_of(stream))}


@given(groups, clusters)
def test_the_keys_of_a_group_share_a_slot(group: str, cluster: str) -> None:
    keys = Keyspace(cluster=cluster)
    assert len({slot(key) for key in (keys.group(group), keys.members(group), keys.positions(group))}) == 1


@given(groups, clusters)
def test_the_barrier_of_a_transactional_id_is_in_its_slot(name: str, cluster: str) -> None:
    key = Keyspace(cluster=cluster).transaction(name)
    assert slot(barrier_of(key)) == slot(key)
    assert key != Keyspace(cluster=cluster).group(name)


def test_the_shared_keys_share_a_slot() -> None:
    keys = Keyspace()
    everything = (
        keys.topics, keys.deleted, keys.groups, keys.transactions, keys.producer_ids, keys.epoch, keys.view,
        keys.heartbeats, keys.changes, keys.leaders, keys.version, keys.cluster_id, keys.documents("a"),
        keys.documents("topics"),
    )  # fmt: skip
    assert len({slot(key) for key in everything}) == 1
    assert len(set(everything)) == len(everything)


def test_partitions_spread_over_the_slots() -> None:
    assert len({slot(Keyspace().stream("t", partition)) for partition in range(100)}) > 90


@given(st.lists(groups, min_size=2, max_size=5, unique=True))
def test_groups_have_no_key_in_common(names: list[str]) -> None:
    keys = Keyspace()
    all_keys = [key for name in names for key in (keys.group(name), keys.members(name), keys.positions(name))]
    assert len(set(all_keys)) == len(all_keys)


@given(topics, st.integers(0, 100), groups)
def test_topics_and_groups_have_no_key_in_common(topic: str, partition: int, group: str) -> None:
    keys = Keyspace()
    stream = keys.stream(topic, partition)
    assert {stream, state_of(stream), producers_of(stream), shares_of(stream)}.isdisjoint(
        {keys.group(group), keys.members(group), keys.positions(group), keys.topics, keys.groups}
    )


@pytest.mark.parametrize(
    ("keys", "generation", "expected"),
    [
        (Keyspace(), "", "headrace:flights:3"),
        (Keyspace(), "1f", "headrace:flights:3@1f"),
        (Keyspace(cluster="blue"), "", "headrace:blue:flights:3"),
        (Keyspace(prefix="other"), "", "other:flights:3"),
    ],
)
def test_the_stream_of_a_partition(keys: Keyspace, generation: str, expected: str) -> None:
    assert keys.stream("flights", 3, generation) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["default", "a", "5"]),
            st.sampled_from(["a", "5", "a.5"]),
            st.integers(0, 9),
            st.sampled_from(["", "0", "5"]),
        ),
        unique=True,
    )
)
def test_partitions_and_their_later_logs_have_no_key_in_common(places: list[tuple[str, str, int, str]]) -> None:
    streams = [Keyspace(cluster=cluster).stream(*place) for cluster, *place in places]  # type: ignore[arg-type]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize("name", ["", "a:b", "{a}", "a/b", "a@b", "a\n"])
def test_what_would_make_keys_ambiguous_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a key"):
        Keyspace(prefix=name)
    with pytest.raises(ValueError, match="cannot be part of a key"):
        Keyspace(cluster=name)
    with pytest.raises(ValueError, match="cannot be part of a key"):
        Keyspace().documents(name)
