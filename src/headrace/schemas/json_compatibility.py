"""Whether one JSON Schema accepts all values that another one accepts.

The rules are those of Confluent's registry. For example, a property that is added to an open content model is
incompatible, and a required property with a default value is compatible.

Source: Confluent's documentation, "Schema Evolution and Compatibility", "JSON Schema compatibility rules".
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from headrace.schemas import json_text
from headrace.schemas.errors import DEEPEST, InvalidSchema, Steps
from headrace.schemas.json_schema import CONSTRAINTS, Documents, Node
from headrace.schemas.model import Difference

Found = tuple[Difference, ...]
Matches = Callable[[str, str], bool]
"""Returns whether a pattern matches a part of a text, in linear time; True if the pattern is not supported."""

_MOST_FOUND: Final = 50
_UPPER: Final = {
    "maxLength": ("string", "MAX_LENGTH"),
    "maximum": ("number", "MAXIMUM"),
    "exclusiveMaximum": ("number", "EXCLUSIVE_MAXIMUM"),
    "maxItems": ("array", "MAX_ITEMS"),
    "maxProperties": ("object", "MAX_PROPERTIES"),
}
_LOWER: Final = {
    "minLength": ("string", "MIN_LENGTH"),
    "minimum": ("number", "MINIMUM"),
    "exclusiveMinimum": ("number", "EXCLUSIVE_MINIMUM"),
    "minItems": ("array", "MIN_ITEMS"),
    "minProperties": ("object", "MIN_PROPERTIES"),
}
_OPAQUE: Final = {
    "contains": "array", "minContains": "array", "maxContains": "array", "unevaluatedItems": "array",
    "propertyNames": "object", "unevaluatedProperties": "object", "dependentSchemas": "object", "if": "", "then": "",
    "else": "", "$dynamicRef": "", "$recursiveRef": "",
}  # fmt: skip
"""Keywords that are only compared for equality -> the type of values that they are about; empty: all."""
_COMBINED: Final = frozenset({"allOf", "anyOf", "oneOf", "not"})
_TYPE_OF: Final = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


class Comparison:
    """Compares pairs of subschemas. Each pair is compared once."""

    def __init__(self, steps: Steps, matches: Matches) -> None:
        """`steps` is the budget."""
        self._steps = steps
        self._matches = matches
        self._known: dict[tuple[int, int, str], Found] = {}
        self._depth = 0

    def differences(self, old: Node, new: Node, path: str = "#") -> Found:
        """Return why `new` rejects values that `old` accepts; empty: it accepts all.

        Raises:
            InvalidSchema: The comparison takes too many steps, or schemas are nested too deeply.
        """
        self._steps.take()
        old, new = old.documents.resolved(old), new.documents.resolved(new)
        if not isinstance(new.schema, dict | bool) or is_empty(new.schema) or old.schema is False:
            return ()
        if new.schema is False:
            return (Difference("TYPE_CHANGED", path, "the new schema rejects all values"),)
        found: list[Difference] = []
        for part, check in self._parts(new, path):
            found += self._implied(old, new, part, check, path)
        return tuple(found[:_MOST_FOUND])

    def _parts(self, new: Node, path: str) -> Iterator[tuple[str, Callable[[Node], Found]]]:
        """Yield what the new schema demands: a value must satisfy each part."""
        schema = new.schema
        if schema.keys() & CONSTRAINTS - _COMBINED:
            yield "", partial(self._own, new=new, path=path)
        for place, one in enumerate(_list(schema, "allOf")):
            yield f"allOf/{place}", partial(self.differences, new=_inner(new, one), path=f"{path}/allOf/{place}")
        for name in ("anyOf", "oneOf"):
            if _list(schema, name):
                yield name, partial(self._one_of, new=new, name=name, path=path)
        if "not" in schema:
            yield "not", partial(self._not, new=new, path=path)

    def _implied(self, old: Node, new: Node, part: str, check: Callable[[Node], Found], path: str) -> Found:
        """Return why values of the old schema may violate one part of the new one."""
        self._steps.take()
        old = old.documents.resolved(old)
        key = (id(old.schema), id(new.schema), part)
        known = self._known.get(key)
        if known is not None:
            return known
        self._known[key] = ()  # a recursive schema is compatible unless another part of it is not
        self._depth += 1
        if self._depth > DEEPEST:
            raise InvalidSchema(f"The schema is too complex: more than {DEEPEST} schemas are nested in one another")
        found = self._known[key] = self._unless_implied(old, new, part, check, path)
        self._depth -= 1
        return found

    def _unless_implied(self, old: Node, new: Node, part: str, check: Callable[[Node], Found], path: str) -> Found:
        found = check(old)
        if not found or not isinstance(old.schema, dict):
            return found
        for one in _list(old.schema, "allOf"):
            if not self._implied(_inner(old, one), new, part, check, path):
                return ()
        for name in ("anyOf", "oneOf"):
            if options := _list(old.schema, name):
                here = [self._implied(_inner(old, one), new, part, check, path) for one in options]
                if not any(here):
                    return ()
                if not old.schema.keys() & CONSTRAINTS - {name}:
                    return tuple(one for some in here for one in some)[:_MOST_FOUND]
        return found

    def _one_of(self, old: Node, new: Node, name: str, path: str) -> Found:
        options = new.schema[name]
        if any(not self.differences(old, _inner(new, one), f"{path}/{name}/{at}") for at, one in enumerate(options)):
            return ()
        return (
            Difference("SUM_TYPE_NARROWED", f"{path}/{name}", "no alternative accepts all values of the old schema"),
        )

    def _not(self, old: Node, new: Node, path: str) -> Found:
        excluded = [old.schema["not"]] if isinstance(old.schema, dict) and "not" in old.schema else []
        # What the new schema excludes must be excluded already.
        for one in excluded:
            if not self.differences(_inner(new, new.schema["not"]), _inner(old, one), f"{path}/not"):
                return ()
        return (Difference("NOT_TYPE_EXTENDED", f"{path}/not", "the new schema excludes more values"),)

    # Keywords

    def _own(self, old: Node, new: Node, path: str) -> Found:
        """Compare the keywords of two schemas, without those that combine others."""
        before = old.schema if isinstance(old.schema, dict) else {}
        self._steps.take(len(before) + len(new.schema))
        found = [*_types(before, new.schema, path)]
        if found and found[0].kind == "TYPE_CHANGED":
            return tuple(found)
        found += self._enums(before, new.schema, path)
        values = _types_of(before)
        found += _bounds(before, new.schema, values, path)
        for name, kind in _OPAQUE.items():
            if name in new.schema and _may_be(values, kind) and not _equal(before, new.schema, name):
                found.append(Difference("KEYWORD_CHANGED", f"{path}/{name}", f"{name} was added or changed"))
        if _may_be(values, "object"):
            found += self._object(old._replace(schema=before), new, path)
        if _may_be(values, "array"):
            found += self._array(old._replace(schema=before), new, path)
        return tuple(found[:_MOST_FOUND])

    def _enums(self, old: dict[str, Any], new: dict[str, Any], path: str) -> Found:
        after = _values(new)
        if after is None:
            return ()
        before = _values(old)
        if before is None:
            return (Difference("ENUM_ARRAY_NARROWED", f"{path}/enum", "only listed values are accepted now"),)
        missing = self._texts(before) - self._texts(after)
        if not missing:
            return ()
        return (Difference("ENUM_ARRAY_NARROWED", f"{path}/enum", f"removed: {', '.join(sorted(missing))[:200]}"),)

    def _texts(self, values: list[Any]) -> set[str]:
        self._steps.take(len(values))
        return {json_text.sorted_text(one) for one in values}

    def _object(self, old: Node, new: Node, path: str) -> Found:
        found: list[Difference] = []
        before, after = old.schema, new.schema
        own, others = _map(before, "properties"), _map(after, "properties")
        self._steps.take(len(own) + len(others))
        for name in {**own, **others}:
            at = f"{path}/properties/{name[:100]}"
            here = self.differences(self._property(old, name), self._property(new, name), at)
            if here and name not in own:
                found.append(Difference(_added(before), at, "the old schema accepts other values of this property"))
            elif here and name not in others:
                found.append(Difference(_removed(after), at, "the new schema rejects values of this property"))
            else:
                found += here
        found += self._required(before, after, path)
        for pattern, inner in _map(after, "patternProperties").items():
            known = _map(before, "patternProperties").get(pattern, before.get("additionalProperties", True))
            found += self.differences(
                _inner(old, known), _inner(new, inner), f"{path}/patternProperties/{pattern[:100]}"
            )
        for pattern in _map(before, "patternProperties").keys() - _map(after, "patternProperties").keys():
            inner, rest = before["patternProperties"][pattern], after.get("additionalProperties", True)
            found += self.differences(
                _inner(old, inner), _inner(new, rest), f"{path}/patternProperties/{pattern[:100]}"
            )
        rest, other = before.get("additionalProperties", True), after.get("additionalProperties", True)
        if here := self.differences(_inner(old, rest), _inner(new, other), f"{path}/additionalProperties"):
            kind = "ADDITIONAL_PROPERTIES_REMOVED" if other is False else "ADDITIONAL_PROPERTIES_NARROWED"
            found.append(Difference(kind, f"{path}/additionalProperties", here[0].detail))
        return (*found, *self._dependencies(old, new, path))

    def _property(self, node: Node, name: str) -> Node:
        """Return the schema for values of a property."""
        schema = node.schema
        if name in _map(schema, "properties"):
            return _inner(node, schema["properties"][name])
        for pattern, inner in _map(schema, "patternProperties").items():
            self._steps.take(10)
            if self._matches(pattern, name):
                return _inner(node, inner)
        return _inner(node, schema.get("additionalProperties", True))

    def _required(self, old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[Difference]:
        before = _names(old)
        self._steps.take(len(before))
        for name in sorted(_names(new) - before):
            described = _map(new, "properties").get(name)
            if not (isinstance(described, dict) and "default" in described):
                text = f"the property {name[:100]} is required and has no default value"
                yield Difference("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name[:100]}", text)

    def _dependencies(self, old: Node, new: Node, path: str) -> Iterator[Difference]:
        for name in ("dependencies", "dependentRequired"):
            for key, after in _map(new.schema, name).items():
                before = _map(old.schema, name).get(key)
                at = f"{path}/{name}/{key[:100]}"
                if isinstance(after, list):
                    if not isinstance(before, list) or not self._texts(after) <= self._texts(before):
                        yield Difference("DEPENDENCY_ARRAY_EXTENDED", at, "a dependency was added")
                else:
                    yield from self.differences(_inner(old, True if before is None else before), _inner(new, after), at)

    def _array(self, old: Node, new: Node, path: str) -> Found:
        before, rest = _items(old.schema)
        after, other = _items(new.schema)
        found: list[Difference] = []
        for place in range(max(len(before), len(after))):
            one = before[place] if place < len(before) else rest
            two = after[place] if place < len(after) else other
            found += self.differences(_inner(old, one), _inner(new, two), f"{path}/items/{place}")
        return (*found, *self.differences(_inner(old, rest), _inner(new, other), f"{path}/items"))


def compare(old: Documents, new: Documents, steps: Steps, matches: Matches) -> Found:
    """Return why the new schema rejects values that the old one accepts; empty: it accepts all."""
    return Comparison(steps, matches).differences(old.node, new.node)


def linear_matches(pattern: str, text: str) -> bool:
    """See `Matches`."""
    import jsonschema_rs  # noqa: PLC0415  # an extra

    try:
        options = jsonschema_rs.RegexOptions(size_limit=1 << 20)
        return bool(jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=options).is_valid(text))
    except ValueError:
        return True


def is_empty(schema: Any) -> bool:
    """Return whether a schema accepts all values."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() & CONSTRAINTS)


