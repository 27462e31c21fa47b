"""Rights by ACLs, compared with the sentences of Kafka's documentation."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.security.access.cases import ACLS, QUESTIONS, RULES, SUPER_USERS

from headrace.security.access.acls import ANYBODY, ANYTHING, Acl, AclFilter, InvalidAcl, Pattern
from headrace.security.access.authorizer import Authorizer
from headrace.security.access.required_acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType

Question = tuple[str, str, Operation, ResourceType, str]
UNTIMED = settings(deadline=None)
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
HOST = "10.0.0.1"


def allowed(acls: Iterable[Acl], question: Question, *, unless_told: bool = False) -> bool:
    principal, host, operation, kind, name = question
    return Authorizer(acls, SUPER_USERS, allow_unless_told=unless_told).of(principal, host).allow(operation, kind, name)


def is_about(acl: Acl, kind: ResourceType, name: str) -> bool:
    if acl.type is not kind:
        return False
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in {name, ANYTHING}


def implied(granted: Operation | None, wanted: Operation) -> bool:
    if granted is None or granted is wanted:
        return True
    if wanted is DESCRIBE:
        return granted in {READ, WRITE, Operation.DELETE, Operation.ALTER}
    return wanted is Operation.DESCRIBE_CONFIGS and granted is Operation.ALTER_CONFIGS


def by_the_book(acls: Iterable[Acl], question: Question, *, unless_told: bool) -> bool:
    """The documentation, rule by rule, without an index."""
    principal, host, operation, kind, name = question
    if principal in SUPER_USERS:
        return True
    about = [acl for acl in acls if is_about(acl, kind, name)]
    if not about:
        return unless_told
    mine = [acl for acl in about if acl.principal in {principal, ANYBODY} and acl.host in {host, ANYTHING}]
    if any(not acl.allow and acl.operation in {None, operation} for acl in mine):
        return False
    return any(acl.allow and implied(acl.operation, operation) for acl in mine)


@UNTIMED
@given(acls=RULES, question=QUESTIONS, unless_told=st.booleans())
def test_the_answer_is_the_documentations(acls: frozenset[Acl], question: Question, unless_told: bool) -> None:
    assert allowed(acls, question, unless_told=unless_told) is by_the_book(acls, question, unless_told=unless_told)


@UNTIMED
@given(acls=RULES, gone=RULES, question=QUESTIONS, unless_told=st.booleans())
def test_rules_that_came_and_went_leave_nothing(
    acls: frozenset[Acl], gone: frozenset[Acl], question: Question, unless_told: bool
) -> None:
    principal, host, operation, kind, name = question
    changed = Authorizer(gone, SUPER_USERS, allow_unless_told=unless_told)
    changed.of(principal, host).allow_any(operation, kind)
    for acl in acls - gone:
        changed.add(acl)
    for acl in gone - acls:
        changed.remove(acl)
    rights, fresh = (
        each.of(principal, host) for each in (changed, Authorizer(acls, SUPER_USERS, allow_unless_told=unless_told))
    )
    assert rights.allow(operation, kind, name) is fresh.allow(operation, kind, name)
    assert rights.allow_any(operation, kind) is fresh.allow_any(operation, kind)


@UNTIMED
@given(acls=RULES, more=ACLS, question=QUESTIONS)
def test_a_rule_more_never_does_the_opposite_of_what_it_says(
    acls: frozenset[Acl], more: Acl, question: Question
) -> None:
    before, after = allowed(acls, question), allowed([*acls, more], question)
    assert (before <= after) if more.allow else (after <= before)


@UNTIMED
@given(acls=RULES, question=QUESTIONS)
def test_super_users_may_do_everything(acls: frozenset[Acl], question: Question) -> None:
    assert allowed(acls, ("User:root", *question[1:]))


@UNTIMED
@given(acls=RULES, question=QUESTIONS)
def test_who_may_do_it_somewhere_is_found_by_type(acls: frozenset[Acl], question: Question) -> None:
    principal, host, operation, kind, name = question
    if operation not in {DESCRIBE, Operation.DESCRIBE_CONFIGS} and allowed(acls, question):
        assert Authorizer(acls, SUPER_USERS).of(principal, host).allow_any(operation, kind)
    del name


def rule(operation: Operation | None = READ, name: str = "orders", **other: object) -> Acl:
    given: dict[str, object] = {"type": TOPIC, "principal": "User:alice", "allow": True} | other
    return Acl(operation=operation, name=name, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "asked", "expected"),
    [
        ([rule()], (READ, "orders"), True),
        ([rule()], (READ, "orders2"), False),
        ([rule()], (WRITE, "orders"), False),
        ([rule()], (DESCRIBE, "orders"), True),
        ([rule(allow=False), rule(WRITE)], (DESCRIBE, "orders"), True),
        ([rule(name="ord", pattern=Pattern.PREFIXED)], (READ, "orders"), True),
        ([rule(name="*")], (READ, "orders"), True),
        ([rule(name="*", pattern=Pattern.PREFIXED)], (READ, "orders"), False),
        ([rule(name="*"), rule(allow=False)], (READ, "orders"), False),
        ([rule(), rule(None, principal=ANYBODY, allow=False)], (READ, "orders"), False),
        ([rule(type=GROUP)], (READ, "orders"), False),
        ([rule(principal="User:bob")], (READ, "orders"), False),
        ([rule(host="10.0.0.2")], (READ, "orders"), False),
        ([rule(host="::ffff:a00:1")], (READ, "orders"), True),
    ],
)
def test_one_rule_at_a_time(rules: list[Acl], asked: tuple[Operation, str], expected: bool) -> None:
    operation, name = asked
    assert allowed(rules, ("User:alice", HOST, operation, TOPIC, name)) is expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([rule(WRITE)], True),
        ([rule(WRITE), rule(WRITE, allow=False)], False),
        ([rule(WRITE), rule(WRITE, "or", allow=False, pattern=Pattern.PREFIXED)], False),
        ([rule(WRITE, "or", pattern=Pattern.PREFIXED), rule(WRITE, "orders", allow=False)], True),
        ([rule(WRITE, "or", pattern=Pattern.PREFIXED), rule(None, "o", allow=False, pattern=Pattern.PREFIXED)], False),
        ([rule(WRITE, "*"), rule(WRITE, "orders", allow=False)], True),
        ([rule(WRITE), rule(WRITE, "*", allow=False)], False),
        ([rule(WRITE, host="10.0.0.2")], False),
    ],
)
def test_any_resource_of_a_type(rules: list[Acl], expected: bool) -> None:
    assert Authorizer(rules, frozenset()).of("User:alice", HOST).allow_any(WRITE, TOPIC) is expected


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (rule(name=""), "has no name"),
        (rule(type=ResourceType.CLUSTER), f"the only resource of type Cluster is {CLUSTER_NAME}"),
        (rule(principal="alice"), "expected a principal such as User:alice"),
        (rule(principal="User:" + "a" * 1_024), "at most 1024"),
        (rule(host=""), "has no host"),
        (rule(name="a" * 250), "at most 249"),
    ],
)
def test_what_could_never_be_asked_is_refused(wrong: Acl, told: str) -> None:
    with pytest.raises(InvalidAcl, match=told):
        wrong.check()


@UNTIMED
@given(acl=ACLS, other=ACLS)
def test_an_exact_filter_means_one_rule(acl: Acl, other: Acl) -> None:
    exact = AclFilter(
        type=acl.type, name=acl.name, pattern=acl.pattern, principal=acl.principal, host=acl.host,
        operation=acl.operation, every_operation=acl.operation is None, allow=acl.allow,
    )  # fmt: skip
    assert exact.exact
    assert exact.means(acl)
    assert exact.means(other) is (acl == other)
    assert AclFilter().means(acl)


@UNTIMED
@given(acl=ACLS, question=QUESTIONS)
def test_a_matching_filter_means_the_rules_about_a_resource(acl: Acl, question: Question) -> None:
    *_, kind, name = question
    assert AclFilter(type=kind, name=name, matching=True).means(acl) is is_about(acl, kind, name)


def test_the_types_have_the_operations_that_kafka_has() -> None:
    assert set(SUPPORTED) == set(ResourceType)
    assert {operation for each in SUPPORTED.values() for operation in each} == set(Operation)
