"""What the registry does: register, look up and delete schemas, and check their compatibility."""

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from headrace.schema_registry.store import SchemaStore
from headrace.schema_registry.worker import Worker
from headrace.schemas import formats
from headrace.schemas.errors import InvalidSchema, RegistryError, Steps, schema_not_found, subject_not_found
from headrace.schemas.formats import Earlier
from headrace.schemas.model import TYPES, Level, Mode, Parsed, Reference, Referenced, Schema, Version
from headrace.schemas.protobuf import Compiler
from headrace.schemas.subjects import Subjects

MOST_REFERENCES: Final = 200
"""Schemas that one refers to, directly and through others."""
_MOST_REFERENCED_BYTES: Final = 4 << 20
_ATTEMPTS: Final = 20
"""Attempts to register a schema while other brokers change the same subject."""
_AT_ONCE_BYTES: Final = 8 << 20
"""Bytes of earlier versions in memory while a schema is compared with them."""
_MOST_REMEMBERED: Final = 100
_MOST_REMEMBERED_TEXT: Final = 64 << 10


class Given(msgspec.Struct, frozen=True):
    """A schema as a client gives it."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    normalize: bool = False


class Conflict(Exception):
    """Another request changed the subject in between."""


class Registry:
    """The registry of one server."""

    def __init__(
        self, store: SchemaStore, worker: Worker, compiler: Compiler | None, most_text: int, cluster_id: str
    ) -> None:
        """Use loaded schemas.

        Args:
            store: the schemas.
            worker: parses and compares them.
            compiler: compiles Protobuf; None: only serialized descriptors are accepted.
            most_text: maximum bytes of a schema (`schema.registry.max.schema.bytes`).
            cluster_id: ID of the Kafka cluster.
        """
        self.cluster_id = cluster_id
        self.store = store
        self._worker = worker
        self._compiler = compiler
        self.most_text = most_text
        self._registering: dict[str, asyncio.Lock] = {}
        """Subjects with registrations in progress, which take turns."""
        self._in_turn = Counter[str]()
        """How many these are."""
        self._parsed: OrderedDict[bytes, Parsed] = OrderedDict()
        """Protobuf schemas that were compiled, which takes another process."""

    @property
    def index(self) -> Subjects:
        """Return subjects and versions as they are now."""
        return self.store.index

    # Parsing

    def _check(self, given: Given) -> None:
        if not given.text.strip():
            raise InvalidSchema("Empty schema")
        if given.type not in TYPES:
            raise InvalidSchema(f"Invalid schema type {given.type[:40]!r}: expected one of {', '.join(TYPES)}")
        if len(given.text) > self.most_text or len(given.text.encode("utf-8", "surrogatepass")) > self.most_text:
            raise RegistryError(
                422, 42209, f"The schema is longer than {self.most_text:,} bytes (schema.registry.max.schema.bytes)"
            )

    def _resolved(self, references: Iterable[Reference]) -> tuple[tuple[Reference, ...], dict[str, Version]]:
        """Return references with their versions, and all that they lead to by name, in order of dependency."""
        resolved = tuple(msgspec.structs.replace(one, version=self.index.resolved(one).version) for one in references)
        found: dict[str, Version] = {}
        open_: list[tuple[Reference, bool]] = [(one, False) for one in reversed(resolved)]
        seen: set[Reference] = set()
        while open_:
            reference, done = open_.pop()
            version = self.index.resolved(reference)
            if done:
                if found.setdefault(reference.name, version).guid != version.guid:
                    raise InvalidSchema(f"Invalid reference: two different schemas are named {reference.name[:200]!r}")
                continue
            if reference in seen:
                continue
            seen.add(reference)
            if len(seen) > MOST_REFERENCES:
                raise InvalidSchema(f"The schema refers to more than {MOST_REFERENCES} schemas")
            open_.append((reference, True))
            open_ += [(one, False) for one in reversed(version.references)]
        if sum(one.size for one in found.values()) > _MOST_REFERENCED_BYTES:
            raise InvalidSchema(
                f"The schema refers to schemas of more than {_MOST_REFERENCED_BYTES >> 20} MiB together"
            )
        return resolved, found

    async def _referenced(self, found: dict[str, Version]) -> list[Referenced]:
        schemas = await self.store.schemas(found.values())
        return [Referenced(name, schema) for name, schema in zip(found, schemas, strict=True)]

    async def with_references(self, version: Version) -> tuple[Schema, list[Referenced]]:
        """Return the schema of a version, and all that it refers to, in order of dependency. Raises RegistryError."""
        _, found = self._resolved(version.references)
        (schema,) = await self.store.schemas([version])
        return schema, await self._referenced(found)

    async def record_names(self, version: Version) -> frozenset[str]:
        """Return the names of the records that a version defines. Raises RegistryError, StorageUnavailable."""
        (schema,) = await self.store.schemas([version])
        return await self._worker.run(partial(formats.record_names, schema, self._worker.steps()))

    async def parsed(self, given: Given, steps: Steps) -> tuple[Parsed, tuple[Reference, ...]]:
        """Return a parsed schema, and its references with versions. Raises RegistryError."""
        self._check(given)
        references, found = self._resolved(given.references)
        kinds = sorted({one.type for one in found.values()} - {given.type})
        if kinds:
            raise InvalidSchema(f"A schema of type {given.type} cannot refer to one of type {kinds[0]}")
        referenced = await self._referenced(found)
        work = partial(
            formats.parse, given.type, given.text, references, referenced, steps, self._compiler,
            normalize=given.normalize,
        )  # fmt: skip
        if given.type != "PROTOBUF" or len(given.text) > _MOST_REMEMBERED_TEXT:
            return await self._worker.run(work), references
        key = hashlib.blake2b(
            msgspec.json.encode((given.text, given.normalize, references, [one.guid for one in found.values()]))
        ).digest()
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = self._parsed[key] = await self._worker.run(work)
            if len(self._parsed) > _MOST_REMEMBERED:
                self._parsed.popitem(last=False)
        return parsed, references

    # Registration

    async def register(self, subject: str, given: Given, number: int = -1, at: int = -1) -> Version:
        """Return the version of a schema, which is registered if it is new.

        Args:
            subject: the subject.
            given: the schema.
            number: the ID in import mode; -1: the next.
            at: the version; -1: the next.

        Raises:
            RegistryError: the schema is invalid or incompatible, or the mode permits no registration.
        """
        self.index.check_writable(subject)
        steps = self._worker.steps()
        parsed, references = await self.parsed(given, steps)
        known = self.index.with_schema(subject, parsed.guid)
        if known is not None and number in {-1, known.id}:
            return known
        self._in_turn[subject] += 1
        try:
            async with self._registering.setdefault(subject, asyncio.Lock()):
                return await self._register(subject, parsed, references, number, at, steps)
        finally:
            self._in_turn[subject] -= 1
            if not self._in_turn[subject]:
                del self._in_turn[subject], self._registering[subject]

    async def _register(
        self, subject: str, parsed: Parsed, references: tuple[Reference, ...], number: int, at: int, steps: Steps
    ) -> Version:
        schema = Schema(parsed.type, parsed.text, references, parsed.descriptor)
        for _ in range(_ATTEMPTS):
            state = self._state(subject)
            if self.index.mode(subject) is not Mode.IMPORT:
                level = self.index.level(subject)
                found = await self._incompatibilities(level, parsed, self.index.versions(subject), steps)
                if found:
                    text = f'Schema being registered is incompatible with an earlier schema for subject "{subject}"'
                    raise RegistryError(409, 409, f"{text}, details: [{', '.join(found)}]")
            try:
                return await self.store.exclusively(
                    partial(self._place, subject, parsed, references, schema, number, at, state)
                )
            except Conflict:
                continue
        raise RegistryError(500, 50002, f"Subject {subject} is being changed by other clients: try again")

    def _state(self, subject: str) -> Any:
        """Return what the compatibility of a schema depends on."""
        index = self.index
        return index.level(subject), index.mode(subject), index.versions(subject)

    async def _place(
        self,
        subject: str,
        parsed: Parsed,
        references: tuple[Reference, ...],
        schema: Schema,
        number: int,
        at: int,
        state: Any,
    ) -> Version:
        if self._state(subject) != state:
            raise Conflict
        for one in references:
            self.index.resolved(one)
        version = self.index.placed(subject, parsed, references, number, at)
        if self.index.versions(subject, deleted=False).count(version) == 0:
            await self.store.add(version, schema)
        return version

    async def lookup(self, subject: str, given: Given, *, deleted: bool) -> Version:
        """Return the version of a subject with a schema. Raises RegistryError."""
        if not self.index.versions(subject, deleted=deleted):
            raise subject_not_found(subject)
        parsed, _ = await self.parsed(given, self._worker.steps())
        found = self.index.with_schema(subject, parsed.guid, deleted=deleted)
        if found is None:
            raise schema_not_found()
        return found

    # Compatibility

    async def compatibility(self, subject: str, given: Given, version: str | None) -> list[str]:
        """Return why a schema is incompatible with one version, or with those of the subject's level.

        Args:
            subject: the subject.
            given: the schema.
            version: a version; None: those that the level names.

        Raises:
            RegistryError: the schema is invalid, or the version does not exist.
        """
        level = self.index.level(subject)
        earlier = self.index.versions(subject) if version is None else [self.index.find(subject, version)]
        steps = self._worker.steps()
        parsed, _ = await self.parsed(given, steps)
        return await self._incompatibilities(level, parsed, earlier, steps)

    async def _incompatibilities(
        self, level: Level, parsed: Parsed, earlier: Sequence[Version], steps: Steps
    ) -> list[str]:
        if level is Level.NONE:
            return []
        chosen = list(reversed(earlier))[: None if level.transitive else 1]
        while chosen:
            taken, size = 0, 0
            while taken < len(chosen) and (not taken or size + chosen[taken].size <= _AT_ONCE_BYTES):
                size += chosen[taken].size
                taken += 1
            some, chosen = chosen[:taken], chosen[taken:]
            schemas = await self.store.schemas(some)
            referenced = [await self._referenced(self._resolved(one.references)[1]) for one in some]
            made = partial(_compared, level, parsed, list(zip(some, schemas, referenced, strict=True)), steps)
            if found := await self._worker.run(made):
                return found
        return []

    # Deletion

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject, and its settings; the numbers of the versions. Raises RegistryError."""

        async def delete() -> list[int]:
            self.index.check_writable(subject)
            every = self.index.existing(subject, deleted=True)
            live = [one for one in every if not one.deleted]
            if permanent and live:
                text = f"Subject '{subject}' was not deleted first before being permanently deleted"
                raise RegistryError(404, 40405, text)
            if not permanent and not live:
                text = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(404, 40404, text)
            chosen = every if permanent else live
            for one in chosen:
                self.index.check_unused(subject, one.version)
            settings = [each for each in self.index.settings() if each[1] == subject and subject]
            await self.store.delete(chosen, settings, permanent=permanent)
            return [one.version for one in chosen]

        return await self.store.exclusively(delete)

    async def delete_version(self, subject: str, text: str, *, permanent: bool) -> int:
        """Delete a version; its number. Raises RegistryError."""

        async def delete() -> int:
            self.index.check_writable(subject)
            latest = text in {"latest", "-1"}
            found = self.index.find(subject, text, deleted=not (latest and not permanent))
            place = f"Subject '{subject}' Version {found.version}"
            if permanent and not found.deleted:
                text_ = f"{place} was not deleted first before being permanently deleted"
                raise RegistryError(404, 40407, text_)
            if not permanent and found.deleted:
                raise RegistryError(404, 40406, f"{place} was soft deleted. Set permanent=true to delete permanently")
            self.index.check_unused(subject, found.version)
            await self.store.delete([found], [], permanent=permanent)
            return found.version

        return await self.store.exclusively(delete)

    # Settings

    async def set_level(self, subject: str, level: Level | None, *, normalize: bool | None) -> None:
        """Set compatibility level and normalization; None: unchanged."""
        changes = {} if level is None else {("compatibility", subject): level.value}
        if normalize is not None:
            changes["normalize", subject] = str(normalize).lower()

        async def change() -> None:
            await self.store.set(changes)

        await self.store.exclusively(change)

    async def set_mode(self, subject: str, mode: Mode, *, force: bool) -> None:
        """Set a mode. Raises RegistryError for import mode while there are schemas, without `force`."""

        async def change() -> None:
            used = self.index.versions(subject) if subject else list(self.index.names())
            if mode is Mode.IMPORT and used and not force and self.index.mode(subject) is not Mode.IMPORT:
                what = f"subject {subject} has" if subject else "there are"
                raise RegistryError(
                    422, 42205, f"Cannot change to import mode, because {what} schemas: delete them, or set force=true"
                )
            await self.store.set({("mode", subject): mode.value})

        await self.store.exclusively(change)

    async def unset(self, subject: str, *kinds: str) -> None:
        """Remove settings of a subject, or of the registry (empty)."""

        async def change() -> None:
            await self.store.set({(kind, subject): None for kind in kinds})

        await self.store.exclusively(change)


def _compared(
    level: Level, parsed: Parsed, earlier: list[tuple[Version, Schema, list[Referenced]]], steps: Steps
) -> list[str]:
    contents = (
        Earlier(version.version, schema.type, formats.stored(schema, referenced, steps))
        for version, schema, referenced in earlier
    )
    return formats.incompatibilities(level, parsed, contents, steps)
