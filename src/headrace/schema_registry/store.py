"""The registry in the storage's documents, shared by all brokers of a keyspace.

The index is in memory. Texts are read when they are needed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker.documents import Changing, readable
from headrace.broker.ports import DocumentStorage
from headrace.schemas.errors import RegistryError, schema_not_found
from headrace.schemas.model import Level, Mode, Schema, Version
from headrace.schemas.subjects import Subjects

T = TypeVar("T")

SCHEMAS: Final = "schemas"
"""Kind of documents: GUID -> schema."""
VERSIONS: Final = "schemas.versions"
"""Kind of documents: `<version> <subject>` -> version."""
SETTINGS: Final = "schemas.settings"
"""Kind of documents: `<setting> <subject>` -> value. The next ID is a setting of the registry, too."""
_INDEX: Final = frozenset({VERSIONS, SETTINGS})
_NEXT_ID: Final = ("next-id", "")
_MOST_CACHED: Final = 32 << 20

_encode = msgspec.json.Encoder().encode
_schema = msgspec.json.Decoder(Schema).decode
_version = msgspec.json.Decoder(Version).decode


class SchemaStore:
    """All schemas. Changes run one at a time across all brokers."""

    def __init__(self, documents: DocumentStorage, most: int, most_bytes: int) -> None:
        """Start empty.

        Args:
            documents: where schemas are stored.
            most: maximum number of versions (`schema.registry.max.schemas`).
            most_bytes: maximum bytes of all schemas (`schema.registry.max.bytes`).
        """
        self.index = Subjects()
        self._documents = documents
        self._most = most
        self._most_bytes = most_bytes
        self._changing = Changing(documents, "schemas", _INDEX, self._refresh)
        self._loading = asyncio.Lock()
        self._cached: OrderedDict[str, Schema] = OrderedDict()
        """Schemas by GUID. A GUID always has the same schema."""
        self._cached_bytes = 0

    async def load(self) -> None:
        """Load the index. Raises StorageUnavailable."""
        await self.reload(frozenset())

    async def reload(self, kinds: frozenset[str]) -> None:
        """Apply another broker's changes of these kinds; none given: of all. Raises StorageUnavailable."""
        if kinds and not kinds & _INDEX:
            return
        async with self._loading:
            await self._load()

    async def _refresh(self, kinds: frozenset[str]) -> None:
        await self.reload(kinds)

    async def _load(self) -> None:
        versions = await readable(self._documents, VERSIONS, lambda _, text: _version(text))
        settings = await readable(self._documents, SETTINGS, _checked_setting)
        made = Subjects()
        for place, version in enumerate(versions.values(), 1):
            made.put(version)
            if place % 1_000 == 0:
                await asyncio.sleep(0)
        for name, value in settings.items():
            kind, _, subject = name.partition(" ")
            if (kind, subject) == _NEXT_ID:
                made.next_id = max(made.next_id, int(value))
            else:
                made.set(kind, subject, value)
        self.index = made

    async def exclusively(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a change exclusively and to its end. The index contains all changes of other brokers.

        Raises:
            LockLost: other brokers held the lock for too long; StorageUnavailable.
        """

        async def run() -> T:
            async with self._changing.alone():
                return await change()

        return await to_the_end(run())

    # Changes, only within `exclusively`

    async def add(self, version: Version, schema: Schema) -> None:
        """Store a new version, and its schema if it is new. Raises RegistryError if there are too many."""
        index = self.index
        known = index.id_of(version.guid) is not None
        if index.count >= self._most:
            raise RegistryError(
                422,
                42205,
                f"There are {self._most:,} versions already: delete some permanently, "
                "or raise schema.registry.max.schemas",
            )
        if not known and index.size + version.size > self._most_bytes:
            raise RegistryError(
                422,
                42205,
                f"The schemas would have more than {self._most_bytes:,} bytes together: delete some permanently, "
                "or raise schema.registry.max.bytes",
            )
        changes: dict[tuple[str, str], bytes | None] = {(VERSIONS, _name(version)): _encode(version)}
        if not known:
            changes[SCHEMAS, version.guid] = _encode(schema)
        if version.id >= index.next_id:
            changes[SETTINGS, _setting(*_NEXT_ID)] = _encode(str(version.id + 1))
        await self._changing.save(changes)
        index.put(version)

    async def delete(
        self, versions: Iterable[Version], settings: Iterable[tuple[str, str]], *, permanent: bool
    ) -> None:
        """Delete versions and settings: `permanent`: with schemas that no other version has."""
        index = self.index
        changes: dict[tuple[str, str], bytes | None] = {(SETTINGS, _setting(*one)): None for one in settings}
        gone: dict[str, set[tuple[str, int]]] = {}
        after = [version if permanent else msgspec.structs.replace(version, deleted=True) for version in versions]
        for version in after:
            changes[VERSIONS, _name(version)] = None if permanent else _encode(version)
            if permanent:
                gone.setdefault(version.guid, set()).add((version.subject, version.version))
        for guid, places in gone.items():
            number = index.id_of(guid)
            if number is not None and {(one.subject, one.version) for one in index.by_id(number)} <= places:
                changes[SCHEMAS, guid] = None
        await self._changing.save(changes)
        for kind, subject in settings:
            index.set(kind, subject, None)
        for version in after:
            if permanent:
                index.drop(version.subject, version.version)
            else:
                index.put(version)

    async def set(self, changes: Mapping[tuple[str, str], str | None]) -> None:
        """Store settings: (kind, subject) -> value; None: not set."""
        await self._changing.save(
            {(SETTINGS, _setting(*one)): None if value is None else _encode(value) for one, value in changes.items()}
        )
        for (kind, subject), value in changes.items():
            self.index.set(kind, subject, value)

    async def clear(self) -> None:
        """Delete everything. The next ID stays, so that no client confuses a new schema with an old one."""
        every = [one for name in self.index.names(deleted=True) for one in self.index.versions(name, deleted=True)]
        await self.delete(every, list(self.index.settings()), permanent=True)

    # Texts

    async def schemas(self, versions: Iterable[Version]) -> list[Schema]:
        """Return the schemas of versions, in their order. Raises RegistryError, StorageUnavailable."""
        wanted = [one.guid for one in versions]
        found = {guid: self._cached[guid] for guid in wanted if guid in self._cached}
        missing = [guid for guid in dict.fromkeys(wanted) if guid not in found]
        for guid, text in (await self._documents.find(SCHEMAS, missing)).items():
            try:
                found[guid] = _schema(text)
            except msgspec.MsgspecError:
                raise RegistryError(500, 50001, f"The schema with GUID {guid} is damaged in Redis") from None
            self._remember(guid, found[guid])
        for guid in wanted:
            if guid not in found:
                raise schema_not_found(guid)
        return [found[guid] for guid in wanted]

    def _remember(self, guid: str, schema: Schema) -> None:
        if guid not in self._cached:
            self._cached[guid] = schema
            self._cached_bytes += _size(schema)
        while self._cached_bytes > _MOST_CACHED:
            _, gone = self._cached.popitem(last=False)
            self._cached_bytes -= _size(gone)


def _name(version: Version) -> str:
    return f"{version.version} {version.subject}"


def _setting(kind: str, subject: str) -> str:
    return f"{kind} {subject}"


def _checked_setting(name: str, text: bytes) -> str:
    """Return the value of a stored setting. Raises ValueError."""
    value = msgspec.json.decode(text, type=str)
    check: Callable[[str], object] | None = _CHECKS.get(name.partition(" ")[0])
    if check is None:
        raise ValueError(f"unknown setting {name!r}")
    check(value)
    return value


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "compatibility": Level,
    "mode": Mode,
    "normalize": ("false", "true").index,
    _NEXT_ID[0]: int,
}


def _size(schema: Schema) -> int:
    return 4 * len(schema.text) + len(schema.descriptor) + 1_000
