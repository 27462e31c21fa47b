"""The broker's settings as data: Kafka's names, with Kafka's defaults but for those that say otherwise."""

import msgspec

from headrace.topics.config import TOPIC_KEYS
from headrace.topics.config_keys import ConfigKey, ConfigType, InvalidSetting

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("listeners", ConfigType.LIST, "",
        doc="Where the Kafka protocol is served, NAME://HOST:PORT, with commas between; instead of --kafka. Port 0 "
            "picks a free one; no host means every address."),
    ConfigKey("advertised.listeners", ConfigType.LIST, "",
        doc="Addresses as NAME://HOST:PORT that the server advertises to Kafka clients, for listeners that clients "
            "reach by another address. Overrides --advertise."),
    ConfigKey("listener.security.protocol.map", ConfigType.LIST,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="What each listener speaks, NAME:PROTOCOL: PLAINTEXT; SSL, with TLS; SASL_PLAINTEXT, with a login; "
            "SASL_SSL, with both."),
    ConfigKey("ssl.keystore.location", ConfigType.STRING, "",
        doc="PEM file with the server's private key, without a passphrase, and the chain of its certificate, for "
            "listeners with TLS. Read again when it changes."),
    ConfigKey("ssl.keystore.type", ConfigType.STRING, "PEM", choices=("PEM",),
        doc="The form of ssl.keystore.location (JKS in Kafka)."),
    ConfigKey("ssl.truststore.location", ConfigType.STRING, "",
        doc="PEM file with the certificates of the authorities whose clients' certificates are taken. Read again "
            "when it changes."),
    ConfigKey("ssl.truststore.type", ConfigType.STRING, "PEM", choices=("PEM",),
        doc="The form of ssl.truststore.location (JKS in Kafka)."),
    ConfigKey("ssl.client.auth", ConfigType.STRING, "none", choices=("none", "requested", "required"),
        doc="Whether clients need a certificate of their own at listeners with SSL, and at https; requested: they "
            "may have one. At listeners with SASL_SSL only listener.name.NAME.ssl.client.auth counts."),
    ConfigKey("ssl.principal.mapping.rules", ConfigType.STRING, "DEFAULT",
        doc="The principal of a client's certificate: DEFAULT, its distinguished name, or RULE:pattern/replacement/ "
            "with L or U behind it for lower or upper case; the first that fits decides."),
    ConfigKey("sasl.enabled.mechanisms", ConfigType.LIST, "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        doc="How clients may log in at listeners with SASL (GSSAPI in Kafka). OAUTHBEARER needs "
            "sasl.oauthbearer.jwks.endpoint.url and the extra headrace[oauth]."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", ConfigType.STRING, "",
        doc="Where the public keys are that tokens are signed with, a JSON Web Key Set: https://HOST/PATH or "
            "file:///PATH. A file is read again when it changes. With it the pages and /metrics take tokens, too "
            "(Authorization: Bearer)."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", ConfigType.LONG, "3600000", minimum=1_000,
        doc="After how long the keys of an address are asked for again; besides, a token with the id of an unknown "
            "key makes the server ask, every ten seconds at most."),
    ConfigKey("sasl.oauthbearer.expected.audience", ConfigType.LIST, "",
        doc="One of these has to be in a token's claim aud; empty: anything may. Without it tokens for other "
            "services are accepted, too."),
    ConfigKey("sasl.oauthbearer.expected.issuer", ConfigType.STRING, "",
        doc="What a token's claim iss has to be; empty: anything."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", ConfigType.STRING, "sub",
        doc="The claim of a token that has the principal's name."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", ConfigType.INT, "30", minimum=0, maximum=3_600,
        doc="Tolerated difference between the clocks of the token issuer and of this machine."),
    ConfigKey("connection.failed.authentication.delay.ms", ConfigType.INT, "100", minimum=0,
        doc="Delay of the response to a failed login, and of the end of its connection."),
    ConfigKey("connections.max.reauth.ms", ConfigType.LONG, "0", minimum=0,
        doc="After how long clients of listeners with SASL have to log in again; 0: never. A connection that has not "
            "is closed with its next request."),
)  # fmt: skip
"""Part of `broker.config.keys.BROKER_KEYS`."""


