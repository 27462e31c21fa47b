"""Measure the prose of the project: pages, docstrings, comments, messages, and names of tests.

Run it as `python -m tests.project.prose` for a table, or with paths for every violation in them.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BANNED = re.compile(
    r"\b(whoever|somebody|nobody|everybody|anew|meanwhile|beside"
    r"|(?:is|are|was|were|be|been|being) told|goes over|of yours)\b",
    re.IGNORECASE,
)
"""Words of no reference manual."""
TOLD = re.compile(r"\b(tell|tells|told|telling)\b", re.IGNORECASE)
MOST_WORDS = 35
"""Words of the longest sentence. The rule for writers says 25; this leaves room."""
_HEADING = re.compile(r"#+ +(What|Who|Where|Which)\b")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)[.!?][)\"']*(?=\s|$)")
_ITEM = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n\s*(?=\w[\w, *]*: )|\|")
_TEXT = re.compile(r"[A-Za-z]{2,}(?: [^ ]+){2,}")


class Passage(NamedTuple):
    """A piece of prose.

    `kind`: page, docstring, attribute, comment, message or test.
    """

    path: Path
    line: int
    kind: str
    text: str

    @property
    def words(self) -> int:
        """Number of words, without code."""
        return len(_WORD.findall(self.prose))

    @property
    def prose(self) -> str:
        """The text with code as one word each."""
        return _CODE.sub("Code", self.text)

    def sentences(self) -> Iterator[str]:
        """Yield sentences, items of lists and cells of tables."""
        # Examples and templates have lines.
        items = self.prose.splitlines() if self.kind == "message" else _ITEM.split(self.prose)
        for item in items:
            for sentence in _END.split(item):
                if sentence.strip():
                    yield " ".join(sentence.split())

    def violations(self) -> Iterator[str]:
        """Yield what is wrong, one line each."""
        for found in BANNED.finditer(self.prose):
            yield f"banned: {found[0]!r} in {_around(self.prose, found)!r}"
        for sentence in self.sentences():
            words = len(_WORD.findall(sentence))
            if words > MOST_WORDS:
                yield f"{words} words: {sentence!r}"
        if self.kind == "page" and _HEADING.match(self.text):
            yield f"heading: {self.text!r}"


def _around(text: str, found: "re.Match[str]") -> str:
    return " ".join(text[max(0, found.start() - 30) : found.end() + 30].split())


def passages(root: Path = ROOT) -> Iterator[Passage]:
    """Yield all prose of the project, generated pages included."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    for page in sorted(pages):
        yield from of_page(page)
    for folder in ("src", "tests", "bench", "docs", "examples", "packaging"):
        for module in sorted((root / folder).rglob("*.py")):
            yield from of_module(module, messages=folder == "src")
    for other in sorted((root / "src").rglob("*")):
        if other.suffix in {".lua", ".c", ".h", ".js"}:
            yield from of_other(other)


def of_page(page: Path) -> Iterator[Passage]:
    """Yield the paragraphs of a Markdown page, without blocks of code and comments."""
    lines: list[str] = []
    start, fenced = 1, ""
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        fence = line.strip()[:3]
        if fenced:
            fenced = "" if fence == fenced else fenced
            continue
        if fence in {"```", "~~~"}:
            fenced = fence
            continue
        if not line.strip() or line.startswith("#"):
            if lines:
                yield Passage(page, start, "page", _linked("\n".join(lines)))
            lines = []
            if line.startswith("#"):
                yield Passage(page, number, "page", _linked(line))
            continue
        if not lines:
            start = number
        lines.append(line)


