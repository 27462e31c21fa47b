"""Check a JSON Schema against its metaschema, and find what violates it.

The message of jsonschema-rs contains every alternative with a copy of the values in it. For 16,000 nested values that
took 27 s, in which no other thread ran. Large schemas are therefore only asked whether they are valid, and the message
comes from the smallest part that is not.
"""

from collections.abc import Iterator
from typing import Any, Final

from headrace.schemas.errors import InvalidSchema, Steps

MISSING_EXTRA: Final = "JSON Schema needs jsonschema-rs on the server: install the extra registry (docs/packages.md)"

_MAPS: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
_SCHEMAS: Final = frozenset(
    {
        "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "else", "if", "items",
        "not", "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords with a schema, or with a list of them."""
_COMPANIONS: Final = ("minimum", "maximum")
"""In draft 4, another keyword needs these."""
_MOST_SHOWN: Final = 20
_LONGEST: Final = 200


def check(document: dict[str, Any], draft: str, steps: Steps) -> None:
    """Raise InvalidSchema for a schema that violates its metaschema, with the place.

    Args:
        document: the schema.
        draft: URI of the metaschema.
        steps: the budget.
    """
    try:
        import jsonschema_rs  # noqa: F401, PLC0415  # an extra
    except ImportError:
        raise InvalidSchema(MISSING_EXTRA) from None
    if not _is_valid(document, draft):
        place, why = _violation(document, draft, steps)
        raise InvalidSchema(f"Invalid JSON Schema at /{'/'.join(place):.500}: {why:.500}")


def _is_valid(schema: dict[str, Any], draft: str) -> bool:
    import jsonschema_rs  # noqa: PLC0415  # an extra

    try:
        return jsonschema_rs.meta.is_valid({**schema, "$schema": draft})
    except (jsonschema_rs.ReferencingError, ValueError):
        return False


def _violation(schema: dict[str, Any], draft: str, steps: Steps) -> tuple[list[str], str]:
    place: list[str] = []
    while True:
        among: dict[str, Any] = {name: schema[name] for name in _COMPANIONS if name in schema}
        keyword = next((each for each in (*among, *schema) if not _passes(each, schema[each], among, draft, steps)), "")
        if not keyword:
            return place, "it violates its metaschema"
        place.append(keyword)
        for name, part, alone in _parts(keyword, schema[keyword]):
            if not _passes(keyword, alone, {}, draft, steps):
                place += [name] if name else []
                if not isinstance(part, dict):
                    return place, _message({keyword: _reduced(alone)}, draft)
                schema = part
                break
        else:
            return place, _message({**among, keyword: _reduced(schema[keyword])}, draft)


def _passes(keyword: str, value: Any, among: dict[str, Any], draft: str, steps: Steps) -> bool:
    steps.take()
    return _is_valid({keyword: value} if keyword in among else {**among, keyword: value}, draft)


def _parts(keyword: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and value of the schemas in a keyword, each also as the only one of the keyword."""
    if keyword in _MAPS and isinstance(value, dict):
        for name, part in value.items():
            yield name, part, {name: part}
    elif keyword in _SCHEMAS and isinstance(value, list):
        for index, part in enumerate(value):
            yield str(index), part, [part]
    elif keyword in _SCHEMAS and isinstance(value, dict):
        yield "", value, value


def _message(schema: dict[str, Any], draft: str) -> str:
    import jsonschema_rs  # noqa: PLC0415  # an extra

    try:
        jsonschema_rs.meta.validate({**schema, "$schema": draft})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return str(getattr(error, "message", error))
    return "its value is not valid"


def _reduced(value: Any, depth: int = 2) -> Any:
    """Return a value for a message: with few parts, each of them short."""
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, dict):
        kept = list(value.items())[:_MOST_SHOWN] if depth else []
        return {name[:_LONGEST]: _reduced(each, depth - 1) for name, each in kept}
    if isinstance(value, list):
        return [_reduced(each, depth - 1) for each in value[:_MOST_SHOWN]] if depth else []
    return value
