import pytest

from headrace.broker.config.keys import BROKER_KEYS
from headrace.broker.config.settings import BrokerSettings
from headrace.topics.config_keys import InvalidSetting


def test_every_field_comes_from_the_table() -> None:
    fields = {key.field for key in BROKER_KEYS}
    assert set(BrokerSettings.__struct_fields__) - fields == {"topic_defaults", "group_defaults", "given"}


@pytest.mark.parametrize("key", BROKER_KEYS, ids=lambda key: key.name)
def test_every_default_is_a_value_its_key_takes(key: object) -> None:
    entry = next(known for known in BROKER_KEYS if known is key)
    if entry.default is not None:
        entry.parse(entry.default)


def test_broker_id_is_another_name_of_node_id() -> None:
    assert BrokerSettings.of({"broker.id": "7"}).node_id == 7
    assert BrokerSettings.of({"broker.id": "7", "node.id": "7"}).node_id == 7
    with pytest.raises(InvalidSetting, match="differ"):
        BrokerSettings.of({"broker.id": "7", "node.id": "8"})


def test_an_unknown_setting_is_refused_with_a_near_one() -> None:
    with pytest.raises(InvalidSetting, match=r"unknown broker setting num\.partition, did you mean num\.partitions\?"):
        BrokerSettings.of({"num.partition": "1"})
