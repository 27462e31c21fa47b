"""Schemas by id, with those that they refer to: from a folder, or from a registry as Confluent's answers.

Source: Confluent's documentation, "Schema Registry API Reference".
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.client.errors import OptionError, StoreUnavailable

_TIMEOUT_S: Final = 10.0
_LONGEST: Final = 4 << 20
_MOST_REFERENCES: Final = 200
_ENDINGS: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


@dataclass(frozen=True)
class Schema:
    """A schema as a registry has it."""

    kind: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    text: str
    others: Mapping[str, str] = field(default_factory=dict)
    """The schemas that it refers to, by the names by which it does; those without references first."""
    folder: str | None = None
    """Where more of them may be."""


class Registry:
    """Schemas by id; each is asked for once in a process."""

    def __init__(self, place: str) -> None:
        """`place`: a folder with files `<id>.avsc`, `<id>.json`, `<id>.proto`, or the URL of a registry."""
        self._place = place
        self._found: dict[int, Schema] = {}

    def schema(self, number: int) -> Schema | None:
        """The schema of that id; None when there is none.

        Raises:
            StoreUnavailable: the registry does not answer: whether there is one is not known.
            OptionError: the registry does not let us in, or the schema's references lead nowhere.
        """
        if number not in self._found:
            found = self._ask(number) if "://" in self._place else self._look(number)
            if found is None:
                return None  # it may come
            self._found[number] = found
        return self._found[number]

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
        others: dict[str, str] = {}
        self._collect(found, others, set(), f"schema {number}")
        return Schema(_text(found.get("schemaType") or "AVRO"), _text(found["schema"]), others)

    def _collect(self, found: Mapping[str, Any], others: dict[str, str], asked: set[str], where: str) -> None:
        """The schemas that one refers to, depth first."""
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

    def _get(self, path: str) -> dict[str, Any] | None:
        parts = urllib.parse.urlsplit(self._place)
        host = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}{path}")
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            request.add_header("authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                found = json.loads(response.read(_LONGEST))
            if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
                raise ValueError("no schema in the answer")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                if error.code in {401, 403}:
                    raise RegistryRefused(
                        f"the schema registry at {host} answers {error.code} for {path}: give user and password in its "
                        "URL, https://USER:PASSWORD@HOST"
                    ) from None
                raise StoreUnavailable(f"the schema registry at {host} answers {error.code} for {path}") from None
        except (OSError, ValueError, KeyError) as error:
            raise StoreUnavailable(f"the schema registry at {host} does not answer: {error}") from None
        return found


class RegistryRefused(OptionError):
    """The registry does not let us in: no value can be decoded, and none is set aside for it."""


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise OptionError(f"the registry answers {json.dumps(found)[:60]} where a text belongs")
    return found


def _in_folder(folder: Path, text: str, kind: str) -> dict[str, str]:
    """The Avro schemas of a folder that are there by their full names, `<name>.avsc`, as far as one refers to them.

    Imports of Protobuf and JSON Schema are found by the readers of these.
    """
    found: dict[str, str] = {}
    if kind == "AVRO":
        _collect_names(folder, text, found, set())
    return found


def _collect_names(folder: Path, text: str, found: dict[str, str], asked: set[str]) -> None:
    try:
        left = [(json.loads(text), "")]
    except (ValueError, RecursionError):
        return  # it is no schema, which its reader says
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
