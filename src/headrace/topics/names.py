"""Kafka's rules for topic names. Pure."""

import re

from headrace.topics.errors import InvalidTopicName

MAX_LENGTH = 249
"""Kafka's limit: a file name's 255 characters less what its log directories add."""

CONSUMER_OFFSETS = "__consumer_offsets"
RESERVED = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Kafka's internal topics, which no client may create or write."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise InvalidTopicName, with the rule that is broken, unless `name` may be a topic's."""
    if not name:
        raise InvalidTopicName("a topic name may not be empty")
    if name in {".", ".."}:
        raise InvalidTopicName(f"a topic may not be called {name!r}")
    if len(name) > MAX_LENGTH:
        raise InvalidTopicName(f"a topic name has at most {MAX_LENGTH} characters, this one has {len(name)}")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(f"topic name {name!r} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'")


def metric_name(name: str) -> str:
    """What two topics must not share: Kafka's metrics write both `.` and `_` as `_`."""
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    """Whether another name could have the same `metric_name`."""
    return "." in name or "_" in name


def is_reserved(name: str) -> bool:
    """Whether a topic of this name is Kafka's own."""
    return name in RESERVED
