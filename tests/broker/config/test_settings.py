import pytest

from headrace.broker.config.keys import BROKER_KEYS
from headrace.broker.config.settings import BrokerSettings
from headrace.groups.model import GroupSettings
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.config_keys import InvalidSetting


def test_the_defaults_are_kafkas_but_for_the_initial_delay() -> None:
    settings = BrokerSettings.of()
    assert settings.auto_create_topics_enable is True
    assert settings.num_partitions == 1
    assert settings.node_id == 1
    assert settings.socket_request_max_bytes == 104_857_600
    assert settings.groups == GroupSettings()
    assert settings.topic_defaults == TopicDefaults()
    assert settings.given == {}


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finer_retention_setting_counts(given: dict[str, str], retention_ms: int) -> None:
    assert resolve({}, BrokerSettings.of(given).topic_defaults).retention_ms == retention_ms


def test_broker_settings_become_the_topics_defaults() -> None:
    settings = BrokerSettings.of({"message.max.bytes": "5", "log.message.timestamp.type": "LogAppendTime"})
    config = resolve({}, settings.topic_defaults)
    assert (config.max_message_bytes, config.log_append_time) == (5, True)


def test_contradicting_session_timeouts_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"group\.min\.session\.timeout\.ms=2000 is over"):
        BrokerSettings.of({"group.min.session.timeout.ms": "2000", "group.max.session.timeout.ms": "1000"})


def test_an_effective_value_is_returned_as_text() -> None:
    settings = BrokerSettings.of({"auto.create.topics.enable": "FALSE"})
    values = {key.name: settings.value(key) for key in BROKER_KEYS}
    assert values["auto.create.topics.enable"] == "false"
    assert values["num.partitions"] == "1"
    assert values["log.retention.ms"] is None
