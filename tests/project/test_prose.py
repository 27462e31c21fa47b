"""The prose of the project reads as the field writes: `tests/project/prose.py` measures it."""

import pytest
from tests.project import prose

MOST_TOLD = 5
"""Forms of "tell" per 10,000 words of prose."""
MOST_DOCUMENTED = 92
"""Words in docstrings and comments for each 100 lines of the package."""


@pytest.fixture(scope="module")
def passages() -> list[prose.Passage]:
    return list(prose.passages())


def test_no_passage_has_a_banned_word_a_long_sentence_or_a_question_as_heading(passages: list[prose.Passage]) -> None:
    found = [
        f"{each.path.relative_to(prose.ROOT)}:{each.line}: {wrong}" for each in passages for wrong in each.violations()
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["bench", "docs", "src", "tests"])
def test_machines_return_and_report_and_do_not_tell(passages: list[prose.Passage], folder: str) -> None:
    found = prose.figures(each for each in passages if each.path.is_relative_to(prose.ROOT / folder))
    assert found.told_per_10_000 <= MOST_TOLD, f"{found.told} forms of 'tell' in {found.words} words"


def test_the_package_has_no_more_documentation_than_needed(passages: list[prose.Passage]) -> None:
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in (prose.ROOT / "src").rglob("*.py"))
    assert prose.figures(passages).documented <= MOST_DOCUMENTED * lines // 100


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever asks is answered.", ["banned: 'Whoever'"]),
        ("A client is told the address.", ["banned: 'is told'"]),
        ("The option `--beside` is code.", []),
        (" ".join(["word"] * 36) + ".", ["36 words"]),
        (" ".join(["word"] * 20) + ". " + " ".join(["word"] * 20) + ".", []),
        ("- " + " ".join(["word"] * 20) + "\n- " + " ".join(["word"] * 20), []),
        ("## Where records go", ["heading"]),
        ("## Storage", []),
        ("| a cell |\n| " + " ".join(["word"] * 36) + " |", ["36 words"]),
        ("# Nobody", ["banned: 'Nobody'"]),
    ],
)
def test_what_counts_as_a_violation(text: str, found: list[str]) -> None:
    passage = prose.Passage(prose.ROOT / "README.md", 1, "page", text)
    wrong = list(passage.violations())
    assert len(wrong) == len(found)
    assert all(each.startswith(start) for each, start in zip(wrong, found, strict=True))
