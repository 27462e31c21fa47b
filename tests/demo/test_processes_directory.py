import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from headrace.demo.processes import MARKER, DirectoryRefused, prepare_directory
from headrace.testing import Server


@pytest.fixture
def place() -> Iterator[Path]:
    """A path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as parent:
        yield Path(parent) / "demo"


def test_a_new_directory_is_marked(place: Path) -> None:
    prepare_directory(place / "deep" / "er")
    assert (place / "deep" / "er" / MARKER).is_file()


def test_a_demos_directory_is_emptied(place: Path) -> None:
    prepare_directory(place)
    (place / "table" / "log").mkdir(parents=True)
    (place / "server.log").write_text("old")
    prepare_directory(place)
    assert {entry.name for entry in place.iterdir()} == {MARKER, "lock", "valkey.lock"}


def test_a_link_in_it_is_removed_and_what_it_leads_to_stays(place: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    prepare_directory(place)
    (place / "link").symlink_to(tmp_path)
    prepare_directory(place)
    assert not (place / "link").is_symlink()
    assert (tmp_path / "precious").exists()


def test_anybody_elses_directory_is_left_alone(place: Path) -> None:
    place.mkdir()
    (place / "precious").touch()
    with pytest.raises(DirectoryRefused, match="was not made by `headrace demo`"):
        prepare_directory(place)
    assert [entry.name for entry in place.iterdir()] == ["precious"]


def test_a_file_is_no_directory(place: Path) -> None:
    place.touch()
    with pytest.raises(DirectoryRefused, match="is not a directory"):
        prepare_directory(place)


def test_refused_while_a_server_runs_on_it(place: Path) -> None:
    prepare_directory(place)
    with Server(place) as server:
        with pytest.raises(DirectoryRefused, match=f"in use by the server with pid {server.pid}"):
            prepare_directory(place)
        with redis.Redis.from_url(server.storage) as link:
            assert link.ping()


def test_a_valkey_that_outlived_its_server_is_ended_first(place: Path) -> None:
    prepare_directory(place)
    server = Server(place)
    with contextlib.closing(server):
        server.start()
        with redis.Redis.from_url(server.storage) as link:
            valkey = int(link.info("server")["process_id"])
            link.set("old", "data")
        server.kill()
        prepare_directory(place)
        server.start()
        with redis.Redis.from_url(server.storage) as link:
            assert link.get("old") is None
            assert int(link.info("server")["process_id"]) != valkey
