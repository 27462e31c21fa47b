"""The errors in a response are found wherever they stand."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.conftest import MessagesOf

from headrace.protocol.messages import TABLES
from headrace.protocol.notation import MessageTable
from headrace.protocol.response_errors import FINDERS, FINDERS_IN_PIECES

RESPONSES = [table for table in TABLES if table.root.name.endswith("Response")]


def walked(value: Any) -> Iterator[int]:
    """By looking at everything there is."""
    if isinstance(value, list):
        for each in value:
            yield from walked(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name in ("error_code", "partition_error_code"):
                yield getattr(value, name)
            else:
                yield from walked(getattr(value, name))


@pytest.mark.parametrize("table", RESPONSES, ids=lambda table: table.root.name)
@given(data=st.data())
def test_every_error_code_is_found_once(table: MessageTable, messages_of: MessagesOf, data: st.DataObject) -> None:
    response = data.draw(messages_of(table, table.versions.high))
    wanted = set(walked(response)) - {0}
    assert FINDERS[type(response)](response) == (wanted or None)
    found: set[int] = set()
    assert all(step is None for step in FINDERS_IN_PIECES[type(response)](response, found))
    assert found == wanted
