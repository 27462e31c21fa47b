"""Settings of consumer groups (KIP-848) and share groups (KIP-932) as data, with Kafka's names. Pure."""

from headrace.topics.config_keys import ConfigKey, ConfigType

_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def _times(kind: str, members: str) -> tuple[ConfigKey, ...]:
    prefix = f"group.{kind}"
    return (
        ConfigKey(f"{prefix}.session.timeout.ms", ConfigType.INT, "45000", minimum=1,
            doc=f"Time without a heartbeat after which the server removes a member of a {members}."),
        ConfigKey(f"{prefix}.min.session.timeout.ms", ConfigType.INT, "45000", minimum=1,
            doc=f"Minimum of {kind}.session.timeout.ms of a group."),
        ConfigKey(f"{prefix}.max.session.timeout.ms", ConfigType.INT, "60000", minimum=1,
            doc=f"Maximum of {kind}.session.timeout.ms of a group."),
        ConfigKey(f"{prefix}.heartbeat.interval.ms", ConfigType.INT, "5000", minimum=1,
            doc=f"Longest interval of the heartbeats of a {members}. The server chooses a shorter one while it has "
                f"few members. If a group has its own {kind}.heartbeat.interval.ms, the interval is exactly that, as "
                "always in Kafka."),
        ConfigKey(f"{prefix}.min.heartbeat.interval.ms", ConfigType.INT, "5000", minimum=1,
            doc=f"Minimum of {kind}.heartbeat.interval.ms of a group."),
        ConfigKey(f"{prefix}.max.heartbeat.interval.ms", ConfigType.INT, "15000", minimum=1,
            doc=f"Maximum of {kind}.heartbeat.interval.ms of a group."),
        ConfigKey(f"{prefix}.assignment.interval.ms", ConfigType.INT, "0", minimum=0,
            doc=f"Minimum time between two assignments of a {members} (1,000 in Kafka). With 0, the server assigns "
                "as soon as something changes, and less often in large groups."),
        ConfigKey(f"{prefix}.min.assignment.interval.ms", ConfigType.INT, "0", minimum=0,
            doc=f"Minimum of {kind}.assignment.interval.ms of a group."),
        ConfigKey(f"{prefix}.max.assignment.interval.ms", ConfigType.INT, "15000", minimum=0,
            doc=f"Maximum of {kind}.assignment.interval.ms of a group."),
    )  # fmt: skip


NEWER_GROUP_KEYS: tuple[ConfigKey, ...] = (
    *_times("consumer", "consumer group"),
    ConfigKey("group.consumer.max.size", ConfigType.INT, "10000", minimum=1,
        doc="Maximum number of members of a consumer group (unlimited in Kafka)."),
    ConfigKey("group.consumer.assignors", ConfigType.LIST, "uniform,range", choices=("uniform", "range"),
        doc="Assignors of consumer groups. The first one is the default (Kafka also loads classes)."),
    ConfigKey("group.consumer.migration.policy", ConfigType.STRING, "bidirectional",
        choices=(*_POLICIES, *(each.upper() for each in _POLICIES)),
        doc="Which groups with members may change their protocol: classic groups to consumer groups (upgrade), back "
            "(downgrade), both (bidirectional) or none (disabled). Groups without members can always change."),
    ConfigKey("group.consumer.regex.refresh.interval.ms", ConfigType.INT, "600000", minimum=10_000,
        doc="Interval at which the server matches the topics with the patterns of consumer groups again. It matches "
            "new topics at once."),
    *_times("share", "share group"),
    ConfigKey("group.share.max.size", ConfigType.INT, "200", minimum=1, maximum=1_000,
        doc="Maximum number of members of a share group."),
    ConfigKey("group.share.max.share.sessions", ConfigType.INT, "2000", minimum=1,
        doc="Maximum number of sessions of share consumers of a broker."),
    ConfigKey("group.share.assignors", ConfigType.LIST, "simple", choices=("simple",),
        doc="Assignor of share groups (Kafka also loads classes)."),
    ConfigKey("group.share.record.lock.duration.ms", ConfigType.INT, "30000", minimum=1_000, maximum=3_600_000,
        doc="Time for which a record is locked for the share consumer that acquired it."),
    ConfigKey("group.share.min.record.lock.duration.ms", ConfigType.INT, "15000", minimum=1_000, maximum=30_000,
        doc="Minimum of share.record.lock.duration.ms of a group."),
    ConfigKey("group.share.max.record.lock.duration.ms", ConfigType.INT, "60000", minimum=30_000, maximum=3_600_000,
        doc="Maximum of share.record.lock.duration.ms of a group."),
    ConfigKey("group.share.delivery.count.limit", ConfigType.INT, "5", minimum=2, maximum=10,
        doc="Maximum number of deliveries of a record to a share group."),
    ConfigKey("group.share.min.delivery.count.limit", ConfigType.INT, "2", minimum=2, maximum=5,
        doc="Minimum of share.delivery.count.limit of a group."),
    ConfigKey("group.share.max.delivery.count.limit", ConfigType.INT, "10", minimum=5, maximum=25,
        doc="Maximum of share.delivery.count.limit of a group."),
    ConfigKey("group.share.partition.max.record.locks", ConfigType.INT, "2000", minimum=100, maximum=10_000,
        doc="Maximum number of offsets from the first to the last record in flight of a share group in a partition."),
    ConfigKey("group.share.min.partition.max.record.locks", ConfigType.INT, "100", minimum=100, maximum=2_000,
        doc="Minimum of share.partition.max.record.locks of a group."),
    ConfigKey("group.share.max.partition.max.record.locks", ConfigType.INT, "4000", minimum=2_000, maximum=10_000,
        doc="Maximum of share.partition.max.record.locks of a group."),
)  # fmt: skip
"""Part of `broker.config.keys.BROKER_KEYS`."""
