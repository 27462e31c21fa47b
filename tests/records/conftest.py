"""The records room is tested twice where the C extension does the work: with it, and as if it had not been built."""

from types import ModuleType

import pytest

from headrace.records import accelerator
from headrace.records.fallback import checks, cleaning, columns, encode, header, merging, messages

try:
    import headrace.records._compiled as extension
except ImportError:
    extension: ModuleType | None = None  # type: ignore[no-redef]

PURE = {
    "available": False,
    "crc32c": header.crc32c,
    "check": header.check,
    "peek": header.peek,
    "stamp": header.stamp,
    "encode": encode.encode,
    "encode_columns": encode.encode_columns,
    "encode_rows": encode.encode_rows,
    "records": columns.records,
    "some": columns.some,
    "keyless": checks.keyless,
    "merge": merging.merge,
    "schemas": checks.schemas,
    "open_offset_map": cleaning.PureOffsetMap,
    "open_columns": columns.PureColumns,
    "open_messages": messages.PureMessages,
    "publish": messages.publish,
    "receipts": messages.receipts,
}


@pytest.fixture(params=["compiled", "pure"] if extension else ["pure"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        for name, value in PURE.items():
            monkeypatch.setattr(accelerator, name, value)
    return str(request.param)
