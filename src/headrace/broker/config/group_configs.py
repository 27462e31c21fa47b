"""Configuration of a group (Kafka's resource type GROUP) under Kafka's names. Pure.

Its own values override the broker's `group.consumer.*` and `group.share.*`, which also bound them. `resolve` merges
both.
"""

from collections.abc import Mapping

import msgspec

from headrace.broker.config.group_keys import NEWER_GROUP_KEYS
from headrace.groups.configs import GroupConfig, OffsetReset
from headrace.topics.config_keys import (
    ConfigEntry,
    ConfigKey,
    ConfigType,
    InvalidSetting,
    Source,
    Synonym,
    Value,
    suggestion,
)
from headrace.topics.errors import InvalidConfig, InvalidTopicName
from headrace.topics.model import check_name

_RESET = "share.auto.offset.reset"
_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_PREFIX = "group."
_BROKER = {key.name: key for key in NEWER_GROUP_KEYS}
_OVERRIDES = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.assignment.interval.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)
"""Keys with a broker setting of the same name after `group.`, and with a minimum and a maximum there."""


def _own(name: str) -> ConfigKey:
    key = _BROKER[_PREFIX + name]
    return msgspec.structs.replace(key, name=name, maximum=None, doc=f"Overrides {key.name} for one group. {key.doc}")


GROUP_KEYS: tuple[ConfigKey, ...] = (
    *(_own(name) for name in _OVERRIDES),
    ConfigKey(_RESET, ConfigType.STRING, "latest",
        doc="First offset of a share group in a partition: latest, earliest, or by_duration:PnDTnHnMn.nS for records "
            "of at most that age."),
    ConfigKey("share.isolation.level", ConfigType.STRING, "read_uncommitted",
        choices=("read_committed", "read_uncommitted"),
        doc="Whether a share group gets only committed records of transactions."),
    ConfigKey("share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true",
        doc="Whether members of a share group may renew the locks of records."),
    ConfigKey(_DEAD_LETTERS, ConfigType.STRING, "",
        doc="Topic for the records that members of a share group reject, or that reach the delivery limit (KIP-1191). "
            "The topic needs errors.deadletterqueue.group.enable=true. If empty, these records are only archived."),
    ConfigKey("errors.deadletterqueue.copy.record.enable", ConfigType.BOOLEAN, "true",
        doc="Whether dead letters contain the key, value and headers of the record (false by default in Kafka). "
            "Otherwise they have only headers with its origin."),
)  # fmt: skip
"""All keys of a group. Others are rejected."""

_BY_NAME = {key.name: key for key in GROUP_KEYS}
_LONGER = (
    ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
)
"""Session timeouts, and the heartbeat intervals that they must exceed."""


