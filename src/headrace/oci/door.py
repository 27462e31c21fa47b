"""The door itself: what operations work on, and the way of a request through them. The ASGI part is `asgi`."""

import secrets
from random import Random

from headrace.broker.broker import Broker
from headrace.broker.topics import LiveTopic
from headrace.oci import ocids
from headrace.oci.cursors import SECRET_SIZE, Cursor, InvalidCursor, Signer, expired
from headrace.oci.errors import CURSOR_EXPIRED, CURSOR_INVALID, invalid, unknown_stream
from headrace.oci.settings import OciSettings
from headrace.topics.errors import UnknownTopic

_SECRETS = "oci.secrets"
_CURSORS = "cursors"


class Door:
    """What the operations of one server share."""

    signer: Signer
    """Of cursors; there once `start` is through."""

    def __init__(self, broker: Broker, settings: OciSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.clock = broker.clock
        self.random = Random()

    async def start(self) -> None:
        """Load what is stored. The secret that signs cursors is kept there: cursors survive a restart."""
        storage = self.broker.storage
        secret = (await storage.load_documents(_SECRETS)).get(_CURSORS)
        if secret is None:
            secret = secrets.token_bytes(SECRET_SIZE)
            await storage.save_documents({(_SECRETS, _CURSORS): secret})
        self.signer = Signer(secret)

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
        topic_id = ocids.topic_of(stream_id)
        if topic_id is None:
            raise unknown_stream(stream_id)
        try:
            return self.broker, self.broker.topics.by_id(topic_id)
        except UnknownTopic:
            raise unknown_stream(stream_id) from None

    def stream_id(self, topic: LiveTopic) -> str:
        """The OCID of a topic as a stream."""
        return ocids.stream(self.settings.region, topic.topic.id)
