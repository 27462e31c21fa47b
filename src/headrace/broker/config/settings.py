"""The broker's settings as checked values. `broker.config.keys` lists them; `headrace.server.config` reads them."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from headrace.broker.config.group_configs import GroupDefaults, defaults_of
from headrace.broker.config.keys import BROKER_KEYS, SECURITY_KEYS, principals
from headrace.groups.configs import MigrationPolicy, NewerGroupSettings
from headrace.groups.model import GroupSettings
from headrace.security.access.listeners import Listener, Protocol
from headrace.topics.config import TopicDefaults
from headrace.topics.config_keys import ConfigKey, InvalidSetting, Value, plain_text
from headrace.transactions.model import TransactionSettings

_KIND = "broker setting"
BROKER_KEY = {key.name: key for key in BROKER_KEYS}

_TOPIC_DEFAULTS = {
    "min.insync.replicas": "min.insync.replicas",
    "message.max.bytes": "max.message.bytes",
    "log.retention.bytes": "retention.bytes",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
}


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's checked settings. Each field is a key with underscores for dots."""

    node_id: int
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    offsets_topic_num_partitions: int
    log_cleaner_enable: bool
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_retention_check_interval_ms: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    headrace_request_max_elements: int
    max_connections: int
    max_connections_per_ip: int
    max_connection_creation_rate: int
    connections_max_idle_ms: int
    fetch_max_bytes: int
    metrics_max_series: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_consumer_max_size: int
    group_consumer_assignors: str
    group_consumer_migration_policy: str
    group_consumer_regex_refresh_interval_ms: int
    group_share_max_size: int
    group_share_max_share_sessions: int
    headrace_group_max_bytes: int
    headrace_groups_max_bytes: int
    headrace_offsets_max_bytes: int
    headrace_max_groups: int
    headrace_max_producers: int
    max_broker_partitions: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_commit_timeout_ms: int
    offset_metadata_max_bytes: int
    producer_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    headrace_max_transactional_ids: int
    replica_lag_time_max_ms: int
    headrace_cache_bytes: int
    headrace_reads_bytes: int
    headrace_journal_bytes: int
    headrace_stream_prefix: str
    headrace_redis_manage: bool
    headrace_insecure: bool
    headrace_testing_reset: bool
    console_write: bool
    console_session_ms: int
    schema_registry_enable: bool
    schema_registry_max_schemas: int
    schema_registry_max_schema_bytes: int
    schema_registry_max_bytes: int
    headrace_traces_endpoint: str
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    headrace_http_hosts: str
    headrace_adopt_prefixes: str
    headrace_native_max_pending: int
    listeners: str
    advertised_listeners: str
    listener_security_protocol_map: str
    ssl_keystore_location: str
    ssl_truststore_location: str
    ssl_client_auth: Literal["none", "requested", "required"]
    ssl_principal_mapping_rules: str
    sasl_enabled_mechanisms: str
    sasl_oauthbearer_jwks_endpoint_url: str
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    sasl_oauthbearer_expected_audience: str
    sasl_oauthbearer_expected_issuer: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_clock_skew_seconds: int
    connection_failed_authentication_delay_ms: int
    connections_max_reauth_ms: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    topic_defaults: TopicDefaults
    group_defaults: GroupDefaults
    given: dict[str, str]
    """Configured values as text by Kafka's name. All others are defaults (DescribeConfigs distinguishes them)."""

    @classmethod
    def of(cls, given: Mapping[str, str] | None = None) -> "BrokerSettings":
        """Return the defaults with given values applied. Raises InvalidSetting with key, value and remedy."""
        texts = {name: cls.check(name, text) for name, text in (given or {}).items()}
        if texts.get("node.id", texts.get("broker.id")) != texts.get("broker.id", texts.get("node.id")):
            raise InvalidSetting("node.id and broker.id are two names of one setting and differ: give only one")
        if "broker.id" in texts:
            texts["node.id"] = texts["broker.id"]
        values = {
            key.field: _value(key, texts)
            for key in BROKER_KEYS
            if key.field in cls.__struct_fields__ and key.default is not None
        }
        defaults = {"topic_defaults": _topic_defaults(texts), "group_defaults": defaults_of(texts)}
        settings = msgspec.convert(values | defaults | {"given": texts}, cls)
        if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
            raise InvalidSetting(
                f"group.min.session.timeout.ms={settings.group_min_session_timeout_ms} is over "
                f"group.max.session.timeout.ms={settings.group_max_session_timeout_ms}: lower one or raise the other"
            )
        _ = settings.super_principals
        return settings

    def overlaid(self, own: Mapping[str, str]) -> "BrokerSettings":
        """Return these settings with others applied.

        A given retention also replaces one in another unit, which could otherwise have precedence.
        """
        gone = {*own, *_RETENTIONS} if any(name in own for name in _RETENTIONS) else own
        return self.of({key: text for key, text in self.given.items() if key not in gone} | dict(own))

    @staticmethod
    def check(name: str, text: str) -> str:
        """Return a setting's normalized text. Raises InvalidSetting."""
        of_listener = name.startswith(LISTENER_PREFIX)
        return checked_listener_setting(name, text) if of_listener else plain_text(BROKER_KEY, name, text, _KIND)

    @property
    def super_principals(self) -> frozenset[str]:
        """Principals of `super.users`. Raises InvalidSetting."""
        return principals(self.super_users)

    @property
    def groups(self) -> GroupSettings:
        """Settings of groups."""
        return GroupSettings(
            min_session_timeout_ms=self.group_min_session_timeout_ms,
            max_session_timeout_ms=self.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            max_size=self.group_max_size,
            max_metadata_bytes=self.headrace_group_max_bytes,
            max_groups=self.headrace_max_groups,
            offset_metadata_max=self.offset_metadata_max_bytes,
            offsets_retention_ms=self.offsets_retention_minutes * 60_000,
            retention_check_interval_ms=self.offsets_retention_check_interval_ms,
            newer=NewerGroupSettings(
                consumer_max_size=self.group_consumer_max_size,
                consumer_assignors=tuple(each.strip() for each in self.group_consumer_assignors.split(",")),
                consumer_migration_policy=MigrationPolicy(self.group_consumer_migration_policy.lower()),
                consumer_regex_refresh_interval_ms=self.group_consumer_regex_refresh_interval_ms,
                share_max_size=self.group_share_max_size,
                share_max_sessions=self.group_share_max_share_sessions,
            ),
        )

    @property
    def transactions(self) -> TransactionSettings:
        """Settings of transactional IDs."""
        return TransactionSettings(
            max_timeout_ms=self.transaction_max_timeout_ms,
            expiration_ms=self.transactional_id_expiration_ms,
            max_ids=self.headrace_max_transactional_ids,
        )

    def value(self, key: ConfigKey) -> str | None:
        """Return a key's effective value as text. None: not set and without default."""
        return self.given.get(key.name, key.default)


