"""Rules are Kafka's: what its access rules could never grant cannot be declared."""

import pytest

from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.access.required_acls import ANYBODY, Operation, ResourceType, Rule, told


@pytest.mark.parametrize(
    ("operation", "kind", "instead"),
    [
        (Operation.IDEMPOTENT_WRITE, ResourceType.TOPIC, None),
        (Operation.WRITE, ResourceType.GROUP, None),
        (Operation.DELETE, ResourceType.CLUSTER, None),
        (Operation.READ, ResourceType.TRANSACTIONAL_ID, None),
        (Operation.CREATE, ResourceType.TOPIC, (Operation.READ, ResourceType.CLUSTER)),
    ],
)
def test_an_operation_that_kafka_does_not_have_on_a_resource_is_refused(
    operation: Operation, kind: ResourceType, instead: tuple[Operation, ResourceType] | None
) -> None:
    with pytest.raises(ValueError, match="Kafka's access rules have no"):
        Rule(operation=operation, type=kind, resources=lambda: (), instead=instead)


def test_acls_are_described_in_kafkas_words() -> None:
    describe = Rule(operation=Operation.DESCRIBE, type=ResourceType.TOPIC, resources=lambda: (), shown=True)
    create = Rule(
        operation=Operation.CREATE,
        type=ResourceType.TOPIC,
        resources=lambda: (),
        instead=(Operation.CREATE, ResourceType.CLUSTER),
    )
    assert told((describe, create)) == "Describe Topic (each one shown); Create Topic, or Create Cluster"
    assert told(ANYBODY) == "nothing"


def test_principals_are_kafkas() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(Principal("acme/jane@example.com")) == "User:acme/jane@example.com"
    assert Principal.of("ocid1.tenancy.oc1..t", "") is ANONYMOUS
