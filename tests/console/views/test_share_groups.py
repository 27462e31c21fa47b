"""The page of a share group: partitions, and who holds which records."""

import re

import redis
from tests.console.visiting import ask, create, safe
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import REJECT, RELEASE, Sharer, configure

from headrace.testing import InProcessServer


def cell(html: str, key: str) -> str:
    found = re.search(rf'data-k="{re.escape(key)}">([^<]*)<', html)
    assert found is not None, key
    return found[1]


def test_held_records_show_their_member_and_deliveries(server: InProcessServer) -> None:
    create(server, ("tasks", 2))
    with Wire(server.kafka) as wire:
        configure(wire, "workers", share_auto_offset_reset="earliest")
        for _ in range(2):
            wire.produce("tasks", batch(b"a", b"b", b"c"))
        first = Sharer(wire, "workers", "tasks", member="first")
        first.beat()
        first.fetch(0, 1)
        first.acknowledge({0: [(0, 0, [1]), (2, 3, [RELEASE])]})
        first.fetch(records=1)
        html = safe(ask(server, "/groups/workers"))
        text = ask(server, "/groups/workers").text
        listed = ask(server, "/groups").text
        reset = ask(server, "/groups/workers?to=latest").text
    assert "stable share · epoch" in text
    assert "workers share stable 1" in listed
    assert "Reset committed offsets" not in reset
    assert (cell(html, "0.start"), cell(html, "0.end"), cell(html, "1.start")) == ("1", "6", "0")
    held = [
        (int(first), int(last or first), cell(html, f"hold.{number}.count"))
        for number, (first, last) in enumerate(re.findall(r"<td[^>]*>(\d+)(?: to (\d+))?</td>", html))
    ]
    assert {count for _, _, count in held} == {"1", "2"}
    assert int(cell(html, "0.held")) + int(cell(html, "0.waiting")) == 5
    assert int(cell(html, "0.lag")) == 5
    assert cell(html, "0.deliveries") == "2"
    assert re.search(r"[0-9]+ s", cell(html, "hold.0.left"))


def test_without_members_the_stored_state_is_shown(server: InProcessServer) -> None:
    create(server, ("left", 1))
    with Wire(server.kafka) as wire:
        configure(wire, "leavers", share_auto_offset_reset="earliest")
        wire.produce("left", batch(b"a", b"b", b"c"))
        sharer = Sharer(wire, "leavers", "left")
        sharer.beat()
        unread = safe(ask(server, "/groups/leavers"))
        sharer.fetch(0)
        sharer.acknowledge({0: [(0, 0, [1])]})
        sharer.fetch(epoch=-1)
        sharer.beat(-1)
        html = safe(ask(server, "/groups/leavers"))
        text = ask(server, "/groups/leavers").text
    assert cell(unread, "0.start") == "-"
    assert "The group has no members." in text
    assert (cell(html, "0.start"), cell(html, "0.held"), cell(html, "0.waiting")) == ("1", "-", "2")


def test_dead_letters_that_wait_are_counted(server: InProcessServer) -> None:
    create(server, ("mail", 1))
    with Wire(server.kafka) as wire:
        configure(wire, "mailers", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="missing.dead")
        wire.produce("mail", batch(b"a", b"b", b"c"))
        sharer = Sharer(wire, "mailers", "mail")
        sharer.beat()
        sharer.fetch(0)
        sharer.acknowledge({0: [(0, 1, [REJECT])]})
        html = safe(ask(server, "/groups/mailers"))
        assert (cell(html, "dead"), cell(html, "0.dead"), cell(html, "0.held")) == ("2", "2", "1")
        sharer.fetch(epoch=-1)
        sharer.beat(-1)
    assert cell(safe(ask(server, "/groups/mailers")), "0.dead") == "2"


def test_redis_knows_who_holds_records_of_a_native_topic(server: InProcessServer) -> None:
    with Wire(server.kafka) as wire:
        wire.create("stream-jobs", headrace_storage="native")
        configure(wire, "stream-workers", share_auto_offset_reset="earliest")
        wire.produce("stream-jobs", batch(b"a", b"b", b"c"))
        sharer = Sharer(wire, "stream-workers", "stream-jobs", member="only")
        sharer.beat()
        [got] = sharer.fetch(0).responses[0].partitions
        first = got.acquired_records[0].first_offset
        sharer.acknowledge({0: [(first, first, [RELEASE])]})
        answer = ask(server, "/groups/stream-workers")
        html = safe(answer)
        assert (cell(html, "held"), cell(html, "0.held"), cell(html, "0.waiting")) == ("2", "2", "1")
        assert "stream-jobs 0 2 records" in answer.text
        with redis.Redis.from_url(server.storage) as link:
            link.client_pause(3_000)
            silent = safe(ask(server, "/groups/stream-workers"))
            assert link.ping()
    assert (cell(silent, "0.held"), cell(silent, "members")) == ("-", "1")
