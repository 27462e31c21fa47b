"""Forms that create, alter and delete topics: Kafka's admin client sees what they did."""

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from structlog.testing import capture_logs
from tests.console.visiting import EVIL, Visit, ask, create, safe
from tests.harness.wire import Wire

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.protocol.messages import CreateTopicsRequest
from headrace.testing import InProcessServer
from headrace.text.escaping import shown


def admin_of(server: InProcessServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.kafka})


def partitions(server: InProcessServer, topic: str) -> int:
    return len(admin_of(server).list_topics(topic, timeout=60).topics[topic].partitions)


def config(server: InProcessServer, topic: str, key: str) -> tuple[str, bool]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = admin_of(server)
    found = admin.describe_configs([resource])[resource].result(60)[key]
    return found.value, found.is_default


def test_a_topic_is_created_with_what_was_typed(server: InProcessServer) -> None:
    visit = Visit(server)
    assert 'href="/new-topic"' in visit.ask("/topics").html
    visit.ask("/new-topic")
    fields = {"name": " made ", "partitions": "3", "config": "retention.ms = 3600000\r\n\r\nmax.message.bytes=1000"}
    assert "3 partitions" in visit.done("/new-topic", fields).text
    assert partitions(server, "made") == 3
    assert config(server, "made", "retention.ms") == ("3600000", False)
    visit.done("/new-topic", {"name": "plain"})
    assert partitions(server, "plain") == 1
    visit.done("/new-topic", {"name": "native-made", "config": "headrace.storage=native"})
    assert "native" in ask(server, "/topics/native-made").text


REFUSED = {"name": "refused", "partitions": "2", "config": "retention.ms=5000"}


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""}, {"name": EVIL}, {"name": ".."}, {"name": "x" * 250}, {"name": "taken"}, {"partitions": "0"},
        {"partitions": "10001"}, {"replication": "3"}, {"config": "no.such=1"}, {"config": "retention.ms=soon"},
        {"config": "cleanup.policy=shrink"}, {"config": f"retention.ms={EVIL}"},
    ],
)  # fmt: skip
def test_the_form_shows_the_reason_of_the_kafka_api(server: InProcessServer, given: dict[str, str]) -> None:
    if "/topics/taken" not in ask(server, "/topics?q=taken").html:
        create(server, ("taken", 1))
    visit = Visit(server)
    visit.ask("/new-topic")
    fields = REFUSED | given
    key, _, value = fields["config"].partition("=")
    topic = CreateTopicsRequest.CreatableTopic(
        name=fields["name"],
        num_partitions=int(fields["partitions"]),
        replication_factor=int(fields.get("replication", "-1")),
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)],
    )
    with Wire(server.kafka) as wire:
        [told] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
    assert told.error_code
    assert visit.wrong("/new-topic", fields) == shown(told.error_message)
    page = safe(visit.post("/new-topic", fields))
    assert all(REFUSED[name] in page for name in {"partitions", "config"} - set(given))
    assert "/topics/refused" not in ask(server, "/topics?q=refused").html


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"partitions": "many"}, "Partitions: expected a whole number, found 'many'."),
        ({"replication": "-1"}, "Replication factor: expected a whole number, found '-1'."),
        ({"config": EVIL}, "Configuration: expected lines such as retention.ms=3600000, found "),
        ({"config": "=5"}, "Configuration: expected lines such as retention.ms=3600000, found '=5'."),
    ],
)
def test_a_form_that_is_no_request_says_what_it_expects(
    server: InProcessServer, given: dict[str, str], reason: str
) -> None:
    visit = Visit(server)
    visit.ask("/new-topic")
    assert visit.wrong("/new-topic", REFUSED | given).startswith(reason)


def test_partitions_are_added(server: InProcessServer) -> None:
    create(server, ("grown", 2))
    visit = Visit(server)
    visit.ask("/topics/grown/edit")
    assert "The topic has more partitions." in visit.done("/topics/grown/partitions", {"count": "4"}).text
    assert partitions(server, "grown") == 4
    for count, reason in (("3", "3"), ("4", "4"), ("", "Partitions: expected a whole number, found ''.")):
        assert reason in visit.wrong("/topics/grown/partitions", {"count": count})
    assert partitions(server, "grown") == 4


def test_a_configuration_is_set_and_restored(server: InProcessServer) -> None:
    create(server, ("configured", 1))
    visit = Visit(server)
    visit.ask("/topics/configured/edit")
    done = visit.done("/topics/configured/config", {"key": "retention.ms", "value": "5000"})
    assert "The configuration was changed." in done.text
    assert config(server, "configured", "retention.ms") == ("5000", False)
    assert "found 'soon'" in visit.wrong("/topics/configured/config", {"key": "retention.ms", "value": "soon"})
    assert "unknown topic configuration" in visit.wrong("/topics/configured/config", {"key": EVIL, "value": "1"})
    assert "unknown topic configuration ''" in visit.wrong("/topics/configured/config", {})
    visit.done("/topics/configured/config", {"key": "retention.ms", "value": "7", "default": "1"})
    assert config(server, "configured", "retention.ms")[1]


