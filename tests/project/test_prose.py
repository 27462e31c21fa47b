"""The prose of the project reads as the field writes: `tests/project/prose.py` measures it."""

import pytest
from tests.project import prose

NOT_YET = {
    "CHANGELOG.md": "is to become one page",
    "bench": "is to be rewritten",
    "docs/decisions": "are to be rewritten",
    "src": "is to be rewritten",
    "tests": "are to be rewritten",
}
"""Files and folders whose prose is not clean yet. An entry without a violation fails."""


@pytest.fixture(scope="module")
def passages() -> list[prose.Passage]:
    return list(prose.passages())


def _excepted(passage: prose.Passage) -> str | None:
    path = passage.path.relative_to(prose.ROOT).as_posix()
    return next((each for each in NOT_YET if path == each or path.startswith(f"{each}/")), None)


def test_no_passage_has_a_banned_word_a_long_sentence_or_a_question_as_heading(passages: list[prose.Passage]) -> None:
    found = [
        f"{each.path.relative_to(prose.ROOT)}:{each.line}: {wrong}"
        for each in passages
        if _excepted(each) is None
        for wrong in each.violations()
    ]
    assert found == []


def test_exceptions_are_needed(passages: list[prose.Passage]) -> None:
    unclean = {_excepted(each) for each in passages if next(each.violations(), None)}
    assert set(NOT_YET) - unclean == set()


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
    ],
)
def test_what_counts_as_a_violation(text: str, found: list[str]) -> None:
    passage = prose.Passage(prose.ROOT / "README.md", 1, "page", text)
    wrong = list(passage.violations())
    assert len(wrong) == len(found)
    assert all(each.startswith(start) for each, start in zip(wrong, found, strict=True))
