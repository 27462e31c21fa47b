"""The API itself: what operations work on, and the way of a request through them. The ASGI part is `oci.app`."""

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
    """What the operations of one server share."""

    signer: Signer
    """Of cursors; there once `start` is through."""

    def __init__(self, clusters: VirtualClusters, settings: OciSettings) -> None:
        self.broker = clusters.default
        self.settings = settings
        self.puts: AppendRouter | None = None
        """Where messages are put that may be for another broker; None: there is none."""
        self.traceparent: Callable[[], str | None] = lambda: None
        """The trace that the request being served belongs to; None: it belongs to none."""
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
        """Memory for bodies of requests, until they are answered."""

    async def start(self) -> None:
        """Load what is stored. The secret that signs cursors is kept there: cursors survive a restart."""
        storage = self.broker.storage
        # Of several servers that begin together the first one chooses.
        self.signer = Signer(await storage.documents.keep(_SECRETS, _CURSORS, secrets.token_bytes(SECRET_SIZE)))
        await self.catalog.start()

    async def reset(self) -> None:
        """Delete every resource and everything that is in it, as if the server were new. Raises TopicError."""
        await self.catalog.reset()
        self._begin()

    def _begin(self) -> None:
        """Limits and faults as the settings say, nothing counted yet."""
        self.limits = Limits() if self.settings.limits == "strict" else None
        self.faults = Faults(self.settings.faults, header=self.settings.faults_header)

    async def stop(self) -> None:
        """Stop work in the background."""
        await self.catalog.stop()

    def cursor_expiry_ms(self) -> int:
        """Until when a cursor that is handed out now is good."""
        return self.clock.now_ms() + self.settings.cursor_expiry_ms

    def read_cursor(self, topic: LiveTopic, token: str) -> Cursor:
        """A cursor of this stream that has not expired. Raises OciError 400, in the words of the service."""
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
        """The topic of a stream and the broker (virtual cluster) it is in. Raises OciError 404."""
        return self.catalog.streams.find(stream_id)

    def stream_id(self, topic: LiveTopic) -> str:
        """The OCID of a topic as a stream."""
        return ocids.stream(self.settings.region, topic.topic.id)
