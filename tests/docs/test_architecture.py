"""docs/architecture.md names what exists: modules by their paths, every package, and the layers of the contract."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
SVG = "{http://www.w3.org/2000/svg}"
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
FILE = re.compile(r"\.(?:c|html|js|lua|md|py|toml)$")


def layers() -> list[list[str]]:
    """The packages of each layer as import-linter checks them, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["headrace"])
    return [line.split(" | ") for line in found]


def paths() -> list[str]:
    """What the page sets as code and is a path or a file by its form."""
    spans = set(re.findall(r"`([^`\n]+)`", PAGE))
    return sorted(span for span in spans if PATH.fullmatch(span) and ("/" in span or FILE.search(span)))


def packages() -> set[str]:
    """Every package of packages, each followed by a slash, such as `broker/topics/`."""
    return {f"{found.parent.relative_to(SOURCE).as_posix()}/" for found in SOURCE.rglob("*/__init__.py")}


def exists(path: str) -> bool:
    """Whether a path is one of the repository, or below the source, with `*` for any name."""
    return any(any(below.glob(path.rstrip("/"))) for below in (ROOT, SOURCE))


def test_every_path_on_the_page_exists() -> None:
    assert len(paths()) > 100
    assert [path for path in paths() if not exists(path)] == []


def test_every_package_is_described_once_in_the_order_of_the_layers() -> None:
    described = re.findall(r"^\*\*`(\w+)`\*\* ", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(package.rstrip("/") for package in packages() if package.count("/") == 1)
    at = {name: number for number, line in enumerate(reversed(layers())) for name in line}
    assert [at[name] for name in described] == sorted(at.values())


def test_every_package_below_is_named() -> None:
    named = {f"{path.rstrip('/')}/" for path in paths()}
    assert sorted(package for package in packages() if package.count("/") > 1 and package not in named) == []


def test_the_picture_shows_the_layers_of_the_contract() -> None:
    picture = ET.parse(ROOT / "docs" / "images" / "architecture.svg")
    drawn = [
        [text.text for text in layer.iter(f"{SVG}text") if text.get("class") == "name"]
        for layer in picture.iter(f"{SVG}g")
        if layer.get("class") == "layer"
    ]
    assert drawn == layers()
