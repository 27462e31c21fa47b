import pytest
from confluent_kafka import ConsumerGroupState

from headrace.groups.classic.states import GroupState, in_words


@pytest.mark.parametrize("state", GroupState)
def test_kafkas_names_and_a_clients_are_the_same_words(state: GroupState) -> None:
    clients = {in_words(each.name) for each in ConsumerGroupState}
    assert in_words(state.value) in clients
    assert in_words(state.value) == in_words(state.name)
    assert in_words(state.value).replace(" ", "").isalpha()
