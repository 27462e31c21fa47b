"""Clients of Oracle's `oci` package for a server in a test: a throw-away key, and no waiting for retries."""

import uuid
from typing import Any

import oci
from headrace.testing.api_key import throw_away_key


class OciClients:
    """Makes clients for one server. Each of these has a compartment of its own, which is nothing but a name."""

    def __init__(self, endpoint: str, compartment_id: str | None = None) -> None:
        """For the door at `endpoint`; `compartment_id` None: a new one."""
        self.endpoint = endpoint
        self.compartment_id = compartment_id or f"ocid1.compartment.oc1..{uuid.uuid4().hex}"
        self.config: dict[str, Any] = throw_away_key().configuration

    def admin_client(self, **options: Any) -> oci.streaming.StreamAdminClient:
        """A StreamAdminClient; `options` as it takes them. Without `retry_strategy` nothing is tried twice."""
        return oci.streaming.StreamAdminClient(self.config, service_endpoint=self.endpoint, **_patient(options))

    def stream_client(self, endpoint: str | None = None, **options: Any) -> oci.streaming.StreamClient:
        """A StreamClient for a stream's `messages_endpoint`; None: the server's. Options as for `admin_client`."""
        return oci.streaming.StreamClient(self.config, endpoint or self.endpoint, **_patient(options))

    def create_stream(self, name: str, partitions: int = 1, **details: Any) -> oci.streaming.models.Stream:
        """A new stream, in this object's compartment unless `details` (as CreateStreamDetails) say otherwise."""
        if "stream_pool_id" not in details:
            details.setdefault("compartment_id", self.compartment_id)
        asked = oci.streaming.models.CreateStreamDetails(name=name, partitions=partitions, **details)
        return self.admin_client().create_stream(asked).data

    def sweep(self) -> None:
        """Remove the stream pools, with their streams, and the connect harnesses of the compartment."""
        admin = self.admin_client()
        for pool in _all(admin.list_stream_pools, self.compartment_id):
            try:
                admin.delete_stream_pool(pool.id)
            except oci.exceptions.ServiceError as error:
                if error.status not in {400, 409}:  # a compartment's default pool stays
                    raise
        for harness in _all(admin.list_connect_harnesses, self.compartment_id):
            admin.delete_connect_harness(harness.id)


def _patient(options: dict[str, Any]) -> dict[str, Any]:
    return {"retry_strategy": oci.retry.NoneRetryStrategy()} | options


def _all(listing: Any, compartment_id: str) -> list[Any]:
    found = oci.pagination.list_call_get_all_results(listing, compartment_id, lifecycle_state="ACTIVE")
    return list(found.data)
