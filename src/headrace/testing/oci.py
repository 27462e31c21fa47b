"""Clients of Oracle's `oci` package, with a temporary key and without retries."""

import uuid
from base64 import b64decode, b64encode
from functools import cache, cached_property
from typing import Any

import oci.streaming
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from headrace.oci.api_keys import fingerprint


@cache
def throw_away_config() -> dict[str, Any]:
    """Return the configuration of clients, with one key per process."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return {
        "tenancy": "ocid1.tenancy.oc1..headrace",
        "user": "ocid1.user.oc1..headrace",
        "fingerprint": fingerprint(key.public_key()),
        "key_content": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "region": "us-ashburn-1",
    }


@cache
def _signer() -> oci.signer.Signer:
    """Return a shared signer: loading a private key takes 50 ms."""
    return oci.signer.Signer.from_config(throw_away_config() | {"key_file": None})


class OciClients:
    """Creates clients for one server, with a separate compartment."""

    def __init__(self, endpoint: str, compartment_id: str | None = None) -> None:
        self.endpoint = endpoint
        self.compartment_id = compartment_id or f"ocid1.compartment.oc1..{uuid.uuid4().hex}"
        self.config = dict(throw_away_config())

    @cached_property
    def admin(self) -> oci.streaming.StreamAdminClient:
        """The admin client of the other methods."""
        return self.admin_client()

    def admin_client(self, **options: Any) -> oci.streaming.StreamAdminClient:
        """Return a StreamAdminClient. Retries need a `retry_strategy`."""
        return oci.streaming.StreamAdminClient(
            self.config, service_endpoint=self.endpoint, **self._with_defaults(options)
        )

    def stream_client(self, endpoint: str | None = None, **options: Any) -> oci.streaming.StreamClient:
        """Return a StreamClient for a `messages_endpoint`; None: the server's."""
        return oci.streaming.StreamClient(self.config, endpoint or self.endpoint, **self._with_defaults(options))

    def _with_defaults(self, options: dict[str, Any]) -> dict[str, Any]:
        signer = {"signer": _signer()} if self.config == throw_away_config() else {}
        return {"retry_strategy": oci.retry.NoneRetryStrategy()} | signer | options

    def create_stream(self, name: str, partitions: int = 1, **details: Any) -> oci.streaming.models.Stream:
        """Create a stream; `details` as in CreateStreamDetails."""
        if "stream_pool_id" not in details:
            details.setdefault("compartment_id", self.compartment_id)
        asked = oci.streaming.models.CreateStreamDetails(name=name, partitions=partitions, **details)
        return self.admin.create_stream(asked).data

    def sweep(self) -> None:
        """Remove the compartment's stream pools, streams, and connect harnesses."""
        admin = self.admin
        for pool in _all(admin.list_stream_pools, self.compartment_id):
            try:
                admin.delete_stream_pool(pool.id)
            except oci.exceptions.ServiceError as error:
                if error.status not in {400, 409}:  # a default pool cannot be deleted
                    raise
        for harness in _all(admin.list_connect_harnesses, self.compartment_id):
            admin.delete_connect_harness(harness.id)


class GroupReader:
    """One instance of a group, which uses its newest cursor."""

    def __init__(
        self,
        client: oci.streaming.StreamClient,
        stream_id: str,
        group: str,
        instance: str | None = None,
        *,
        start: str = "TRIM_HORIZON",
        **details: Any,
    ) -> None:
        self._client = client
        self._stream_id = stream_id
        asked = oci.streaming.models.CreateGroupCursorDetails(
            type=start, group_name=group, instance_name=instance, **details
        )
        self.cursor: str = client.create_group_cursor(stream_id, asked).data.value

    def get(self, limit: int | None = None) -> list[oci.streaming.models.Message]:
        """Return the next messages."""
        limits = {} if limit is None else {"limit": limit}
        answer = self._client.get_messages(self._stream_id, self.cursor, **limits)
        self.cursor = answer.headers["opc-next-cursor"]
        return list(answer.data)

    def values(self, limit: int | None = None) -> list[str]:
        """Return the next messages' values as text."""
        return [text_of(message.value) for message in self.get(limit)]

    def partitions(self, limit: int | None = None) -> set[int]:
        """Return the partitions of the next messages."""
        return {int(message.partition) for message in self.get(limit)}

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.cursor = self._client.consumer_heartbeat(self._stream_id, self.cursor).data.value

    def commit(self) -> None:
        """Commit the received messages."""
        self.cursor = self._client.consumer_commit(self._stream_id, self.cursor).data.value


def put(
    client: oci.streaming.StreamClient, stream_id: str, *values: str, key: str | None = None
) -> list[oci.streaming.models.PutMessagesResultEntry]:
    """Put text messages with one key, or without. Raises AssertionError for a rejected one."""
    entry = oci.streaming.models.PutMessagesDetailsEntry
    key64 = None if key is None else base64_of(key)
    messages = [entry(key=key64, value=base64_of(value)) for value in values]
    result = client.put_messages(stream_id, oci.streaming.models.PutMessagesDetails(messages=messages)).data
    assert result.failures == 0, result
    return list(result.entries)


def base64_of(text: str) -> str:
    """Encode text as in keys and values."""
    return b64encode(text.encode()).decode()


def text_of(base64: str) -> str:
    """Decode the text of a key or value."""
    return b64decode(base64).decode()


def _all(listing: Any, compartment_id: str) -> list[Any]:
    found = oci.pagination.list_call_get_all_results(listing, compartment_id, lifecycle_state="ACTIVE")
    return list(found.data)
