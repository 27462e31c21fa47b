"""Paths of this machine and `file:` URLs: the one rule for Spark, Hadoop, Delta and Iceberg.

A path means itself, whatever characters it has. A `file:` URL has them percent-encoded. What a user writes is a URL
only where it begins with a scheme. Functions here need no Spark and no delta-rs.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(?i:file):/")
_FILE: Final = re.compile(r"(?i:file):(?://(?i:localhost)?(?=/)|(?=/(?!/)))")
_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|\x00-\x1f\x7f]")
"""What delta-rs 1.6 reads as another path (it decodes `%20` once more), or ends the process for."""
_NOT_FOR_URLS: Final = re.compile(r"[#?]")
_GLOB: Final = re.compile(r"[\\*?\[\]{}]")


def local_path(text: str) -> Path | None:
    """Return the path that a user means, absolute; None for the URL of an object store.

    Raises:
        ValueError: a `file:` URL of another machine.
    """
    if _SCHEME.match(text) is None:
        return Path(text).absolute()
    if text[:5].lower() != "file:":
        return None
    found = _FILE.match(text)
    if found is None:
        raise ValueError(f"{text} names a file of another machine: write file:///PATH, or the path alone")
    return Path(unquote(text[found.end() :]))


def file_url(path: Path) -> str:
    """Return the URL of a path: what is not a letter, a digit or one of `-._~/` is percent-encoded."""
    return path.absolute().as_uri()


def is_plain(path: Path) -> bool:
    """Whether the path is the same in a URL: encoding it, and decoding it, any number of times changes nothing."""
    text = str(path.absolute())
    return quote(text) == text


def iceberg_location(path: Path) -> str:
    """Return a path as Iceberg's tables list it: nothing is percent-encoded, and readers decode nothing.

    pyiceberg ends the path of a URL at the first `#` or `?`; such a path is listed without a scheme.
    """
    text = str(path.absolute())
    return text if _NOT_FOR_URLS.search(text) else f"file://{text}"


def delta_problem(path: Path) -> str | None:
    """Return why a Delta table cannot lie at a path; None where it can."""
    found = _NOT_FOR_DELTA.search(str(path.absolute()))
    if found is None:
        return None
    return f"delta-rs cannot use a folder with {found[0]!r} in its path: name another folder"


def for_spark(uris: list[str]) -> list[str]:
    """Return the files that delta-rs names (`DeltaTable.file_uris()`) as `spark.read.parquet` takes them.

    delta-rs percent-encodes local paths although they are no URLs, and Spark decodes nothing but matches patterns. A
    path with a colon and one of `*?[]{}` cannot be read that way: Hadoop refuses it with or without escapes.
    """
    return [_GLOB.sub(r"\\\g<0>", each) for each in decoded(uris)]


def decoded(uris: list[str]) -> list[str]:
    """Return the files that delta-rs names (`DeltaTable.file_uris()`) as paths; those of object stores as they are."""
    return [unquote(each) if each.startswith("/") else each for each in uris]
