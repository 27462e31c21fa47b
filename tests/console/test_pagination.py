"""Pages of long lists in the console."""

import pytest
from tests.console.visiting import ask, commit, create

from headrace.console import views
from headrace.console.pagination import MOST_POSITIONS, positions_of, positions_text
from headrace.testing import InProcessServer

views.load()


def test_many_topics_and_groups_come_a_page_at_a_time() -> None:
    with InProcessServer() as server:
        for start in range(0, 1000, 100):
            create(server, *((f"topic-{n:04}", 10) for n in range(start, start + 100)))
        for n in range(500):
            commit(server, f"group-{n:03}", "topic-0000", p0=0)
        first = ask(server, "/topics")
        assert "1,000 in total" in first.text
        assert "Page 1 of 20" in first.text
        assert first.html.count("<tr>") == 51
        assert "topic-0999" in ask(server, "/topics?page=20").text
        assert "10 found" in ask(server, "/topics?q=topic-099&sort=records").text
        assert "Page 1 of 10" in ask(server, "/groups").text
        assert "10,000 partitions" in ask(server, "/").text
        for path in ("/", "/topics", "/groups", "/topics/topic-0500", "/brokers"):
            assert len(ask(server, path).body) < 100_000, path


def test_positions_are_read_as_they_are_written() -> None:
    given = {0: 0, 3: 10**18, 999_999: 7}
    assert positions_of(positions_text(given)) == given
    assert positions_text((n, n) for n in range(1_000)).count(",") == MOST_POSITIONS - 1
    assert positions_text({}) == ""


@pytest.mark.parametrize(
    "text", ["", ":", "1", "1:", "1:2,", "1:-2", "1:2;3:4", "\u0661:1", "1:" + "9" * 20, "1:2," * 999]
)
def test_other_texts_are_no_positions(text: str) -> None:
    assert positions_of(text) == {}
