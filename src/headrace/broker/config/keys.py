"""The broker's settings as data, with Kafka's names, and its defaults unless documented otherwise."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from headrace.broker.config.group_keys import NEWER_GROUP_KEYS
from headrace.topics.config import CLEANUP_POLICY, COMPACT, TOPIC_KEYS
from headrace.topics.config_keys import ConfigKey, ConfigType, InvalidSetting

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("listeners", ConfigType.LIST, "",
        doc="Addresses of the Kafka listeners as NAME://HOST:PORT, separated by commas. Overrides --kafka. Port 0 "
            "selects a free port. Without a host, the listener binds to all addresses."),
    ConfigKey("advertised.listeners", ConfigType.LIST, "",
        doc="Addresses as NAME://HOST:PORT that the server advertises to Kafka clients, for listeners that clients "
            "reach by another address. Overrides --advertise."),
    ConfigKey("listener.security.protocol.map", ConfigType.LIST,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="Security protocol of each listener as NAME:PROTOCOL. PLAINTEXT has neither TLS nor a login, SSL has "
            "TLS, SASL_PLAINTEXT has a login, and SASL_SSL has both."),
    ConfigKey("ssl.keystore.location", ConfigType.STRING, "",
        doc="PEM file with the private key of the server, without a passphrase, and its certificate chain. "
            "Listeners with TLS need it. The server reloads it when it changes."),
    ConfigKey("ssl.keystore.type", ConfigType.STRING, "PEM", choices=("PEM",),
        doc="Format of ssl.keystore.location (JKS in Kafka)."),
    ConfigKey("ssl.truststore.location", ConfigType.STRING, "",
        doc="PEM file with the certificate authorities that the server trusts for client certificates. The server "
            "reloads it when it changes."),
    ConfigKey("ssl.truststore.type", ConfigType.STRING, "PEM", choices=("PEM",),
        doc="Format of ssl.truststore.location (JKS in Kafka)."),
    ConfigKey("ssl.client.auth", ConfigType.STRING, "none", choices=("none", "requested", "required"),
        doc="Whether clients of SSL listeners and of HTTPS must present a certificate. With requested, they may "
            "present one. SASL_SSL listeners use only listener.name.NAME.ssl.client.auth."),
    ConfigKey("ssl.principal.mapping.rules", ConfigType.STRING, "DEFAULT",
        doc="Rules that derive a principal from a client certificate. DEFAULT uses the distinguished name. "
            "RULE:pattern/replacement/ rewrites it, and L or U after it converts it to lower or upper case. The "
            "first matching rule applies."),
    ConfigKey("sasl.enabled.mechanisms", ConfigType.LIST, "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        doc="SASL mechanisms of listeners with SASL (GSSAPI in Kafka). OAUTHBEARER needs "
            "sasl.oauthbearer.jwks.endpoint.url and the extra headrace[oauth]."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", ConfigType.STRING, "",
        doc="Address of the JSON Web Key Set with the public keys of token issuers: https://HOST/PATH or "
            "file:///PATH. The server reloads a file when it changes. With this setting, the web console and "
            "/metrics also accept tokens (Authorization: Bearer)."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", ConfigType.LONG, "3600000", minimum=1_000,
        doc="Interval at which the server loads the key set again. It also loads it for a token with an unknown key "
            "id, at most every ten seconds."),
    ConfigKey("sasl.oauthbearer.expected.audience", ConfigType.LIST, "",
        doc="Accepted values of a token's aud claim. Without it, tokens that were issued for other services are "
            "accepted."),
    ConfigKey("sasl.oauthbearer.expected.issuer", ConfigType.STRING, "",
        doc="Required value of a token's iss claim. Empty: any."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", ConfigType.STRING, "sub",
        doc="Claim of a token with the name of the principal."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", ConfigType.INT, "30", minimum=0, maximum=3_600,
        doc="Tolerated difference between the clocks of the token issuer and of this machine."),
    ConfigKey("connection.failed.authentication.delay.ms", ConfigType.INT, "100", minimum=0,
        doc="Delay of the response to a failed login, and of the end of its connection."),
    ConfigKey("connections.max.reauth.ms", ConfigType.LONG, "0", minimum=0,
        doc="Time after which clients of SASL listeners must log in again. 0: never. The server closes other "
            "connections at their next request."),
)  # fmt: skip
"""Part of `broker.config.keys.BROKER_KEYS`."""


UNLIMITED_RATE = 2**31 - 1
"""`max.connection.creation.rate` without a limit."""
QUOTA_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("max.connection.creation.rate", ConfigType.INT, str(UNLIMITED_RATE), minimum=1,
        doc="Maximum number of new connections per second of all Kafka listeners together, measured over the quota "
            "windows. Further connections wait, or are closed if they would wait for more than ten seconds."),
    ConfigKey("quota.window.num", ConfigType.INT, "11", minimum=2,
        doc="Number of windows over which quotas measure bytes, request time and connections."),
    ConfigKey("quota.window.size.seconds", ConfigType.INT, "1", minimum=1, doc="Length of such a window."),
    ConfigKey("controller.quota.window.num", ConfigType.INT, "11", minimum=2,
        doc="Number of windows of controller_mutation_rate that a client may use at once."),
    ConfigKey("controller.quota.window.size.seconds", ConfigType.INT, "1", minimum=1, doc="Length of such a window."),
)  # fmt: skip
"""Part of `broker.config.keys.BROKER_KEYS`."""


KEY_PREFIX = "headrace"
"""Prefix of Headrace's own Redis keys, before a colon."""
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Value of `authorizer.class.name` that enables ACLs."""

ACCESS_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("authorizer.class.name", ConfigType.STRING, "", choices=("", STANDARD_AUTHORIZER),
        doc="Authorizer. Empty: every client that reaches a listener has all rights. With Kafka's authorizer, ACLs "
            "apply to every API."),
    ConfigKey("super.users", ConfigType.STRING, "",
        doc="Principals with all rights, independent of ACLs, such as User:admin;User:backup. A user of the OCI API "
            "is User:<tenancy>/<user>."),
    ConfigKey("allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, "false",
        doc="Whether all principals have all rights on a resource without ACLs."),
)  # fmt: skip


def principals(text: str) -> frozenset[str]:
    """Parse a list of principals that are separated by semicolons. Raises InvalidSetting."""
    found = frozenset(each.strip() for each in text.split(";") if each.strip())
    for each in found:
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise InvalidSetting(f"super.users: expected principals such as User:admin;User:backup, found {each!r}")
    return found


_MAX_INT = 2**31 - 1
_TOPIC = {key.name: key for key in TOPIC_KEYS}


def _as_topic(name: str, topic_name: str, refused: Mapping[str, str] = MappingProxyType({})) -> ConfigKey:
    key = _TOPIC[topic_name]
    doc = f"Default of {topic_name} for all topics."
    choices = tuple(each for each in key.choices if each not in refused)
    return msgspec.structs.replace(key, name=name, doc=doc, choices=choices, refused={**key.refused, **refused})


_NOT_FOR_ALL = "streams of the OCI API and native topics cannot be compacted, set cleanup.policy of each topic"
_PRODUCERS_KEPT = "Time for which the server remembers the sequence numbers of an idle producer."
_UNTIL_COPIED = "Maximum time for which acks=all waits for replicas, if min.insync.replicas is above 1."
_UNTIL_STORED = (
    "Maximum time for which a request of a group, or for a producer id, waits for Redis. Then the client must "
    "repeat it."
)
BROKER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node.id", ConfigType.INT, "1", minimum=0,
        doc="Id of this broker. Brokers that share a Redis need different ids."),
    ConfigKey("broker.id", ConfigType.INT, None, minimum=0, doc="Older name of node.id. Set only one of them."),
    ConfigKey("broker.heartbeat.interval.ms", ConfigType.INT, "500", minimum=10,
        doc="Interval of the heartbeats that brokers write to the shared Redis (2,000 in Kafka)."),
    ConfigKey("broker.session.timeout.ms", ConfigType.INT, "3000", minimum=100,
        doc="Time without a heartbeat after which other brokers take over the partitions and groups of a broker "
            "(9,000 in Kafka)."),
    ConfigKey("auto.create.topics.enable", ConfigType.BOOLEAN, "true",
        doc="Whether the server creates a missing topic that a client requests."),
    ConfigKey("delete.topic.enable", ConfigType.BOOLEAN, "true", doc="Whether clients may delete topics."),
    ConfigKey("num.partitions", ConfigType.INT, "1", minimum=1,
        doc="Number of partitions of a new topic, unless its request states one."),
    ConfigKey("default.replication.factor", ConfigType.INT, "1", minimum=1, maximum=2**15 - 1,
        doc="Replication factor of a new topic, unless its request states one. It needs that many brokers. Redis "
            "replicates the data: the factor is only the number of brokers that are listed as replicas."),
    ConfigKey("offsets.topic.num.partitions", ConfigType.INT, "50", minimum=1, maximum=1_000,
        doc="Number of partitions of `__consumer_offsets`. The topic is empty, because groups are stored elsewhere. "
            "It exists for programs that read its metadata."),
    _as_topic("min.insync.replicas", "min.insync.replicas"),
    ConfigKey("replica.lag.time.max.ms", ConfigType.INT, "30000", minimum=1, doc=_UNTIL_COPIED),
    _as_topic("compression.type", "compression.type"),
    _as_topic("log.cleanup.policy", CLEANUP_POLICY, {COMPACT: _NOT_FOR_ALL}),
    ConfigKey("log.retention.hours", ConfigType.INT, "168", minimum=-1,
        doc="Retention time in hours, unless minutes or milliseconds are set. -1: unlimited."),
    ConfigKey("log.retention.minutes", ConfigType.INT, None, minimum=-1,
        doc="Retention time in minutes. Overrides log.retention.hours. -1: unlimited."),
    ConfigKey("log.retention.ms", ConfigType.LONG, None, minimum=-1,
        doc="Retention time in milliseconds. Overrides minutes and hours. -1: unlimited."),
    _as_topic("log.retention.bytes", "retention.bytes"),
    ConfigKey("log.cleaner.enable", ConfigType.BOOLEAN, "true",
        doc="Whether the server cleans compacted topics."),
    ConfigKey("log.cleaner.backoff.ms", ConfigType.LONG, "15000", minimum=0,
        doc="Time in milliseconds until the cleaner looks at the logs again if there was none to clean."),
    ConfigKey("log.cleaner.dedupe.buffer.size", ConfigType.LONG, "134217728", minimum=1 << 20,
        doc="Maximum memory of the cleaner for the keys of a log, in bytes. It needs 24 bytes per key. A log with more "
            "keys is cleaned in several passes."),
    ConfigKey("log.cleaner.io.max.bytes.per.second", ConfigType.DOUBLE, "1.7976931348623157E308", minimum=1,
        doc="Maximum bytes that the cleaner reads and writes per second."),
    _as_topic("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    _as_topic("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    _as_topic("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
    _as_topic("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    ConfigKey("log.retention.check.interval.ms", ConfigType.LONG, "300000", minimum=1,
        doc="Interval at which the server applies retention."),
    _as_topic("message.max.bytes", "max.message.bytes"),
    _as_topic("log.message.timestamp.type", "message.timestamp.type"),
    _as_topic("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    _as_topic("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    ConfigKey("socket.request.max.bytes", ConfigType.INT, "104857600", minimum=1,
        doc="Maximum size of a request. The server closes a connection that announces a larger one."),
    ConfigKey("queued.max.request.bytes", ConfigType.LONG, "268435456", minimum=-1,
        doc="Memory for the requests of all clients of a listener, from their first byte to their response. When it "
            "is used up, the server stops reading from clients for a while. -1: unlimited, which is Kafka's "
            "default."),
    ConfigKey("headrace.request.max.elements", ConfigType.INT, "10000", minimum=1,
        doc="Maximum number of elements in the arrays of one request together, such as topics and partitions. The "
            "server closes the connection of a larger request (not in Kafka)."),
    ConfigKey("max.connections", ConfigType.INT, str(_MAX_INT), minimum=0,
        doc="Maximum number of connections of both listeners. The server closes further ones, and those without a "
            "free file descriptor (ulimit -n, minus 64 for its own use)."),
    ConfigKey("max.connections.per.ip", ConfigType.INT, str(_MAX_INT), minimum=0,
        doc="Maximum number of connections of both listeners from one address, or from one IPv6 network of 64 bits."),
    ConfigKey("connections.max.idle.ms", ConfigType.LONG, "600000",
        doc="Time without a request after which the server closes a connection. Negative: never."),
    ConfigKey("fetch.max.bytes", ConfigType.INT, "57671680", minimum=1024,
        doc="Maximum size of a Fetch response, whatever the client requests."),
    ConfigKey("metrics.max.series", ConfigType.INT, "20000", minimum=1,
        doc="Maximum number of series in /metrics. Further ones are only counted. Topics, partitions and groups "
            "have several each (not in Kafka)."),
    ConfigKey("group.min.session.timeout.ms", ConfigType.INT, "6000", minimum=0,
        doc="Minimum session timeout of a group member."),
    ConfigKey("group.max.session.timeout.ms", ConfigType.INT, "1800000", minimum=0,
        doc="Maximum session timeout of a group member."),
    ConfigKey("group.initial.rebalance.delay.ms", ConfigType.INT, "100", minimum=0,
        doc="Time for which the first rebalance of an empty group waits for more members (3,000 in Kafka)."),
    ConfigKey("group.max.size", ConfigType.INT, "10000", minimum=1,
        doc="Maximum number of members of a classic group (unlimited in Kafka)."),
    *NEWER_GROUP_KEYS,
    ConfigKey("headrace.group.max.bytes", ConfigType.INT, "16777216", minimum=1,
        doc="Maximum number of bytes of member data in a group. The server refuses a member beyond it with "
            "GROUP_MAX_SIZE_REACHED (not in Kafka, where a group must fit into one record)."),
    ConfigKey("headrace.groups.max.bytes", ConfigType.LONG, str(256 << 20), minimum=1,
        doc="Maximum number of bytes of the members of all groups of a server: metadata, assignments and names, and "
            "6,000 for each group. A join that adds more than 1/16 of the rest is refused with "
            "GROUP_MAX_SIZE_REACHED. Existing members are not affected (not in Kafka)."),
    ConfigKey("headrace.offsets.max.bytes", ConfigType.LONG, str(512 << 20), minimum=1,
        doc="Maximum number of bytes of the committed offsets of all groups of a server: 400 for each, its "
            "metadata, and 6,000 for each group. Beyond it, a commit for a partition without a committed offset is "
            "refused with POLICY_VIOLATION. Other commits are accepted (not in Kafka)."),
    ConfigKey("headrace.max.groups", ConfigType.INT, "20000", minimum=1,
        doc="Maximum number of groups of a virtual cluster, of Kafka and OCI clients together. A new one is refused "
            "beyond it (POLICY_VIOLATION, in the OCI API LimitExceeded). Groups that exist at the start are kept "
            "(unlimited in Kafka)."),
    ConfigKey("headrace.max.producers", ConfigType.INT, "400000", minimum=1,
        doc="Maximum number of idempotent producers of all partitions, counted for each partition. Near it, the "
            "server forgets those silent for longest before producer.id.expiration.ms, after at least three "
            "minutes. If this is not enough, a new producer of a partition is refused with POLICY_VIOLATION (not in "
            "Kafka)."),
    ConfigKey("max.broker.partitions", ConfigType.INT, "20000", minimum=1,
        doc="Maximum number of partitions of all topics. A request for more is refused with POLICY_VIOLATION. "
            "Partitions that exist at the start are kept (named by KIP-578; unlimited in Kafka)."),
    ConfigKey("offsets.retention.minutes", ConfigType.INT, "10080", minimum=1,
        doc="Time for which committed offsets are kept after a group has lost its last member."),
    ConfigKey("offsets.retention.check.interval.ms", ConfigType.LONG, "600000", minimum=1,
        doc="Interval at which the server removes expired committed offsets."),
    ConfigKey("offsets.commit.timeout.ms", ConfigType.INT, "5000", minimum=1, doc=_UNTIL_STORED),
    ConfigKey("offset.metadata.max.bytes", ConfigType.INT, "4096", minimum=0,
        doc="Maximum size of the metadata of a committed offset."),
    ConfigKey("producer.id.expiration.ms", ConfigType.INT, "86400000", minimum=1, doc=_PRODUCERS_KEPT),
    ConfigKey("transaction.max.timeout.ms", ConfigType.INT, "900000", minimum=1,
        doc="Largest transaction.timeout.ms of a producer. A larger one is refused with "
            "INVALID_TRANSACTION_TIMEOUT. The server aborts a transaction that takes longer than its timeout."),
    ConfigKey("transactional.id.expiration.ms", ConfigType.INT, "604800000", minimum=1,
        doc="Time after which the server forgets a transactional ID without requests. Its next producer gets "
            "another producer ID."),
    ConfigKey("headrace.max.transactional.ids", ConfigType.INT, "100000", minimum=1,
        doc="Maximum number of transactional IDs of a virtual cluster. A new one is refused with POLICY_VIOLATION. "
            "Those that exist at the start are kept (unlimited in Kafka)."),
    ConfigKey("headrace.cache.bytes", ConfigType.LONG, "-1", minimum=-1,
        doc="Memory for the newest record batches, from which the server reads without Redis. It stays allocated "
            "after its first use. -1: 32 MiB if older batches can be read from the embedded Valkey's append-only "
            "file, otherwise 1/16 of the machine's memory, from 128 MiB to 1 GiB (not in Kafka)."),
    ConfigKey("headrace.reads.bytes", ConfigType.LONG, "268435456", minimum=1 << 20,
        doc="Memory for records on their way to clients, from their read until the client has received them. As it "
            "gets short, responses get smaller, and then wait (not in Kafka)."),
    ConfigKey("headrace.journal.bytes", ConfigType.INT, "16777216", minimum=0,
        doc="Size of the journal, a file from which the server acknowledges small batches before the embedded "
            "Valkey has them. At least 1 MiB. 0: no journal, so every batch waits for Valkey, as with --fsync "
            "always or --redis (not in Kafka)."),
    ConfigKey("headrace.stream.prefix", ConfigType.STRING, KEY_PREFIX,
        doc="Prefix of the Redis keys of new partitions, before a colon (not in Kafka)."),
    ConfigKey("headrace.redis.manage", ConfigType.BOOLEAN, "false",
        doc="Whether the server tunes the Redis of --redis as it tunes the embedded Valkey. That Redis must serve "
            "only this server. If it writes an append-only file, the server disables its snapshots and compression, "
            "and starts its rewrites. Its configuration file is not changed (not in Kafka)."),
    ConfigKey("headrace.insecure", ConfigType.BOOLEAN, "false",
        doc="Allow listeners on addresses other than loopback without authentication (not in Kafka)."),
    ConfigKey("headrace.testing.reset", ConfigType.BOOLEAN, "false",
        doc="Whether DELETE /_headrace/state deletes all topics, groups, committed offsets, streams and pools, for "
            "use between tests. From loopback only (not in Kafka)."),
    ConfigKey("console.write", ConfigType.BOOLEAN, "false",
        doc="Whether the web console can make changes, such as a reset of committed offsets (not in Kafka)."),
    ConfigKey("console.session.ms", ConfigType.LONG, "43200000", minimum=60_000, maximum=2_592_000_000,
        doc="Lifetime of a login in the web console. It ends earlier if the user's password changes or the server "
            "stops (not in Kafka)."),
    ConfigKey("schema.registry.enable", ConfigType.BOOLEAN, "false",
        doc="Whether the HTTP listener serves a schema registry with Confluent's API under /registry (not in Kafka)."),
    ConfigKey("schema.registry.max.schemas", ConfigType.INT, "20000", minimum=1, maximum=1_000_000,
        doc="Maximum number of versions in the schema registry, including deleted ones (not in Kafka)."),
    ConfigKey("schema.registry.max.schema.bytes", ConfigType.INT, "1048576", minimum=1_024, maximum=16_777_216,
        doc="Maximum size of a schema in the schema registry (not in Kafka)."),
    ConfigKey("schema.registry.max.bytes", ConfigType.LONG, "268435456", minimum=1_024,
        doc="Maximum size of all schemas in the schema registry together. They are in Redis (not in Kafka)."),
    ConfigKey("headrace.traces.endpoint", ConfigType.STRING, "",
        doc="URL of an OpenTelemetry receiver (OTLP over HTTP, such as http://127.0.0.1:4318). The server continues "
            "traces from the `traceparent` of requests and records, and exports them there. Needs headrace[otel]. "
            "Empty: no traces (not in Kafka)."),
    ConfigKey("headrace.http.hosts", ConfigType.LIST, "",
        doc="Names that HTTP requests may use for the server (Host) and for the pages that send them (Origin), in "
            "addition to loopback names and the listener's own name. *: every name (not in Kafka)."),
    ConfigKey("headrace.adopt.prefixes", ConfigType.LIST, "",
        doc="Prefixes of Redis Streams that may become topics (headrace topics adopt). *: every stream. If not set: "
            "every stream of the embedded Valkey, and none of an external Redis (not in Kafka)."),
    ConfigKey("headrace.native.max.pending", ConfigType.INT, "100000", minimum=1,
        doc="Native topics: maximum number of entries that Redis keeps as pending per group and partition. A member "
            "with more uncommitted entries continues to read, and Redis records them at its next commit (not in "
            "Kafka)."),
    *SECURITY_KEYS,
    *ACCESS_KEYS,
    *QUOTA_KEYS,
)  # fmt: skip
"""All settings of the broker. Unknown ones prevent a start."""
