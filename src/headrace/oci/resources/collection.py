"""Resources of one kind."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from headrace.oci import ocids
from headrace.oci.errors import OciError
from headrace.oci.resources.documents import Changes, Documents
from headrace.oci.resources.records import Record, WorkRequestRecord, is_deleted, state_of
from headrace.oci.resources.table import Table

R = TypeVar("R", bound=Record)

_TAGS = ("freeform_tags", "defined_tags", "security_attributes")


class Collection(Generic[R]):
    """All resources of a kind. Changes only within `Documents.exclusively`."""

    kind: ClassVar[str]
    """As in an OCID."""
    noun: ClassVar[str]
    """As in messages. In capitals it names work requests, such as `CREATE_STREAM_POOL`."""
    unique_in_compartment: ClassVar[bool] = True
    """Whether names are unique in a compartment."""

    def __init__(self, documents: Documents, table: Table[R]) -> None:
        self._documents = documents
        self.table = table

    # Look-ups

    def get(self, ocid: str) -> R:
        """Return a resource by OCID, up to 90 days after its deletion. Raises OciError 404."""
        unique = self._unique_of(ocid)
        record = self._find_record(unique) if unique is not None else None
        if record is None or not self._documents.known(record):
            raise self._unknown(ocid)
        return record

    def all(self) -> list[R]:
        """Return all resources, including deleted ones."""
        return [record for record in self.table.values.values() if self._documents.known(record)]

    def _unique_of(self, ocid: str) -> str | None:
        return ocids.unique_of(ocid, self.kind)

    def _find_record(self, unique: str) -> R | None:
        return self.table.get(unique)

    def _unknown(self, ocid: str) -> OciError:
        return OciError(404, f"Unknown {self.noun} {ocid}")

    # Changes

    def changeable(self, ocid: str, if_match: str | None, fields: Mapping[str, Any] | None = None) -> R:
        """Return a resource that may be changed or deleted.

        Raises:
            OciError: 404, 412; 409, another change is in progress or the new name is taken; 400, too many tags.
        """
        record = self.get(ocid)
        if state_of(record, self._documents.clock.now_ms()) == "DELETED":
            raise self._unknown(ocid)
        self._documents.check_changeable(record, if_match)
        self._check_usable(ocid, record)
        fields = fields or {}
        if any(fields.get(each) for each in _TAGS):
            self.table.check_room(grows=False)
        if self.unique_in_compartment and fields.keys() & {"name", "compartment"}:
            self._check_name(
                fields.get("name", record.name), fields.get("compartment", record.compartment), own=record.id
            )
        return record

    def _check_usable(self, ocid: str, record: R) -> None:
        """Raise OciError if the resource cannot be changed."""

    def _check_readable(self, ocid: str, record: R) -> None:
        """Raise OciError 409 for an unreadable record: a change would lose its tags."""
        if self.table.hides(record.id):
            why = f"The record of {self.noun} {ocid} cannot be read: repair it, then start the server again"
            raise OciError(409, why, "IncorrectState")

    def _check_name(self, name: str, compartment: str, *, own: str = "") -> None:
        if any(
            each.name == name and each.compartment == compartment and each.id != own and not is_deleted(each)
            for each in self.table.values.values()
        ):
            raise OciError(409, f"A {self.noun} named {name} exists already in this compartment")

    async def update(self, ocid: str, if_match: str | None, fields: Mapping[str, Any]) -> tuple[R, WorkRequestRecord]:
        """Change fields of a record. Raises OciError as `changeable`."""
        return await self._save_changed(self.changeable(ocid, if_match, fields), fields)

    async def delete(self, ocid: str, if_match: str | None) -> WorkRequestRecord:
        """Delete a resource. Raises OciError as `changeable`."""
        record = self._documents.changed(self.changeable(ocid, if_match), "DELETING")
        return await self._save("DELETE", record)

    def request(self, verb: str, record: R, *others: tuple[str, str]) -> WorkRequestRecord:
        """Return a new work request, to be saved with its change.

        `verb` is such as `CREATE`.
        """
        operation = f"{verb}_{self.noun.upper().replace(' ', '_')}"
        return self._documents.request(operation, record.compartment, (self.kind, record.id), *others)

    async def _save_changed(
        self, record: R, fields: Mapping[str, Any], related: Changes | None = None, *, is_done: bool = False
    ) -> tuple[R, WorkRequestRecord]:
        record = self._documents.changed(record, "UPDATING", **fields)
        return record, await self._save("UPDATE", record, related, is_done=is_done)

    async def _save(
        self, verb: str, record: R, related: Changes | None = None, *, is_done: bool = False
    ) -> WorkRequestRecord:
        request = self.request(verb, record)
        store = self._documents.finish if is_done else self._documents.save
        await store(
            {**(related or {}), (self.table, record.id): record, (self._documents.requests, request.id): request}
        )
        return request
