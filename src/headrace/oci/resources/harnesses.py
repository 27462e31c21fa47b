"""Connect harnesses: names under which Kafka Connect keeps its own topics."""

from typing import Any
from uuid import uuid4

from headrace.oci import ocids
from headrace.oci.api.errors import OciError
from headrace.oci.resources import lifecycle
from headrace.oci.resources.documents import Documents
from headrace.oci.resources.records import DefinedTags, HarnessRecord, WorkRequestRecord


class Harnesses:
    """Every connect harness. Changes only within `Documents.exclusively`."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def get(self, harness_id: str) -> HarnessRecord:
        """One by its OCID, also one that was deleted within the last 90 days. Raises OciError 404."""
        unique = ocids.unique_of(harness_id, ocids.CONNECT_HARNESS)
        record = self._documents.harnesses.get(unique) if unique is not None else None
        if record is None or not self._documents.known(record):
            raise _unknown(harness_id)
        return record

    def all(self) -> list[HarnessRecord]:
        """Every one, the deleted ones included."""
        return [record for record in self._documents.harnesses.values.values() if self._documents.known(record)]

    def create(
        self, name: str, compartment: str, freeform_tags: dict[str, str], defined_tags: DefinedTags
    ) -> tuple[HarnessRecord, WorkRequestRecord]:
        """A new one, to be saved. Raises OciError 409: the name is taken in its compartment."""
        self._check_name(name, compartment)
        record = HarnessRecord(
            id=uuid4().hex,
            name=name,
            compartment=compartment,
            created_ms=self._documents.clock.now_ms(),
            phase=self._documents.phase("CREATING"),
            freeform_tags=freeform_tags,
            defined_tags=defined_tags,
        )
        return record, self._request("CREATE", record)

    async def update(
        self, harness_id: str, if_match: str | None, **fields: Any
    ) -> tuple[HarnessRecord, WorkRequestRecord]:
        """Change fields of one. Raises OciError: 404, 412, 409."""
        record = self._documents.changed(self._changeable(harness_id, if_match), "UPDATING", **fields)
        if "compartment" in fields:
            self._check_name(record.name, record.compartment, record.id)
        return record, await self._save("UPDATE", record)

    async def delete(self, harness_id: str, if_match: str | None) -> WorkRequestRecord:
        """Delete one. Raises OciError: 404, 412, 409."""
        record = self._documents.changed(self._changeable(harness_id, if_match), "DELETING")
        return await self._save("DELETE", record)

    def _check_name(self, name: str, compartment: str, own: str = "") -> None:
        if any(
            each.name == name and each.compartment == compartment and each.id != own and not lifecycle.is_deleted(each)
            for each in self._documents.harnesses.values.values()
        ):
            raise OciError(409, f"A connect harness named {name} exists already in this compartment")

    def _changeable(self, harness_id: str, if_match: str | None) -> HarnessRecord:
        record = self.get(harness_id)
        if lifecycle.state_of(record, self._documents.clock.now_ms()) == "DELETED":
            raise _unknown(harness_id)
        self._documents.check_changeable(record, if_match)
        return record

    def _request(self, what: str, record: HarnessRecord) -> WorkRequestRecord:
        kind = ocids.CONNECT_HARNESS
        return self._documents.request(f"{what}_CONNECT_HARNESS", record.compartment, (kind, record.id))

    async def _save(self, what: str, record: HarnessRecord) -> WorkRequestRecord:
        request = self._request(what, record)
        documents = self._documents
        await documents.save({(documents.harnesses, record.id): record, (documents.requests, request.id): request})
        return request


def _unknown(harness_id: str) -> OciError:
    return OciError(404, f"Unknown connect harness {harness_id}")
