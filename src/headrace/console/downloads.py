"""Write rows of a page as JSON Lines or CSV, in pieces.

CSV has a leading apostrophe in texts that a spreadsheet would evaluate, and in texts that begin with one. Removing one
leading apostrophe gives the exact text. Bytes that are not UTF-8 are in base64, and a field or column says so.
Source: RFC 4180; OWASP, "CSV Injection".
"""

import asyncio
import csv
import io
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.text.escaping import json_text

_PIECE: Final = 64 << 10
_EVALUATED: Final = tuple("=+-@\t\r\n'＝＋－＠")  # noqa: RUF001  # full-width signs are evaluated too
FORMATS: Final = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_NO_FILE: Final = str.maketrans(dict.fromkeys('\\/:*?"<>|;%', "_"))

MOST_DOWNLOADED: Final = 100_000
"""Maximum rows of a list."""

Row = Mapping[str, Any]
"""Values are texts, numbers, bytes, None, or for JSON lists of pairs."""


class Download(msgspec.Struct, frozen=True):
    """A file."""

    format: str
    """A key of `FORMATS`."""
    name: str
    """File name without its suffix."""
    columns: Sequence[str]
    rows: Iterable[Row]

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        name = "".join(letter for letter in self.name if " " < letter < "\x7f").translate(_NO_FILE)[:80].strip(".")
        return {
            "content-type": FORMATS[self.format],
            "content-disposition": f'attachment; filename="{name or "headrace"}.{self.format}"',
        }

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file."""
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        if self.format == "csv":
            writer.writerow([part for name in self.columns for part in _column(name)])
        for row in self.rows:
            if self.format == "csv":
                writer.writerow([part for name in self.columns for part in _cells(name, row.get(name))])
            else:
                file.write(json_text(_document(row)) + "\n")
            if file.tell() >= _PIECE:
                yield _taken(file)
                await asyncio.sleep(0)  # a list may have thousands of rows
        yield _taken(file)


def asked_format(query: Mapping[str, str]) -> str:
    """Return the format of the requested file; empty: a page is requested."""
    told = query.get("download", "")
    return told if told in FORMATS else ""


def _taken(file: io.StringIO) -> bytes:
    text = file.getvalue()
    file.seek(0)
    file.truncate()
    return text.encode("utf-8", "backslashreplace")


_BYTES: Final = frozenset({"key", "value"})
"""Columns of bytes."""


def _column(name: str) -> tuple[str, ...]:
    return (name, f"{name}_encoding") if name in _BYTES else (name,)


def _cells(name: str, value: Any) -> tuple[object, ...]:
    if name in _BYTES:
        text, encoding = encoded(value)
        return ("" if text is None else _safe(text)), encoding
    if value is None:
        return ("",)
    if isinstance(value, int | float):
        return (value,)
    return (_safe(value if isinstance(value, str) else json_text(value)),)


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_EVALUATED) else text


def encoded(data: bytes | None) -> tuple[str | None, str]:
    """Return bytes as text and the encoding: `utf-8`, `base64` or `null`."""
    if data is None:
        return None, "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"
    return (text, "utf-8") if "\0" not in text else (b64encode(data).decode(), "base64")


def _document(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name in _BYTES:
            text, encoding = encoded(value)
            made[name if encoding != "base64" else f"{name}_base64"] = text
        else:
            made[name] = value
    return made


def headers_of(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, str | None]]:
    """Return a record's headers as a list, because names may repeat."""
    made: list[dict[str, str | None]] = []
    for name, value in headers:
        text, encoding = encoded(value)
        made.append({"name": name, "value" if encoding != "base64" else "value_base64": text})
    return made