# The broker's settings of quotas, under Kafka's names.
UNLIMITED_RATE = 2**31 - 1
"""`max.connection.creation.rate` where there is none."""
QUOTA_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("max.connection.creation.rate", ConfigType.INT, str(UNLIMITED_RATE), minimum=1,
        doc="How many connections a second the Kafka listeners take up together, measured over the windows of "
            "quotas. Those beyond wait for their turn, or are closed where that would take more than ten seconds."),
    ConfigKey("quota.window.num", ConfigType.INT, "11", minimum=2,
        doc="Windows of time over which bytes, request time and connections are measured where quotas limit them."),
    ConfigKey("quota.window.size.seconds", ConfigType.INT, "1", minimum=1, doc="How long one of these is."),
    ConfigKey("controller.quota.window.num", ConfigType.INT, "11", minimum=2,
        doc="Windows of time whose controller_mutation_rate may be used up at once."),
    ConfigKey("controller.quota.window.size.seconds", ConfigType.INT, "1", minimum=1, doc="How long one of these is."),
)  # fmt: skip
"""Part of `broker.config.keys.BROKER_KEYS`."""


# The broker's settings of access rules, under Kafka's names.
KEY_PREFIX = "headrace"
"""What Headrace's own Redis keys begin with, before a colon."""
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value of `authorizer.class.name` by which access rules hold."""

ACCESS_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("authorizer.class.name", ConfigType.STRING, "", choices=("", STANDARD_AUTHORIZER),
        doc="Authorizer. Empty: every client that reaches a listener has all rights. With Kafka's authorizer, ACLs "
            "apply to every API."),
    ConfigKey("super.users", ConfigType.STRING, "",
        doc="Principals who may do everything whatever the access rules say, such as User:admin;User:backup. A user "
            "of the OCI API is User:<tenancy>/<user>."),
    ConfigKey("allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, "false",
        doc="Whether all principals have all rights on a resource without ACLs."),
)  # fmt: skip


def principals(text: str) -> frozenset[str]:
    """The principals of a list with semicolons between. Raises InvalidSetting for what is none."""
    found = frozenset(each.strip() for each in text.split(";") if each.strip())
    for each in found:
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise InvalidSetting(f"super.users: expected principals such as User:admin;User:backup, found {each!r}")
    return found


_MAX_INT = 2**31 - 1
_TOPIC = {key.name: key for key in TOPIC_KEYS}


def _as_topic(name: str, topic_name: str) -> ConfigKey:
    """A broker setting that is the default of a topic's key, with that key's rules."""
    return msgspec.structs.replace(_TOPIC[topic_name], name=name, doc=f"Default of {topic_name} for all topics.")


_PRODUCERS_KEPT = "How long the sequences of an idle producer are remembered."
_UNTIL_COPIED = "How long acks=all waits for replicas at most, where min.insync.replicas is above 1."
_UNTIL_STORED = (
    "How long a request of a group, or for a producer id, is waited for where Redis does not answer; then it is to be "
    "sent again."
)
BROKER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node.id", ConfigType.INT, "1", minimum=0,
        doc="This broker's id; those that share a Redis need different ones."),
    ConfigKey("broker.id", ConfigType.INT, None, minimum=0, doc="Older name of node.id; set one of them."),
    ConfigKey("broker.heartbeat.interval.ms", ConfigType.INT, "500", minimum=10,
        doc="How often the brokers of one Redis tell each other that they are alive (2 000 in Kafka)."),
    ConfigKey("broker.session.timeout.ms", ConfigType.INT, "3000", minimum=100,
        doc="After how long without a heartbeat the other brokers take over what a broker has (9 000 in Kafka)."),
    ConfigKey("auto.create.topics.enable", ConfigType.BOOLEAN, "true",
        doc="Whether a topic that a client asks for is created when it is missing."),
    ConfigKey("delete.topic.enable", ConfigType.BOOLEAN, "true", doc="Whether clients may delete topics."),
    ConfigKey("num.partitions", ConfigType.INT, "1", minimum=1,
        doc="Partitions of a topic that is created without saying how many."),
    ConfigKey("default.replication.factor", ConfigType.INT, "1", minimum=1, maximum=2**15 - 1,
        doc="The replication factor of a topic that is created without one. It needs that many brokers. Redis "
            "replicates: the factor only says how many brokers are named as replicas."),
    ConfigKey("offsets.topic.num.partitions", ConfigType.INT, "50", minimum=1, maximum=1_000,
        doc="How many partitions `__consumer_offsets` has. Groups are stored elsewhere: the topic is empty, and "
            "there for programs that look for it."),
    _as_topic("min.insync.replicas", "min.insync.replicas"),
    ConfigKey("replica.lag.time.max.ms", ConfigType.INT, "30000", minimum=1, doc=_UNTIL_COPIED),
    _as_topic("compression.type", "compression.type"),
    _as_topic("log.cleanup.policy", "cleanup.policy"),
    ConfigKey("log.retention.hours", ConfigType.INT, "168", minimum=-1,
        doc="How long records are kept, in hours, unless minutes or milliseconds are set; -1: without limit."),
    ConfigKey("log.retention.minutes", ConfigType.INT, None, minimum=-1,
        doc="Retention time in minutes. Overrides log.retention.hours. -1: unlimited."),
    ConfigKey("log.retention.ms", ConfigType.LONG, None, minimum=-1,
        doc="Retention time in milliseconds. Overrides minutes and hours. -1: unlimited."),
    _as_topic("log.retention.bytes", "retention.bytes"),
    ConfigKey("log.retention.check.interval.ms", ConfigType.LONG, "300000", minimum=1,
        doc="How often logs are trimmed to their retention."),
    _as_topic("message.max.bytes", "max.message.bytes"),
    _as_topic("log.message.timestamp.type", "message.timestamp.type"),
    _as_topic("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    _as_topic("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    ConfigKey("socket.request.max.bytes", ConfigType.INT, "104857600", minimum=1,
        doc="The largest request taken; a connection that announces a larger one is closed."),
    ConfigKey("queued.max.request.bytes", ConfigType.LONG, "268435456", minimum=-1,
        doc="Memory for requests of all clients of a listener, from their first byte until they are answered; beyond "
            "it clients are not read from for a while. -1: no limit, which is Kafka's default."),
    ConfigKey("headrace.request.max.elements", ConfigType.INT, "10000", minimum=1,
        doc="The most elements that the arrays of one request may have together, such as topics and partitions; a "
            "request with more closes its connection (not in Kafka)."),
    ConfigKey("max.connections", ConfigType.INT, str(_MAX_INT), minimum=0,
        doc="The most connections at a time, of both listeners; further ones are closed. So are those that the "
            "process has no descriptors for (ulimit -n, less 64 of its own)."),
    ConfigKey("max.connections.per.ip", ConfigType.INT, str(_MAX_INT), minimum=0,
        doc="The most connections from one address, of both listeners; from one IPv6 network of 64 bits."),
    ConfigKey("connections.max.idle.ms", ConfigType.LONG, "600000",
        doc="After how long without a request a connection is closed; negative: never."),
    ConfigKey("fetch.max.bytes", ConfigType.INT, "57671680", minimum=1024,
        doc="The most bytes one Fetch answer carries, whatever the client asks for."),
    ConfigKey("metrics.max.series", ConfigType.INT, "20000", minimum=1,
        doc="The most series that /metrics tells; more are only counted. Topics, partitions and groups have several "
            "each (not in Kafka)."),
    ConfigKey("group.min.session.timeout.ms", ConfigType.INT, "6000", minimum=0,
        doc="The shortest session timeout a member may ask for."),
    ConfigKey("group.max.session.timeout.ms", ConfigType.INT, "1800000", minimum=0,
        doc="The longest session timeout a member may ask for."),
    ConfigKey("group.initial.rebalance.delay.ms", ConfigType.INT, "100", minimum=0,
        doc="How long the first rebalance of an empty group waits for more members (Kafka waits 3000)."),
    ConfigKey("group.max.size", ConfigType.INT, "10000", minimum=1,
        doc="The most members a group may have (Kafka has no limit)."),
    ConfigKey("headrace.group.max.bytes", ConfigType.INT, "16777216", minimum=1,
        doc="The most bytes that the members of a group may say of themselves, all together; who comes with more is "
            "refused with GROUP_MAX_SIZE_REACHED (not in Kafka, whose groups must fit into one record)."),
    ConfigKey("headrace.groups.max.bytes", ConfigType.LONG, str(256 << 20), minimum=1,
        doc="The most bytes that the members of all groups of a server take together: metadata, assignments and "
            "names, and 6,000 for each group. A join that adds more than 1/16 of what is left is refused with "
            "GROUP_MAX_SIZE_REACHED. Members that exist are not affected (not in Kafka)."),
    ConfigKey("headrace.offsets.max.bytes", ConfigType.LONG, str(512 << 20), minimum=1,
        doc="The most bytes that the committed offsets of all groups of a server take together, 400 for each, its "
            "metadata, and 6,000 for each group. A commit for a partition without a committed offset is refused with "
            "POLICY_VIOLATION then; a commit that replaces an offset is not (not in Kafka)."),
    ConfigKey("headrace.max.groups", ConfigType.INT, "20000", minimum=1,
        doc="The most groups of a virtual cluster, of Kafka and OCI clients together; a new one is refused then "
            "(POLICY_VIOLATION; LimitExceeded in the OCI API). What is there at the start stays (Kafka has no limit)."),
    ConfigKey("headrace.max.producers", ConfigType.INT, "400000", minimum=1,
        doc="The most idempotent producers of all partitions together, each counted for each of its partitions. Near "
            "it those silent for longest, three minutes at least, are forgotten before producer.id.expiration.ms; "
            "where that is not enough a producer that is new to its partition is refused with POLICY_VIOLATION (not "
            "in Kafka)."),
    ConfigKey("max.broker.partitions", ConfigType.INT, "20000", minimum=1,
        doc="The most partitions of all topics together; no more are created then (POLICY_VIOLATION). What is there "
            "at the start stays (the name that KIP-578 gave it; Kafka has no limit)."),
    ConfigKey("offsets.retention.minutes", ConfigType.INT, "10080", minimum=1,
        doc="How long positions are kept after their group lost its last member."),
    ConfigKey("offsets.retention.check.interval.ms", ConfigType.LONG, "600000", minimum=1,
        doc="How often expired positions are looked for."),
    ConfigKey("offsets.commit.timeout.ms", ConfigType.INT, "5000", minimum=1, doc=_UNTIL_STORED),
    ConfigKey("offset.metadata.max.bytes", ConfigType.INT, "4096", minimum=0,
        doc="The longest note a commit may carry."),
    ConfigKey("producer.id.expiration.ms", ConfigType.INT, "86400000", minimum=1, doc=_PRODUCERS_KEPT),
    ConfigKey("headrace.cache.bytes", ConfigType.LONG, "-1", minimum=-1,
        doc="Memory for the newest record batches, from which consumers are served without asking Redis; it stays "
            "with the server once it was used. -1: 32 MiB where the rest can be read from the embedded Valkey's "
            "append-only file, which the page cache has anyway; else a sixteenth of the machine's, 128 MiB to 1 GiB "
            "(not in Kafka)."),
    ConfigKey("headrace.reads.bytes", ConfigType.LONG, "268435456", minimum=1 << 20,
        doc="Memory for records on their way to clients, from the moment they are read until the client has taken "
            "them; when it gets short answers become smaller, and then wait (not in Kafka)."),
    ConfigKey("headrace.journal.bytes", ConfigType.INT, "16777216", minimum=0,
        doc="Size of the file in which small batches are acknowledged before the embedded Valkey has them, at least "
            "1 MiB. 0: none, every batch waits for Valkey, as with --fsync always or --redis (not in Kafka)."),
    ConfigKey("headrace.stream.prefix", ConfigType.STRING, KEY_PREFIX,
        doc="What the Redis keys of new partitions' streams begin with, before a colon (not in Kafka)."),
    ConfigKey("headrace.redis.manage", ConfigType.BOOLEAN, "false",
        doc="The Redis of --redis is for this server alone: where it writes an append-only file, have it make no "
            "snapshots, compress nothing, and rewrite that file when the server says, as the embedded Valkey does. "
            "Its configuration file stays as it is (not in Kafka)."),
    ConfigKey("headrace.insecure", ConfigType.BOOLEAN, "false",
        doc="Listen on other addresses than loopback although clients need not prove who they are (not in Kafka)."),
    ConfigKey("headrace.testing.reset", ConfigType.BOOLEAN, "false",
        doc="Whether DELETE /_headrace/state empties the server between tests: topics, groups, positions, streams "
            "and pools go. From loopback only (not in Kafka)."),
    ConfigKey("console.write", ConfigType.BOOLEAN, "false",
        doc="Whether the console may change something: move the positions of groups (not in Kafka)."),
    ConfigKey("console.session.ms", ConfigType.LONG, "43200000", minimum=60_000, maximum=2_592_000_000,
        doc="How long a login by the console's page lasts, used or not (not in Kafka). It ends before when the "
            "user's password changes, and when the server stops."),
    ConfigKey("headrace.traces.endpoint", ConfigType.STRING, "",
        doc="URL of an OpenTelemetry receiver (OTLP over HTTP, such as http://127.0.0.1:4318): traces that requests "
            "and records tell in `traceparent` are continued and sent there. Needs headrace[otel]. Empty: none are "
            "(not in Kafka)."),
    ConfigKey("headrace.http.hosts", ConfigType.LIST, "",
        doc="Names by which HTTP requests may call the server (Host), and whose pages may send them (Origin), "
            "besides loopback's and the listener's own; *: every name (not in Kafka)."),
    ConfigKey("headrace.adopt.prefixes", ConfigType.LIST, "",
        doc="Prefixes of the Redis Streams that may become topics (headrace topics adopt); *: every stream. Unless "
            "it is set: every stream of the embedded Valkey, none of an external Redis (not in Kafka)."),
    ConfigKey("headrace.native.max.pending", ConfigType.INT, "100000", minimum=1,
        doc="Native topics: how many entries of a group Redis keeps as pending per partition. A member that commits "
            "less often reads on, but what it reads beyond is recorded only by its next commit (not in Kafka)."),
    *SECURITY_KEYS,
    *ACCESS_KEYS,
    *QUOTA_KEYS,
)  # fmt: skip
"""Every setting of the broker; one that is not here stops the start."""
