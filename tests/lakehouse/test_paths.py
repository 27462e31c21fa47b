"""Paths and URLs: the rule itself, and tables in folders of hostile names, without Spark."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import OptionError, TableError
from headrace.lakehouse import paths
from headrace.lakehouse.write.location import Place
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.sink import delta_options
from headrace.spark.source import options as source_options

NAMES = (
    "plain-1._~",
    "a b",
    "100%",
    "a%zz",
    "a#b",
    "a+b",
    "a?b",
    "a&b=c",
    "a:b;c",
    "it's",
    'a"b',
    "é",
    "日本",
    "a*{b}",
    " a ",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_survives_as_a_url(name: str) -> None:
    path = Path("/x") / name / "t"
    assert Path(unquote(urlsplit(paths.file_url(path)).path)) == path
    assert paths.local_path(paths.file_url(path)) == path
    assert paths.local_path(str(path)) == path
    place = Place.of(str(path))
    assert (place.path, place.uri, Place(url=place.url).path) == (path, str(path), path)
    assert Place.of(paths.file_url(path)) == place
    assert place.sibling("_dlq").path == path.with_name("t_dlq")
    assert paths.delta_problem(path) is None


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_whatever_the_name(name: str) -> None:
    path = Path("/x") / f"_{name}"
    assert paths.local_path(paths.file_url(path)) == path
    assert paths.is_plain(path) == (paths.file_url(path) == f"file://{path}")


def test_what_a_user_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.local_path("a%20b/t") == tmp_path / "a%20b" / "t"
    assert paths.local_path("file: no url") == tmp_path / "file: no url"
    for url in ("file:///x/a%20b", "file:/x/a b", "FILE://localhost/x/a b"):
        assert paths.local_path(url) == Path("/x/a b")
    assert paths.local_path("file:///x/100%") == Path("/x/100%")
    assert paths.local_path("s3://lake/a b") is None
    with pytest.raises(ValueError, match="names a file of another machine"):
        paths.local_path("file://host/x")
    with pytest.raises(TableError, match="names a file of another machine"):
        Place.of("file://host/x")
    with pytest.raises(TableError, match="tables lie in directories"):
        Place.of("ftp://host/x")
    with pytest.raises(OptionError, match="--checkpoint must be a directory of this machine, not s3://lake/c"):
        ArchiveSettings(topics=("t",), table="t", redis="", checkpoint="s3://lake/c").check()
    kept = ArchiveSettings(topics=("t",), table="t", redis="", checkpoint="file:///x/a%20b")
    assert kept.checkpoint_folder == Path("/x/a b")


@pytest.mark.parametrize("name", ["a%20b", "%41", "a[b", "a]b", "a\\b", "a^b", "a|b", "a\tb", "a\nb"])
def test_paths_that_delta_rs_cannot_use_are_refused_before_anything_is_created(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "t"
    with pytest.raises(TableError, match="delta-rs cannot use a folder with"):
        Place.of(str(path))
    with pytest.raises(OptionError, match=r"option 'path': .*: delta-rs cannot use a folder with"):
        delta_options.parse({"path": str(path)})
    assert list(tmp_path.iterdir()) == []


def test_the_sink_takes_urls_and_relative_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert delta_options.parse({"path": "a b/t"}).place.uri == str(tmp_path / "a b" / "t")
    assert delta_options.parse({"path": "file:///x/a%20b"}).place.uri == "/x/a b"
    assert delta_options.parse({"path": "s3://lake/t"}).place.uri == "s3://lake/t"
    with pytest.raises(OptionError, match=r"option 'path': .* another machine"):
        delta_options.parse({"path": "file://host/t"})


def test_the_folder_of_unreadable_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"redis": "unix:///s", "subscribe": "t", "unreadableBatches": "skip"}

    def kept(path: str) -> str | None:
        return source_options.parse({**given, "unreadableBatchesPath": path}, default_redis=None).quarantine

    assert kept("a b%20") == str(tmp_path / "a b%20")
    assert kept("file:///x/a%20b") == "/x/a b"
    for path, problem in (
        ("s3://lake/x", "must be a directory, not s3://lake/x"),
        ("file://host/x", "another machine"),
    ):
        with pytest.raises(OptionError, match=problem):
            kept(path)


def test_what_iceberg_lists_and_what_spark_is_given() -> None:
    assert paths.iceberg_location(Path("/x/a b%20")) == "file:///x/a b%20"
    assert paths.iceberg_location(Path("/x/a#b")) == "/x/a#b"
    assert paths.for_spark(["/x/a%20b/1*.parquet", "s3://lake/a%20b"]) == ["/x/a b/1\\*.parquet", "s3://lake/a%20b"]
