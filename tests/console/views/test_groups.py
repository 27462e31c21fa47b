"""Pages of groups: assignments, and a reset with a preview."""

import contextlib
import re
from html import unescape
from urllib.parse import urlencode

from confluent_kafka import Consumer, TopicPartition
from structlog.testing import capture_logs
from tests.console.visiting import Answer, ask, commit, create, produce, safe
from tests.harness.raw import RawClient
from tests.harness.waiting import wait_for

from headrace.console.text import group
from headrace.groups.consumer_subscription import assignment, partitions_of
from headrace.protocol.messages import JoinGroupRequest
from headrace.testing import InProcessServer


def test_all_partitions_of_a_group_and_of_its_reset_are_a_link_away(server: InProcessServer) -> None:
    create(server, ("wide", 420))
    commit(server, "wide-readers", "wide", p419=0)
    seen: list[str] = []
    href = "/groups/wide-readers?to=latest&topic=wide"
    while href:
        answer = ask(server, href)
        assert len(answer.body) < 250_000
        assert "Reset 420 committed offsets" in answer.text
        reset = safe(answer).partition('id="reset"')
        seen += re.findall(r'<th scope="row"><bdi>wide</bdi> (\d+)</th>', reset[0])
        moved = re.findall(r'<bdi>wide</bdi></th><td data-l="Partition" class="n">(\d+)<', reset[2])
        assert moved == seen[-len(moved) :]
        following = re.search(r'rel="next" href="([^"#]*)#reset"', reset[2])
        href = unescape(following[1]) if following else ""
    assert seen == [str(number) for number in range(420)]


def test_a_group_shows_who_has_what_and_how_far_it_is(server: InProcessServer) -> None:
    create(server, ("shared", 2))
    produce(server, "shared", *((None, b"v") for _ in range(10)))
    commit(server, "sharers", "shared", p0=4)
    nobody = ask(server, "/groups/sharers").text
    assert "The group has no members." in nobody
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "sharers", "client.id": "<i>one"})
    consumer.subscribe(["shared"])
    while len(consumer.assignment()) < 2:
        consumer.poll(0.1)
    answer = ask(server, "/groups/sharers")
    consumer.close()
    html = safe(answer)
    assert "<i>one 127.0.0.1, 2 partitions" in answer.text
    assert len(re.findall(r'class="tile m0', html)) == 2
    assert re.search(r'data-k="0.lag">6<', html)
    assert re.search(r'data-k="0.position">4<', html)
    assert re.search(r'data-k="1.position">-<', html)


def test_a_group_of_very_many_members_shows_some_of_them(server: InProcessServer) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(260):
            # A connection serves nothing behind a JoinGroup that waits.
            client = stack.enter_context(RawClient(server.kafka))
            client.send(
                JoinGroupRequest(
                    group_id="crowd",
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=60_000,
                    group_instance_id=f"member-{number}",
                    protocol_type="consumer",
                    protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
                ),
                9,
            )
        pages: list[Answer] = []

        def is_complete() -> bool:
            pages.append(ask(server, "/groups/crowd"))
            text = pages[-1].text
            assert "Unknown group" in text or text.count(" 0 partitions") <= 200
            return "And 60 more." in text

        wait_for(is_complete, "a group of 260 members")
    answer = pages[-1]
    assert answer.text.count(" 0 partitions") == 200
    assert len(set(re.findall(r'class="dot m(\d)"', safe(answer)))) == 8


def test_a_reset_is_shown_first_and_done_only_by_the_pages_own_form(server: InProcessServer) -> None:
    create(server, ("reset", 2))
    produce(server, "reset", *((None, b"v") for _ in range(10)))
    commit(server, "resetters", "reset", p0=7, p1=0)
    assert "expected a whole number, found 'x'" in ask(server, "/groups/resetters?to=offset&at=x").text
    shown = ask(server, "/groups/resetters?to=offset&at=3&topic=reset")
    assert "reset 0 7 3 7" in shown.text
    token = re.search(r'name="token" value="(\w+)"', shown.html)
    assert token is not None
    cookie = shown.headers["set-cookie"]
    assert "SameSite=strict" in cookie
    assert "HttpOnly" in cookie
    form = {"to": "offset", "at": "3", "topic": "reset", "token": token[1]}
    kept = {"cookie": cookie.split(";")[0], "content_type": "application/x-www-form-urlencoded"}

    def post(fields: dict[str, str], **headers: str) -> Answer:
        return ask(server, "/groups/resetters", "POST", urlencode(fields), **headers)

    refused = [
        post(form, content_type="application/x-www-form-urlencoded"),
        post(form | {"token": "0" * 64}, **kept),
        post(form, **kept, sec_fetch_site="cross-site"),
        post(form, **kept, origin="http://evil.example"),
        post(form | {"at": "x" * 70_000}, **kept),
    ]
    assert [each.status for each in refused] == [403] * 5
    assert "reset 0 7 3 7" in ask(server, "/groups/resetters?to=offset&at=3&topic=reset").text
    with capture_logs() as logged:
        done = post(form, **kept, origin=server.http)
    (line,) = (each for each in logged if each["event"] == "changed")
    assert (line["operation"], line["client"]) == ("ResetGroup", "127.0.0.1")
    reason = "committed offsets of group resetters reset: 2 partitions"
    assert (line["principal"], line["reason"]) == ("User:ANONYMOUS", reason)
    assert (done.status, done.headers["location"]) == (303, "/groups/resetters?done=2")
    assert "2 committed offsets reset." in ask(server, done.headers["location"]).text
    assert re.search(r'data-k="0.position">3<', ask(server, "/groups/resetters").html)


def test_a_group_with_members_is_not_moved(server: InProcessServer) -> None:
    create(server, ("busy", 1))
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "busy", "enable.auto.commit": False})
    consumer.subscribe(["busy"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("busy", 0, 0)], asynchronous=False)
    shown = ask(server, "/groups/busy?to=latest")
    consumer.close()
    assert "The group has 1 member. Stop it first." in shown.text
    assert 'name="token"' not in shown.html


def test_the_console_only_looks_unless_it_is_asked_to_write() -> None:
    with InProcessServer() as server:
        create(server, ("t", 1))
        commit(server, "g", "t", p0=0)
        commit(server, "g; reboot", "t", p0=0)
        shown = ask(server, "/groups/g?to=latest")
        assert "headrace groups reset g --to-latest --execute" in shown.text
        assert (
            "headrace groups reset 'g; reboot' --to-latest --execute"
            in ask(server, group("g; reboot", to="latest")).text
        )
        assert 'method="post"' not in shown.html
        assert ask(server, "/groups/g", "POST", "to=latest").status == 403


def test_assignments_are_read_as_they_are_written() -> None:
    shares = {"a": [0, 2], "b": []}
    assert partitions_of(assignment(shares)) == shares
    for wrong in (b"", b"\x00", b"\x00\x00\xff\xff\xff\xff", assignment(shares)[:-8], b"\x00\x00\x00\x00\x00\x01\x7f"):
        assert partitions_of(wrong) is None
