import re
from importlib.resources import files

import pytest
import redis
from tests.harness.redis import RedisServer

from headrace.storage.layout.scripts import script, scripts, with_parts

NAMES = sorted(
    entry.name.removesuffix(".lua")
    for entry in (files("headrace.storage.layout") / "lua").iterdir()
    if ".lua" in entry.name
)


@pytest.mark.parametrize("name", NAMES)
def test_redis_takes_the_script_and_names_it_alike(any_redis: RedisServer, name: str) -> None:
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        assert link.script_load(script(name).text) == script(name).sha


@pytest.mark.parametrize("name", NAMES)
def test_the_script_says_what_it_takes(name: str) -> None:
    """Keys and arguments are listed at the top, in order; nothing but `redis.call` where an error must end it."""
    text = script(name).text
    assert re.search(r"^-- KEYS: ", text, re.MULTILINE)
    assert re.search(r"^-- (Reply|Errors?): ", text, re.MULTILINE)
    assert ("ARGV[" in text) == ("-- ARGV: " in text)
    assert "KEYS[" in text


UNFENCED = {"begin_epoch", "keep_lock", "leave_lock", "raise_layout", "take_lock", "view_beat", "view_change"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNFENCED])
def test_who_writes_is_fenced(name: str) -> None:
    text = script(name).text
    if "no-writes" not in text.splitlines()[0]:
        assert re.search(r"^local no = (fenced|refused)\(.+\)\nif no then\n  return no\nend$", text, re.MULTILINE)


def test_every_file_is_a_script() -> None:
    assert list(scripts()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_the_parts_it_takes_each_once(name: str) -> None:
    """A function that it calls and does not have Redis would miss only when the call comes."""
    text = script(name).text
    assert "-- Parts: " not in text
    defined = re.findall(r"^ *local function (\w+)", text, re.MULTILINE)
    assert len(defined) == len(set(defined))
    called = set(re.findall(r"(?<![\w.'-])([a-z_]\w+)\(", re.sub("--.*", "", text)))
    assert called - {"ipairs", "tonumber", "type", "unpack"} <= set(defined)
    code = re.sub("--.*", "", text)
    # Above its definition the name would be an undefined global.
    for each in defined:
        first = re.search(rf"(local function )?\b{each}\(", code)
        assert first is not None
        assert first[1], f"{each} is called above its definition"


@pytest.mark.parametrize("line", ["one, two", "two, one", "two"])
def test_a_part_is_below_its_users(line: str) -> None:
    parts = {"one": "function one() end", "two": "-- Parts: one\nfunction two() one() end"}
    whole = with_parts(f"-- Parts: {line}", parts, set())
    assert [text for text in whole.split("\n") if text] == ["function one() end", "function two() one() end"]


def test_there_is_no_other_script() -> None:
    with pytest.raises(KeyError):
        script("nothing")
