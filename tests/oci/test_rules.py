"""ACLs apply to the OCI API, the console and the metrics: every operation and page without rights."""

import contextlib
import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from tests.harness.wire import Wire, batch
from tests.oci.conftest import COMPARTMENT, Api, Reply, details

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import views
from headrace.console.registry import PAGES
from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS
from headrace.oci.api.required_acls import NOT_AUTHORIZED
from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    OffsetCommitRequest,
)
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.server.config import StartError
from headrace.testing import InProcessServer

operations.load()
views.load()
ROOT = "ocid1.user.oc1..root"
JANE = "ocid1.user.oc1..jane"
STRANGER = "ocid1.user.oc1..stranger"
WHO = "x-who"
TOPIC, GROUP, CLUSTER = 2, 3, 4
ALL, READ, WRITE, DESCRIBE = 2, 3, 4, 8


class ByHeader:
    """Replaces signatures, which are verified elsewhere: a header names the sender."""

    computes = False

    def __init__(self, _: object) -> None:
        pass

    def authenticate(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], **_: Any) -> Principal:
        return next((Principal(value.decode()) for name, value in headers if name == WHO.encode()), ANONYMOUS)

    def check_body(self, headers: object, body: bytes) -> None:
        pass


class As(Api):
    """The API as a given user."""

    def __init__(self, endpoint: str, who: str) -> None:
        super().__init__(endpoint)
        self._who = who

    def call(self, method: str, path: str, body: Any = None, headers: Any = None, *, base: str = "/20180418") -> Reply:
        return super().call(method, path, body, (headers or {}) | {WHO: self._who}, base=base)


class Guarded:
    """A server with resources, and a connection of each user."""

    def __init__(self, server: InProcessServer) -> None:
        self.server = server
        self.root, self.jane, self.stranger = (As(server.http, who) for who in (ROOT, JANE, STRANGER))
        self.pool = self.root.done("POST", "/streampools", {"name": "pool", "compartmentId": COMPARTMENT})["id"]
        made = {"name": "stream", "partitions": 1, "compartmentId": COMPARTMENT}
        self.stream = self.root.done("POST", "/streams", made)["id"]
        self.root.put(self.stream, (b"k", b"v"))
        self.cursor = self.root.cursor(self.stream)
        self.group_cursor = self.root.group_cursor(self.stream, "readers")
        harness = {"name": "harness", "compartmentId": COMPARTMENT}
        self.harness = self.root.done("POST", "/connectharnesses", harness)["id"]

    def rules(self, *rules: tuple[str, int, str, int]) -> None:
        """Allow users operations on types and names."""
        creation = CreateAclsRequest.AclCreation
        asked = [
            creation(
                resource_type=kind, resource_name=name, principal=f"User:{who}", host="*", operation=operation,
                permission_type=3,
            )
            for who, kind, name, operation in rules
        ]  # fmt: skip
        with Wire(self.server.kafka) as wire:
            assert {each.error_code for each in wire.ask(CreateAclsRequest(creations=asked), 3).results} == {0}

    def without_rules(self) -> None:
        """Take all of them away."""
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        with Wire(self.server.kafka) as wire:
            wire.ask(DeleteAclsRequest(filters=[everything]), 3)

    def request(self, name: str, *, missing: bool = False) -> tuple[str, str, Any]:
        """A request for an operation: method, path and body; `missing`: about things that are not there."""
        other = "x" if missing else ""
        given = {
            "streamId": self.stream + other, "streamPoolId": self.pool + other,
            "connectHarnessId": self.harness + other,
            "groupName": "readers" + other, "workRequestId": "ocid1.coreservicesworkrequest.oc1..a",
        }  # fmt: skip
        operation = OPERATIONS[name]
        path = operation.path.replace("{groupName:rest}", "{groupName}").format(**given)
        moving = {"compartmentId": f"{COMPARTMENT}2"}
        bodies: dict[str, Any] = {
            "CreateConnectHarness": {"name": "h", "compartmentId": COMPARTMENT},
            "CreateCursor": {"partition": "0", "type": "LATEST"},
            "CreateGroupCursor": {"type": "LATEST", "groupName": "readers"},
            "UpdateGroup": {"type": "LATEST"},
            "PutMessages": details((b"k", b"v")),
            "CreateStreamPool": {"name": "p", "compartmentId": COMPARTMENT},
            "CreateStream": {"name": "s", "partitions": 1, "streamPoolId": self.pool + other},
            **dict.fromkeys(("ChangeStreamPoolCompartment", "ChangeStreamCompartment"), moving),
            "ChangeConnectHarnessCompartment": moving,
        }
        queries = {
            "GetMessages": f"?cursor={quote(self.cursor)}",
            **dict.fromkeys(("ConsumerCommit", "ConsumerHeartbeat"), f"?cursor={quote(self.group_cursor)}"),
            **dict.fromkeys(
                ("ListStreams", "ListStreamPools", "ListConnectHarnesses", "ListWorkRequests"),
                f"?compartmentId={COMPARTMENT}",
            ),
        }
        body = bodies.get(name, {}) if operation.body is not None else None
        return operation.method, path + queries.get(name, ""), body


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.server.app.Authenticator", ByHeader)
        with InProcessServer(
            oci_auth="verify",
            oci_auth_keys=tmp_path_factory.mktemp("keys"),
            authorizer_class_name=STANDARD_AUTHORIZER,
            # No test logs in to the Kafka listener or to the console, so anonymous needs all rights there.
            super_users=f"User:{ROOT};User:ANONYMOUS",
        ) as server:
            made = Guarded(server)
            yield made
            for api in (made.root, made.jane, made.stranger):
                api.close()


