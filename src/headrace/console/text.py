"""Format values, client-supplied names and paths for pages. Pure."""

import json
import re
import shlex
from collections.abc import Mapping
from urllib.parse import quote, unquote

import msgspec

from headrace.broker.virtual_clusters import DEFAULT
from headrace.text.escaping import json_text, shown

MOST_SHOWN = 16 << 10
"""Maximum bytes shown of a key, a value or a header."""
_PREVIEW = 160
"""Maximum characters of it in a list."""
_MOST_REASON = 1_000
"""Maximum characters of an error message."""
_HEX = 4 << 10
"""Bytes of it in hexadecimal."""
_ROW = 16
_DEEP = 100
"""Maximum levels of formatted JSON."""


def count(value: float | None) -> str:
    """Return a whole number with separators; a dash for None."""
    return "-" if value is None else f"{value:,.0f}"


def many(number: int, what: str) -> str:
    """Return a number with its noun: `1 topic`, `2 topics`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def short(value: float | None) -> str:
    """Return a number in at most five characters: 999, 12.3k, 4.5M."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.99995:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 100 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    """Return bytes with a decimal unit: 512 B, 1.2 MB."""
    if value is None:
        return "-"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * 0.99995:
            scaled = value / scale
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 100 else f"{scaled:.1f} {unit}"
    return f"{value:.0f} B"


def span(seconds: float | None) -> str:
    """Return a duration in its two largest units: 3 d 4 h, 12 s, 0.4 s."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    whole = int(seconds)
    for (name, length), (smaller, shorter) in (
        (("d", 86_400), ("h", 3_600)),
        (("h", 3_600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= length:
            many, rest = divmod(whole, length)
            return f"{many} {name}" + (f" {rest // shorter} {smaller}" if rest // shorter else "")
    return f"{whole} s"


def preview(data: bytes | None) -> str:
    """Return a key or a value as one line."""
    return shown(data, _PREVIEW)


class Views(msgspec.Struct, frozen=True):
    """All views of some bytes."""

    size: int
    null: bool
    cut: bool
    """Whether it is truncated."""
    utf8: bool
    text: str
    json: str | None
    """Formatted; None: not JSON, or truncated."""
    hex: str
    """Rows of offset, bytes and ASCII."""


def views(data: bytes | None) -> Views:
    """Return all views, truncated to `MOST_SHOWN` bytes."""
    if data is None:
        return Views(0, True, False, True, "", None, "")
    part = data[:MOST_SHOWN]
    cut = len(part) < len(data)
    if cut:
        # Do not cut within a character.
        part = part[: len(part) - len(part.decode("utf-8", "ignore").encode()) and len(part)]
    try:
        (part if not cut else part[:-3]).decode("utf-8")
        utf8 = True
    except UnicodeDecodeError:
        utf8 = False
    lines = part.decode("utf-8", "backslashreplace").split("\n")
    return Views(
        size=len(data),
        null=False,
        cut=cut,
        utf8=utf8,
        text="\n".join(map(shown, lines)),
        json=None if cut else _json(part),
        hex=_hex(part[:_HEX]),
    )


def _json(data: bytes) -> str | None:
    if data[:1].strip() not in {b"{", b"["}:
        return None
    if data.count(b"[") + data.count(b"{") > _DEEP and _depth(data) > _DEEP:
        return None
    try:
        return json_text(json.loads(data), indent=2)
    except (ValueError, RecursionError):
        return None


def _depth(data: bytes) -> int:
    deepest = now = 0
    for byte in data:
        if byte in b"[{":
            now += 1
            deepest = max(deepest, now)
        elif byte in b"]}":
            now -= 1
    return deepest


def _hex(data: bytes) -> str:
    rows = []
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        rows.append(f"{start:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {letters}")
    return "\n".join(rows)


def name(given: str) -> str:
    """Return a client-supplied name for display."""
    return shown(given, _PREVIEW)


def typed(given: str) -> str:
    """Return user input for its field, without characters that cannot be typed."""
    return given if given.isprintable() else "".join(filter(str.isprintable, given))


def lines(given: str) -> str:
    """Return user input for a field of several lines, as `typed`."""
    return "".join(each for each in given if each.isprintable() or each in "\n\t")


def reason(given: str) -> str:
    """Return the message of an error, which may contain user input, for display."""
    return shown(given, _MOST_REASON)


_DOTS = re.compile(r"~*\.\.?")
"""Names escaped with one more `~`, because browsers resolve `.` and `..` in paths, even as `%2E`."""


def name_in(text: str) -> str:
    """Return a name escaped for a path."""
    return _quoted("~" + text if _DOTS.fullmatch(text) else text)


def name_of(part: str) -> str:
    """Return the inverse of `name_in`. Bytes that are not UTF-8 stay distinct."""
    text = unquote(part, errors="surrogateescape" if "%ED" not in part.upper() else "surrogatepass")
    return text.removeprefix("~") if _DOTS.fullmatch(text) else text


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def link(path: str, cluster: str = DEFAULT, query: Mapping[str, object] | None = None) -> str:
    """Return a path with its query, without the default virtual cluster and None values."""
    told = {} if cluster == DEFAULT else {"cluster": cluster}
    told |= {name: str(value) for name, value in (query or {}).items() if value not in {None, ""}}
    parts = [f"{_quoted(name)}={_quoted(value)}" for name, value in told.items()]
    return path + ("?" + "&".join(parts) if parts else "")


def topic(name: str, cluster: str = DEFAULT) -> str:
    """Return the path of a topic's page."""
    return link(f"/topics/{name_in(name)}", cluster)


def records(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """Return the path of a topic's records."""
    return link(f"/topics/{name_in(name)}/records", cluster, query)


def produce(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """Return the path of the form that produces to a topic."""
    return link(f"/topics/{name_in(name)}/produce", cluster, query)


def edit(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """Return the path of the forms that alter or delete a topic."""
    return link(f"/topics/{name_in(name)}/edit", cluster, query)


def group(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """Return the path of a group's page."""
    return link(f"/groups/{name_in(name)}", cluster, query)


_POOL_USER = "TENANCY/USER/OCID"
"""Clients choose a virtual cluster by the user of a stream pool."""


def kafka_command(bootstrap: str, *words: str, cluster: str = DEFAULT) -> str:
    """Return a command that connects to the Kafka listener, because the default may be another server.

    Args:
        bootstrap: address of the listener.
        words: the command without `headrace`; they are quoted for the shell.
        cluster: the virtual cluster that it must act on.
    """
    login = [] if cluster == DEFAULT else ["--username", _POOL_USER]
    return shlex.join(["headrace", *words, "--bootstrap", bootstrap, *login])


def storage_command(storage: str, *words: str) -> str:
    """Return a command that connects to the storage, by its URL without a password."""
    return shlex.join(["headrace", *words, "--redis", storage])


def creating_user(bootstrap: str) -> str:
    """Return the command that creates the first user."""
    return kafka_command(bootstrap, "users", "create", "NAME", "--password-file", "FILE")
