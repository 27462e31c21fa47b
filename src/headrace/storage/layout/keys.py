"""The names of all keys.

Topic names have no `{`, `}`, `:` or `@` (Kafka's rule), nor have prefixes and virtual clusters (ours), so no two things
share a key. The part in braces is the hash tag of Redis Cluster: all keys of a partition, and all keys of a group, lie
in one slot.
"""

import re

import msgspec

DEFAULT_PREFIX = "headrace"
DEFAULT_CLUSTER = "default"
_PLAIN = re.compile(r"[a-zA-Z0-9._-]+")


def state_of(stream: str) -> str:
    """Hash with the state of the partition whose records are in `stream`."""
    return f"{{{stream}}}:state"


def producers_of(stream: str) -> str:
    """Hash with the last sequences of the partition's idempotent producers."""
    return f"{{{stream}}}:producers"


def foreign_of(stream: str) -> str:
    """Redis Stream with entries of the partition's stream that somebody else wrote: set aside when it was opened."""
    return f"{{{stream}}}:foreign"


def barrier_of(stream: str) -> str:
    """String that is written for its own sake, to see how far replicas have come; it goes by itself."""
    return f"{{{stream}}}:barrier"


def _check(name: str) -> None:
    if _PLAIN.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be part of a key: only a-z, A-Z, 0-9, '.', '_' and '-' can")


class Keyspace(msgspec.Struct, frozen=True):
    """The keys of one Headrace in one Redis."""

    prefix: str = DEFAULT_PREFIX
    cluster: str = DEFAULT_CLUSTER
    """The virtual cluster."""

    def __post_init__(self) -> None:
        for name in (self.prefix, self.cluster):
            _check(name)

    def stream(self, topic: str, partition: int, generation: str = "") -> str:
        """Redis Stream of a new partition. Readers take the stored key from the topic registry instead.

        Args:
            topic: the topic's name.
            partition: its number.
            generation: tells a later log of the same partition from the first. After `@`: a further `:` would make
                it a partition of another virtual cluster.
        """
        place = f"{topic}:{partition}" if self.cluster == DEFAULT_CLUSTER else f"{self.cluster}:{topic}:{partition}"
        return f"{self.prefix}:{place}" + (f"@{generation}" if generation else "")

    def _meta(self, name: str) -> str:
        return f"{self.prefix}:{{meta}}:{name}"

    def _of_cluster(self, name: str) -> str:
        return self._meta(name if self.cluster == DEFAULT_CLUSTER else f"{name}:{self.cluster}")

    @property
    def topics(self) -> str:
        """Hash: topic name -> topic as JSON (`headrace.topics.model.Topic`); of this virtual cluster."""
        return self._of_cluster("topics")

    @property
    def deleted(self) -> str:
        """Hash: topic id -> topic as JSON, of this cluster's deleted topics whose records are still to go."""
        return self._of_cluster("deleted")

    @property
    def groups(self) -> str:
        """Set: names of all groups of this virtual cluster."""
        return self._of_cluster("groups")

    @property
    def producer_ids(self) -> str:
        """String: the next producer id."""
        return self._meta("producer-ids")

    @property
    def epoch(self) -> str:
        """String: the fencing epoch: the number of the view, or how many servers have owned an embedded Valkey."""
        return self._meta("epoch")

    @property
    def view(self) -> str:
        """Hash: the number of the view and its members, the brokers that are alive; none with an embedded Valkey."""
        return self._meta("view")

    @property
    def heartbeats(self) -> str:
        """Hash: `<node id>:<incarnation>` of a broker -> how many heartbeats it has sent."""
        return self._meta("heartbeats")

    @property
    def changes(self) -> str:
        """Redis Stream: what has changed, for brokers to load it anew; where there is a view."""
        return self._meta("changes")

    @property
    def leaders(self) -> str:
        """Hash: stream -> leader epoch and node id (`5:1`) that its log was opened with last; where there is a view."""
        return self._meta("leaders")

    @property
    def version(self) -> str:
        """String: layout version."""
        return self._meta("version")

    @property
    def cluster_id(self) -> str:
        """String: the cluster id that clients are told."""
        return self._meta("cluster-id")

    def documents(self, kind: str) -> str:
        """Hash: id -> document, the documents of a kind. Raises ValueError for a kind that cannot be part of a key."""
        _check(kind)
        return self._meta(f"documents:{kind}")

    @property
    def revisions(self) -> str:
        """Hash: kind of documents -> how often some of them were changed; where there is a view."""
        return self._meta("revisions")

    def lock(self, name: str) -> str:
        """String, for a few seconds: the token of who changes what has this name; where there is a view."""
        _check(name)
        return self._meta(f"lock:{name}")

    def wanted(self, name: str) -> str:
        """String, for a moment: somebody waits for the lock of this name."""
        _check(name)
        return self._meta(f"lock:{name}:wanted")

    def group(self, name: str) -> str:
        """Hash: a group's header, balanced sections and fencing epoch."""
        return f"{self.prefix}:group:{{{self.cluster}/{name}}}"

    def members(self, name: str) -> str:
        """Hash: member id -> member as JSON."""
        return f"{self.group(name)}:members"

    def positions(self, name: str) -> str:
        """Hash: `<topic>:<partition>` -> position as JSON."""
        return f"{self.group(name)}:positions"
