"""Configurations of groups: stored, shared by brokers, and read by groups."""

import pytest
from structlog.testing import capture_logs
from tests.harness.memory import MemoryStorage

from headrace.broker.admin import group_configs
from headrace.broker.admin.group_configs import KIND, ClusterGroupConfigs, GroupConfigs, TooManyGroupConfigs
from headrace.broker.config.settings import BrokerSettings
from headrace.topics.errors import InvalidConfig

SESSION = "consumer.session.timeout.ms"


async def configure(configs: ClusterGroupConfigs, group: str, **values: str) -> None:
    given = {name.replace("_", "."): value for name, value in values.items()}
    await configs.configure(group, lambda _: given)


async def test_a_group_has_its_own_values_over_the_defaults() -> None:
    configs = GroupConfigs(MemoryStorage().documents).of("default")
    assert configs.of("a").consumer_session_timeout_ms == 45_000
    await configure(configs, "a", consumer_session_timeout_ms=" 50000 ")
    configs.set_defaults(BrokerSettings.of({"group.consumer.session.timeout.ms": "55000"}).group_defaults)
    assert configs.of("a").consumer_session_timeout_ms == 50_000
    assert configs.of("b").consumer_session_timeout_ms == 55_000
    assert list(configs.groups) == ["a"]
    await configure(configs, "a")
    assert configs.of("a").consumer_session_timeout_ms == 55_000
    assert list(configs.groups) == []


async def test_what_is_refused_or_only_tried_changes_nothing() -> None:
    storage = MemoryStorage()
    configs = GroupConfigs(storage.documents).of("default")
    with pytest.raises(InvalidConfig):
        await configure(configs, "a", consumer_session_timeout_ms="1")
    with pytest.raises(InvalidConfig, match="at most 1024 characters"):
        await configure(configs, "a", consumer_session_timeout_ms=" " * 2_000 + "50000")
    await configs.configure("a", lambda _: {SESSION: "50000"}, validate_only=True)
    assert await storage.documents.load(KIND) == {}
    assert configs.of("a") == configs.default


async def test_values_are_loaded_by_cluster_and_followed_by_other_brokers() -> None:
    documents = MemoryStorage().documents
    here, there = GroupConfigs(documents), GroupConfigs(documents)
    await configure(here.of("default"), "a/b", consumer_session_timeout_ms="50000")
    await configure(here.of("pool"), "a/b", consumer_session_timeout_ms="51000")
    seen = there.of("default")
    await there.load()
    assert seen.of("a/b").consumer_session_timeout_ms == 50_000
    assert there.of("pool").of("a/b").consumer_session_timeout_ms == 51_000
    await configure(here.of("default"), "a/b")
    await there.reload(frozenset({"quotas"}))
    assert list(seen.groups) == ["a/b"]
    await there.reload(frozenset({KIND}))
    assert list(seen.groups) == []
    await here.forget("pool")
    await there.reload(frozenset())
    assert list(there.of("pool").groups) == []


async def test_unreadable_documents_are_ignored() -> None:
    documents = MemoryStorage().documents
    await documents.save(
        {
            (KIND, "default/a"): b'{"consumer.session.timeout.ms":"50000"}',
            (KIND, "default/b"): b'{"consumer.session.timeout.ms":"soon"}',
            (KIND, "default/c"): b'{"of.another.version":"1"}',
            (KIND, "default/d"): b"[]",
        }
    )
    configs = GroupConfigs(documents)
    with capture_logs():
        await configs.load()
    assert list(configs.of("default").groups) == ["a"]
    assert configs.of("default").of("b") == configs.of("default").default


async def test_a_cluster_has_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_configs, "MOST_GROUPS", 2)
    configs = GroupConfigs(MemoryStorage().documents).of("default")
    for group in ("a", "b", "a"):
        await configure(configs, group, share_session_timeout_ms="50000")
    with pytest.raises(TooManyGroupConfigs):
        await configure(configs, "c", share_session_timeout_ms="50000")
    await configure(configs, "c")
    await configure(configs, "b")
    await configure(configs, "c", share_session_timeout_ms="50000")
    assert len(configs.groups) == 2
