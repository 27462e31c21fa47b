"""The console's pages over HTTP: contents and access, with hostile input shown as text."""

import re
import subprocess
import sys
from html import unescape
from urllib.parse import quote

import msgspec
from tests.console.visiting import EVIL, ask, commit, create, produce, safe

from headrace.console import views
from headrace.console.text import group
from headrace.testing import InProcessServer

views.load()


def test_every_page_answers_and_is_ours_alone(server: InProcessServer) -> None:
    create(server, ("plain", 3))
    commit(server, "plain-readers", "plain", p0=0)
    for path in ("/", "/topics", "/topics/plain", "/topics/plain/records", "/groups", "/groups/plain-readers",
                 "/pipeline", "/brokers"):  # fmt: skip
        answer = ask(server, path)
        assert answer.status == 200, path
        safe(answer)
        assert ask(server, path, "HEAD").body == b""
    missing = ask(server, "/topics/nothing")
    assert missing.status == 404
    assert "Unknown topic nothing." in missing.text
    assert ask(server, "/groups/nobody").status == 404
    assert ask(server, "/topics/plain/records?partition=9").status == 404
    assert ask(server, "/topics?cluster=nowhere").status == 404
    for wrong in ("page=0", "page=99999999999999999999", "page=-1", "sort=evil", "q=" + "x" * 5000, "%ff=%fe&a"):
        assert ask(server, f"/topics?{wrong}").status == 200, wrong


def test_an_internal_topic_is_not_offered_and_shows_no_streams(server: InProcessServer) -> None:
    assert "__consumer_offsets" not in ask(server, "/topics").text
    answer = ask(server, "/topics/__consumer_offsets")
    assert answer.status == 200, "groups that have positions in it link to it"
    assert "default/__consumer_offsets" not in answer.text


FIRST_VISITORS = """
import sys, threading
from tests.console.visiting import ask
from headrace.testing import InProcessServer

with InProcessServer(oci_auth="off") as server:
    assert ask(server, "/readyz").status == 200
    assert "jinja2" not in sys.modules
    found = []
    paths = ["/", "/topics", "/groups", "/login", "/nowhere"]
    visitors = [threading.Thread(target=lambda path=path: found.append(ask(server, path).status)) for path in paths]
    for each in visitors:
        each.start()
    for each in visitors:
        each.join()
    assert sorted(found) == [200, 200, 200, 200, 404], found
"""


def test_pages_are_made_ready_for_the_first_visitors() -> None:
    """All at once, in a process without earlier visitors."""
    done = subprocess.run([sys.executable, "-c", FIRST_VISITORS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_everything_a_page_needs_is_small_and_from_here(server: InProcessServer) -> None:
    page = ask(server, "/")
    assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.html)
    modules = ["/static/live.js", "/static/chart.js", "/static/tabs.js", "/static/tail.js", "/static/times.js"]
    answers = [ask(server, path) for path in (*assets, *modules)]
    assert {each.status for each in answers} == {200}
    assert all("immutable" in each.headers["cache-control"] for each in answers[: len(assets)])
    assert sum(len(each.body) for each in (page, *answers)) < 100_000
    for path in ("/static/../pages.py", "/static/%2e%2e%2fpages.py", "/static/none.css", "/static/"):
        assert ask(server, path).status == 404


def test_hostile_names_keys_values_and_headers_are_text(server: InProcessServer) -> None:
    create(server, ("hostile", 1))
    commit(server, EVIL, "hostile", p0=0)
    big = b"[" * 1_000_000
    produce(
        server, "hostile", (EVIL.encode(), EVIL.encode()), (b"\xff\xfe", b"\x00\xff"), (None, None), (b"k", big),
        (b"", b'{"a": "\xe2\x80\xae", "b": [1]}'),
    )  # fmt: skip
    listed = safe(ask(server, "/topics/hostile/records?from=oldest"))
    assert "(1,000,000 bytes)" in unescape(listed)
    for offset in range(5):
        answer = ask(server, f"/topics/hostile/records?show={offset}")
        safe(answer)
        assert "\\x1b[31m\\u202e" in answer.text
    assert "1,000,000 bytes, the first 16 KiB are shown" in ask(server, "/topics/hostile/records?show=3").text
    assert "2 bytes, not UTF-8" in ask(server, "/topics/hostile/records?show=1").text
    laid_out = ask(server, "/topics/hostile/records?show=4").text
    assert '{ "a": "\\u202e", "b": [ 1 ] }' in laid_out
    assert len(ask(server, "/topics/hostile/records?show=3").body) < 200_000

    path = group(EVIL)
    assert "\\x1b[31m\\u202e" in ask(server, path).text
    for each in ("/", "/groups", path, path + "?to=time&at=" + quote(EVIL), "/topics?q=" + quote(EVIL),
                 "/topics/hostile/records?from=" + quote(EVIL) + "&key=" + quote(EVIL),
                 "/topics/" + quote(EVIL, safe=""), "/topics/hostile/records?at=" + quote(EVIL)):  # fmt: skip
        safe(ask(server, each))


def test_an_unknown_path_is_a_page_for_people_and_json_for_programs(server: InProcessServer) -> None:
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    page = ask(server, "/nonsense/%3Cb%3E?cluster=nowhere", accept=browser)
    assert page.status == 404
    assert "This page does not exist. Back to the overview" in page.text
    safe(page)
    assert ask(server, "/nonsense", "HEAD", accept=browser).body == b""
    for path, accept in (("/nonsense", "*/*"), ("/nonsense", "application/json"), ("/20180418/nonsense", browser)):
        answer = ask(server, path, accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
        assert msgspec.json.decode(answer.body)["code"] == "NotFound"
    assert ask(server, "/nonsense", "POST", accept=browser).headers["content-type"] == "application/json"
    assert ask(server, "/nonsense", accept=browser, host="evil.example").status == 403


def test_others_than_this_machine_are_refused(server: InProcessServer) -> None:
    answer = ask(server, "/", host="evil.example")
    assert answer.status == 403
    assert ask(server, "/events?of=/", origin="http://evil.example").status == 403
