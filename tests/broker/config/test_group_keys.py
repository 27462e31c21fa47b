import pytest

from headrace.broker.config.group_keys import NEWER_GROUP_KEYS
from headrace.broker.config.keys import BROKER_KEYS
from headrace.topics.config_keys import ConfigKey


@pytest.mark.parametrize("key", NEWER_GROUP_KEYS, ids=lambda key: key.name)
def test_each_is_a_setting_of_the_broker_whose_default_is_valid(key: ConfigKey) -> None:
    assert key in BROKER_KEYS
    assert key.default is not None
    key.parse(key.default)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_the_times_of_both_kinds_have_bounds(kind: str) -> None:
    names = {key.name for key in NEWER_GROUP_KEYS}
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        assert {f"group.{kind}.{part}{name}" for part in ("", "min.", "max.")} <= names
