"""Stored configurations of groups: Kafka's resource type GROUP. The group need not exist."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker.config.group_configs import (
    GroupDefaults,
    check,
    check_stored,
    defaults_of,
    describe,
    resolve,
)
from headrace.broker.documents import Changing, readable
from headrace.broker.ports import DocumentStorage
from headrace.groups.configs import Configs, GroupConfig
from headrace.topics.config import check_length
from headrace.topics.config_keys import ConfigEntry

KIND = "group-configs"
"""Kind of the documents: `<cluster>/<group>` -> its own values by key."""
MOST_GROUPS = 10_000
"""Maximum of one virtual cluster."""
LONGEST_NAME = 1_024
"""Maximum characters of a group's name."""

Values = Mapping[str, str]
Change = Callable[[Values], dict[str, str]]
"""Returns a group's new values from its present ones. Raises InvalidConfig."""
_values = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.Encoder(order="deterministic").encode


class TooManyGroupConfigs(Exception):
    """A virtual cluster would exceed `MOST_GROUPS`."""


class ClusterGroupConfigs(Configs):
    """Configurations of one virtual cluster, from `GroupConfigs.of`."""

    def __init__(self, stored: "GroupConfigs", cluster: str) -> None:
        super().__init__()
        self._stored = stored
        self._cluster = cluster
        self._defaults = defaults_of({})
        self._own: dict[str, dict[str, str]] = {}
        self._known: dict[str, GroupConfig] = {}

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that have their own values."""
        return tuple(self._own)

    def of(self, group: str) -> GroupConfig:
        """Return the effective configuration of a group, which need not exist."""
        found = self._known.get(group)
        if found is None:
            own = self._own.get(group)
            if own is None:
                return self.default
            found = self._known[group] = resolve(own, self._defaults)
        return found

    def describe(self, group: str) -> tuple[ConfigEntry, ...]:
        """Return every key of a group with its value and source."""
        return describe(self._own.get(group, {}), self._defaults)

    def set_defaults(self, defaults: GroupDefaults) -> None:
        """Apply changed settings of the broker."""
        self._defaults = defaults
        self.default = resolve({}, defaults)
        self._known = {}

    async def configure(self, group: str, change: Change, *, validate_only: bool = False) -> None:
        """Store and apply a group's new values.

        Raises:
            InvalidConfig, TooManyGroupConfigs, LockLost, and as `DocumentStorage.save`.
        """
        if validate_only:
            self.changed(group, change)
        else:
            await to_the_end(self._stored.save(self, self._cluster, group, change))

    def changed(self, group: str, change: Change) -> dict[str, str]:
        """Return the new values of a group. Raises InvalidConfig, TooManyGroupConfigs."""
        given = change(self._own.get(group, {}))
        for name, text in given.items():
            check_length(name, text)
        after = {name: text.strip() for name, text in given.items()}
        check(after, self._defaults)
        if after and group not in self._own and len(self._own) >= MOST_GROUPS:
            raise TooManyGroupConfigs(f"a cluster has configurations of at most {MOST_GROUPS} groups")
        return after

    def take(self, own: dict[str, dict[str, str]]) -> None:
        """Replace the values of all groups."""
        self._own = own
        self._known = {}

    def take_one(self, group: str, own: dict[str, str]) -> None:
        """Replace the values of a group."""
        self._known.pop(group, None)
        if own:
            self._own[group] = own
        else:
            self._own.pop(group, None)


class GroupConfigs:
    """Configurations of groups of all virtual clusters of a server."""

    def __init__(self, documents: DocumentStorage) -> None:
        self._documents = documents
        self._changing = Changing(documents, KIND, frozenset({KIND}), self.reload)
        self._taking = asyncio.Lock()
        self._clusters: dict[str, ClusterGroupConfigs] = {}

    def of(self, cluster: str) -> ClusterGroupConfigs:
        """Return the configurations of a virtual cluster. The object stays the same."""
        found = self._clusters.get(cluster)
        if found is None:
            found = self._clusters[cluster] = ClusterGroupConfigs(self, cluster)
        return found

    async def load(self) -> None:
        """Load stored configurations. Raises StorageUnavailable."""
        async with self._taking:
            found: dict[str, dict[str, dict[str, str]]] = {name: {} for name in self._clusters}
            for cluster, group, values in (await readable(self._documents, KIND, _own)).values():
                found.setdefault(cluster, {})[group] = values
            for cluster, own in found.items():
                self.of(cluster).take(own)

    async def reload(self, kinds: frozenset[str]) -> None:
        """Load again if one of these kinds is changed; an empty set means all. Raises StorageUnavailable."""
        if not kinds or KIND in kinds:
            await self.load()

    async def save(self, of: ClusterGroupConfigs, cluster: str, group: str, change: Change) -> None:
        """See `ClusterGroupConfigs.configure`."""
        async with self._changing.alone(), self._taking:
            after = of.changed(group, change)
            await self._changing.save({(KIND, f"{cluster}/{group}"): _encode(after) if after else None})
            of.take_one(group, after)

    async def forget(self, cluster: str) -> None:
        """Delete the configurations of a virtual cluster. Raises as `DocumentStorage.save`."""
        async with self._changing.alone(), self._taking:
            stored = [name for name in await self._documents.load(KIND) if name.startswith(f"{cluster}/")]
            await self._changing.save({(KIND, name): None for name in stored})
            self.of(cluster).take({})


def _own(name: str, text: bytes) -> tuple[str, str, dict[str, str]]:
    cluster, _, group = name.partition("/")
    values = _values.decode(text)
    check_stored(values)
    return cluster, group, values
