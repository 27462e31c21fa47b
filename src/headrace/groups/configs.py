"""Settings of the newer kinds of groups: consumer groups (KIP-848) and share groups (KIP-932). Pure.

A group's own configuration (resource type GROUP) overrides the defaults of the server. `Configs.of` returns the result.
"""

import re
from enum import Enum
from typing import NamedTuple

import msgspec


class MigrationPolicy(Enum):
    """`group.consumer.migration.policy`: which groups with members may change between classic and consumer."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    """From classic to consumer only."""
    DOWNGRADE = "downgrade"
    """From consumer to classic only."""
    DISABLED = "disabled"


class ResetStrategy(Enum):
    """First offset of a share group in a partition (`share.auto.offset.reset`)."""

    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"
    """The first record that is at most that old."""


class OffsetReset(msgspec.Struct, frozen=True):
    """Value of `share.auto.offset.reset`."""

    strategy: ResetStrategy = ResetStrategy.LATEST
    duration_ms: int = 0
    """Age of the first record, for BY_DURATION."""

    @classmethod
    def parse(cls, text: str) -> "OffsetReset":
        """Parse `latest`, `earliest` or `by_duration:PnDTnHnMn.nS`. Raises ValueError with the expected form."""
        name, colon, duration = text.partition(":")
        strategy = _STRATEGIES.get(name)
        if strategy is None or bool(colon) != (strategy is ResetStrategy.BY_DURATION):
            raise ValueError(f"expected latest, earliest or by_duration:PnDTnHnMn.nS, found {text[:_LONGEST]!r}")
        return cls(strategy, _duration_ms(duration) if colon else 0)


_STRATEGIES = {each.value: each for each in ResetStrategy}
_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>[0-9]{1,12})H)?(?:(?P<minutes>[0-9]{1,12})M)?"
    r"(?:(?P<seconds>[0-9]{1,12})(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
"""Durations of ISO 8601 as Java reads them, but without signs: Kafka rejects negative ones too."""
_LONGEST = 100
"""Maximum characters of a value that an error repeats."""


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or text[-1:] in {"P", "p", "T", "t"}:
        raise ValueError(f"expected a duration PnDTnHnMn.nS that is not negative, found {text[:_LONGEST]!r}")
    days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    fraction_ms = int((match["fraction"] or "").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one group. Times in ms, with Kafka's names and defaults except the assignment intervals."""

    consumer_session_timeout_ms: int = 45_000
    """Time without a heartbeat after which a consumer is removed."""
    consumer_heartbeat_interval_ms: int = 5_000
    """Interval of heartbeats: exactly this if `consumer_heartbeat_fixed`, else the longest that the server chooses."""
    consumer_heartbeat_fixed: bool = False
    """Whether the group itself sets its interval."""
    consumer_assignment_interval_ms: int = 0
    """Minimum time between two assignments. 0: the server chooses (Kafka: 1,000)."""
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    """As `consumer_heartbeat_interval_ms`, for members of share groups."""
    share_heartbeat_fixed: bool = False
    share_assignment_interval_ms: int = 0
    share_record_lock_duration_ms: int = 30_000
    """Time for which an acquired record is locked for its member."""
    share_delivery_count_limit: int = 5
    """Maximum number of deliveries of a record."""
    share_partition_max_record_locks: int = 2_000
    """Maximum distance of the first and last offset in flight in a partition."""
    share_auto_offset_reset: OffsetReset = OffsetReset()
    share_read_committed: bool = False
    """`share.isolation.level` is `read_committed`."""
    share_renew_acknowledge_enable: bool = True
    """Whether members may renew locks (KIP-1222)."""
    dead_letter_topic: str = ""
    """Topic of archived records of a share group (KIP-1191). Empty: none."""
    dead_letter_copy: bool = True
    """Whether the dead letter topic gets whole records, not only their origins."""


class NewerGroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the newer groups that a group cannot override."""

    consumer_max_size: int = 10_000  # group.consumer.max.size (Kafka has no limit)
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
    consumer_regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms
    share_max_size: int = 200  # group.share.max.size
    share_max_sessions: int = 2_000  # group.share.max.share.sessions


class Rules(NamedTuple):
    """Limits and configuration of a newer group."""

    limits: NewerGroupSettings
    config: GroupConfig


class Configs:
    """Configurations of the groups of one virtual cluster. A reader keeps the object and calls it each time."""

    def __init__(self, default: GroupConfig | None = None) -> None:
        """`default` applies to groups without their own configuration: here, to all."""
        self.default = default or GroupConfig()

    def of(self, group: str) -> GroupConfig:
        """Return the effective configuration of a group, which may not exist."""
        return self.default
