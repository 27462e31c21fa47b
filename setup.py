"""The C extensions, which pyproject.toml cannot describe yet. Without a compiler the install goes on without them."""

from pathlib import Path

from setuptools import Extension, setup

HERE = Path("src/headrace/records")
NATIVE = (
    "_native.c", "_header.c", "_crc32c.c", "_record.c", "_columns.c", "_encode.c", "_messages.c", "_publish.c",
    "_receipts.c",
)  # fmt: skip
HEADERS = [str(HERE / name) for name in ("_native.h", "_header.h")]

setup(
    ext_modules=[
        Extension(
            "headrace.records._native",
            sources=[str(HERE / name) for name in NATIVE],
            depends=HEADERS,
            optional=True,
        ),
        Extension(
            "headrace.records._streams",
            sources=[str(HERE / name) for name in ("_streams.c", "_crc32c.c", "_record.c")],
            depends=[str(HERE / "_native.h")],
            optional=True,
        ),
        Extension("headrace.store._resp", sources=["src/headrace/store/_resp.c"], optional=True),
        Extension("headrace.store._reader", sources=["src/headrace/store/_reader.c"], optional=True),
        Extension(
            "headrace.kafka.codec._produce",
            sources=["src/headrace/kafka/codec/_produce.c", *(str(HERE / name) for name in ("_header.c", "_crc32c.c"))],
            depends=HEADERS,
            optional=True,
        ),
    ]
)
