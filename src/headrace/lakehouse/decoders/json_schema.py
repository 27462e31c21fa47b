"""Kinds of columns from a JSON Schema."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.kinds import (
    BOOL,
    DEEPEST,
    FLOAT,
    INT,
    JSON,
    TEXT,
    TIME_TEXT,
    Kind,
    array,
    mapping,
    struct,
)
from headrace.lakehouse.write.columns import MOST_COLUMNS

_TYPES: Final = {"string": TEXT, "integer": INT, "number": FLOAT, "boolean": BOOL, "null": JSON}
_LONGEST_CHAIN: Final = 100
"""References that lead to one another."""
_MOST_STEPS: Final = 1_000_000
"""References followed, and what `allOf` joins, in one schema."""

Loader = Callable[[str], str | None]
"""The text of another schema by the name that a reference has; None where there is none."""


class SchemaError(ValueError):
    """Invalid schema; the message names the field."""


def parse(text: str, where: str, load: Loader = lambda _: None) -> Kind:
    """Return the struct of a schema. `where` names it in messages; `load` finds references. Raise OptionError."""
    try:
        described = json.loads(text)
        kind = _Reader(described, load).kind(described, "", (), described)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OptionError(f"{where} is not a JSON Schema that columns can be made of: {error}") from None
    if kind.name != "struct":
        raise OptionError(f"{where} describes no object with properties: columns come from its properties")
    if kind.leaves > MOST_COLUMNS:
        raise OptionError(f"{where} describes {kind.leaves:,} columns, a table has at most {MOST_COLUMNS:,}")
    return kind


class _Reader:
    def __init__(self, root: Any, load: Loader) -> None:
        self._root = root
        self._load = load
        self._loaded: dict[str, Any] = {}
        self._seen = 0
        self._steps = 0
        self._joined: dict[int, tuple[Any, dict[str, Any] | None]] = {}
        """Result of each schema with `allOf`, by identity; None while it is computed."""

    def _step(self, count: int, path: str) -> None:
        self._steps += count
        if self._steps > _MOST_STEPS:
            raise SchemaError(
                f"field {path or '(the whole)'}: more than {_MOST_STEPS:,} steps through references and allOf"
            )

    def kind(self, described: Any, path: str, above: tuple[int, ...], root: Any) -> Kind:
        """`above` are the enclosing schemas by identity: a recursive one becomes JSON. References are in `root`."""
        self._seen += 1
        if self._seen > 20 * MOST_COLUMNS:
            raise SchemaError(f"field {path}: more than {20 * MOST_COLUMNS:,} schemas are in one another")
        described, root = self._resolved(described, path, root)
        if isinstance(described, bool) or described == {}:
            return JSON  # `false` allows no value; an existing one is kept
        if not isinstance(described, dict):
            raise SchemaError(f"field {path or '(the whole)'}: {str(described)[:60]} is no schema")
        if id(described) in above or len(above) >= DEEPEST:
            return JSON
        inside = (*above, id(described))
        options = [one for name in ("anyOf", "oneOf") for one in _list(described, name, path)]
        if options and not path:
            own = {name: each for name, each in described.items() if name not in {"anyOf", "oneOf"}}
            return self._whole([(own, root), *((one, root) for one in options)], inside)
        if options:
            return self._one_of([(one, root) for one in options], path, inside)
        kind = described.get("type")
        if isinstance(kind, list):
            return self._one_of([({**described, "type": one}, root) for one in kind], path, inside)
        return self._typed(described, kind, path, inside, root)

    def _typed(self, described: dict[str, Any], kind: Any, path: str, inside: tuple[int, ...], root: Any) -> Kind:
        if kind is None:
            if "properties" not in described:
                return _of_values(described)
            kind = "object"
        if kind == "object":
            return self._object(described, path, inside, root)
        if kind == "array":
            items = described.get("items", True)
            if isinstance(items, list) or "prefixItems" in described:
                return JSON
            return array(self.kind(items, f"{path}[]", inside, root))
        if not isinstance(kind, str) or kind not in _TYPES:
            raise SchemaError(f"field {path or '(the whole)'}: type {str(kind)[:60]!r} is not known")
        return TIME_TEXT if kind == "string" and described.get("format") == "date-time" else _TYPES[kind]

    def _object(self, described: dict[str, Any], path: str, inside: tuple[int, ...], root: Any) -> Kind:
        properties = described.get("properties", {})
        if not isinstance(properties, dict):
            raise SchemaError(f"field {path or '(the whole)'}: its properties are no object")
        if properties:
            fields = [
                (name, self.kind(each, f"{path}.{name}" if path else name, inside, root))
                for name, each in properties.items()
            ]
            try:
                return struct(fields)
            except ValueError as error:
                raise SchemaError(f"field {path or '(the whole)'}: {error}") from None
        others = described.get("additionalProperties")
        if isinstance(others, dict) and others and "patternProperties" not in described:
            return mapping(TEXT, self.kind(others, f"{path}.*", inside, root))
        return JSON

    def _one_of(self, options: list[tuple[Any, Any]], path: str, inside: tuple[int, ...]) -> Kind:
        kinds = [self.kind(one, path, inside, root) for one, root in options if not self._is_empty(one, path, root)]
        return _common(kinds)

    def _whole(self, options: list[tuple[Any, Any]], inside: tuple[int, ...]) -> Kind:
        """Return a struct of the properties of all objects. A property with several kinds becomes JSON."""
        kinds: dict[str, list[Kind]] = {}
        for one, root in options:
            for each in self.kind(one, "", inside, root).fields:
                kinds.setdefault(each.source, []).append(each.kind)
        if not kinds:
            return JSON
        try:
            return struct([(name, _common(found)) for name, found in kinds.items()])
        except ValueError as error:
            raise SchemaError(f"field (the whole): {error}") from None

    def _is_empty(self, described: Any, path: str, root: Any) -> bool:
        found, _ = self._resolved(described, path, root)
        if not isinstance(found, dict):
            return found is False
        return found.get("type") == "null" or found.get("const", 0) is None

    def _resolved(self, described: Any, path: str, root: Any) -> tuple[Any, Any]:
        for _ in range(_LONGEST_CHAIN):
            self._step(1, path)
            if not isinstance(described, dict):
                return described, root
            several = described.get("allOf")
            if isinstance(described.get("$ref"), str):
                described, root = self._referred(described["$ref"], path, root)
            elif isinstance(several, list) and len(several) == 1 and "properties" not in described:
                described = several[0]
            elif isinstance(several, list) and several:
                return self._merged(described, several, path, root), root
            else:
                return described, root
        raise SchemaError(f"field {path or '(the whole)'}: its references lead to one another")

    def _merged(self, described: dict[str, Any], several: list[Any], path: str, root: Any) -> dict[str, Any]:
        if id(described) in self._joined:
            _, known = self._joined[id(described)]
            if known is None:
                raise SchemaError(f"field {path or '(the whole)'}: its references lead to one another")
            return known
        self._joined[id(described)] = described, None
        properties: dict[str, Any] = {}
        whole = {name: each for name, each in described.items() if name != "allOf"}
        for one in [*several, dict(whole)]:
            found, inside = self._resolved(one, path, root)
            if not isinstance(found, dict) or inside is not root:
                raise SchemaError(f"field {path or '(the whole)'}: allOf of schemas in other documents")
            named = found.get("properties", {})
            self._step(len(found) + len(named), path)
            properties |= named
            for name, each in found.items():
                whole.setdefault(name, each)
        made = {**whole, "properties": properties} if properties else whole
        self._joined[id(described)] = described, made
        return made

    def _referred(self, reference: str, path: str, root: Any) -> tuple[Any, Any]:
        self._step(len(reference) // 10, path)
        name, _, pointer = reference.partition("#")
        if name:
            if name not in self._loaded:
                text = self._load(name)
                if text is None:
                    raise SchemaError(f"field {path or '(the whole)'}: there is no schema {name!r}")
                self._loaded[name] = json.loads(text)
            root = self._loaded[name]
        found = root
        for part in pointer.lstrip("/").split("/") if pointer.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~").replace("%25", "%")
            if isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise SchemaError(f"field {path or '(the whole)'}: {reference!r} leads nowhere")
        return found, root


def _common(kinds: Sequence[Kind]) -> Kind:
    if kinds and all(one == kinds[0] for one in kinds):
        return kinds[0]
    return FLOAT if kinds and all(one in {INT, FLOAT} for one in kinds) else JSON


def _list(described: dict[str, Any], name: str, path: str) -> list[Any]:
    found = described.get(name, [])
    if not isinstance(found, list):
        raise SchemaError(f"field {path or '(the whole)'}: its {name} is no list")
    return found


def _of_values(described: dict[str, Any]) -> Kind:
    listed = described.get("enum", [described["const"]] if "const" in described else [])
    types = {type(one) for one in listed if one is not None} if isinstance(listed, list) else set()
    kinds = {str: TEXT, int: INT, float: FLOAT, bool: BOOL}
    if len(types) == 1:
        return kinds.get(types.pop(), JSON)
    return FLOAT if types == {int, float} else JSON
