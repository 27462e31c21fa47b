"""Convert local paths and `file:` URLs for Spark, Hadoop, Delta and Iceberg by one rule.

A path is literal. A `file:` URL is percent-encoded. A user's text is a URL only if it begins with a scheme.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(?i:file):/")
_FILE: Final = re.compile(r"(?i:file):(?://(?i:localhost)?(?=/)|(?=/(?!/)))")
_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|\x00-\x1f\x7f]")
"""Characters for which delta-rs 1.6 uses another path (it decodes `%20` twice) or ends the process."""
_NOT_FOR_URLS: Final = re.compile(r"[#?]")
_GLOB: Final = re.compile(r"[\\*?\[\]{}]")


def local_path(text: str) -> Path | None:
    """Return the absolute path that a user means, or None for an object store. Raise ValueError."""
    if _SCHEME.match(text) is None:
        return Path(text).absolute()
    if text[:5].lower() != "file:":
        return None
    found = _FILE.match(text)
    if found is None:
        raise ValueError(f"{text} names a file of another machine: write file:///PATH, or the path alone")
    return Path(unquote(text[found.end() :]))


def file_url(path: Path) -> str:
    """Return a path's URL, in which letters, digits and `-._~/` are not percent-encoded."""
    return path.absolute().as_uri()


def is_plain(path: Path) -> bool:
    """Return whether encoding and decoding the path changes nothing."""
    text = str(path.absolute())
    return quote(text) == text


def iceberg_location(path: Path) -> str:
    """Return a path as Iceberg's tables list it: neither encoded nor decoded.

    pyiceberg ends a URL's path at the first `#` or `?`, so such a path has no scheme.
    """
    text = str(path.absolute())
    return text if _NOT_FOR_URLS.search(text) else f"file://{text}"


def delta_problem(path: Path) -> str | None:
    """Return why Delta cannot use a path, or None."""
    found = _NOT_FOR_DELTA.search(str(path.absolute()))
    if found is None:
        return None
    return f"delta-rs cannot use a folder with {found[0]!r} in its path: name another folder"


def for_spark(uris: list[str]) -> list[str]:
    """Return the files of `DeltaTable.file_uris()` as `spark.read.parquet` takes them.

    delta-rs percent-encodes local paths although they are no URLs. Spark decodes nothing and matches patterns. Hadoop
    rejects a path with a colon and one of `*?[]{}`, escaped or not.
    """
    return [_GLOB.sub(r"\\\g<0>", each) for each in decoded(uris)]


def decoded(uris: list[str]) -> list[str]:
    """Return the files of `DeltaTable.file_uris()` as paths or object store URLs."""
    return [unquote(each) if each.startswith("/") else each for each in uris]
