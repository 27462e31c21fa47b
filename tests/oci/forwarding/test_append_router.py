"""Errors of a leader, as another broker raises them again."""

import msgspec
import pytest

from headrace.oci.forwarding.append_router import Refusal
from headrace.topics.errors import InvalidRecords, MessageTooLarge, StorageUnavailable, TopicError


@pytest.mark.parametrize("kind", [MessageTooLarge, StorageUnavailable])
def test_an_error_keeps_its_class_and_message(kind: type[TopicError]) -> None:
    sent = msgspec.json.encode(Refusal(kind.__name__, "why"))
    error = msgspec.json.decode(sent, type=Refusal).as_error()
    assert (type(error), str(error)) == (kind, "why")


def test_rejected_records_keep_their_reasons() -> None:
    sent = msgspec.json.encode(Refusal("InvalidRecords", "two records", {3: "no key", 5: "no key"}))
    error = msgspec.json.decode(sent, type=Refusal).as_error()
    assert isinstance(error, InvalidRecords)
    assert error.reasons == {3: "no key", 5: "no key"}


def test_an_unknown_error_can_be_retried() -> None:
    assert isinstance(Refusal("NewerError", "why").as_error(), StorageUnavailable)
