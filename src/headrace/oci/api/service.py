"""The state that operations share."""

import secrets
from collections.abc import Callable
from random import Random

from headrace.broker.broker import Broker
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.oci import ocids
from headrace.oci.api.publisher import AppendRouter
from headrace.oci.cursors import SECRET_SIZE, Cursor, InvalidCursor, Signer, expired
from headrace.oci.errors import CURSOR_EXPIRED, CURSOR_INVALID, invalid
from headrace.oci.faults import Faults
from headrace.oci.limits import Limits
from headrace.oci.resources.catalog import Catalog
from headrace.oci.settings import OciSettings

_UNLIMITED = 1 << 62
_SECRETS = "oci.secrets"
_CURSORS = "cursors"


class OciService:
    """The state of one server."""

    signer: Signer
    """Signs cursors. Set by `start`."""

    def __init__(self, clusters: VirtualClusters, settings: OciSettings) -> None:
        self.broker = clusters.default
        self.settings = settings
        self.puts: AppendRouter | None = None
        """Appends batches at other brokers; None: there are none."""
        self.traceparent: Callable[[], str | None] = lambda: None
        """Returns the trace context of the current request; None without one."""
        self.clock = clusters.clock
        self.quotas = clusters.quotas
        self.catalog = Catalog(clusters, settings)
        self.random = Random()
        self.limits: Limits | None
        self.faults: Faults
        self._begin()
        self.decompression = clusters.decompression
        most = self.broker.settings.queued_max_request_bytes
        self.bodies = ReadBudget(most if most >= 0 else _UNLIMITED)
        """Memory for request bodies until their response."""

    async def start(self) -> None:
        """Load stored resources and the secret, so that cursors survive a restart."""
        storage = self.broker.storage
        # The first of several servers chooses the secret.
        self.signer = Signer(await storage.documents.keep(_SECRETS, _CURSORS, secrets.token_bytes(SECRET_SIZE)))
        await self.catalog.start()

    async def reset(self) -> None:
        """Delete every resource and its data. Raises TopicError."""
        await self.catalog.reset()
        self._begin()

    def _begin(self) -> None:
        self.limits = Limits() if self.settings.limits == "strict" else None
        self.faults = Faults(self.settings.faults, header=self.settings.faults_header)

    async def stop(self) -> None:
        """Stop background work."""
        await self.catalog.stop()

    def cursor_expiry_ms(self) -> int:
        """Return the expiry time of a new cursor."""
        return self.clock.now_ms() + self.settings.cursor_expiry_ms

    def read_cursor(self, topic: LiveTopic, token: str) -> Cursor:
        """Return an unexpired cursor of this stream. Raises OciError 400."""
        try:
            cursor = self.signer.read(token)
        except InvalidCursor:
            raise invalid(CURSOR_INVALID) from None
        if cursor.stream != topic.topic.id.bytes:
            raise invalid(CURSOR_INVALID)
        if expired(cursor, self.clock.now_ms()):
            raise invalid(CURSOR_EXPIRED)
        return cursor

    def stream(self, stream_id: str) -> tuple[Broker, LiveTopic]:
        """Return a stream's broker and topic. Raises OciError 404."""
        return self.catalog.streams.find(stream_id)

    def stream_id(self, topic: LiveTopic) -> str:
        """Return the OCID of a topic."""
        return ocids.stream(self.settings.region, topic.topic.id)
