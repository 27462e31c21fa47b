"""Commands on pages of the console act on the server that shows them."""

import re
import shlex
from html import unescape

from tests.console.visiting import ask, commit, create
from tests.harness.waiting import wait_for

from headrace.console import text, views
from headrace.console.registry import PAGES
from headrace.testing import InProcessServer

views.load()
TEMPLATES = {
    "/": ["/"],
    "/topics": ["/topics"],
    "/groups": ["/groups"],
    "/pipeline": ["/pipeline"],
    "/brokers": ["/brokers"],
    "/topics/{name:path}": ["/topics/made"],
    "/users": ["/users"],
    "/acls": ["/acls"],
    "/quotas": ["/quotas"],
    "/transactions": ["/transactions"],
    "/topics/{name:path}/records": ["/topics/made/records", "/topics/made/records?show=0"],
    "/groups/{name:path}": [
        "/groups/made-readers?to=latest", "/groups/made-readers?to=offset&at=0&topic=made",
        "/groups/made-readers?to=time&at=1h",
    ],
}  # fmt: skip
"""Addresses of each page, in the states in which it shows commands."""
FORMS = {
    "/topics/{name:path}/produce": "/topics/made/produce",
    "/topics/{name:path}/edit": "/topics/made/edit",
    "/new-topic": "/new-topic",
}
"""Pages of a console that may write."""
LOCAL = ("headrace pipeline run", "headrace serve")
"""Commands that read the address from a file of the project, or start a server."""


def shown(html: str) -> list[str]:
    """Return the commands of a page."""
    blocks = re.findall(r"<(?:pre|code)[^>]*>(.*?)</(?:pre|code)>", html, re.DOTALL)
    lines = [line for block in blocks for line in unescape(re.sub(r"<[^>]*>", "", block)).splitlines()]
    return [line for line in lines if re.search(r"(?:^|[|;&] *)(?:headrace|kafka-[a-z-]+(?:\.sh)?) ", line)]


def check(server: InProcessServer, path: str) -> list[str]:
    answer = ask(server, path)
    assert answer.status == 200, path
    found = shown(answer.html)
    for line in found:
        words = shlex.split(line)
        has = {words[place + 1] for place, word in enumerate(words) if word in {"--bootstrap", "--redis"}}
        assert has or line.startswith(LOCAL), (path, line)
        assert has <= {server.kafka, server.storage}, (path, line)
    return found


def test_every_command_on_every_page_names_this_server() -> None:
    assert {each.path for each in PAGES.values() if each.method == "GET"} == {*TEMPLATES, *FORMS}, (
        "a page is not visited"
    )
    with InProcessServer(oci_auth="off") as server:
        found = [line for path in ("/", "/topics", "/pipeline", "/login") for line in check(server, path)]
        assert len(found) == 7, "without topics, pages show how to begin"
        create(server, ("made", 2))
        commit(server, "made-readers", "made", p0=0)
        wait_for(lambda: ask(server, "/groups/made-readers").status == 200, "the group")
        for paths in TEMPLATES.values():
            for path in paths:
                found += check(server, path)
        resets = [line for line in found if " reset " in line]
        assert len(resets) == 3
        assert all(f"--bootstrap {server.kafka}" in line for line in resets)


def test_every_command_on_every_form_names_this_server() -> None:
    with InProcessServer(console_write=True) as server:
        create(server, ("made", 2))
        for path in (*FORMS.values(), *(path for paths in TEMPLATES.values() for path in paths if "group" not in path)):
            check(server, path)


def test_a_command_names_the_virtual_cluster() -> None:
    assert text.kafka_command("[::1]:9092", "groups", "reset", "a b;c") == (
        "headrace groups reset 'a b;c' --bootstrap '[::1]:9092'"
    )
    assert text.kafka_command("h:1", "groups", "reset", "g", cluster="pool") == (
        "headrace groups reset g --bootstrap h:1 --username TENANCY/USER/OCID"
    )
    assert text.storage_command("unix:///a b", "archive") == "headrace archive --redis 'unix:///a b'"
    assert "--password-file FILE --bootstrap h:1" in text.creating_user("h:1")
