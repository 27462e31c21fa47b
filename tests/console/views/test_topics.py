"""The console's topics pages over HTTP, with hostile input shown as text."""

import re

from tests.console.visiting import ask, create

from headrace.console import views
from headrace.testing import InProcessServer

views.load()


def test_many_partitions_are_shown_a_page_at_a_time(server: InProcessServer) -> None:
    create(server, ("many", 520))
    first, last = ask(server, "/topics/many"), ask(server, "/topics/many?page=11")
    assert "520 partitions" in first.text
    assert "Page 1 of 11" in first.text
    shown = [re.findall(r"records\?partition=(\d+)", answer.html) for answer in (first, last)]
    assert [list(map(int, indexes)) for indexes in shown] == [list(range(50)), list(range(500, 520))]
