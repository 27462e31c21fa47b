"""Connect harnesses: names under which Kafka Connect keeps its own topics."""

from uuid import uuid4

from headrace.oci import ocids
from headrace.oci.resources.collection import Collection
from headrace.oci.resources.documents import Documents
from headrace.oci.resources.records import DefinedTags, HarnessRecord, WorkRequestRecord


class Harnesses(Collection[HarnessRecord]):
    """Every connect harness. Changes only within `Documents.exclusively`."""

    kind = ocids.CONNECT_HARNESS
    noun = "connect harness"

    def __init__(self, documents: Documents) -> None:
        super().__init__(documents, documents.harnesses)

    def create(
        self, name: str, compartment: str, freeform_tags: dict[str, str], defined_tags: DefinedTags
    ) -> tuple[HarnessRecord, WorkRequestRecord]:
        """Return a new one, to be saved. Raises OciError 409: the name is taken in its compartment."""
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
        return record, self.request("CREATE", record)
