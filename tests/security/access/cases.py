"""Rules and questions in which prefixes, wildcards, hosts and denials meet: few names, so that they often do."""

from hypothesis import strategies as st

from headrace.security.access.acls import Acl, Pattern
from headrace.security.access.required_acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType

NAMES = ("a", "ab", "abc", "abd", "b", "ba", "hard", "hardcode")
PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
ASKING = ("User:alice", "User:bob", "User:root")
SUPER_USERS = frozenset({"User:root"})
OPERATIONS = tuple(Operation)
TYPES = tuple(ResourceType)


def name_of(kind: ResourceType, name: str) -> str:
    return CLUSTER_NAME if kind is ResourceType.CLUSTER else name


def _acl(
    kind: ResourceType, name: str, pattern: Pattern, principal: str, host: str, operation: Operation | None, allow: bool
) -> Acl:
    return Acl(
        type=kind, name=name_of(kind, name), pattern=pattern, principal=principal, host=host, operation=operation,
        allow=allow,
    )  # fmt: skip


ACLS = st.builds(
    _acl,
    st.sampled_from(TYPES[:2] * 4 + TYPES),
    st.sampled_from((*NAMES, "*", "*", "h")),
    st.sampled_from(Pattern),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.none() | st.sampled_from(OPERATIONS),
    st.sampled_from((True, True, False)),
)
RULES = st.frozensets(ACLS, max_size=12)
QUESTIONS = st.sampled_from(TYPES[:2] * 4 + TYPES).flatmap(
    lambda kind: st.tuples(
        st.sampled_from(ASKING),
        st.sampled_from(HOSTS[1:]),
        st.sampled_from(sorted(SUPPORTED[kind], key=lambda each: each.value)),
        st.just(kind),
        st.sampled_from(NAMES).map(lambda name: name_of(kind, name)),
    )
)
