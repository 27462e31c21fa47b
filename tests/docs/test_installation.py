"""How pages and messages say that Headrace is installed: from a clone or a wheel, since no index has it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# `uv pip install`, `pipx install`, `poetry add`, quotes, versions, extras and options included; a wheel's file is fine.
FROM_AN_INDEX = re.compile(
    r"(?:pip[x3]?\s+install|(?:uv|poetry|pdm)\s+(?:add|tool\s+install))\b[^\n`|;&]*?"
    r"(?<![\w./-])['\"]?headrace(?:\[[\w,]*\])?(?:[=<>~!]=?[\w.*]+)?['\"]?(?![\w…*/-]|\.\w)"
)
NAMED_EXTRA = re.compile(r"the extra `?([a-z]+)`?\b")


def texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard",
         "src", "docs", "examples", "packaging", "monitoring", "*.md", "Makefile", ".ci"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    endings = {".py", ".md", ".html", ".toml", ".yaml", ".txt", ".conf", ".service", ".sh", ".sql", "", ".css", ".js"}
    return [path for name in filter(None, listed) if (path := ROOT / name).suffix in endings and path.is_file()]


def joined(text: str) -> str:
    """Text with the pieces of long Python strings put together."""
    return re.sub(r'["\']\s*\n\s*f?["\']', "", text)


def test_no_text_suggests_to_install_it_from_an_index() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in texts()
        if (found := FROM_AN_INDEX.findall(joined(path.read_text("utf-8"))))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install headrace", True),
        ("`pip install 'headrace[otel]'`", True),
        ('pip install -U "headrace[spark,pure]>=0.2" and', True),
        ("Run python -m pip install --upgrade headrace. Then", True),
        ("pipx install headrace", True),
        ("uv tool install headrace", True),
        ("uv add headrace", True),
        ("pip install dist/headrace-0.2.0-*.whl", False),
        ("pip install headrace-0.2.0-*.whl", False),
        ("pip install -c constraints.txt headrace…whl", False),
        ("pip install '.[spark]'", False),
        ("pip install oci`, and headrace starts", False),
    ],
)
def test_what_is_looked_for(text: str, wrong: bool) -> None:
    assert bool(FROM_AN_INDEX.search(text)) is wrong


def test_extras_that_are_named_are_there_and_have_a_row() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"].keys()
    page = (ROOT / "docs/packages.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE))
    assert rows == extras - {"dev"}
    named = {
        name
        for path in texts()
        if path.suffix in {".py", ".md", ".html"} and "decisions" not in path.parts
        for name in NAMED_EXTRA.findall(joined(path.read_text("utf-8")))
    }
    assert {"spark", "otel", "registry"} <= named & extras


def test_messages_that_name_an_extra_name_the_page() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for found in re.finditer(r"install the extra ([a-z]+)(.{0,22})", joined(path.read_text("utf-8"))):
            assert found[2].startswith(" (docs/packages.md)"), (path, found[0])
