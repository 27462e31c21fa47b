"""The API's one translation table: total, and never a surprise."""

import pytest

from headrace.groups.errors import GroupError
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.topics import errors as topics


def born(kind: type[topics.TopicError]) -> list[type[topics.TopicError]]:
    return [each for child in kind.__subclasses__() for each in (child, *born(child))]


@pytest.mark.parametrize("kind", born(topics.TopicError), ids=lambda kind: kind.__name__)
def test_every_error_of_topics_has_a_code(kind: type[topics.TopicError]) -> None:
    assert code_of(kind("why")) not in (Code.NONE, Code.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize("error", GroupError, ids=lambda error: error.name)
def test_every_error_of_groups_has_the_code_of_its_name(error: GroupError) -> None:
    assert code_of(error).name == error.name


def test_no_error_is_none_and_a_bug_is_an_unknown_server_error() -> None:
    assert code_of(None) is Code.NONE
    assert code_of(RequestError(Code.INVALID_REQUEST, "why")) is Code.INVALID_REQUEST
    assert code_of(ZeroDivisionError()) is Code.UNKNOWN_SERVER_ERROR
