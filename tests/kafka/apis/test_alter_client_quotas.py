"""AlterClientQuotas: what cannot be set (KIP-546, KIP-612)."""

import pytest
from tests.kafka.quota_admin import Admin

from headrace.kafka.errors import Code


@pytest.mark.parametrize(
    ("entity", "values", "said"),
    [
        ({"user": "jane", "ip": "::1"}, {"producer_byte_rate": 1}, "should not be combined"),
        ({"user": "jane"}, {"producer_byte_rat": 1}, "Invalid configuration key producer_byte_rat"),
        ({"user": "jane"}, {"producer_byte_rate": -1}, "must be greater than 0"),
        ({"user": "j" * 257}, {"producer_byte_rate": 1}, "longer than 256"),
    ],
)
def test_what_cannot_be_set(admin: Admin, entity: dict[str, str | None], values: dict[str, float], said: str) -> None:
    answer = admin.alter(entity, **values)  # type: ignore[arg-type]
    assert answer.error_code == Code.INVALID_REQUEST
    assert said in answer.error_message
    assert admin.found() == {}
