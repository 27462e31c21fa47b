"""Load schemas and their references by ID, from a folder or a registry with Confluent's API.

Source: Confluent's documentation, "Schema Registry API Reference".
"""

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.client.errors import OptionError, StoreUnavailable

_TIMEOUT_S: Final = 10.0
_LONGEST: Final = 4 << 20
_MOST_REFERENCES: Final = 200
_MOST_TEXT: Final = 16 << 20
"""Maximum characters of a schema with its references."""
_HIGHEST_ID: Final = (1 << 31) - 1
"""IDs are signed 32-bit integers; the answer of a registry to larger ones is undefined."""
_REMEMBERED_S: Final = 30.0
"""Seconds before an ID without a usable schema is requested again."""
_MOST_REMEMBERED: Final = 10_000
_LATER: Final = {408, 429}
"""Status codes after which a retry may find the schema."""
_ENDINGS: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


@dataclass(frozen=True)
class Schema:
    """A schema of a registry."""

    kind: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    text: str
    others: Mapping[str, str] = field(default_factory=dict)
    """Referenced schemas by reference name, in order of dependency."""
    folder: str | None = None
    """A folder with more of them."""
    descriptors: bytes = b""
    """Protobuf: the compiled FileDescriptorSet, if it is known."""


class Registry:
    """Schemas by ID, each requested once per process."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare. `place` is a URL or a folder with files `<id>.avsc`, `<id>.json`, `<id>.proto`."""
        self._place = place
        self._clock = clock
        self._found: dict[int, Schema] = {}
        self._missing: dict[int, tuple[float, str | None]] = {}

    def schema(self, number: int) -> Schema | None:
        """Return the schema of an ID, or None.

        Raise StoreUnavailable, RegistryRefused, or OptionError if it is unusable or only this ID is refused.
        """
        if number in self._found:
            return self._found[number]
        if not self.asks(number):
            why = None if number > _HIGHEST_ID else self._missing[number][1]
            if why is not None:
                raise OptionError(why)
            return None
        try:
            found = self._ask(number) if self._is_remote() else self._look(number)
        except RegistryRefused:
            raise
        except OptionError as error:
            self._remember(number, str(error))
            raise
        if found is None:
            self._remember(number, None)  # it may be registered later
        else:
            self._found[number] = found
        return found

    def asks(self, number: int) -> bool:
        """Return whether a schema takes a request or file access."""
        if number in self._found or number > _HIGHEST_ID:
            return False
        until, _ = self._missing.get(number, (self._clock(), None))
        return until <= self._clock()

    def _remember(self, number: int, why: str | None) -> None:
        if not self._is_remote():
            return
        if len(self._missing) >= _MOST_REMEMBERED:
            self._missing.clear()
        self._missing[number] = self._clock() + _REMEMBERED_S, why

    def _is_remote(self) -> bool:
        return "://" in self._place

    def _look(self, number: int) -> Schema | None:
        folder = Path(self._place)
        for ending, kind in _ENDINGS.items():
            path = folder / f"{number}{ending}"
            if path.is_file():
                try:
                    text = path.read_text("utf-8")
                except UnicodeDecodeError:
                    raise OptionError(f"{path.name} is not text") from None
                others = _in_folder(folder, text, kind)
                return Schema(kind, text, others, self._place)
        return None

    def _ask(self, number: int) -> Schema | None:
        found = self._get(f"/schemas/ids/{number}")
        if found is None:
            return None
        where = f"schema {number}"
        others: dict[str, str] = {}
        try:
            self._collect(found, others, set(), where)
        except (KeyError, ValueError, TypeError, OverflowError):
            raise OptionError(
                f"{where} has references that cannot be read: expected a list of name, subject and version"
            ) from None
        return Schema(_text(found.get("schemaType") or "AVRO"), _text(found["schema"]), others)

    def _collect(self, found: Mapping[str, Any], others: dict[str, str], asked: set[str], where: str) -> None:
        for reference in found.get("references") or ():
            name = _text(reference["name"])
            if name in asked:
                continue
            asked.add(name)
            if len(asked) > _MOST_REFERENCES:
                raise OptionError(f"{where} refers to more than {_MOST_REFERENCES} schemas")
            subject = urllib.parse.quote(_text(reference["subject"]), safe="")
            inner = self._get(f"/subjects/{subject}/versions/{int(reference['version'])}")
            if inner is None:
                raise OptionError(
                    f"{where} refers to {name!r}, version {reference['version']} of subject {reference['subject']!r}, "
                    "which the registry does not have"
                )
            self._collect(inner, others, asked, where)
            others[name] = _text(inner["schema"])
            if sum(map(len, others.values())) > _MOST_TEXT:
                raise OptionError(f"{where} has, with those that it refers to, more than {_MOST_TEXT:,} characters")

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer, or None if the schema does not exist. Raise as `schema`."""
        host = self._host()
        status, body = self._request(path)
        if status == 404:
            return None
        if status == 403 and self._answers():
            raise OptionError(f"the schema registry at {host} answers 403 for {path}: this user may not read it")
        if status in {401, 403}:
            raise RegistryRefused(
                f"the schema registry at {host} answers {status} for {path}: give user and password in its URL, "
                "https://USER:PASSWORD@HOST"
            )
        if _is_away(status):
            raise StoreUnavailable(f"the schema registry at {host} answers {status} for {path}")
        if status != 200:
            raise OptionError(f"the schema registry at {host} answers {status} for {path}")
        found = _parsed(body)
        if isinstance(found, dict) and isinstance(found.get("schema"), str):
            return found
        if not self._answers():
            raise StoreUnavailable(f"what answers at {host} is no schema registry")
        if len(body) > _LONGEST:
            raise OptionError(f"the schema registry at {host} answers more than {_LONGEST >> 20} MiB for {path}")
        raise OptionError(f"the schema registry at {host} answers no schema for {path}")

    def _answers(self) -> bool:
        status, body = self._request("/schemas/types")
        if _is_away(status):
            raise StoreUnavailable(f"the schema registry at {self._host()} answers {status} for /schemas/types")
        return status not in {401, 403} and (status != 200 or _parsed(body) is not None)

    def _host(self) -> str:
        return urllib.parse.urlsplit(self._place).netloc.rpartition("@")[2]

    def _request(self, path: str) -> tuple[int, bytes]:
        parts = urllib.parse.urlsplit(self._place)
        host = self._host()
        request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}{path}")
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            request.add_header("authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                body = response.read(_LONGEST + 1)
                if response.length and len(body) <= _LONGEST:
                    raise http.client.IncompleteRead(body)
                return 200, body
        except urllib.error.HTTPError as error:
            with error:
                return error.code, b""
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"the schema registry at {host} does not answer: {error}") from None


class RegistryRefused(OptionError):
    """The registry denies access. No value is set aside."""


def _is_away(status: int) -> bool:
    return status in _LATER or (status != 200 and not 400 <= status < 500)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if len(body) <= _LONGEST else None
    except (ValueError, RecursionError):
        return None


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise OptionError(f"the registry answers {json.dumps(found)[:60]} where a text belongs")
    return found


def _in_folder(folder: Path, text: str, kind: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if kind == "AVRO":
        _collect_names(folder, text, found, set())
    return found


def _collect_names(folder: Path, text: str, found: dict[str, str], asked: set[str]) -> None:
    try:
        left = [(json.loads(text), "")]
    except (ValueError, RecursionError):
        return  # reported by its reader
    names: set[str] = set()
    while left:
        one, space = left.pop()
        if isinstance(one, str):
            names |= {one, f"{space}.{one}"} if space and "." not in one else {one}
        elif isinstance(one, list):
            left += [(each, space) for each in one]
        elif isinstance(one, dict):
            name = one.get("name")
            inside = one.get("namespace", name.rpartition(".")[0] if isinstance(name, str) and "." in name else space)
            inside = inside if isinstance(inside, str) else space
            left += [(one[part], inside) for part in ("type", "items", "values", "fields") if part in one]
    for name in sorted(names - asked):
        asked.add(name)
        path = folder / f"{name}.avsc"
        if "/" in name or "\0" in name or len(asked) > _MOST_REFERENCES or len(name) > 200 or not path.is_file():
            continue
        inner = path.read_text("utf-8", errors="replace")
        _collect_names(folder, inner, found, asked)
        found[name] = inner