def _inner(node: Node, schema: Any) -> Node:
    return Node(schema, node.documents, node.root)


def _types_of(schema: dict[str, Any]) -> frozenset[str] | None:
    """Return the types of the values; None: all."""
    found = schema.get("type")
    if isinstance(found, str):
        return frozenset({found})
    if isinstance(found, list):
        return frozenset(one for one in found if isinstance(one, str))
    values = _values(schema)
    return None if values is None else frozenset(_TYPE_OF.get(type(one), "null") for one in values)


def _may_be(types: frozenset[str] | None, kind: str) -> bool:
    return not kind or types is None or kind in types or (kind == "number" and "integer" in types)


def _types(old: dict[str, Any], new: dict[str, Any], path: str) -> Found:
    before, after = _types_of(old), _types_of(new)
    if "type" not in new or after is None:
        return ()
    if before is None:
        return (Difference("TYPE_NARROWED", f"{path}/type", f"only {', '.join(sorted(after))} is accepted now"),)
    accepted = after | ({"integer"} if "number" in after else set())
    if before <= accepted:
        return ()
    kind = "TYPE_NARROWED" if before & accepted else "TYPE_CHANGED"
    text = f"the type was {', '.join(sorted(before))} and is {', '.join(sorted(after))}"
    return (Difference(kind, f"{path}/type", text),)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    found = schema.get("enum")
    if isinstance(found, list):
        return found
    return [schema["const"]] if "const" in schema else None


