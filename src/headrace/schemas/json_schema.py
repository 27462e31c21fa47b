"""JSON Schemas: checked against their metaschema, with references resolved within the schema and its imports.

Source: JSON Schema, drafts 4 to 2020-12; Confluent's documentation, "JSON Schema Serializer and Deserializer".
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin

from headrace.schemas import json_text, metaschema
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Referenced

DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema": "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema": "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema": "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
}
_DEFAULT_DRAFT: Final = "http://json-schema.org/draft-07/schema"
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are data, not schemas."""
_LONGEST_CHAIN: Final = 100


class Node(NamedTuple):
    """A subschema, and where its references lead from."""

    schema: Any
    documents: "Documents"
    root: str
    """Name of the document that contains it; empty: the schema itself."""


class Documents:
    """A schema with the schemas that it imports."""

    def __init__(self, document: Any, referenced: Sequence[Referenced], steps: Steps) -> None:
        """Index all documents. Raises InvalidSchema."""
        self._steps = steps
        self._roots: dict[str, Any] = {}
        self._bases: dict[str, str] = {}
        self._by_id: dict[str, tuple[Any, str]] = {}
        self._joined: dict[int, dict[str, Any]] = {}
        for one in referenced:
            self._index(one.name, json_text.parse(one.schema.text, steps))
        self._refs: list[str] = []
        self._index("", document)
        for ref in self._refs:
            self._target(ref, "")
        self.node = Node(document, self, "")

    def _index(self, name: str, document: Any) -> None:
        self._refs = []
        base = _identity(document) or name
        self._roots[name], self._bases[name] = document, base
        left = [document]
        while left:
            one = left.pop()
            self._steps.take()
            if isinstance(one, list):
                left += one
            elif isinstance(one, dict):
                if identity := _identity(one):
                    self._by_id.setdefault(urljoin(base, identity).rstrip("#"), (one, name))
                if isinstance(anchor := one.get("$anchor"), str):
                    self._by_id.setdefault(f"{name}#{anchor}", (one, name))
                if isinstance(ref := one.get("$ref"), str):
                    self._refs.append(ref)
                left += [each for key, each in one.items() if key not in _DATA]

    def resolved(self, node: Node) -> Node:
        """Return the node that a reference leads to."""
        schema, _, root = node
        for _ in range(_LONGEST_CHAIN):
            self._steps.take()
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return Node(schema, self, root)
            if len(schema) > 1 and len(schema.keys() & CONSTRAINTS) > 1:
                return Node(self._with_siblings(schema), self, root)
            schema, root = self._target(schema["$ref"], root)
        return Node(True, self, root)  # references that lead to one another demand nothing

    def _with_siblings(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema in which a reference next to other keywords is a part of `allOf`."""
        made = self._joined.get(id(schema))
        if made is None:
            rest = {name: one for name, one in schema.items() if name != "$ref"}
            made = self._joined[id(schema)] = {"allOf": [{"$ref": schema["$ref"]}, rest]}
        return made

    def _target(self, ref: str, root: str) -> tuple[Any, str]:
        self._steps.take(1 + len(ref) // 10)
        name, _, pointer = ref.partition("#")
        document, place = self._document(name, root, ref)
        if not pointer:
            return document, place
        if not pointer.startswith("/"):
            found = self._by_id.get(f"{place}#{pointer}") or self._by_id.get(urljoin(self._bases[place], f"#{pointer}"))
            if found is None:
                raise InvalidSchema(f"Invalid JSON Schema: {ref[:200]!r} leads nowhere")
            return found
        return _at(document, pointer, ref), place

    def _document(self, name: str, root: str, ref: str) -> tuple[Any, str]:
        if not name:
            return self._roots[root], root
        for each in (name, urljoin(self._bases[root], name)):
            if each in self._roots:
                return self._roots[each], each
            if each in self._by_id:
                return self._by_id[each]
        raise InvalidSchema(f"Invalid JSON Schema: there is no schema {ref[:200]!r}: add a reference with this name")


CONSTRAINTS: Final = frozenset(
    {
        "type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "properties", "required",
        "patternProperties", "additionalProperties", "minProperties", "maxProperties", "dependencies",
        "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties", "items", "prefixItems",
        "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems",
        "unevaluatedItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "$ref", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
"""Keywords that reject values."""


def parse(document: Any, referenced: Sequence[Referenced], steps: Steps) -> Documents:
    """Return a schema with its imports.

    Raises:
        InvalidSchema: The schema violates its metaschema, or a reference leads nowhere.
    """
    if isinstance(document, bool):
        return Documents(document, referenced, steps)
    if not isinstance(document, dict):
        raise InvalidSchema("Invalid JSON Schema: expected an object, true or false")
    named = document.get("$schema", _DEFAULT_DRAFT)
    draft = DRAFTS.get(named.rstrip("#")) if isinstance(named, str) else None
    if draft is None:
        known = ", ".join(DRAFTS)
        raise InvalidSchema(f"Invalid JSON Schema: $schema is {json_text.compact(named)[:200]}; supported: {known}")
    metaschema.check(document, draft, steps)
    return Documents(document, referenced, steps)


def _identity(document: Any) -> str:
    if not isinstance(document, dict):
        return ""
    found = document.get("$id", document.get("id"))
    return found if isinstance(found, str) else ""


def _at(document: Any, pointer: str, ref: str) -> Any:
    found = document
    for part in pointer.lstrip("/").split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and len(key) < 10 and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise InvalidSchema(f"Invalid JSON Schema: {ref[:200]!r} leads nowhere")
    return found
