"""Names in paths come back as they were, through a browser too."""

from urllib.parse import urljoin

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.console import text

DOTS = (".", "..", "~.", "~..", "~~.", "...", "~", "~a", "%2e", "a/..", "../..", "./records", "\\..", "")


@given(st.text("~./%2e\\\ud800ü?#"))
@example("\ud800~.")
def test_every_name_comes_back(name: str) -> None:
    assert text.name_of(text.name_in(name)) == name


@pytest.mark.parametrize("name", DOTS)
def test_no_name_is_taken_for_a_step_in_the_path(name: str) -> None:
    path = text.records(name)
    assert urljoin("http://host/topics/t/records", path) == "http://host" + path
    assert text.name_of(path.split("/")[2]) == name


def test_a_query_has_names_as_they_are() -> None:
    assert text.group("g", topic="..") == "/groups/g?topic=.."
