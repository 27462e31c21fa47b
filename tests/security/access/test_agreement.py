"""Our answers are those of Kafka's own StandardAuthorizer, on random cases: `make test LANE=security`, with Maven."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.harness.apache_kafka import jars
from tests.security.access.cases import QUESTIONS, RULES, SUPER_USERS

from headrace.security.access.acls import Acl
from headrace.security.access.authorizer import Authorizer
from headrace.security.access.required_acls import Operation, ResourceType

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]
Question = tuple[str, str, Operation, ResourceType, str]
SETS, OF_EACH = 1_000, 10
_PROGRAM = Path(__file__).parent / "kafka" / "Agreement.java"


def random_cases() -> list[tuple[frozenset[Acl], bool, list[Question]]]:
    """1 000 sets of rules, with 10 questions to each."""
    found: list[tuple[frozenset[Acl], bool, list[Question]]] = []

    @settings(
        max_examples=SETS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(RULES, st.booleans(), st.lists(QUESTIONS, min_size=OF_EACH, max_size=OF_EACH))
    def collect(acls: frozenset[Acl], unless_told: bool, questions: list[Question]) -> None:
        found.append((acls, unless_told, questions))

    collect()
    return found


def camel_to_upper(word: str) -> str:
    return "".join("_" + letter if letter.isupper() and place else letter for place, letter in enumerate(word)).upper()


def lines_of(acls: frozenset[Acl], unless_told: bool, questions: list[Question]) -> list[str]:
    told = ["rules\t" + str(unless_told).lower()]
    for acl in acls:
        done = "ALL" if acl.operation is None else camel_to_upper(acl.operation.value)
        words = [camel_to_upper(acl.type.value), acl.name, acl.pattern.value, acl.principal, acl.host, done]
        told.append("\t".join(["acl", *words, "ALLOW" if acl.allow else "DENY"]))
    for principal, host, operation, kind, name in questions:
        words = [principal, host, camel_to_upper(operation.value), camel_to_upper(kind.value), name]
        told.append("\t".join(["ask", *words]))
    return told


def test_ten_thousand_random_questions_have_kafkas_answers() -> None:
    cases = random_cases()
    text = "".join(f"{line}\n" for case in cases for line in lines_of(*case))
    done = subprocess.run(
        ["java", "-cp", jars(), str(_PROGRAM)], input=text, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    theirs = [tuple(word == "true" for word in line.split("\t")) for line in done.stdout.splitlines()]
    ours, asked = [], []
    for acls, unless_told, questions in cases:
        authorizer = Authorizer(acls, SUPER_USERS, allow_unless_told=unless_told)
        for principal, host, operation, kind, name in questions:
            rights = authorizer.of(principal, host)
            ours.append((rights.allow(operation, kind, name), rights.allow_any(operation, kind)))
            asked.append((acls, unless_told, (principal, host, operation, kind, name)))
    assert len(ours) >= 10_000
    assert len({*ours}) > 2, "the cases are all alike"
    differing = [each for each in zip(asked, ours, theirs, strict=True) if each[1] != each[2]]
    assert differing[:3] == []
