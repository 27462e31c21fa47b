"""Loggers are named after the packages that write to them, so that a package's name finds and filters its lines."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
OF_LIBRARIES = {"py4j", "pyiceberg.io.pyarrow"}
WHOLE = {"testing/inprocess.py": "headrace"}
"""Sets a level for all of them."""


def named(tree: ast.AST) -> Iterator[ast.expr]:
    """What is given as a name wherever a logger is asked for; where nothing is, its caller's module counts."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in {"get_logger", "getLogger"}:
            yield from node.args


def wrong(package: str, tree: ast.AST) -> list[str]:
    """The names that are neither the package's nor below it."""
    found = [ast.unparse(name) for name in named(tree)]
    texts = [name.strip("'") for name in found if name != "__name__"]
    return [text for text in texts if text not in OF_LIBRARIES and not f"{text}.".startswith(f"{package}.")]


def test_each_logger_is_named_after_its_package() -> None:
    found: dict[str, list[str]] = {}
    loggers = 0
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        tree = ast.parse(path.read_text("utf-8"))
        package = ".".join(("headrace", *place.parent.parts))
        loggers += len(list(named(tree)))
        if names := wrong(WHOLE.get(place.as_posix(), package), tree):
            found[place.as_posix()] = names
    assert found == {}
    assert loggers > 50


@pytest.mark.parametrize(
    ("name", "right"),
    [("'headrace.storage.redis'", True), ("'headrace.storage.redis.wire'", True), ("__name__", True),
     ("'headrace.storage'", False), ("'headrace.store'", False), ("'headrace.storage.redistribution'", False)],
)  # fmt: skip
def test_a_name_of_another_package_is_found(name: str, right: bool) -> None:
    tree = ast.parse(f"log = structlog.get_logger({name})")
    assert (wrong("headrace.storage.redis", tree) == []) is right
