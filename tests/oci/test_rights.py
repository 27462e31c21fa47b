"""Each right of each OCI operation on a running server: all others are not enough, and exactly the needed ones are."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.harness.wire import Wire
from tests.kafka.server.test_authorization import EVERY, IMPLYING
from tests.oci.conftest import COMPARTMENT, Api, Reply, details

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.kafka.acl_codes import OPERATIONS as CODES
from headrace.kafka.acl_codes import TYPES
from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS, Operation
from headrace.oci.api.required_acls import NOT_AUTHORIZED
from headrace.protocol.messages import (
    CreateAclsRequest,
    DeleteAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.security.access import required_acls
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Resource, ResourceType, Rule
from headrace.testing import InProcessServer

operations.load()
TENANCY, OTHER_TENANCY = "ocid1.tenancy.oc1..one", "ocid1.tenancy.oc1..two"
ROOT, JANE = "ocid1.user.oc1..root", "ocid1.user.oc1..jane"
ADMIN, TOKEN = "one/admin", "token"
WHO = "x-who"
Needed = list[tuple[Rule, Resource]]
LISTS = {"ListStreams", "ListStreamPools"}
CODE_OF = {operation: code for code, operation in CODES.items()}
TYPE_OF = {kind: code for code, kind in TYPES.items()}


class ByHeader:
    """Stands for signatures, which are verified elsewhere: the header has tenancy and user."""

    computes = False

    def __init__(self, _: object) -> None:
        pass

    def authenticate(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], **_: Any) -> Principal:
        [who] = [value.decode() for name, value in headers if name == WHO.encode()]
        tenancy, user = who.split("/")
        return Principal.of(tenancy, user)

    def check_body(self, headers: object, body: bytes) -> None:
        pass


class As(Api):
    """The API as a given user."""

    def __init__(self, endpoint: str, tenancy: str, user: str) -> None:
        super().__init__(endpoint)
        self._as = f"{tenancy}/{user}"

    def call(self, method: str, path: str, body: Any = None, headers: Any = None, *, base: str = "/20180418") -> Reply:
        return super().call(method, path, body, (headers or {}) | {WHO: self._as}, base=base)


class World:
    """Two pools, the first with a stream; made again for each test."""

    def __init__(self, server: InProcessServer, root: Api, number: int) -> None:
        self._server, self._root = server, root
        self.compartment = f"{COMPARTMENT}{number}"
        self.source, self.target = (
            root.done("POST", "/streampools", {"name": name, "compartmentId": self.compartment})["id"]
            for name in ("source", "target")
        )
        made = {"name": "stream", "partitions": 1, "streamPoolId": self.source}
        self.stream = root.done("POST", "/streams", made)["id"]
        root.put(self.stream, (b"k", b"v"))
        self.cursor = root.cursor(self.stream)
        self.group_cursor = root.group_cursor(self.stream, "readers")
        harness = {"name": "harness", "compartmentId": self.compartment}
        self.harness = root.done("POST", "/connectharnesses", harness)["id"]
        self.work = root.done("GET", f"/workRequests?compartmentId={self.compartment}")["items"][0]["id"]

    def cluster_of(self, pool: str) -> str:
        return pool.rpartition(".")[2]

    @contextlib.contextmanager
    def admin(self, cluster: str) -> Iterator[Wire]:
        """A connection of a super user to a virtual cluster."""
        with Wire(self._server.kafka) as wire:
            if cluster != SERVER:
                [pool] = [each for each in (self.source, self.target) if self.cluster_of(each) == cluster]
                wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                auth = f"\0{ADMIN}/{pool}\0{TOKEN}".encode()
                assert wire.ask(SaslAuthenticateRequest(auth_bytes=auth), 2).error_code == 0
            yield wire

    def rights(self, granted: Iterable[tuple[str, required_acls.Operation, ResourceType]], who: str = "") -> None:
        """Grant these on every resource, and nothing else."""
        by_cluster: dict[str, list[Any]] = {}
        for cluster in (SERVER, self.cluster_of(self.source), self.cluster_of(self.target)):
            by_cluster[cluster] = []
        for cluster, operation, kind in granted:
            by_cluster[cluster].append(
                CreateAclsRequest.AclCreation(
                    resource_type=TYPE_OF[kind],
                    resource_name=CLUSTER_NAME if kind is ResourceType.CLUSTER else "*",
                    principal=f"User:{who or f'{TENANCY}/{JANE}'}",
                    host="*",
                    operation=CODE_OF[operation],
                    permission_type=3,
                )
            )
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        for cluster, creations in by_cluster.items():
            with self.admin(cluster) as wire:
                wire.ask(DeleteAclsRequest(filters=[everything]), 3)
                results = wire.ask(CreateAclsRequest(creations=creations), 3).results
                assert {each.error_code for each in results} <= {0}

    def request(self, case: str) -> tuple[str, str, Any]:
        """Method, path and body of a call."""
        operation = OPERATIONS[case.partition(":")[0]]
        path = operation.path.replace("{groupName:rest}", "{groupName}").format(
            streamId=self.stream, streamPoolId=self.source, connectHarnessId=self.harness, groupName="readers",
            workRequestId=self.work,
        )  # fmt: skip
        elsewhere = {"compartmentId": f"{self.compartment}-elsewhere"}
        bodies: dict[str, Any] = {
            "CreateConnectHarness": {"name": "h", "compartmentId": self.compartment},
            "CreateCursor": {"partition": "0", "type": "LATEST"},
            "CreateGroupCursor": {"type": "LATEST", "groupName": "readers"},
            "UpdateGroup": {"type": "LATEST"},
            "PutMessages": details((b"k", b"v")),
            "CreateStreamPool": {"name": "p", "compartmentId": self.compartment},
            "CreateStream": {"name": "s", "partitions": 1, "streamPoolId": self.target},
            "CreateStream:new pool": {"name": "s", "partitions": 1, **elsewhere},
            "UpdateStream:moves": {"streamPoolId": self.target},
            "UpdateStreamPool:default": {"name": "DefaultPool"},
            **dict.fromkeys(
                ("ChangeStreamPoolCompartment", "ChangeStreamCompartment", "ChangeConnectHarnessCompartment"), elsewhere
            ),
        }
        queries = {
            "GetMessages": f"?cursor={quote(self.cursor)}",
            "GetMessages:group": f"?cursor={quote(self.group_cursor)}",
            **dict.fromkeys(("ConsumerCommit", "ConsumerHeartbeat"), f"?cursor={quote(self.group_cursor)}"),
            **dict.fromkeys(
                ("ListStreams", "ListStreamPools", "ListConnectHarnesses", "ListWorkRequests"),
                f"?compartmentId={self.compartment}",
            ),
        }
        body = bodies.get(case, {}) if operation.body is not None else None
        return operation.method, path + queries.get(case, ""), body


CASES = sorted(
    [*OPERATIONS, "UpdateStream:moves", "UpdateStreamPool:default", "CreateStream:new pool", "GetMessages:group"]
)


class Site:
    """A server, and what its calls needed."""

    def __init__(self, server: InProcessServer, seen: list[Needed]) -> None:
        self.server, self.seen = server, seen
        self.root = As(server.http, TENANCY, ROOT)
        self.jane = As(server.http, TENANCY, JANE)
        self.namesake = As(server.http, OTHER_TENANCY, JANE)
        self._worlds = 0

    def world(self) -> World:
        self._worlds += 1
        return World(self.server, self.root, self._worlds)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("keys")
    tokens = folder / "tokens"
    tokens.write_text(f"{ADMIN} {TOKEN}\n")
    seen: list[Needed] = []
    needed = Operation.needed

    def watched(self: Operation, call: Any) -> Iterator[tuple[Rule, Resource]]:
        seen.append(list(needed(self, call)))
        return iter(seen[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.server.app.Authenticator", ByHeader)
        patch.setattr(Operation, "needed", watched)
        with InProcessServer(
            oci_auth="verify",
            oci_auth_keys=folder,
            oci_auth_tokens=tokens,
            oci_pools="compartment",
            authorizer_class_name=STANDARD_AUTHORIZER,
            super_users=f"User:{TENANCY}/{ROOT};User:{ADMIN};User:ANONYMOUS",
        ) as server:
            made = Site(server, seen)
            yield made
            for api in (made.root, made.jane, made.namesake):
                api.close()


@pytest.mark.parametrize("case", CASES)
def test_exactly_the_needed_rights_are_enough(site: Site, case: str) -> None:
    world = site.world()
    world.rights(())
    site.seen.clear()
    refused = site.jane.call(*world.request(case))
    if case in LISTS:
        assert refused.json == []
        return
    assert refused.error == (404, "NotAuthorizedOrNotFound", NOT_AUTHORIZED)
    needed = site.seen[0]
    assert needed
    clusters = {SERVER, world.cluster_of(world.source), world.cluster_of(world.target)}
    every = {(cluster, operation, kind) for _, operation, kind in EVERY for cluster in clusters}
    for rule, resource in needed:
        enough = {rule.operation, *IMPLYING.get(rule.operation, ())}
        granting = {(resource.cluster, operation, rule.type) for operation in enough}
        if rule.instead is not None:
            granting.add((resource.cluster, *rule.instead))
        world.rights(every - granting)
        assert site.jane.call(*world.request(case)).status == 404, str(rule)
    world.rights({(resource.cluster, rule.operation, rule.type) for rule, resource in needed})
    for who in (site.namesake, site.jane):
        reply = site.jane.call(*world.request(case)) if who is site.jane else who.call(*world.request(case))
        assert (reply.status < 300) is (who is site.jane), reply


def test_altering_alone_takes_no_stream_to_a_pool_of_ones_own(site: Site) -> None:
    world = site.world()
    source, target = world.cluster_of(world.source), world.cluster_of(world.target)
    own = {(target, operation, kind) for _, operation, kind in EVERY}
    altering = (source, required_acls.Operation.ALTER, ResourceType.TOPIC)
    world.rights({*own, altering})
    moving = world.request("UpdateStream:moves")
    assert site.jane.call(*moving).status == 404
    assert site.jane.call("PUT", f"/streams/{world.stream}", {"freeformTags": {"a": "b"}}).status == 200
    elsewhere = f"/streams/{world.stream}/actions/changeCompartment"
    assert site.jane.call("POST", elsewhere, {"compartmentId": world.compartment}).status == 404
    assert site.root.done("GET", f"/streams/{world.stream}")["streamPoolId"] == world.source
    more = {
        (source, each, ResourceType.TOPIC) for each in (required_acls.Operation.READ, required_acls.Operation.DELETE)
    }
    world.rights({*own, altering, *more})
    assert site.jane.call(*moving).status == 200
    assert site.jane.values(world.stream, site.jane.cursor(world.stream)) == [b"v"]


def test_a_rule_without_a_tenancy_denies_and_does_not_allow(site: Site) -> None:
    world = site.world()
    source = world.cluster_of(world.source)
    reading = (source, required_acls.Operation.READ, ResourceType.TOPIC)
    world.rights({reading}, who=JANE)
    assert site.jane.call(*world.request("CreateCursor")).status == 404
    world.rights({reading}, who="*")
    assert site.jane.call(*world.request("CreateCursor")).status == 200
    denied = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="stream", principal=f"User:{JANE}", host="*", operation=3, permission_type=2
    )
    with world.admin(source) as wire:
        assert wire.ask(CreateAclsRequest(creations=[denied]), 3).results[0].error_code == 0
    for api in (site.jane, site.namesake):
        assert api.call(*world.request("CreateCursor")).status == 404
    assert site.root.call(*world.request("CreateCursor")).status == 200
