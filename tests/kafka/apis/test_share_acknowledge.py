"""ShareAcknowledge on the wire: what several partitions and a withdrawn permission make of it."""

import pytest
from tests.harness.guarded import ROOT, guarded
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, opened
from tests.kafka.sharer import ACCEPT, REJECT, RELEASE, Sharer, acquired, codes, configure, described, parts

from headrace.kafka.errors import Code
from headrace.security.access.acls import Acl, AclFilter
from headrace.security.access.required_acls import Operation, ResourceType


@pytest.fixture
def sharer(wire: Wire, topic: str) -> Sharer:
    configure(wire, topic, share_auto_offset_reset="earliest")
    member = Sharer(wire, topic, wire.create(topic, 3))
    assert member.beat().error_code == 0
    return member


def test_each_partition_has_its_own_result(wire: Wire, sharer: Sharer) -> None:
    for partition in range(3):
        wire.produce(sharer.topic, batch(b"a", b"b"), partition=partition)
    sharer.fetch(0, 1, 2)
    answer = sharer.acknowledge({0: [(0, 1, [ACCEPT])], 1: [(0, 5, [ACCEPT])], 2: [(0, 0, [RELEASE])]})
    assert codes(answer) == {0: 0, 1: Code.INVALID_REQUEST, 2: 0}
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert all(part.error_message for index, part in parts(answer).items() if index == 1)
    assert acquired(sharer.fetch(), 2) == [(0, 0, 2)]


def test_what_is_stored_survives_another_session(wire: Wire, sharer: Sharer) -> None:
    """The last session of a group ends, and its partitions are loaded again."""
    wire.produce(sharer.topic, batch(b"a", b"b", b"c"))
    sharer.fetch(0)
    sharer.acknowledge({0: [(1, 1, [ACCEPT])]})
    sharer.acknowledge({}, epoch=-1)
    sharer.session = 0
    assert acquired(sharer.fetch(0, wait_ms=5_000)) == [(0, 0, 2), (2, 2, 2)]


def test_version_1_has_no_renewal(wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a"))
    assert acquired(sharer.fetch(0, version=1)) == [(0, 0, 1)]
    assert codes(sharer.acknowledge({0: [(0, 0, [4])]}, version=1)) == {0: Code.INVALID_REQUEST}
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]}, version=1)) == {0: 0}


def rule(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(type=kind, name=name, principal="User:jane", operation=operation, allow=True)


def test_permissions_are_checked_again() -> None:
    """A session is older than the ACL that is withdrawn."""
    group, named = (
        rule(Operation.READ, ResourceType.GROUP, "readers"),
        rule(Operation.READ, ResourceType.TOPIC, "secrets"),
    )
    with guarded() as server, server.connect(ROOT) as root, server.connect("jane") as wire:
        root.create("secrets")
        configure(root, "readers", share_auto_offset_reset="earliest")
        root.produce("secrets", batch(b"a"))
        server.allow(group, named)
        member = Sharer(wire, "readers", "secrets")
        assert member.beat().error_code == 0
        assert acquired(member.fetch(0)) == [(0, 0, 1)]
        server.forbid(AclFilter(name="secrets"))
        assert parts(member.fetch())[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert parts(member.fetch(0))[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
        refused = member.acknowledge({0: [(0, 0, [ACCEPT])]})
        assert codes(refused) == {0: Code.TOPIC_AUTHORIZATION_FAILED}
        server.forbid(AclFilter(name="readers"))
        assert member.fetch().error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert member.acknowledge({}).error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert member.beat().error_code == Code.GROUP_AUTHORIZATION_FAILED


def test_rejected_records_go_to_the_dead_letter_topic(wire: Wire, topic: str) -> None:
    letters = wire.create(f"{topic}-letters", 1, **{"errors.deadletterqueue.group.enable": "true"})
    configure(wire, topic, share_auto_offset_reset="earliest")
    configure(wire, topic, errors_deadletterqueue_topic_name=letters)
    member = Sharer(wire, topic, wire.create(topic, 1))
    member.beat()
    wire.produce(topic, batch(b"good", b"bad"))
    member.fetch(0)
    assert codes(member.acknowledge({0: [(0, 1, [ACCEPT, REJECT])]})) == {0: 0}
    wait_for(lambda: wire.offset(letters, -1).offset == 1, "the copy")
    assert [bytes(each.value or b"") for each in opened(wire.fetch(letters, 0).records)] == [b"bad"]
    wait_for(lambda: described(wire, topic)[topic, 0] == (2, 0), "the record to be done")
