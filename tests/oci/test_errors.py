"""The table of errors is total: what the broker refuses is never an internal error."""

import pytest

from headrace.oci.errors import of_topic_error
from headrace.topics.errors import TopicError


@pytest.mark.parametrize("kind", TopicError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_error_of_topics_has_an_answer(kind: type[TopicError]) -> None:
    answer = of_topic_error(kind("what was asked"))
    assert answer.status != 500
    assert answer.message == "what was asked"
