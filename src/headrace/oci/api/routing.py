"""Find the operation and path parameters of a request. Pure.

Repeated slashes count as one, because endpoints may end with a slash. A group name, the rest of a path, keeps them.
Parameters are decoded after routing, so `%2F` is part of a name.
"""

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from headrace.oci.api.registry import Operation
from headrace.oci.errors import OciError, invalid

BASE = "20180418"
"""The version of the API: the first part of every path."""
_LONGEST_PARAMETER = 256
_REST = ":rest}"


class Match(msgspec.Struct, frozen=True):
    """An operation and its decoded path parameters."""

    operation: Operation
    path: dict[str, str]


class _Node:
    __slots__ = ("children", "operations", "parameter", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.operations: dict[str, tuple[Operation, tuple[str, ...]]] = {}

    def add(self, operation: Operation) -> None:
        node = self
        names = []
        for part in operation.path.strip("/").split("/"):
            if part.endswith(_REST):
                node.rest = node.rest or _Node()
                node = node.rest
                names.append(part[1 : -len(_REST)])
            elif part.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
                names.append(part[1:-1])
            else:
                node = node.children.setdefault(part, _Node())
        node.operations[operation.method] = operation, tuple(names)


class Router:
    """All paths of the API."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            self._root.add(operation)

    def match(self, method: str, path: str) -> Match:
        """Find the operation of an undecoded path.

        Raises:
            OciError: 404 for an unknown path, 405 for an unsupported method, 400 for a parameter that is not UTF-8.
        """
        node, values = self._find(path)
        if not node.operations:
            raise not_found()
        found = node.operations.get(method)
        if found is None:
            raise _no_such_method(method, node)
        operation, names = found
        return Match(operation, dict(zip(names, map(_decode, names, values), strict=True)))

    def _find(self, path: str) -> tuple[_Node, list[str]]:
        at = _skip_slashes(path, 0)
        end = at + len(BASE)
        if path[at:end] != BASE or path[end : end + 1] not in {"", "/"}:
            raise not_found()
        node = self._root
        values = []
        at = end
        while True:
            if node.rest is not None and len(path) > at + 1:
                values.append(path[at + 1 :])
                return node.rest, values
            at = _skip_slashes(path, at)
            if at == len(path):
                return node, values
            end = path.find("/", at)
            end = len(path) if end < 0 else end
            part = path[at:end]
            child = node.children.get(part)
            if child is None:
                child = node.parameter
                if child is None:
                    raise not_found()
                values.append(part)
            node, at = child, end


def _skip_slashes(path: str, at: int) -> int:
    while path[at : at + 1] == "/":
        at += 1
    return at


def _decode(name: str, text: str) -> str:
    try:
        decoded = unquote(text, errors="strict") if "%" in text else text
    except UnicodeDecodeError:
        raise invalid(f"{name} in the path is not UTF-8") from None
    if len(decoded) > _LONGEST_PARAMETER:
        raise invalid(f"{name} in the path is longer than {_LONGEST_PARAMETER} characters")
    return decoded


def not_found() -> OciError:
    """Return 404 with the service's message."""
    return OciError(404, "Not Found", "NotFound")


def _no_such_method(method: str, node: _Node) -> OciError:
    allowed = ", ".join(sorted(node.operations))
    return OciError(405, f"Method {method} is not allowed here; allowed: {allowed}", headers={"allow": allowed})
