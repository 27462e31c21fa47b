import pytest

from headrace.broker.config.group_configs import GROUP_KEYS, check, check_stored, defaults_of, describe, resolve
from headrace.broker.config.settings import BrokerSettings
from headrace.groups.configs import GroupConfig, MigrationPolicy, OffsetReset, ResetStrategy
from headrace.topics.config_keys import InvalidSetting, Source
from headrace.topics.errors import InvalidConfig

KAFKA = defaults_of({})


def test_with_nothing_set_a_group_has_kafkas_defaults() -> None:
    assert resolve({}, KAFKA) == GroupConfig()


def test_every_default_is_a_value_its_key_takes() -> None:
    check({key.name: key.default or "" for key in GROUP_KEYS}, KAFKA)


def test_the_brokers_settings_are_the_defaults_and_a_groups_own_override_them() -> None:
    settings = BrokerSettings.of(
        {"group.consumer.session.timeout.ms": "50000", "group.share.delivery.count.limit": "7"}
    )
    own = {
        "consumer.session.timeout.ms": " 55000 ",
        "consumer.heartbeat.interval.ms": "6000",
        "share.auto.offset.reset": "by_duration:PT1M",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "FALSE",
    }
    config = resolve(own, settings.group_defaults)
    assert config == GroupConfig(
        consumer_session_timeout_ms=55_000,
        consumer_heartbeat_interval_ms=6_000,
        consumer_heartbeat_fixed=True,
        share_delivery_count_limit=7,
        share_auto_offset_reset=OffsetReset(ResetStrategy.BY_DURATION, 60_000),
        share_read_committed=True,
        share_renew_acknowledge_enable=False,
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("foo.bar", "1", "Unknown group config name: foo.bar"),
        ("consumer.session.timeout.m", "1", "did you mean consumer.session.timeout.ms"),
        (
            "consumer.session.timeout.ms",
            "100",
            "^consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms$",
        ),
        (
            "share.delivery.count.limit",
            "11",
            "^share.delivery.count.limit must be less than or equal to group.share.max.delivery.count.limit$",
        ),
        ("consumer.heartbeat.interval.ms", "0", "expected at least 1"),
        ("consumer.assignment.interval.ms", "15001", "less than or equal to group.consumer.max.assignment.interval.ms"),
        ("consumer.session.timeout.ms", "abc", "expected a whole number"),
        ("share.auto.offset.reset", "by_duration:-PT1H", "not negative"),
        ("share.isolation.level", "READ_COMMITTED", "read_committed or read_uncommitted"),
        ("share.renew.acknowledge.enable", "maybe", "true or false"),
        ("streams.session.timeout.ms", "46000", "Unknown group config name"),
        ("errors.deadletterqueue.topic.name", "a/b", "has a character other than"),
        ("errors.deadletterqueue.copy.record.enable", "1", "true or false"),
    ],
)
def test_unknown_and_invalid_values_are_refused_as_kafka_does(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        check({name: value}, KAFKA)


def test_a_session_is_longer_than_an_interval() -> None:
    wide = BrokerSettings.of(
        {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.max.heartbeat.interval.ms": "50000"}
    ).group_defaults
    with pytest.raises(InvalidConfig, match=r"^consumer\.session\.timeout\.ms must be greater than consumer\.heart"):
        check({"consumer.session.timeout.ms": "5000"}, wide)
    check({"consumer.session.timeout.ms": "5001"}, wide)


def test_values_stored_under_wider_bounds_are_moved_into_the_present_ones() -> None:
    config = resolve({"consumer.session.timeout.ms": "1000", "share.delivery.count.limit": "25"}, KAFKA)
    assert (config.consumer_session_timeout_ms, config.share_delivery_count_limit) == (45_000, 10)
    with pytest.raises(InvalidConfig):
        check_stored({"consumer.session.timeout.ms": "x"})


def test_a_description_names_the_brokers_setting_as_synonym() -> None:
    defaults = BrokerSettings.of({"group.share.session.timeout.ms": "50000"}).group_defaults
    entries = {entry.key.name: entry for entry in describe({"share.session.timeout.ms": "60000"}, defaults)}
    assert len(entries) == len(GROUP_KEYS)
    assert entries["share.session.timeout.ms"].synonyms == (
        ("share.session.timeout.ms", "60000", Source.GROUP),
        ("group.share.session.timeout.ms", "50000", Source.BROKER),
        ("group.share.session.timeout.ms", "45000", Source.DEFAULT),
    )
    assert entries["share.auto.offset.reset"].synonyms == (("share.auto.offset.reset", "latest", Source.DEFAULT),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group.consumer.session.timeout.ms": "1000"}, "is not from group.consumer.min.session.timeout.ms=45000"),
        ({"group.share.min.session.timeout.ms": "70000"}, "lower one or raise the other"),
        ({"group.consumer.min.assignment.interval.ms": "10", "group.consumer.assignment.interval.ms": "0"}, "not from"),
        (
            {"group.share.min.session.timeout.ms": "1", "group.share.session.timeout.ms": "5000"},
            "must be greater than group.share.heartbeat.interval.ms",
        ),
    ],
)
def test_contradicting_settings_prevent_a_start(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        BrokerSettings.of(given)


def test_limits_of_the_newer_groups_come_from_the_settings() -> None:
    newer = BrokerSettings.of(
        {
            "group.consumer.assignors": "range, uniform",
            "group.consumer.migration.policy": "UPGRADE",
            "group.share.max.size": "300",
        }
    ).groups.newer
    assert newer.consumer_assignors == ("range", "uniform")
    assert newer.consumer_migration_policy is MigrationPolicy.UPGRADE
    assert newer.share_max_size == 300
