"""Events on pages: their kinds, reasons and times, and who sees them."""

import re
from datetime import UTC, datetime

from tests.console.visiting import EVIL, ask, commit, create, safe
from tests.harness.member import Member

from headrace.console.text import group
from headrace.testing import InProcessServer


def test_a_member_that_expires_has_the_reason_on_all_pages(server: InProcessServer) -> None:
    create(server, ("parcels", 1))
    with Member(server.kafka, "shipping", "parcels", client_id="shipping-2", session_ms=45_000) as member:
        member.join()
        server.clock.advance(seconds=46)
    server.clock.advance(seconds=2)
    reason = "group shipping member shipping-2 expired: no heartbeat for 45 s"
    for path in ("/", "/?events=member", "/groups/shipping"):
        answer = ask(server, path)
        assert reason in answer.text, path
        safe(answer)
    # Without scripts, times are in UTC, and the heading states it.
    html = ask(server, "/?events=member").html
    (at, shown), *_ = re.findall(r'<time[^>]* datetime="([^"]+)">([^<]*)</time>', html)
    moment = datetime.fromisoformat(at)
    assert moment.tzinfo == UTC
    assert shown == f"{moment:%Y-%m-%d %H:%M:%S}"
    assert re.search(r"Events <span[^>]*>UTC</span>", html)


def test_a_busy_group_leaves_the_events_of_topics(server: InProcessServer) -> None:
    create(server, ("seldom", 2))
    server.clock.advance(seconds=2)
    with Member(server.kafka, "restless", "seldom", client_id="restless-1") as member:
        for _ in range(20):
            member.member_id = ""
            member.join()
            member.leave()
            server.clock.advance(seconds=2)
    page = ask(server, "/").text
    assert "topic seldom created with 2 partitions" in page
    assert "group restless member restless-1 left" in page
    only = ask(server, "/?events=topic").text
    assert "topic seldom created with 2 partitions" in only
    assert "restless" not in only.partition("Events")[2].partition("Listeners")[0]


def test_hostile_members_are_text(server: InProcessServer) -> None:
    create(server, ("odd", 1))
    with Member(server.kafka, EVIL, "odd", client_id=EVIL) as member:
        member.join()
        server.clock.advance(seconds=2)
    for path in ("/?events=member", group(EVIL), "/?events=" + "x" * 3000, "/?events=<b>&range=<b>"):
        safe(ask(server, path))
    assert "\\x1b[31m\\u202e joined" in ask(server, "/?events=member").text


def test_charts_have_three_ranges(server: InProcessServer) -> None:
    create(server, ("long", 1))
    commit(server, "long-readers", "long", p0=0)
    server.clock.advance(seconds=2)
    server.clock.advance(hours=3)
    for path in ("/", "/topics/long", "/groups/long-readers", "/brokers"):
        default = ask(server, path)
        assert 'data-step="2"' in default.html
        links = re.findall(r'<a href="([^"]*)"[^>]*>(?:10 minutes|2 hours|24 hours)</a>', default.html)
        assert links == [path, f"{path}?range=2h", f"{path}?range=24h"]
        day = ask(server, links[2])
        safe(day)
        assert 'data-step="300"' in day.html
        assert 'data-count="288"' in day.html
        assert "1 d ago" in day.text
        # Three hours of samples, in steps of five minutes.
        values = re.search(r'data-values="([^"]*)"', day.html)
        assert values is not None
        assert values[1].count(",") >= 35
