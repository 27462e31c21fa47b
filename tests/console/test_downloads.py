"""Files that the console writes: CSV that no spreadsheet evaluates, and lists as they are shown."""

import asyncio
import csv
import io
import json

from tests.console.visiting import EVIL, ask, commit, create, produce

from headrace.console import views
from headrace.console.downloads import Download, Row, encoded
from headrace.testing import InProcessServer

views.load()


def written(format: str, *rows: Row) -> str:  # noqa: A002
    async def whole() -> bytes:
        return b"".join([piece async for piece in Download(format, "x", ("name", "value", "n"), rows).pieces()])

    return asyncio.run(whole()).decode()


def test_cells_that_a_spreadsheet_evaluates_begin_with_an_apostrophe() -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "\uff1d1", "plain", " =1", 'a"b', "a\r\nb", ""]
    text = written("csv", *({"name": each, "value": each.encode(), "n": -1.5} for each in texts))
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["name", "value", "value_encoding", "n"]
    for sent, (name, value, encoding, number) in zip(texts, rows, strict=True):
        assert not name.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
        back = name.removeprefix("'")
        assert (back, value, encoding, number) == (sent, name, "utf-8", "-1.5")


def test_bytes_that_are_not_text_are_in_base64() -> None:
    assert encoded(None) == (None, "null")
    assert encoded(b"") == ("", "utf-8")
    assert encoded(b"\xff") == ("/w==", "base64")
    assert encoded(b"a\0") == ("YQA=", "base64")
    line = written("jsonl", {"name": "\ud800\u202e", "value": b"\xff", "n": None})
    assert json.loads(line) == {"name": "\ud800\u202e", "value_base64": "/w==", "n": None}
    assert line.isascii()
    assert line.count("\n") == 1


def test_the_name_of_a_file_is_a_name_anywhere() -> None:
    for name in ("../../etc", 'a"b\r\nc: d', "\u202eexe", "..", "", "x" * 500):
        header = Download("csv", name, (), ()).headers["content-disposition"]
        file = header.removeprefix('attachment; filename="').removesuffix('.csv"')
        assert not set(file) & set('"\\/\r\n:')
        assert 0 < len(file) <= 80
        assert not file.startswith(".")


def test_lists_are_downloaded_whole_as_they_are_searched(server: InProcessServer) -> None:
    create(server, *((f"list-{n:03}", 2) for n in range(60)))
    produce(server, "list-007", (b"k", b"v"))
    commit(server, EVIL, "list-007", p0=0)
    commit(server, "=cmd", "list-007", p0=1)

    def rows(path: str) -> list[dict[str, str]]:
        answer = ask(server, path)
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        return list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))

    assert [row["topic"] for row in rows("/topics?q=list-&download=csv")] == [f"list-{n:03}" for n in range(60)]
    assert rows("/topics?q=list-007&download=csv")[0]["records"] == "1"
    groups = {row["group"]: row for row in rows("/groups?download=csv")}
    assert groups["'=cmd"]["topics"] == '["list-007"]'
    lag = rows("/groups/%3Dcmd?download=csv")[0]
    assert (lag["topic"], lag["partition"], lag["committed_offset"], lag["lag"]) == ("list-007", "0", "1", "0")
    lines = ask(server, "/groups?download=jsonl").body.decode().splitlines()
    assert EVIL in [json.loads(line)["group"] for line in lines]