def test_a_topic_is_deleted_after_its_name_was_typed(server: InProcessServer) -> None:
    create(server, ("doomed", 1))
    visit = Visit(server)
    visit.ask("/topics/doomed/edit")
    for typed in ("", "doome", "DOOMED", EVIL):
        reason = visit.wrong("/topics/doomed/delete", {"confirm": typed})
        assert reason == "Type doomed to delete this topic with its records."
    with capture_logs() as logged:
        assert "doomed" not in visit.done("/topics/doomed/delete", {"confirm": "doomed"}).text
    [line] = (each for each in logged if each["event"] == "changed")
    assert (line["operation"], line["principal"]) == ("DeleteTopics", "User:ANONYMOUS")
    assert line["reason"] == "topic doomed deleted"
    assert "doomed" not in admin_of(server).list_topics(timeout=60).topics
    assert visit.post("/topics/doomed/delete", {"confirm": "doomed"}).status == 404


def test_a_deletion_that_the_server_forbids_is_forbidden_here() -> None:
    with InProcessServer(oci_auth="off", console_write=True, delete_topic_enable=False) as server:
        create(server, ("kept", 1))
        visit = Visit(server)
        visit.ask("/topics/kept/edit")
        assert visit.wrong("/topics/kept/delete", {"confirm": "kept"}) == "delete.topic.enable=false"


@pytest.mark.parametrize(
    "path", ["/new-topic", "/topics/guarded/partitions", "/topics/guarded/config", "/topics/guarded/delete"]
)
def test_forged_forms_change_nothing(server: InProcessServer, path: str) -> None:
    if "/topics/guarded" not in ask(server, "/topics?q=guarded").html:
        create(server, ("guarded", 1))
    visit = Visit(server)
    visit.ask("/topics/guarded/edit")
    fields = {"name": "forged", "count": "5", "key": "retention.ms", "value": "1", "confirm": "guarded"}
    answers = [
        visit.post(path, fields | {"token": "0" * 64}),
        visit.post(path, fields, sec_fetch_site="cross-site"),
        visit.post(path, fields, cookie=""),
        visit.post(path, fields | {"value": "x" * (1 << 20)}),
        ask(server, path, "POST", "\0\xff&&=", content_type="application/x-www-form-urlencoded"),
    ]
    assert [each.status for each in answers] == [403] * 5
    assert partitions(server, "guarded") == 1
    assert config(server, "guarded", "retention.ms")[1]


def test_each_form_needs_the_right_of_its_request(tmp_path: Path) -> None:
    with InProcessServer(
        oci_auth="verify", oci_auth_keys=tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, console_write=True,
        super_users="User:ANONYMOUS", connection_failed_authentication_delay_ms=0,
    ) as server:  # fmt: skip
        create(server, ("orders", 1))
        admin = admin_of(server)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"pw")])["bob"].result(60)

        def allow(operation: AclOperation, name: str, pattern: ResourcePatternType) -> None:
            rule = AclBinding(ResourceType.TOPIC, name, pattern, "User:bob", "*", operation, AclPermissionType.ALLOW)
            admin.create_acls([rule])[rule].result(60)

        bob = Visit.of(server, "bob", "pw")
        allow(AclOperation.DESCRIBE, "orders", ResourcePatternType.LITERAL)
        assert bob.ask("/new-topic").body == b"User:bob may not Create Cluster kafka-cluster.\n"
        assert bob.ask("/topics/orders/edit").status == 403
        bob.ask("/login")
        posts = [
            ("/topics/orders/partitions", {"count": "5"}, b"Alter", AclOperation.ALTER),
            (
                "/topics/orders/config",
                {"key": "retention.ms", "value": "5"},
                b"AlterConfigs",
                AclOperation.ALTER_CONFIGS,
            ),
            ("/topics/orders/delete", {"confirm": "orders"}, b"Delete", AclOperation.DELETE),
        ]  # fmt: skip
        for path, fields, right, operation in posts:
            assert bob.post(path, fields).body == b"User:bob may not %s Topic orders.\n" % right
            allow(operation, "orders", ResourcePatternType.LITERAL)
            page = bob.ask("/topics/orders/edit").html
            assert path in page
            assert bob.post(path, fields).status == 303
        allow(AclOperation.CREATE, "bob-", ResourcePatternType.PREFIXED)
        assert bob.ask("/new-topic").status == 200
        assert bob.post("/new-topic", {"name": "bob-1"}).headers["location"] == "/topics"
        assert bob.wrong("/new-topic", {"name": "other"}) == "User:bob may not Create Topic other"
