"""Build the API's OpenAPI description from the registered operations. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.oci.api.registry import Nothing, Operation
from headrace.oci.api.routing import BASE

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)(:rest)?\}")
_LONGEST = {"groupName": 255}
_LONGEST_PARAMETER = 256
_REQUEST_ID = {
    "opc-request-id": {"description": "The request's id, as the client sent it.", "schema": {"type": "string"}}
}
_FAILURES = {
    400: "The request cannot be read, or breaks a rule.",
    401: "The signature is missing or wrong.",
    404: "There is no such resource, or no such path.",
    409: "It does not go together with what there is.",
    412: "The etag is not the resource's any more.",
    429: "Too many requests.",
    500: "A fault of the server.",
    503: "Storage does not answer; try again.",
}


class Error(msgspec.Struct):
    """An error."""

    code: str
    message: str


def describe(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the description as a JSON value."""
    listed = sorted(operations, key=lambda each: each.name)
    types = [Error, *(kind for each in listed for kind in (each.body, each.answer) if kind is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in listed:
        path = f"/{BASE}" + _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace: OCI Streaming",
            "version": version,
            "description": "Oracle's Streaming API over Headrace's log, for its unmodified SDKs and command line.",
        },
        "paths": paths,
        "components": {"schemas": components, "responses": _failures(by_type[_key(Error)])},
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(each: Operation, schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    summary, _, rest = each.doc.partition("\n\n")
    described: dict[str, Any] = {
        "operationId": each.name,
        "tags": [each.client],
        "summary": " ".join(summary.split()),
        "parameters": [*_path_parameters(each), *_struct_parameters(each.query, "query"),
                       *_struct_parameters(each.headers, "header")],
        "responses": _responses(each, schemas),
    }  # fmt: skip
    if rest:
        described["description"] = "\n".join(line.strip() for line in rest.splitlines())
    if each.body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas[_key(each.body)]}}}
    return described


def _path_parameters(each: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST.get(name, _LONGEST_PARAMETER)},
        }
        for name, _ in _PARAMETER.findall(each.path)
    ]


def _struct_parameters(kind: type[Any], place: str) -> list[dict[str, Any]]:
    if kind is Nothing:
        return []
    _, components = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    schema = components[kind.__name__]
    required = schema.get("required", [])
    parameters = []
    for name, each in schema["properties"].items():
        parameter = {"name": name, "in": place, "required": name in required, "schema": _inlined(each, components)}
        if "description" in each:
            parameter["description"] = each["description"]
        parameters.append(parameter)
    return parameters


def _inlined(schema: Any, components: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    return {name: _inlined(each, components) for name, each in schema.items()}


def _failures(schema: Any) -> dict[str, Any]:
    content = {_JSON: {"schema": schema}}
    return {
        _name(status): {"description": text, "headers": _REQUEST_ID, "content": content}
        for status, text in _FAILURES.items()
    }


def _name(status: int) -> str:
    return f"Failed{status}"


def _responses(each: Operation, schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    headers = {name: {"schema": {"type": "string"}} for name in each.answer_headers}
    done: dict[str, Any] = {"description": "Done.", "headers": _REQUEST_ID | headers}
    if each.answer is not None:
        done["content"] = {_JSON: {"schema": schemas[_key(each.answer)]}}
    failed = {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in _FAILURES}
    return {str(each.status): done} | failed
