"""What is stored of share groups."""

from uuid import UUID

import pytest

from headrace.groups.sharing.model import StoredSharer, StoredShareTopic
from headrace.storage.layout import registry

TOPIC = StoredShareTopic(topic="a:b", topic_id=UUID(int=7), partitions=3, epoch=5, altered={1: 9}, begins={1: 4})
SHARER = StoredSharer(member_id="ü:1", client_id="c", client_host="h", topics=("a",), epoch=2, previous_epoch=1)


@pytest.mark.parametrize("value", [TOPIC, SHARER])
def test_it_comes_back_as_it_went(value: StoredSharer | StoredShareTopic) -> None:
    assert registry.group_field((value.field.encode(), registry.encode(value))) == value


def test_altered_partitions_have_epochs_of_their_own() -> None:
    assert [TOPIC.state_epoch(index) for index in range(3)] == [5, 9, 5]
