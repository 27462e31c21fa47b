"""Pending offsets against a model, and their guards."""

import gc
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.model import OffsetAndMetadata, PendingKey, PendingOffset, TopicPartition
from headrace.groups.pending_offsets import OpenTransaction, PendingOffsets, size_of

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
keys = st.builds(PendingKey, st.integers(0, 3), st.sampled_from(PLACES))
offsets = st.builds(
    PendingOffset,
    producer_epoch=st.integers(0, 3),
    transactional_id=st.just("tx"),
    number=st.integers(0, 9),
    position=st.builds(OffsetAndMetadata, offset=st.integers(0, 100), metadata=st.text(max_size=3)),
)
puts = st.dictionaries(keys, offsets, max_size=4)
removals = st.lists(keys, max_size=4)


@given(st.lists(st.one_of(puts, removals)))
def test_every_index_agrees_with_the_offsets(steps: list[dict[PendingKey, PendingOffset] | list[PendingKey]]) -> None:
    pending, model = PendingOffsets(), dict[PendingKey, PendingOffset]()
    for step in steps:
        if isinstance(step, dict):
            pending.put(step)
            model.update(step)
        else:
            expected = tuple(dict.fromkeys(key for key in step if key in model))
            assert pending.remove(step) == expected
            for key in expected:
                del model[key]
    _check(pending, model)
    _check(PendingOffsets(model), model)
    pending.clear()
    _check(pending, {})


def _check(pending: PendingOffsets, model: dict[PendingKey, PendingOffset]) -> None:
    assert dict(pending.all()) == model
    assert len(pending) == len(model)
    assert pending.size == sum(map(size_of, model.values()))
    assert set(pending.partitions()) == {key.partition for key in model}
    for place in PLACES:
        assert (place in pending) == any(key.partition == place for key in model)
        assert _sorted(pending.of_partition(place)) == _sorted(key for key in model if key.partition == place)
        assert len(pending.positions(place)) == len(pending.of_partition(place))
    for producer_id in range(4):
        of_it = {key: each for key, each in model.items() if key.producer_id == producer_id}
        assert pending.of_producer(producer_id) == of_it
        last = pending.last_of_producer(producer_id)
        assert last in of_it.values() if of_it else last is None
    assert pending.transactions() == {
        OpenTransaction(each.transactional_id, key.producer_id, each.producer_epoch, each.number)
        for key, each in model.items()
    }


def _sorted(found: Iterable[PendingKey]) -> list[PendingKey]:
    return sorted(found)


def test_metadata_that_is_not_ascii_takes_more_bytes() -> None:
    def of(metadata: str) -> int:
        position = OffsetAndMetadata(offset=1, metadata=metadata)
        return size_of(PendingOffset(producer_epoch=0, transactional_id="tx", number=1, position=position))

    assert of("ab") - of("") == 2
    assert of("\u00fc") - of("") == 4


def test_a_guard_holds_until_a_transaction_of_its_producer_ends() -> None:
    pending = PendingOffsets()
    guard, other = pending.guard(1), pending.guard(2)
    assert pending.guard(1) is guard
    assert pending.admits(1, guard)
    assert not pending.admits(1, other)
    assert not pending.admits(1, None)

    pending.invalidate(1)
    pending.invalidate(3)
    assert not pending.admits(1, guard)
    assert pending.admits(2, other)
    later = pending.guard(1)
    assert later is not guard
    assert pending.admits(1, later)


def test_guards_that_no_request_holds_take_no_memory() -> None:
    pending = PendingOffsets()
    assert not pending.guarded
    guard = pending.guard(1)
    assert pending.guarded
    del guard
    gc.collect()
    assert not pending.guarded