def _value(key: ConfigKey, texts: Mapping[str, str]) -> Value:
    text = texts.get(key.name, key.default)
    assert text is not None
    return key.parse(text)


_RETENTIONS = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Names of one setting and their units (ms), in order of precedence."""


def _topic_defaults(texts: Mapping[str, str]) -> TopicDefaults:
    values = {topic: texts[broker] for broker, topic in _TOPIC_DEFAULTS.items() if broker in texts}
    for name, unit_ms in _RETENTIONS.items():
        if name in texts:
            amount = int(texts[name])
            values["retention.ms"] = str(amount * unit_ms if amount >= 0 else -1)
            break
    return TopicDefaults(values)


LISTENER_PREFIX = "listener.name."
PER_LISTENER = (
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "sasl.enabled.mechanisms",
    "connections.max.reauth.ms",
)
"""Settings that a listener can override."""

_LISTENER_KEYS = {key.name: key for key in SECURITY_KEYS if key.name in PER_LISTENER}
_LISTENER_SETTING = re.compile(re.escape(LISTENER_PREFIX) + r"(?P<listener>[A-Za-z0-9_-]+)\.(?P<key>.+)")
_CLIENT_AUTH = "ssl.client.auth"


def checked_listener_setting(name: str, text: str) -> str:
    """As `BrokerSettings.check`, for a setting with `LISTENER_PREFIX`."""
    match = _LISTENER_SETTING.fullmatch(name)
    if match is None:
        raise InvalidSetting(
            f"{name}: expected {LISTENER_PREFIX}NAME.KEY, such as {LISTENER_PREFIX}sasl_ssl.ssl.client.auth"
        )
    listener, key = match["listener"], match["key"]
    if key not in _LISTENER_KEYS:
        raise InvalidSetting(f"{name}: a listener has no {key} of its own; it may have {', '.join(PER_LISTENER)}")
    if listener != listener.lower():
        raise InvalidSetting(
            f"{name}: write the listener's name in lower case, {LISTENER_PREFIX}{listener.lower()}.{key}"
        )
    try:
        return plain_text(_LISTENER_KEYS, key, text, "setting")
    except InvalidSetting as error:
        raise InvalidSetting(f"{name.removesuffix(key)}{error}") from None


def named(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield settings with the prefix, and their listener in upper case."""
    for name in given:
        match = _LISTENER_SETTING.fullmatch(name)
        if match is not None:
            yield name, match["listener"].upper()


def settings_at(listener: Listener, settings: "BrokerSettings") -> "BrokerSettings":
    """Return the settings of one listener."""
    own = {
        key: text
        for key in PER_LISTENER
        if (text := settings.given.get(f"{LISTENER_PREFIX}{listener.name.lower()}.{key}")) is not None
    }
    if passes_over_client_auth(listener, settings):
        own[_CLIENT_AUTH] = "none"
    return msgspec.structs.replace(
        settings, **{_LISTENER_KEYS[key].field: _LISTENER_KEYS[key].parse(text) for key, text in own.items()}
    )


def passes_over_client_auth(listener: Listener, settings: "BrokerSettings") -> bool:
    """Whether `ssl.client.auth` does not apply to this listener (KIP-684)."""
    return (
        listener.protocol is Protocol.SASL_SSL
        and settings.ssl_client_auth != "none"
        and f"{LISTENER_PREFIX}{listener.name.lower()}.{_CLIENT_AUTH}" not in settings.given
    )
