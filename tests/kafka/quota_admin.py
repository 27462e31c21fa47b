"""Quotas, set and described on the wire."""

from typing import Any

from tests.harness.wire import Wire

from headrace.protocol.messages import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)

Part = AlterClientQuotasRequest.EntityData

Op = AlterClientQuotasRequest.OpData

Component = DescribeClientQuotasRequest.ComponentData


class Admin(Wire):
    """Sets quotas."""

    def alter(self, entity: dict[str, str | None], validate_only: bool = False, **values: float | None) -> Any:
        """Set quotas of an entity, None takes one away; the answer for it."""
        asked = AlterClientQuotasRequest.EntryData(
            entity=[Part(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()],
            ops=[Op(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        answer = self.ask(AlterClientQuotasRequest(entries=[asked], validate_only=validate_only), 1)
        return answer.entries[0]

    def limit(self, entity: dict[str, str | None], **values: float) -> None:
        """As `alter`, which must go well."""
        answer = self.alter(entity, **values)  # type: ignore[arg-type]
        assert answer.error_code == 0, answer

    def remove_all(self) -> None:
        """Remove the quotas of all entities."""
        for entity in self.described().entries:
            named = {part.entity_type: part.entity_name for part in entity.entity}
            self.alter(named, False, **dict.fromkeys((each.key for each in entity.values), None))

    def described(self, *components: Component, strict: bool = False, version: int = 1) -> Any:
        """The answer to a question for quotas."""
        return self.ask(DescribeClientQuotasRequest(components=list(components), strict=strict), version)

    def found(self, *components: Component, strict: bool = False) -> dict[str, dict[str, float]]:
        """Quotas by entity, as a text."""
        answer = self.described(*components, strict=strict)
        assert answer.error_code == 0, answer
        return {
            " ".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity): {
                one.key: one.value for one in entry.values
            }
            for entry in answer.entries
        }
