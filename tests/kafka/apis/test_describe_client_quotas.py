"""DescribeClientQuotas: what was set is found (KIP-546, KIP-612)."""

import pytest
from tests.kafka.quota_admin import Admin, Component

from headrace.kafka.errors import Code

EXACT, DEFAULT, ANY = 0, 1, 2


def test_what_is_set_can_be_asked_for(admin: Admin) -> None:
    admin.limit({"user": "jane"}, producer_byte_rate=1_000, request_percentage=12.5)
    admin.limit({"client-id": "app", "user": "jane"}, consumer_byte_rate=7)
    admin.limit({"user": None}, controller_mutation_rate=0.5)
    admin.limit({"ip": "0:0:0:0:0:0:0:1"}, connection_creation_rate=5)
    jane = Component(entity_type="user", match_type=EXACT, match="jane")
    assert admin.found(jane) == {
        "user=jane": {"producer_byte_rate": 1_000, "request_percentage": 12.5},
        "user=jane client-id=app": {"consumer_byte_rate": 7},
    }
    assert list(admin.found(jane, strict=True)) == ["user=jane"]
    assert list(admin.found(Component(entity_type="user", match_type=DEFAULT, match=None))) == ["user=None"]
    anybody = Component(entity_type="user", match_type=ANY, match=None)
    assert list(admin.found(anybody, strict=True)) == ["user=None", "user=jane"]
    assert admin.found(Component(entity_type="ip", match_type=ANY, match=None)) == {
        "ip=::1": {"connection_creation_rate": 5}
    }
    assert len(admin.described(version=0).entries) == 4
    assert admin.alter({"user": "jane"}, producer_byte_rate=None, request_percentage=None).error_code == 0
    assert list(admin.found(jane)) == ["user=jane client-id=app"]
    assert admin.alter({"user": "eve"}, validate_only=True, producer_byte_rate=1).error_code == 0
    assert "user=eve" not in admin.found()


@pytest.mark.parametrize(
    ("components", "code", "said"),
    [
        ([Component(entity_type="topic", match_type=ANY, match=None)], Code.UNSUPPORTED_VERSION, "entity type topic"),
        ([Component(entity_type="user", match_type=EXACT, match=None)], Code.INVALID_REQUEST, "match string to null"),
        ([Component(entity_type="user", match_type=7, match=None)], Code.INVALID_REQUEST, "Unknown match type 7"),
        ([Component(entity_type="user", match_type=ANY, match="a")], Code.INVALID_REQUEST, "may have a match string"),
        ([Component(entity_type="", match_type=ANY, match=None)], Code.INVALID_REQUEST, "empty entity type"),
        ([Component(entity_type="user", match_type=ANY, match=None)] * 2, Code.INVALID_REQUEST, "more than once"),
        (
            [Component(entity_type=kind, match_type=ANY, match=None) for kind in ("user", "ip")],
            Code.INVALID_REQUEST,
            "should not be used with user",
        ),
    ],
)
def test_what_cannot_be_asked(admin: Admin, components: list[Component], code: Code, said: str) -> None:
    answer = admin.described(*components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert said in answer.error_message
