"""SaslHandshake (17), versions 0-1.

Behavior
- Selects one of `sasl.enabled.mechanisms`, before any request other than ApiVersions (KIP-43). Another mechanism is
  UNSUPPORTED_SASL_MECHANISM, and the server closes the connection.
- ILLEGAL_SASL_STATE on listeners without logins, after a login without a time limit, and before the first login while
  another request is in progress.

Version notes
- 0: the token follows without a Kafka header. The response is a bare token, too.
- 1: the token follows in SaslAuthenticate (KIP-152).
"""

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.access.required_acls import ANYBODY


@register(SaslHandshakeRequest, 0, 1, needs=ANYBODY)
def handle(request: SaslHandshakeRequest, context: RequestContext) -> None:
    """Select a mechanism."""
    channel = context.channel
    if channel.login.first and channel.is_busy:
        code = Code.ILLEGAL_SASL_STATE
    else:
        code = channel.login.begin(request.mechanism, context.version)
    offered = [] if code is Code.ILLEGAL_SASL_STATE else channel.login.mechanisms
    context.answer(SaslHandshakeResponse(error_code=code, mechanisms=offered))
    if code is Code.UNSUPPORTED_SASL_MECHANISM:
        channel.close(f"login: mechanism {request.mechanism[:100]!r} is not served, only {', '.join(offered)}")
