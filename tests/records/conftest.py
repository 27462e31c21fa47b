"""The records room is tested twice where the C extension does the work: with it, and as if it had not been built."""

from types import ModuleType

import pytest

from headrace.records import by_aiokafka, compiled, pure, pure_columns, pure_encode, pure_messages, pure_publish

try:
    import headrace.records._compiled as extension
except ImportError:
    extension: ModuleType | None = None  # type: ignore[no-redef]

PURE = {
    "available": False,
    "crc32c": pure.crc32c,
    "check": pure.check,
    "peek": pure.peek,
    "stamp": pure.stamp,
    "encode": pure_encode.encode,
    "encode_columns": pure_encode.encode_columns,
    "encode_rows": pure_encode.encode_rows,
    "records": by_aiokafka.records,
    "some": by_aiokafka.some,
    "open_columns": pure_columns.PureColumns,
    "open_messages": pure_messages.PureMessages,
    "publish": pure_publish.publish,
    "receipts": pure_publish.receipts,
}


@pytest.fixture(params=["compiled", "pure"] if extension else ["pure"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        for name, value in PURE.items():
            monkeypatch.setattr(compiled, name, value)
    return str(request.param)
