"""Builds the documentation as a site, in build/docs/site: `make docs`. Every warning is an error.

The pages keep their places in the repository, so links mean the same in a file, on a forge and in the site.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "docs" / "zensical.toml"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "constraints.txt", "pyproject.toml")
FOLDERS = ("monitoring", "packaging", "examples", "bench/results")
"""What pages lead to that lies outside docs/."""
NAMED_BLOCK = re.compile(r"^```(\w+) ([\w.-]+)$", re.MULTILINE)
"""A block with the name of a file, as tests know it; the site shows the name as its title."""
DECISIONS = re.compile(r"\]\(((?:[\w.]+/)*decisions)/?\)")
"""A link to the folder, which has a page in the site."""
STATUS = re.compile(
    r"^Status: (?:superseded by (?P<by>\[[^\n]*?\)), )?.*?(?:Subject: (?P<subject>[^.\n]+)\.)?$", re.MULTILINE
)
"""The line below the title of a decision."""
FIRST = re.compile(r"\]\(((?:\.\./)*)README\.md")


def stage(pages: Path) -> None:
    """Everything that the site shows, laid out as in the repository, but for the first page, which is the README."""
    ignored = shutil.ignore_patterns("*.py", "*.toml", "__pycache__")
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=ignored)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, pages / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, pages / name)
    shutil.copy(ROOT / "README.md", pages / "index.md")
    (pages / "docs" / "decisions" / "index.md").write_text(decisions(), "utf-8")
    for page in pages.rglob("*.md"):
        text = NAMED_BLOCK.sub(r'```\1 title="\2"', page.read_text("utf-8"))
        text = DECISIONS.sub(r"](\1/index.md)", text)
        page.write_text(FIRST.sub(r"](\1index.md", text), "utf-8")


def decisions() -> str:
    """Return a page that lists the decisions by subject, and those that are superseded."""
    subjects: dict[str, list[str]] = {}
    superseded = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title, _, text = page.read_text("utf-8").partition("\n")
        found = STATUS.search(text)
        item = f"- [{title.removeprefix('# ')}]({page.name})"
        if found is not None and found["by"]:
            superseded.append(f"{item}, superseded by {found['by']}")
        else:
            subjects.setdefault((found and found["subject"]) or "Other", []).append(item)
    lines = [
        "# Decisions",
        "",
        "Each decision has its context, the choice, the consequences, and signs that show a mistake.",
        "",
    ]
    for subject in sorted(subjects, key=lambda each: (each == "Other", each)):
        lines += [f"## {subject}", "", *subjects[subject], ""]
    return "\n".join([*lines, "## Superseded", "", *superseded, ""])


def build(into: Path) -> Path:
    """The folder of the site, in `into`, which is emptied.

    Raises:
        subprocess.CalledProcessError: There are warnings; `output` has them.
    """
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    stage(into / "pages")
    settings = shutil.copy(SETTINGS, into / SETTINGS.name)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)]
    subprocess.run(command, cwd=into, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return into / "site"


def main() -> int:
    """Build in the folder that is named, or in build/docs, and print the address of the first page."""
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    try:
        site = build(into)
    except subprocess.CalledProcessError as error:
        print(error.output, file=sys.stderr)
        return 1
    print(f"built {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