def test_a_groups_page_is_about_the_topics_that_one_may_see(guarded: Guarded) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"s" * 16, 4096)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="jill", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=salted
    )
    asked = OffsetCommitRequest.OffsetCommitRequestPartition
    with Wire(guarded.server.kafka) as wire:
        wire.create("hers")
        topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic, partitions=[asked(partition_index=0, committed_offset=0)]
            )
            for topic in ("hers", "stream")
        ]
        wire.ask(OffsetCommitRequest(group_id="shared", topics=topics), 8)
        made = wire.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), 0)
        assert [each.error_code for each in made.results] == [0]
    guarded.rules(("jill", GROUP, "shared", READ), ("jill", TOPIC, "hers", DESCRIBE))
    login = {"authorization": "Basic " + b64encode(b"jill:secret").decode()}
    try:
        everything = guarded.root.call("GET", "/groups/shared?to=latest", base="").body.decode()
        seen = guarded.root.call("GET", "/groups/shared?to=latest", headers=login, base="").body.decode()
        guarded.rules(("jill", TOPIC, "hers", READ))
        movable = guarded.root.call("GET", "/groups/shared?to=latest", headers=login, base="").body.decode()
    finally:
        guarded.without_rules()
    assert everything.count("<bdi>stream</bdi>") == 3  # the map, the partitions, the reset
    assert "stream" not in seen.replace("text/event-stream", "")
    assert [page.count("<bdi>hers</bdi>") for page in (everything, seen, movable)] == [3, 2, 3]
    assert [page.count("<option selected>default</option>") for page in (everything, seen)] == [1, 0]


LISTS = {"ListStreams", "ListStreamPools"}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_unauthorized_client_cannot_read_or_list_anything(guarded: Guarded, name: str) -> None:
    def seen() -> Any:
        lists = ("streams", "streampools", "connectharnesses")
        found = [guarded.root.done("GET", f"/{what}?compartmentId={COMPARTMENT}") for what in lists]
        return found, guarded.root.values(guarded.stream, guarded.cursor)

    before = seen()
    reply = guarded.stranger.call(*guarded.request(name))
    if name in LISTS:
        assert (reply.status, reply.json) == (200, [])
    else:
        assert reply.error == (404, "NotAuthorizedOrNotFound", NOT_AUTHORIZED)
        assert guarded.stranger.call(*guarded.request(name, missing=True)).error == reply.error
    assert seen() == before


def test_who_may_write_may_not_read(guarded: Guarded) -> None:
    guarded.rules((JANE, TOPIC, "stream", WRITE))
    try:
        assert guarded.jane.call(*guarded.request("PutMessages")).status == 200
        assert guarded.jane.call(*guarded.request("GetStream")).status == 200
        told = guarded.jane.call(*guarded.request("ListStreams")).json
        assert [each["name"] for each in told] == ["stream"]
        for name in ("GetMessages", "CreateCursor", "DeleteStream", "CreateGroupCursor", "CreateStream"):
            assert guarded.jane.call(*guarded.request(name)).status == 404
    finally:
        guarded.without_rules()
    assert guarded.jane.call(*guarded.request("PutMessages")).status == 404


def test_a_group_is_authorized_in_addition_to_its_stream(guarded: Guarded) -> None:
    guarded.rules((JANE, TOPIC, "stream", READ))
    try:
        assert guarded.jane.call(*guarded.request("CreateCursor")).status == 200
        assert guarded.jane.call(*guarded.request("CreateGroupCursor")).status == 404
        guarded.rules((JANE, GROUP, "readers", READ))
        assert guarded.jane.call(*guarded.request("CreateGroupCursor")).status == 200
    finally:
        guarded.without_rules()


def test_pages_and_metrics_are_asked_about(tmp_path: Any) -> None:
    """The console has no login in this test: every client is User:ANONYMOUS."""
    with (
        InProcessServer(
            oci_auth="verify", oci_auth_keys=tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, console_write=True
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback((api := Api(server.http)).close)
        refused = {}
        for name, page in PAGES.items():
            path = page.path.replace("{name:path}", "a")
            refused[name] = api.call(page.method, path, b"", base="").status
        assert api.call("GET", "/healthz", base="").status == 200
        assert api.call("GET", "/metrics", base="").status == 403
        # Lists that nothing is in are no secret.
        assert {name for name, status in refused.items() if status == 200} == {"Topics", "Groups", "Transactions"}
        assert set(refused.values()) == {200, 403}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"oci_auth": "parse"}, "oci.auth=parse does not check signatures"),
        ({"oci_auth": "off"}, "disable the OCI API with --set oci.enable=false"),
        ({"oci_auth_kafka": "required"}, "oci.auth=verify is not set"),
        ({"oci_enable": False, "headrace_testing_reset": True}, "headrace.testing.reset"),
        ({"oci_auth": "verify", "headrace_testing_reset": True}, "headrace.testing.reset"),
    ],
)
def test_rules_that_would_mean_nothing_stop_the_start(tmp_path: Any, given: dict[str, Any], told: str) -> None:
    server = InProcessServer(authorizer_class_name=STANDARD_AUTHORIZER, oci_auth_keys=tmp_path, **given)
    with pytest.raises(StartError, match=told):
        server.start()


def test_lists_show_what_may_be_seen(tmp_path: Any) -> None:
    with InProcessServer(
        oci_auth="verify", oci_auth_keys=tmp_path, authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS",
    ) as server, Wire(server.kafka) as wire, contextlib.ExitStack() as stack:  # fmt: skip
        wire.create("shown")
        assert wire.produce("shown", batch(b"x")).error_code == 0
        stack.callback((api := Api(server.http)).close)
        assert b"shown" in api.call("GET", "/topics", base="").body
        assert api.call("GET", "/topics/shown/records", base="").status == 200
        assert api.call("GET", "/metrics", base="").status == 200
