"""The names of all keys.

Topics, prefixes and virtual clusters contain no `{`, `}`, `:` or `@`. The part in braces is the hash tag of Redis
Cluster: all keys of a partition, or of a group, share a slot.
"""

import re

import msgspec

DEFAULT_PREFIX = "headrace"
DEFAULT_CLUSTER = "default"
_PLAIN = re.compile(r"[a-zA-Z0-9._-]+")


def state_of(stream: str) -> str:
    """Hash: state of a partition."""
    return f"{{{stream}}}:state"


def producers_of(stream: str) -> str:
    """Hash: sequences of idempotent producers."""
    return f"{{{stream}}}:producers"


def transactions_of(stream: str) -> str:
    """Hash: transactions of a partition that are open, or whose marker may not be replicated."""
    return f"{{{stream}}}:transactions"


def aborted_of(stream: str) -> str:
    """Sorted set: aborted transactions of a partition by the offset of their marker."""
    return f"{{{stream}}}:aborted"


def shares_of(stream: str) -> str:
    """Hash: share partitions by group."""
    return f"{{{stream}}}:shares"


def clean_of(stream: str) -> str:
    """Hash: cleaned segments of a compacted partition."""
    return f"{{{stream}}}:clean"


def segment_of(stream: str, number: int) -> str:
    """Redis Stream: batches that the cleaner kept."""
    return f"{clean_of(stream)}:{number}"


def foreign_of(stream: str) -> str:
    """Redis Stream: entries of other programs, moved aside."""
    return f"{{{stream}}}:foreign"


def barrier_of(stream: str) -> str:
    """String: temporary, to measure the progress of replicas."""
    # Other keys than streams have a hash tag already.
    return f"{stream}:barrier" if "{" in stream else f"{{{stream}}}:barrier"


def _check(name: str) -> None:
    if _PLAIN.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be part of a key: only a-z, A-Z, 0-9, '.', '_' and '-' can")


class Keyspace(msgspec.Struct, frozen=True):
    """Keys of one Headrace in one Redis."""

    prefix: str = DEFAULT_PREFIX
    cluster: str = DEFAULT_CLUSTER
    """The virtual cluster."""

    def __post_init__(self) -> None:
        for name in (self.prefix, self.cluster):
            _check(name)

    def stream(self, topic: str, partition: int, generation: str = "") -> str:
        """Redis Stream of a new partition. Readers use the stored key in the topic's entry.

        `generation` distinguishes a later log. It follows `@`, because `:` separates virtual clusters.
        """
        place = f"{topic}:{partition}" if self.cluster == DEFAULT_CLUSTER else f"{self.cluster}:{topic}:{partition}"
        return f"{self.prefix}:{place}" + (f"@{generation}" if generation else "")

    def _meta(self, name: str) -> str:
        return f"{self.prefix}:{{meta}}:{name}"

    def _of_cluster(self, name: str) -> str:
        return self._meta(name if self.cluster == DEFAULT_CLUSTER else f"{name}:{self.cluster}")

    @property
    def topics(self) -> str:
        """Hash: topic name -> topic as JSON (`headrace.topics.model.Topic`)."""
        return self._of_cluster("topics")

    @property
    def deleted(self) -> str:
        """Hash: topic id -> JSON of a deleted topic with remaining records."""
        return self._of_cluster("deleted")

    @property
    def groups(self) -> str:
        """Set: names of all groups."""
        return self._of_cluster("groups")

    @property
    def transactions(self) -> str:
        """Set: all transactional IDs."""
        return self._of_cluster("transactions")

    @property
    def producer_ids(self) -> str:
        """String: next producer id."""
        return self._meta("producer-ids")

    @property
    def epoch(self) -> str:
        """String: fencing epoch: number of the view, or of the starts on an embedded Valkey."""
        return self._meta("epoch")

    @property
    def view(self) -> str:
        """Hash: number of the view and its live brokers."""
        return self._meta("view")

    @property
    def heartbeats(self) -> str:
        """Hash: `<node id>:<incarnation>` of a broker -> number of heartbeats."""
        return self._meta("heartbeats")

    @property
    def changes(self) -> str:
        """Redis Stream: changes that brokers must load."""
        return self._meta("changes")

    @property
    def leaders(self) -> str:
        """Hash: stream -> its last leader epoch and leader's node id (`5:1`)."""
        return self._meta("leaders")

    @property
    def version(self) -> str:
        """String: layout version."""
        return self._meta("version")

    @property
    def cluster_id(self) -> str:
        """String: cluster id for clients."""
        return self._meta("cluster-id")

    def documents(self, kind: str) -> str:
        """Hash: id -> document. Raises ValueError for an invalid kind."""
        _check(kind)
        return self._meta(f"documents:{kind}")

    @property
    def revisions(self) -> str:
        """Hash: kind of documents -> number of changes."""
        return self._meta("revisions")

    def lock(self, name: str) -> str:
        """String: token of the lock's holder, for a few seconds."""
        _check(name)
        return self._meta(f"lock:{name}")

    def wanted(self, name: str) -> str:
        """String: marks that a broker waits for the lock."""
        _check(name)
        return self._meta(f"lock:{name}:wanted")

    def group(self, name: str) -> str:
        """Hash: a group's header, balanced sections and fencing epoch."""
        return f"{self.prefix}:group:{{{self.cluster}/{name}}}"

    def members(self, name: str) -> str:
        """Hash: member id -> member as JSON."""
        return f"{self.group(name)}:members"

    def positions(self, name: str) -> str:
        """Hash: `<topic>:<partition>` -> committed offset as JSON."""
        return f"{self.group(name)}:positions"

    def pending(self, name: str) -> str:
        """Hash: `<producer id>:<topic>:<partition>` -> pending offset of a transaction."""
        return f"{self.group(name)}:pending"

    def transaction(self, name: str) -> str:
        """Hash: state and fencing epoch of a transactional ID."""
        return f"{self.prefix}:transaction:{{{self.cluster}/{name}}}"
