"""Patterns of clients: the syntax of RE2, whole matches, and bounds for hostile ones."""

import re
import subprocess
import sys
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.patterns import MOST_BYTES, InvalidPattern, Pattern


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("pay.*", "payments", True),
        ("pay", "payments", False),
        ("ments", "payments", False),
        ("(?P<name>pay)(ments)", "payments", True),
        (r"[\p{L}\p{N}]+-\d+", "zahlung-ä-1", False),
        (r"[\p{L}\p{N}]+-\d+", "zählung1-12", True),
        ("a|ab", "ab", True),
        (".", "é", True),
        (".", "\n", False),
        ("", "", True),
        ("(?i)PAY", "pay", True),
    ],
)
def test_the_whole_text_must_match(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern).matches(text) is expected


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "(a)\\1", "(?=a)", "*", "[z-a]", "((a{100}){100}){100}"])
def test_an_invalid_pattern_is_refused_without_output(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPattern) as error:
        Pattern(pattern)
    assert str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_large_pattern_is_refused() -> None:
    Pattern("x" * MOST_BYTES)
    with pytest.raises(InvalidPattern, match="at most 1,024 bytes"):
        Pattern("x" * (MOST_BYTES + 1))
    with pytest.raises(InvalidPattern, match="too large"):
        Pattern("(a?){1000}" * 100)
    with pytest.raises(InvalidPattern, match="too large"):
        Pattern("(a?){1000}" * 3)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(x+x+)+y", "x" * 1_024),
        ("(a?){1000}", "a" * 1_024),
        (".*a.{200}", "abaabbbab" * 114),
        ("(a*)*b", "a" * 1_024),
    ],
)
def test_no_text_of_1_kib_takes_long(pattern: str, text: str) -> None:
    """Python's `re` would need years for the first of them."""
    compiled = Pattern(pattern)
    began = perf_counter()
    compiled.matches(text)
    assert perf_counter() - began < 1


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_literal_matches_itself_only(literal: str, text: str) -> None:
    pattern = Pattern("".join(rf"\x{{{ord(letter):x}}}" for letter in literal))
    assert pattern.matches(literal)
    assert pattern.matches(text) is (re.fullmatch(re.escape(literal), text) is not None)


def test_the_library_is_imported_for_the_first_pattern() -> None:
    script = "import sys, headrace.server.app; sys.exit('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
