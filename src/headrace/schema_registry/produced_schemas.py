"""Look up the schemas of produced records for brokers; implements `topics.record_checks.Schemas`."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import structlog

from headrace.schema_registry.app import CatchingUp
from headrace.schema_registry.registry import Registry
from headrace.schemas.errors import RegistryError
from headrace.topics.errors import StorageUnavailable

_BY_ID: Final = 5
_MOST_REMEMBERED: Final = 1_000
"""Schemas whose names are in memory."""
_BUSY: Final = 503
_log = structlog.get_logger("headrace.schema_registry")


class ProducedSchemas:
    """Schemas by the references in records."""

    def __init__(self, registry: Registry, catching_up: CatchingUp | None) -> None:
        """`catching_up` applies the changes of other brokers; None: there are none."""
        self._registry = registry
        self._catching_up = catching_up
        self._names: OrderedDict[str, frozenset[str]] = OrderedDict()
        """GUID -> names. A GUID always has the same schema."""

    def _number(self, reference: bytes) -> int:
        """Return the ID of a reference, or 0, which no schema has unless it was imported with this ID."""
        if len(reference) == _BY_ID:
            return int.from_bytes(reference[1:], "big")
        return self._registry.index.id_of(str(UUID(bytes=reference[1:]))) or 0

    def is_registered(self, reference: bytes, subject: str) -> bool:
        """See `Schemas`."""
        return self._registry.index.is_registered(self._number(reference), subject)

    def names(self, reference: bytes) -> frozenset[str]:
        """See `Schemas`."""
        version = self._registry.index.present(self._number(reference))
        return frozenset() if version is None else self._names.get(version.guid, frozenset())

    async def learn(self, references: Iterable[bytes], *, names: bool) -> None:
        """See `Schemas`. Raises StorageUnavailable."""
        if self._catching_up is not None:
            await self._catching_up()()
        if not names:
            return
        for reference in references:
            version = self._registry.index.present(self._number(reference))
            if version is None or version.guid in self._names:
                continue
            try:
                self._remember(version.guid, await self._registry.record_names(version))
            except RegistryError as error:
                if error.status == _BUSY:
                    raise StorageUnavailable(str(error)) from None
                _log.warning("a schema has no names", schema=version.id, reason=str(error))

    def _remember(self, guid: str, names: frozenset[str]) -> None:
        self._names[guid] = names
        if len(self._names) > _MOST_REMEMBERED:
            self._names.popitem(last=False)
