"""The tables of requests name decisions that exist, and a case finds another answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kafka.agreement import test_consumer_groups, test_share_groups
from tests.kafka.agreement.cases import HEADRACE, KAFKA, Answer, Case, Departure

DECISIONS = Path(__file__).parents[3] / "docs" / "decisions"
TABLES: list[list[Case[Any]]] = [test_consumer_groups.CASES, test_share_groups.CASES]


class Nowhere:
    """A group on no server."""

    def __init__(self) -> None:
        self.words: dict[str, object] = {"group": "g"}


def answering(answer: Answer) -> Callable[[Nowhere], Answer]:
    return lambda _: answer


def test_each_departure_has_a_decision() -> None:
    numbers = {case.departs.decision for table in TABLES for case in table if case.departs is not None}
    assert numbers
    assert [each for each in sorted(numbers) if not list(DECISIONS.glob(f"{each}-*.md"))] == []


@pytest.mark.parametrize("table", TABLES, ids=["consumers", "sharers"])
def test_cases_have_names_of_their_own(table: list[Case[Any]]) -> None:
    assert len({case.name for case in table}) == len(table)


def test_a_case_finds_another_answer() -> None:
    refused = Answer("GROUP_ID_NOT_FOUND", "Group g not found.", {"offsets": []})
    case = Case[Nowhere](
        "case", (), lambda _: refused, "GROUP_ID_NOT_FOUND", "Group {group} not found.", {"offsets": []}
    )
    case.check(Nowhere(), KAFKA)
    for other in (
        Answer("NONE", refused.message, refused.facts),
        Answer(refused.error, "Group h not found.", refused.facts),
        Answer(refused.error, refused.message, {"offsets": [1]}),
        Answer(refused.error, refused.message),
    ):
        with pytest.raises(AssertionError):
            replace(case, sent=answering(other)).check(Nowhere(), KAFKA)


def test_a_departure_is_of_one_server() -> None:
    case = Case[Nowhere]("case", (), lambda _: Answer("NONE"), departs=Departure("0141", "FENCED_MEMBER_EPOCH"))
    case.check(Nowhere(), KAFKA)
    with pytest.raises(AssertionError):
        case.check(Nowhere(), HEADRACE)


def test_a_step_that_fails_fails_the_case() -> None:
    with pytest.raises(AssertionError):
        Case[Nowhere]("case", (lambda _: Answer("UNKNOWN_MEMBER_ID"),), lambda _: Answer("NONE")).check(
            Nowhere(), KAFKA
        )