def _linked(text: str) -> str:
    """Replace links by their texts, and drop comments and tags."""
    text = re.sub(r"<!--.*?-->|<[a-z/][^>]*>", " ", text, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def of_module(module: Path, *, messages: bool) -> Iterator[Passage]:
    """Yield docstrings, comments, names of tests, and with `messages` the other texts of a Python module."""
    source = module.read_text()
    yield from _comments(module, source)
    tree = ast.parse(source)
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(module, node.lineno, "test", node.name.removeprefix("test_").replace("_", " "))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                seen.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield Passage(module, node.body[0].lineno, "docstring", text)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if id(node.value) not in seen:
                seen.add(id(node.value))
                yield Passage(module, node.lineno, "attribute", node.value.value)
        elif messages and isinstance(node, ast.JoinedStr):
            seen.update(id(part) for part in node.values)
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            if _TEXT.search(text):
                yield Passage(module, node.lineno, "message", text)
        elif (
            messages
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in seen
            and _TEXT.search(node.value)
        ):
            yield Passage(module, node.lineno, "message", node.value)


def _comments(module: Path, source: str) -> Iterator[Passage]:
    """Yield comments; those on lines of their own that follow each other are one."""
    lines: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# noqa", "# type:", "# fmt:")):
            continue
        alone = token.line.lstrip().startswith("#")
        if lines and not (alone and token.start[0] == last + 1):
            yield Passage(module, start, "comment", "\n".join(lines))
            lines = []
        if not lines:
            start = token.start[0]
        lines.append(token.string.lstrip("# "))
        last = token.start[0] if alone else -1
    if lines:
        yield Passage(module, start, "comment", "\n".join(lines))


def of_other(path: Path) -> Iterator[Passage]:
    """Yield the comments of a file in C, Lua or JavaScript."""
    text = path.read_text()
    marks = r"--(?!\[\[)([^\n]*)" if path.suffix == ".lua" else r"/\*(.*?)\*/|(?<!:)//([^\n]*)"
    for found in re.finditer(marks, text, re.DOTALL if path.suffix != ".lua" else 0):
        comment = next(group for group in (*found.groups(), "") if group is not None)
        yield Passage(path, text.count("\n", 0, found.start()) + 1, "comment", re.sub(r"(?m)^\s*\*", "", comment))


class Figures(NamedTuple):
    """Totals of passages."""

    words: int
    told: int
    banned: int
    long: int
    documented: int
    """Words in docstrings and comments of the package, code included, without docstrings of attributes."""

    @property
    def told_per_10_000(self) -> float:
        """Forms of the verb per 10,000 words of prose."""
        return self.told * 10_000 / max(1, self.words)


def figures(some: Iterable[Passage]) -> Figures:
    """Count."""
    total: Counter[str] = Counter()
    for passage in some:
        total["words"] += passage.words
        total["told"] += len(TOLD.findall(passage.prose))
        total["banned"] += len(BANNED.findall(passage.prose))
        total["long"] += sum(len(_WORD.findall(each)) > MOST_WORDS for each in passage.sentences())
        if (
            passage.kind in {"docstring", "comment"}
            and passage.path.is_relative_to(ROOT / "src")
            and passage.path.suffix == ".py"
        ):
            total["documented"] += len(_WORD.findall(passage.text))
    return Figures(**{name: total[name] for name in Figures._fields})


def _main(paths: list[str]) -> None:
    everything = list(passages())
    if paths:
        wanted = [Path(each).resolve() for each in paths]
        for passage in everything:
            if any(passage.path.is_relative_to(each) for each in wanted):
                for wrong in passage.violations():
                    print(f"{passage.path.relative_to(ROOT)}:{passage.line}: {passage.kind}: {wrong}")
        return
    print(f"{'':28}{'words':>8}{'told/10,000':>12}{'banned':>8}{'long':>6}{'documented':>12}")
    groups: dict[str, list[Passage]] = {}
    for passage in everything:
        parts = passage.path.relative_to(ROOT).parts
        groups.setdefault("/".join(parts[: 3 if parts[0] == "src" else 2 if parts[0] == "tests" else 1]), []).append(
            passage
        )
    for name, some in sorted({**groups, "~all": everything}.items()):
        found = figures(some)
        print(
            f"{name:28}{found.words:8}{found.told_per_10_000:12.1f}{found.banned:8}{found.long:6}{found.documented:12}"
        )


if __name__ == "__main__":
    _main(sys.argv[1:])
