"""The records room is tested twice where the C extension does the work: with it, and as if it had not been built."""

from types import ModuleType

import pytest

from headrace.records import by_aiokafka, native, plain, plain_columns, plain_encode, plain_messages, plain_publish

try:
    import headrace.records._native as extension
except ImportError:
    extension: ModuleType | None = None  # type: ignore[no-redef]

PLAIN = {
    "available": False,
    "crc32c": plain.crc32c,
    "check": plain.check,
    "peek": plain.peek,
    "stamp": plain.stamp,
    "encode": plain_encode.encode,
    "encode_columns": plain_encode.encode_columns,
    "records": by_aiokafka.records,
    "open_columns": plain_columns.PlainColumns,
    "open_messages": plain_messages.PlainMessages,
    "publish": plain_publish.publish,
    "receipts": plain_publish.receipts,
}


@pytest.fixture(params=["native", "plain"] if extension else ["plain"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        for name, value in PLAIN.items():
            monkeypatch.setattr(native, name, value)
    return str(request.param)
