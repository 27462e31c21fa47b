"""New records of all partitions are followed."""

import re

from tests.console.test_event_stream import Stream
from tests.console.visiting import create, produce, with_an_open_transaction

from headrace.testing import InProcessServer


def test_records_of_all_partitions_are_followed(server: InProcessServer) -> None:
    create(server, ("followed", 3))
    produce(server, "followed", (b"before", b"x"), partition=2)
    stream = Stream(server, "/topics/followed/records?tail=0:0,1:0,2:1")
    only = Stream(server, "/topics/followed/records?q=wanted&tail=0:0,1:0,2:1")
    assert stream.event()[0] == only.event()[0] == "cells"
    for partition in range(3):
        produce(server, "followed", (b"k", b"wanted" if partition == 1 else b"other"), partition=partition)

    def rows(stream: Stream, count: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while len(found) < count:
            server.clock.advance(seconds=2)
            name, told = stream.event()
            if name == "rows":
                assert isinstance(told, dict)
                found += re.findall(r"partition=(\d+)&amp;from=\d+&amp;show=(\d+)", told["html"])
        return sorted(found)

    assert rows(stream, 3) == [("0", "0"), ("1", "0"), ("2", "1")]
    assert rows(only, 1) == [("1", "0")]
    stream.close()
    only.close()


def test_records_of_a_transaction_are_followed_once_it_is_committed(server: InProcessServer) -> None:
    create(server, ("in-transactions", 1))
    with with_an_open_transaction(server, "in-transactions") as producer:
        stream = Stream(server, "/topics/in-transactions/records?partition=0&tail=0:0")
        shown: list[str] = []
        ends: list[str] = []

        def follow(until: int) -> None:
            while len(shown) < until:
                server.clock.advance(seconds=2)
                name, event = stream.event()
                assert isinstance(event, dict)
                if name == "rows":
                    shown.extend(sorted(re.findall(r"show=(\d+)", event["html"])))
                else:
                    ends.append(event["end"] + event["unstable"])

        follow(2)
        assert shown == ["0", "1"]
        assert ends[-1] == "6; an open transaction hides 2 offsets from 6 on"
        producer.commit_transaction(20)
        follow(4)
        assert shown == ["0", "1", "6", "7"]
        assert ends[-1] == "9"
    stream.close()
