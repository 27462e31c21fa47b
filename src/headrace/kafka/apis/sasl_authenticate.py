"""SaslAuthenticate (36), versions 0-2.

Behavior
- Takes the PLAIN token (KIP-152). The user name chooses the virtual cluster of the connection: over OCI's Kafka
  endpoint it is `<tenancy>/[<domain>/]<user>/<OCID of the stream pool>`, and the password an auth token.
- SASL_AUTHENTICATION_FAILED says why as far as the client should know; then the connection is closed.
- ILLEGAL_SASL_STATE without a SaslHandshake before it.

Version notes
- 1: tells how long the login lasts (KIP-368): for ever, told as 0. 2: flexible.
"""

from structlog.contextvars import bound_contextvars

from headrace.access.needs import ANYBODY
from headrace.broker.logins import LoginRefused
from headrace.kafka.codec.messages import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.kafka.errors import Code
from headrace.kafka.exchange import Exchange
from headrace.kafka.registry import register


@register(SaslAuthenticateRequest, 0, 2, needs=ANYBODY)
def handle(request: SaslAuthenticateRequest, exchange: Exchange) -> None:
    """Check a token, and bind the connection to the virtual cluster it opens."""
    outlet = exchange.outlet
    if not outlet.login.expects_token:
        exchange.answer(_failure(Code.ILLEGAL_SASL_STATE, "SaslAuthenticate comes once, after SaslHandshake"))
        return
    try:
        outlet.enter(outlet.login.finish(bytes(request.auth_bytes)))
    except LoginRefused as refused:
        exchange.answer(_failure(Code.SASL_AUTHENTICATION_FAILED, str(refused)))
        with bound_contextvars(request=exchange.correlation_id, client_id=exchange.client_id):
            outlet.close(f"login refused: {refused.reason}")
    else:
        exchange.answer(SaslAuthenticateResponse(error_message=None, auth_bytes=b""))


def _failure(code: Code, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