def _bounds(old: dict[str, Any], new: dict[str, Any], values: frozenset[str] | None, path: str) -> Iterator[Difference]:
    for bounds, sign, worse in ((_UPPER, 1, "DECREASED"), (_LOWER, -1, "INCREASED")):
        for name, (kind, label) in bounds.items():
            after, before = (_number(each.get(name)) for each in (new, old))
            if after is None or not _may_be(values, kind) or _equal(old, new, name):
                continue
            if isinstance(after, bool) or isinstance(before, bool):  # draft 4
                if after is True:
                    yield Difference(f"{label}_ADDED", f"{path}/{name}", f"{name} was added")
            elif before is None:
                if not (sign < 0 and after == 0 and name.startswith("min") and name != "minimum"):
                    yield Difference(f"{label}_ADDED", f"{path}/{name}", f"{name} was added")
            elif sign * (after - before) < 0:
                yield Difference(f"{label}_{worse}", f"{path}/{name}", f"{name} was {before} and is {after}")
    if "pattern" in new and _may_be(values, "string") and not _equal(old, new, "pattern"):
        kind = "PATTERN_CHANGED" if "pattern" in old else "PATTERN_ADDED"
        yield Difference(kind, f"{path}/pattern", "the pattern was added or changed")
    if "multipleOf" in new and _may_be(values, "number") and not _is_multiple(old.get("multipleOf"), new["multipleOf"]):
        yield Difference("MULTIPLE_OF_CHANGED", f"{path}/multipleOf", "multipleOf was added or changed")
    if new.get("uniqueItems") is True and old.get("uniqueItems") is not True and _may_be(values, "array"):
        yield Difference("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "items must be unique now")


def _is_multiple(old: Any, new: Any) -> bool:
    try:
        return old is not None and old % new == 0
    except (ArithmeticError, TypeError):
        return False


def _equal(old: dict[str, Any], new: dict[str, Any], name: str) -> bool:
    return name in old and json_text.same(old[name], new[name])


def _names(schema: dict[str, Any]) -> set[str]:
    return {one for one in _list(schema, "required") if isinstance(one, str)}


# A keyword that the draft of a schema does not define may have any value.


def _map(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _number(found: Any) -> Any:
    return found if isinstance(found, int | float) else None


def _is_open(schema: dict[str, Any]) -> bool:
    return not schema.get("patternProperties") and is_empty(schema.get("additionalProperties", True))


def _added(old: dict[str, Any]) -> str:
    return f"PROPERTY_ADDED_{'TO_OPEN' if _is_open(old) else 'NOT_COVERED_BY_PARTIALLY_OPEN'}_CONTENT_MODEL"


def _removed(new: dict[str, Any]) -> str:
    closed = new.get("additionalProperties") is False and not new.get("patternProperties")
    return f"PROPERTY_REMOVED_{'FROM_CLOSED' if closed else 'NOT_COVERED_BY_PARTIALLY_OPEN'}_CONTENT_MODEL"


def _items(schema: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and of all others."""
    if prefix := _list(schema, "prefixItems"):
        return prefix, schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)
