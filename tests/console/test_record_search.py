"""Searches of all partitions of a topic: what they cover, and how they continue and are bounded."""

import asyncio
import re
from html import unescape

import pytest
from tests.console.views.test_records import offsets_of
from tests.console.visiting import ask, create, produce

from headrace.console import views
from headrace.console.record_worker import Searches, TooManySearches
from headrace.testing import InProcessServer

views.load()


def following(server: InProcessServer, path: str) -> str:
    """Return the address at which a search continues."""
    link = re.search(r'; <a href="([^"]+)">continue</a>', ask(server, path).html)
    return "" if link is None else unescape(link[1])


def test_a_search_covers_all_partitions_and_states_what_it_covered(server: InProcessServer) -> None:
    create(server, ("sought", 3))
    for partition in range(3):
        records = ((b"key-%d" % n, b'{"n": %d, "who": {"id": "p%d"}}' % (n, partition)) for n in range(400))
        produce(server, "sought", *records, partition=partition)
    path = "/topics/sought/records?"
    page = ask(server, path + "q=key-399").text
    assert "Searched offsets 0 to 399 of 3 partitions, 1,200 records in" in page
    assert "s; 3 matches." in page
    assert sorted(offsets_of(server, path + "q=key-399")) == [(0, 399), (1, 399), (2, 399)]
    assert offsets_of(server, path + "q=key-399&partition=1") == [(1, 399)]
    assert offsets_of(server, path + "q=7&field=n") == [(0, 7), (1, 7), (2, 7)]
    assert offsets_of(server, path + "q=p2&field=who.id&key=key-12&from=100") == [
        (2, offset) for offset in range(120, 130)
    ]
    assert offsets_of(server, path + "field=who.none") == []
    assert "No record in this range matches." in ask(server, path + "q=absent").text
    assert offsets_of(server, path + "q=KEY-399") == []


def test_a_search_with_many_matches_continues_until_everything_was_searched(server: InProcessServer) -> None:
    create(server, ("plenty", 3))
    for partition in range(3):
        produce(server, "plenty", *((None, b"match %d" % n) for n in range(70)), partition=partition)
    path, found = "/topics/plenty/records?q=match", []
    pages = 0
    while path:
        found += offsets_of(server, path)
        path = following(server, path)
        pages += 1
    assert sorted(found) == [(partition, offset) for partition in range(3) for offset in range(70)]
    assert pages == 5
    for wrong in ("0:99999999999999999999", "9:1", "0:1,", ":", "0:-1", "x" * 5000):
        assert ask(server, f"/topics/plenty/records?q=match&positions={wrong}").status == 200, wrong


def test_a_search_covers_a_window_of_many_partitions_at_a_time(server: InProcessServer) -> None:
    create(server, ("wide", 120))
    for partition in (3, 60, 119):
        produce(server, "wide", (b"needle", None), partition=partition)
    path, found = "/topics/wide/records?q=needle", []
    while path:
        found += offsets_of(server, path)
        path = following(server, path)
    assert found == [(3, 0), (60, 0), (119, 0)]


def test_searches_take_turns_and_one_visitor_has_few() -> None:
    async def whole() -> None:
        searches, running = Searches(), asyncio.Event()
        most = 0
        active = 0

        async def one(visitor: str) -> None:
            nonlocal most, active
            async with searches.turn(visitor):
                active += 1
                most = max(most, active)
                await running.wait()
                active -= 1

        tasks = [asyncio.ensure_future(one(f"visitor-{n // 2}")) for n in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(TooManySearches):
            async with searches.turn("visitor-0"):
                pass
        with pytest.raises(TooManySearches):
            async with searches.turn("another"):
                pass
        tasks[3].cancel()
        running.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most == 1
        async with searches.turn("another"):
            pass

    asyncio.run(whole())
