"""Groups with topics that a client may not describe. The wire tests of the three APIs have the rest."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.kafka import described_groups
from headrace.kafka.errors import Code
from headrace.security.access.required_acls import ResourceType


def refused(name: str, code: Code, message: str | None) -> Any:
    return SimpleNamespace(group_id=name, topics=[], error=(code, message))


def grants(*allowed: str) -> Any:
    return SimpleNamespace(allow=lambda need, name: need is described_groups.TOPICS and name in allowed)


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [(("a", "b"), ["one", "two", "none"]), (("a",), ["one", "none"]), ((), ["none"])],
)
def test_groups_with_hidden_topics_are_refused(allowed: tuple[str, ...], shown: list[str]) -> None:
    described: Any = [
        SimpleNamespace(group_id="one", topics=["a"], error=None),
        SimpleNamespace(group_id="two", topics=["a", "b"], error=None),
        SimpleNamespace(group_id="none", topics=[], error=None),
    ]
    response: Any = SimpleNamespace(groups=described)
    context: Any = None
    steps = list(described_groups.hide(lambda group: group.topics, refused)(response, context, grants(*allowed)))
    assert len(steps) >= len(described) - 1
    assert [each.group_id for each in response.groups] == ["one", "two", "none"]
    assert [each.group_id for each in response.groups if each.error is None] == shown
    errors = {each.error[0] for each in response.groups if each.error}
    assert errors <= {Code.TOPIC_AUTHORIZATION_FAILED}


def test_a_named_group_is_a_resource() -> None:
    request: Any = None
    context: Any = None
    assert list(described_groups.place("g", request, context)) == [(ResourceType.GROUP, "g")]