class GroupDefaults(msgspec.Struct, frozen=True):
    """Broker settings of the newer groups, from `defaults_of`."""

    given: dict[str, str]
    """Given settings as checked text, by name."""
    numbers: dict[str, int]
    """Effective values of numeric settings."""

    def bounds(self, name: str) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the settings that bound a key of `_OVERRIDES`, and their values: minimum and maximum."""
        kind, _, rest = name.partition(".")
        low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        return (low, self.numbers[low]), (high, self.numbers[high])


def defaults_of(texts: Mapping[str, str]) -> GroupDefaults:
    """Return the defaults of groups from the broker's given settings.

    Raises:
        InvalidSetting: a default out of its bounds, or a session timeout that is no longer than the interval.
    """
    given = {name: texts[name] for name in texts if name in _BROKER}
    values = {key.name: key.parse(given.get(key.name, key.default or "")) for key in NEWER_GROUP_KEYS}
    defaults = GroupDefaults(given, {name: value for name, value in values.items() if isinstance(value, int)})
    for name in _OVERRIDES:
        value = defaults.numbers[_PREFIX + name]
        (low, least), (high, most) = defaults.bounds(name)
        # Without a choice of its own, Headrace's default of 0 leaves the interval of assignments to the server.
        chosen = value != 0 or _PREFIX + name in defaults.given
        if least > most:
            raise InvalidSetting(f"{low}={least} is over {high}={most}: lower one or raise the other")
        if chosen and not least <= value <= most:
            raise InvalidSetting(f"{_PREFIX}{name}={value} is not from {low}={least} to {high}={most}")
    for session, interval in _LONGER:
        if defaults.numbers[_PREFIX + session] <= defaults.numbers[_PREFIX + interval]:
            raise InvalidSetting(f"{_PREFIX}{session} must be greater than {_PREFIX}{interval}")
    return defaults


def check(config: Mapping[str, str], defaults: GroupDefaults) -> None:
    """Raise InvalidConfig for the first unknown key, invalid value, or value out of the broker's bounds.

    The texts for bounds and unknown names are Kafka's.
    """
    check_stored(config)
    values = {name: _parse(name, text) for name, text in config.items()}
    for name in _OVERRIDES:
        value = values.get(name)
        if value is None:
            continue
        assert isinstance(value, int)
        (low, least), (high, most) = defaults.bounds(name)
        if value < least:
            raise InvalidConfig(f"{name} must be greater than or equal to {low}")
        if value > most:
            raise InvalidConfig(f"{name} must be less than or equal to {high}")
    for session, interval in _LONGER:
        effective = [_number(name, config, defaults) for name in (session, interval)]
        if effective[0] <= effective[1]:
            raise InvalidConfig(f"{session} must be greater than {interval}")


def check_stored(config: Mapping[str, str]) -> None:
    """Raise InvalidConfig for a key or value that is valid under no bounds."""
    for name, text in config.items():
        if name not in _BY_NAME:
            raise unknown(name)
        _parse(name, text)


def unknown(name: str) -> InvalidConfig:
    """Return the error for an unknown key, which names a near one."""
    hint = suggestion(name, _BY_NAME)
    return InvalidConfig(f"Unknown group config name: {name}" + (f", {hint}" if hint else ""))


def resolve(config: Mapping[str, str], defaults: GroupDefaults) -> GroupConfig:
    """Return the effective configuration of a group with these own values.

    As in Kafka, values that were stored under wider bounds than today's are moved into them.
    Raises InvalidConfig as `check_stored`.
    """
    check_stored(config)

    def number(name: str) -> int:
        value = _number(name, config, defaults)
        if name not in config:
            return value
        (_, least), (_, most) = defaults.bounds(name)
        return max(least, min(value, most))

    return GroupConfig(
        consumer_session_timeout_ms=number("consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=number("consumer.heartbeat.interval.ms"),
        consumer_heartbeat_fixed="consumer.heartbeat.interval.ms" in config,
        consumer_assignment_interval_ms=number("consumer.assignment.interval.ms"),
        share_session_timeout_ms=number("share.session.timeout.ms"),
        share_heartbeat_interval_ms=number("share.heartbeat.interval.ms"),
        share_heartbeat_fixed="share.heartbeat.interval.ms" in config,
        share_assignment_interval_ms=number("share.assignment.interval.ms"),
        share_record_lock_duration_ms=number("share.record.lock.duration.ms"),
        share_delivery_count_limit=number("share.delivery.count.limit"),
        share_partition_max_record_locks=number("share.partition.max.record.locks"),
        share_auto_offset_reset=OffsetReset.parse(_text(_RESET, config)),
        share_read_committed=_text("share.isolation.level", config) == "read_committed",
        share_renew_acknowledge_enable=_text("share.renew.acknowledge.enable", config).lower() == "true",
        dead_letter_topic=_text(_DEAD_LETTERS, config),
        dead_letter_copy=_text("errors.deadletterqueue.copy.record.enable", config).lower() == "true",
    )


def describe(config: Mapping[str, str], defaults: GroupDefaults) -> tuple[ConfigEntry, ...]:
    """Return every key with its value and source. `config` is already checked."""
    return tuple(ConfigEntry(key=key, synonyms=tuple(_layers(key, config, defaults))) for key in GROUP_KEYS)


def _layers(key: ConfigKey, config: Mapping[str, str], defaults: GroupDefaults) -> list[Synonym]:
    assert key.default is not None, f"group key {key.name} has no default"
    broker = _PREFIX + key.name
    layers = [Synonym(broker if broker in _BROKER else key.name, key.default, Source.DEFAULT)]
    if broker in defaults.given:
        layers.insert(0, Synonym(broker, defaults.given[broker], Source.BROKER))
    if key.name in config:
        layers.insert(0, Synonym(key.name, config[key.name].strip(), Source.GROUP))
    return layers


def _text(name: str, config: Mapping[str, str]) -> str:
    return config.get(name, _BY_NAME[name].default or "").strip()


def _number(name: str, config: Mapping[str, str], defaults: GroupDefaults) -> int:
    value = _parse(name, config[name]) if name in config else defaults.numbers[_PREFIX + name]
    assert isinstance(value, int)
    return value


def _parse(name: str, text: str) -> Value:
    try:
        value = _BY_NAME[name].parse(text)
        if name == _RESET:
            OffsetReset.parse(text.strip())
        if name == _DEAD_LETTERS and text.strip():
            check_name(text.strip())
    except (ValueError, InvalidTopicName) as error:
        raise InvalidConfig(f"{name}={text}: {error}") from None
    return value
