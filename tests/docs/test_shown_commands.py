"""Commands that pages show, and that no test runs, are ones that there are: each is read as the program reads it."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headrace.cli import main
from headrace.server.config import SettingsError, load

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    # The first is written by the program itself; what was decided, or changed, need not be so any more.
    if page.name not in {"commands.md", "CHANGELOG.md"} and page.parent.name != "decisions"
]
BLOCK = re.compile(r"^ *```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OUR_FOLDERS = re.compile(r"(?<![\w/.-])((?:bench|docs|examples|monitoring|packaging|src|tests)/[\w./-]*\w)")


def code(page: Path) -> Iterator[tuple[str, bool]]:
    """The code in a page: complete lines of blocks, and inline code."""
    text = page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        if block["kind"] in {"", "text", "sh", "console"}:
            for line in block["text"].replace("\\\n", " ").splitlines():
                yield line.strip().removeprefix("$ "), True
    for span in SPAN.findall(BLOCK.sub("", text)):
        yield span, False


def commands(line: str) -> Iterator[list[str]]:
    """The arguments of each `headrace` in a line of shell; several blanks set off what is said about it."""
    for inner in re.findall(r"\$\((headrace [^()]*)\)", line):
        yield from commands(inner)
    line = re.sub(r"\s\d?>(?:&\d|\s*\S+)", "", re.split(r" {3,}", line)[0])
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    reader.whitespace_split = True
    words: list[str] = []
    try:
        read = list(reader)
    except ValueError:  # not of one line, or not of a shell
        return
    for word in [*read, ";"]:
        if set(word) <= set("|&;"):
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words and words[0] == "headrace":
                yield words[1:]
            words = []
        else:
            words.append(word)


def refusal(arguments: list[str], *, whole: bool) -> str:
    """Why the program would not take a command line; of one in a sentence, more may follow."""
    here: click.Command = main.root
    context = click.Context(here, info_name="headrace")
    left = [re.sub(r"^\$\w+$", "0", word) for word in arguments if word != "..."]
    try:
        while isinstance(here, click.Group) and left and not left[0].startswith("-"):
            _, found, left = here.resolve_command(context, left)
            assert found is not None
            here, context = found, click.Context(found, parent=context, info_name=found.name)
        with here.make_context(here.name, left, parent=context.parent) as made:
            for pair in made.params.get("sets", ()):
                load(sets=[pair], environ={})
    except click.exceptions.Exit:
        return ""
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.BadOptionUsage) as error:
        return error.format_message() if whole else ""
    except (click.UsageError, SettingsError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_options_and_settings_are_there(page: Path) -> None:
    wrong = [
        (line, refused)
        for line, whole in code(page)
        if "headrace " in line
        for arguments in commands(line)
        if (refused := refusal(arguments, whole=whole))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_targets_of_make_and_files_of_ours_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    shown = list(code(page))
    named = [target for line, _ in shown for target in re.findall(r"^make ([a-z][a-z0-9-]*)", line)]
    assert [target for target in named if target not in targets] == []
    lanes = tomllib.loads((ROOT / "tests/lanes.toml").read_text("utf-8"))["lanes"]
    assert [lane for line, _ in shown for lane in re.findall(r"LANE=([a-z0-9-]+)", line) if lane not in lanes] == []
    files = [file for line, _ in shown for file in OUR_FOLDERS.findall(line)]
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_what_is_not_there_is_found() -> None:
    """The tests above would notice."""
    line = (
        "A=b headrace topics create t --partitons 3 | headrace groups lagg 2>&1 & headrace serve --set num.partition=1"
    )
    found = [refusal(arguments, whole=True) for arguments in commands(line)]
    assert [bool(each) for each in found] == [True, True, True]
    assert refusal(["topics", "describe"], whole=True) != ""
    assert refusal(["topics", "describe"], whole=False) == ""
