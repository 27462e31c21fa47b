"""The layout of the code stays what docs/architecture.md describes: sizes, names, cycles and tests of modules.

Each list below may only get shorter: a test fails as well where an entry is not needed any more.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
TESTS = Path(__file__).parents[1]
MOST_LINES, LEAST_LINES = 500, 40

AT_THE_TOP = {"__init__", "__main__"}

SHORT = {
    "__main__": "`python -m headrace`",
    "cli.commands.completion": "a command has a file of its own",
    "cli.imports": "imported before anything else, by the command and by tests that fork",
    "cli.version": "`headrace --version` imports nothing more",
    "demo.node": "a program of its own, run with -m",
    "records.errors": "what every module of records raises",
    "server.child": "a program of its own, run with -m",
    "spark.worker": "runs in each of Spark's workers, where imports cost time",
    "kafka.apis.heartbeat": "a Kafka API has a file of its own",
    "kafka.apis.list_partition_reassignments": "a Kafka API has a file of its own",
    "kafka.apis.sasl_handshake": "a Kafka API has a file of its own",
    "protocol.errors": "what every module of the protocol raises",
    "protocol.tables.users": "tables of one group of messages",
    "http.error_responses": "responses that both the parser and the application give",
    "lakehouse.read.catalog": "imported by every server, also without the extra",
}
"""Modules below the least number of lines, and why."""

NOT_NOUNS = re.compile(r"(ing|ed|able|ive)$")
"""How the last word of a module's name ends where it is a gerund or an adjective ..."""
NOUNS = {
    # nouns
    "archive", "cleaning", "table", "delta_table", "escaping", "forwarding", "merging", "paging", "routing", "sharing",
    # names: native topics, a product, OpenTelemetry, a package that users import
    "native", "oci_streaming", "tracing", "testing",
    # to be renamed
    "denied", "live",
}  # fmt: skip
"""... but for these: nouns that end so, and what is still to be renamed."""

CYCLES: set[frozenset[str]] = set()
"""Files that import each other, imports for type checkers included. What remains of one may be a part of it."""

UNMIRRORED = TESTS / "project" / "unmirrored.txt"
"""Names the modules that no test file is named after: tests/PACKAGE/test_MODULE.py, or test_MODULE_SUBJECT.py.

Their tests are named after what they are about, or are those of the modules that use them.
"""

TESTED_TOGETHER = {"protocol.tables": "one test compares each table with the schema files of Kafka"}
"""Packages whose modules have one test file, tests/PARENT/test_PACKAGE.py, and why."""


@cache
def modules() -> Mapping[str, Path]:
    """Every module and package, without `headrace.`, and its file."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def files() -> Iterator[tuple[str, Path]]:
    """Modules that are no packages."""
    return ((name, path) for name, path in modules().items() if path.stem != "__init__")


def imports(tree: ast.AST, known: Mapping[str, object]) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        short = [name.removeprefix("headrace.") for name in names if name.startswith("headrace.")]
        # `from headrace.a import b` imports the module b where there is one, not the package's names.
        exact = [name for name in short if name in known]
        found.update(exact[:-1] if len(exact) == len(names) > 1 and isinstance(node, ast.ImportFrom) else exact)
    return found


def cycles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The groups of nodes of which each reaches each other one (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        path.append(node)
        for other in sorted(graph.get(node, set())):
            if other not in order:
                visit(other)
            if other in path:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            group = path[path.index(node) :]
            del path[path.index(node) :]
            if len(group) > 1:
                found.add(frozenset(group))

    for node in graph:
        if node not in order:
            visit(node)
    return found


def test_no_module_is_loose_at_the_top() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == AT_THE_TOP


def test_files_are_neither_short_nor_long() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in files()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert {name for name, count in lines.items() if count < LEAST_LINES} == SHORT.keys()


def test_modules_are_named_by_nouns() -> None:
    names = {name.rpartition(".")[2] for name in modules()}
    endings = {name for name in names if NOT_NOUNS.search(name)}
    assert (sorted(endings - NOUNS), sorted(NOUNS - endings)) == ([], [])


def test_files_do_not_import_in_cycles() -> None:
    graph = {name: imports(ast.parse(path.read_text("utf-8")), modules()) - {name} for name, path in files()}
    found = cycles(graph)
    new = [sorted(group) for group in found if not any(group <= known for known in CYCLES)]
    gone = [sorted(known) for known in CYCLES if not any(group <= known for group in found)]
    assert (new, gone) == ([], [])


def test_modules_have_tests_named_after_them() -> None:
    names = {path.relative_to(TESTS).with_suffix("").as_posix() for path in TESTS.rglob("test_*.py")}
    missing = []
    for name, _ in files():
        parent = name.rpartition(".")[0]
        package, _, module = (parent if parent in TESTED_TOGETHER else name).replace(".", "/").rpartition("/")
        wanted = f"{package}/test_{module}"
        if not any(test == wanted or test.startswith(f"{wanted}_") for test in names):
            missing.append(name)
    known = UNMIRRORED.read_text("utf-8").split()
    new, gone = sorted(set(missing) - set(known)), sorted(set(known) - set(missing))
    assert (new, gone) == ([], []), f"give {new} tests named after them; take {gone} off {UNMIRRORED.name}"


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, {frozenset("ab")}),
        ({"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, {frozenset("abc"), frozenset("de")}),
    ],
)
def test_a_cycle_is_found(edges: dict[str, set[str]], found: set[frozenset[str]]) -> None:
    assert cycles(edges) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from headrace.a import b", {"a.b"}),
        ("from headrace.a.b import name", {"a.b"}),
        ("def f():\n    import headrace.a.b", {"a.b"}),
        ("if TYPE_CHECKING:\n    from headrace.a.b import C", {"a.b"}),
        ("from other.a import b", set()),
    ],
)
def test_imports_are_found_wherever_they_are(line: str, found: set[str]) -> None:
    assert imports(ast.parse(line), {"a": None, "a.b": None}) == found
