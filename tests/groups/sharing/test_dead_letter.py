"""Headers of dead letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.sharing.dead_letter import Origin, headers_of, origin_of, own_headers, reason

texts = st.text(max_size=20)
numbers = st.integers(0, 2**62)
origins = st.builds(Origin, texts, numbers, numbers, texts, st.integers(0, 10), texts)
others = st.lists(st.tuples(st.text("abc_", max_size=5), st.one_of(st.none(), st.binary(max_size=5)))).map(tuple)


@given(origins, others, origins)
def test_an_origin_is_read_and_the_own_headers_stay(
    origin: Origin, own: tuple[tuple[str, bytes | None], ...], earlier: Origin
) -> None:
    headers = headers_of(origin, own)
    assert origin_of(headers) == origin
    assert own_headers(headers) == own
    assert origin_of(headers_of(origin, headers_of(earlier, own))) == origin


def test_the_names_are_those_of_kip_1191() -> None:
    assert headers_of(Origin("t", 3, 41, "g", 5, "why")) == (
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"41"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"why"),
    )


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("__dlq.errors.topic", b"t"),),
        (
            *headers_of(Origin("t", 0, 1, "g", 5, ""))[2:],
            ("__dlq.errors.topic", b"t"),
            ("__dlq.errors.partition", b"x"),
        ),
        (*headers_of(Origin("t", 0, 1, "g", 5, ""))[1:], ("__dlq.errors.topic", b"\xff")),
        (*headers_of(Origin("t", 0, 1, "g", 5, ""))[1:], ("__dlq.errors.topic", None)),
    ],
)
def test_other_records_have_no_origin(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert origin_of(headers) is None


def test_a_reason_names_the_limit_only_if_it_was_reached() -> None:
    assert reason(5, 5) == "delivered 5 times without being accepted (limit 5)"
    assert reason(1, 5) == "rejected by a member"
