"""Files that import each other can be understood only together: there are no new ones."""

import ast
from collections import Counter
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

REMAINING = {"broker": 2, "console": 7, "http": 2, "kafka": 20}
"""Files of each package that are still in an import cycle. Lower a number with each file that leaves one."""


def module_name(path: Path, root: Path) -> str:
    """The dotted name of a file; a package's is its folder's."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path) -> dict[str, set[str]]:
    """What each module below `root` imports of the others, for types (`TYPE_CHECKING`) and within functions as well."""
    files = {module_name(path, root): path for path in root.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        seen: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                seen.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                    base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                names = {f"{base}.{each.name}" for each in node.names}
                seen |= names if names <= files.keys() else names | {base}
        found[name] = (seen & files.keys()) - {name}
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules of which each imports, by way of others, all the others."""
    left = {name: set(others) for name, others in graph.items()}
    merged = {name: {name} for name in left}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # As one node from here on: what else is in a cycle with it is found the next time.
            first, *others = dict.fromkeys(error.args[1])
            for other in others:
                merged[first] |= merged.pop(other)
                left[first] |= left.pop(other)
            gone = {*others}
            for wanted in left.values():
                if wanted & gone:
                    wanted.difference_update(gone)
                    wanted.add(first)
            left[first].discard(first)
        else:
            return [found for found in merged.values() if len(found) > 1]


def test_files_of_a_package_import_each_other_in_one_direction() -> None:
    found = cycles(imports(SOURCE))
    counts = Counter(name.split(".")[1] for cycle in found for name in cycle)
    more = {package: count for package, count in counts.items() if count > REMAINING.get(package, 0)}
    assert not more, "more files in import cycles than before:\n" + "\n".join(" ".join(sorted(each)) for each in found)


def test_a_cycle_is_found_through_imports_for_types_and_relative_ones(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "rooms").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "door": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.rooms.hall import Hall\n",
        "key": "import house.door\n",
        "rooms/__init__": "",
        "rooms/hall": "from ..key import turn\n",
        "rooms/attic": "from . import hall\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    assert cycles(imports(tmp_path)) == [{"house.door", "house.key", "house.rooms.hall"}]


def test_cycles_that_share_a_module_are_one() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"b"}, "e": {"a"}}
    assert cycles(graph) == [{"a", "b", "c", "d"}]
