"""SaslHandshake (17), versions 0-1.

Behavior
- Agrees on the mechanism, one of `sasl.enabled.mechanisms`, before any other request but ApiVersions (KIP-43). With any
  other mechanism the answer is UNSUPPORTED_SASL_MECHANISM, and the connection is closed.
- ILLEGAL_SASL_STATE where nobody can log in, after a login that lasts for ever, and before the first one while
  something is under way that another request asked for.

Version notes
- 0: the token follows bare, in a frame without a header, and is answered by an empty one.
- 1: the token follows in SaslAuthenticate (KIP-152).
"""

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.access.required_acls import ANYBODY


@register(SaslHandshakeRequest, 0, 1, needs=ANYBODY)
def handle(request: SaslHandshakeRequest, context: RequestContext) -> None:
    """Agree on a mechanism."""
    channel = context.channel
    if channel.login.first and channel.is_busy:
        code = Code.ILLEGAL_SASL_STATE
    else:
        code = channel.login.begin(request.mechanism, context.version)
    offered = [] if code is Code.ILLEGAL_SASL_STATE else channel.login.mechanisms
    context.answer(SaslHandshakeResponse(error_code=code, mechanisms=offered))
    if code is Code.UNSUPPORTED_SASL_MECHANISM:
        channel.close(f"login: mechanism {request.mechanism[:100]!r} is not served, only {', '.join(offered)}")
