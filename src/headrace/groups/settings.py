"""A group's settings, with Kafka's broker defaults but for the initial delay."""

import msgspec


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times (ms) of every group of a server. Kafka's name of each stands beside it."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 100  # group.initial.rebalance.delay.ms (Kafka: 3 000)
    max_size: int = 10_000  # group.max.size (Kafka has no limit)
    max_metadata_bytes: int = 16 << 20  # headrace.group.max.bytes
    max_groups: int = 20_000  # headrace.max.groups: of one virtual cluster
    offset_metadata_max: int = 4_096  # offset.metadata.max.bytes (Kafka counts characters, and so do we)
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    new_member_join_timeout_ms: int = 300_000
    """How long a newcomer's held join keeps it in a group that does not finish (a constant in Kafka): without it,
    clients that give up and join anew under a new id would pile up."""
