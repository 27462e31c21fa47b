"""The C extensions, which pyproject.toml cannot describe yet.

Without a compiler the install goes on without them. HEADRACE_EXTENSIONS says what else is wanted: `required`, and a
build that fails or warns fails the install; `sanitized`, the same with AddressSanitizer and
UndefinedBehaviorSanitizer in them; `none`, to try what machines without a compiler get.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined"]
FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "optional": ([], []),
    "required": (WARNINGS, []),
    "sanitized": (
        [*WARNINGS, *SANITIZERS, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"],
        SANITIZERS,
    ),
}
WANTED = os.environ.get("HEADRACE_EXTENSIONS") or "optional"
if WANTED not in {*FLAGS, "none"}:
    raise SystemExit(f"HEADRACE_EXTENSIONS is {WANTED!r}; it takes {', '.join(FLAGS)} or none")

ROOT = Path("src/headrace")
RECORDS = ROOT / "records/c"


def extension(name: str, sources: list[Path], depends: tuple[Path, ...] = ()) -> Extension:
    """An extension of the package `headrace`, built as HEADRACE_EXTENSIONS says."""
    compiling, linking = FLAGS[WANTED]
    return Extension(
        f"headrace.{name}",
        sources=[str(source) for source in sources],
        depends=[str(header) for header in depends],
        extra_compile_args=compiling,
        extra_link_args=linking,
        optional=WANTED == "optional",
    )


def extensions() -> list[Extension]:
    """All of them."""
    compiled = (
        "_compiled.c", "_header.c", "_crc32c.c", "_record.c", "_columns.c", "_encode.c", "_messages.c", "_publish.c",
        "_base64.c", "_receipts.c", "_find.c", "_checks.c", "_some.c",
        "_offset_map.c", "_clean.c", "_merge.c",
    )  # fmt: skip
    streams = ("_streams.c", "_header_text.c", "_base64.c", "_crc32c.c", "_record.c")
    headers = tuple(
        RECORDS / name for name in ("_compiled.h", "_header.h", "_writing.h", "_base64.h", "_header_text.h", "_clean.h")
    )
    return [
        extension("records._compiled", [RECORDS / name for name in compiled], headers),
        extension("records._streams", [RECORDS / name for name in streams], headers),
        extension("storage.redis._reader", [ROOT / "storage/redis/_reader.c"]),
        extension(
            "storage.valkey._aof",
            [ROOT / "storage/valkey" / name for name in ("_aof.c", "_aof_index.c", "_aof_scan.c")],
            (ROOT / "storage/valkey/_aof.h",),
        ),
        extension(
            "protocol._produce",
            [ROOT / "protocol/_produce.c", RECORDS / "_header.c", RECORDS / "_crc32c.c"],
            headers,
        ),
    ]


setup(ext_modules=[] if WANTED == "none" else extensions())
