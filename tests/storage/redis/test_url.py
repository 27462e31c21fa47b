"""What a storage URL names."""

import pytest

from headrace.storage.redis.url import Kind, StorageUrl, without_password


@pytest.mark.parametrize("url", ["redis://h", "redis://h:1/2", "rediss://u:p@h:1", "unix:///tmp/sock?db=1"])
def test_a_server_is_named_as_redis_py_does(url: str) -> None:
    assert StorageUrl.parse(url) == StorageUrl(Kind.SERVER, url)


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    found = StorageUrl.parse("rediss+cluster://u:p%40@one:7000,two,[::1]:7002?ssl_cert_reqs=none")
    assert (found.kind, found.nodes) == (Kind.CLUSTER, (("one", 7000), ("two", 6379), ("::1", 7002)))
    assert found.at("other", 5) == "rediss://u:p%40@other:5/?ssl_cert_reqs=none"
    assert found.at("::2", 5) == "rediss://u:p%40@[::2]:5/?ssl_cert_reqs=none"


def test_sentinels_name_a_primary_and_may_have_a_login_of_their_own() -> None:
    url = "redis+sentinel://u:p@one,two:7/main/3?sentinel_password=s&client_name=x"
    found = StorageUrl.parse(url)
    assert (found.kind, found.nodes, found.service) == (Kind.SENTINEL, (("one", 26379), ("two", 7)), "main")
    assert found.sentinel_login == (("password", "s"),)
    assert found.at("h", 1) == "redis://u:p@h:1/3?client_name=x"
    assert without_password(url) == "redis+sentinel://u@one,two:7/main/3?client_name=x"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h", "expected a URL like"),
        ("h:6379", "expected a URL like"),
        ("unix+cluster:///tmp/sock", "expected a URL like"),
        ("redis+ring://h", "expected a URL like"),
        ("redis://h:port", "port"),
        ("redis://h:1,g:1", "expected one server behind ://; for the nodes of a cluster it is redis"),
        ("rediss://h:1/abc", "expected the number of a database"),
        ("redis+cluster://", "expected HOST:PORT"),
        ("redis+cluster://one,,two", "expected HOST:PORT"),
        ("redis+cluster://one:port", "expected HOST:PORT"),
        ("redis+cluster://one/1", "no database but 0"),
        ("redis+sentinel://one", "the name of the primary"),
        ("redis+sentinel://one/main/0/1", "the name of the primary"),
    ],
)
def test_what_is_wrong_is_said(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StorageUrl.parse(url)
