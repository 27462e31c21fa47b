"""The manual cannot disagree with the code: its tables are generated, and what it quotes is looked up."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_source_files_that_pages_name_exist(page: Path) -> None:
    """As `broker/fetch.py`, below the source or the tests, or from the root; names without a folder are users' own."""
    found = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|c|lua))`", page.read_text("utf-8")))
    places = (ROOT, ROOT / "src" / "headrace", ROOT / "tests")
    missing = {path for path in found if not any((place / path).exists() for place in places)}
    # A pipeline project's own.
    assert sorted(path for path in missing if not path.startswith("transformations/")) == []


def named(entry: Any) -> Iterator[str]:
    """Pages below an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry if isinstance(entry, list) else entry.values():
            yield from named(below)


def test_every_page_is_in_the_navigation() -> None:
    settings = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text("utf-8"))
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if page.parent.name != "decisions"}
    # Decisions have a page that lists them, which is made when the site is.
    wanted = pages - {"README.md"} | {"index.md", "docs/decisions/index.md"}
    assert sorted(named(settings["project"]["nav"])) == sorted(wanted), "docs/zensical.toml has the place of each page"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_has_a_title_a_status_and_a_date(page: Path) -> None:
    title, blank, status, *_ = page.read_text("utf-8").splitlines()
    assert re.fullmatch(rf"# {page.name[:4]}: .*[^.]", title)
    assert blank == ""
    assert re.match(r"Status: (accepted|superseded by \[\d+\]\([\w.-]+\)), \d{4}-\d\d-\d\d\.", status)
    assert re.search(r" Subject: [A-Z][\w ]+\.$", status), "the index lists decisions by subject"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a warning fails it."""
    folder = tmp_path_factory.mktemp("docs") / "build"
    command = [sys.executable, str(ROOT / "docs" / "site.py"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "site"


class References(HTMLParser):
    """What a page refers to, and the names by which its places are referred to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: text for name, text in attrs if text}
        self.names |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loads += [found[name] for name in ("src", "srcset", "data") if name in found]
        if tag == "link" and found.get("rel") != "canonical" and "href" in found:
            self.loads.append(found["href"])


@pytest.mark.servers
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {page: References(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > len(PAGES)  # with the list of decisions
    broken, foreign = [], []
    for page, found in pages.items():
        for link in [*found.links, *found.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                foreign += [(page.name, link)] if link in found.loads and parts.scheme != "data" else []
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (parts.fragment and parts.fragment not in pages[target].names):
                broken.append((page.relative_to(site).as_posix(), link))
    assert broken == []
    assert foreign == []
