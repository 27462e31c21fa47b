"""SaslAuthenticate (36), versions 0-2.

Behavior
- Takes the tokens of the mechanism from SaslHandshake (KIP-152). Without a SaslHandshake: ILLEGAL_SASL_STATE.
- On the OCI Kafka endpoint, the user name of PLAIN selects the virtual cluster. It is
  `<tenancy>/[<domain>/]<user>/<OCID of the stream pool>`, and the password is an auth token. Other users get the
  default virtual cluster.
- A failed login gets SASL_AUTHENTICATION_FAILED after `connection.failed.authentication.delay.ms`, with a message that
  is safe for clients. Then the server closes the connection.

Version notes
- 1: the lifetime of the login (KIP-368): `connections.max.reauth.ms`, or 0 for no limit. 2: flexible.
"""

from collections.abc import Callable

from structlog.contextvars import bound_contextvars

from headrace.broker.logins import LoginRefused
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.protocol.messages import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.security.access.required_acls import ANYBODY


@register(SaslAuthenticateRequest, 0, 2, needs=ANYBODY)
async def handle(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse | None:
    """Check a token. The last one assigns the connection to a virtual cluster."""
    channel = context.channel
    if not channel.login.expects_token:
        return _failure(Code.ILLEGAL_SASL_STATE, "SaslAuthenticate comes once, after SaslHandshake")
    try:
        answer = await channel.login.take(bytes(request.auth_bytes))
    except LoginRefused as refused:
        context.answer(_failure(Code.SASL_AUTHENTICATION_FAILED, str(refused)))
        with bound_contextvars(client_id=context.client_id):
            refuse(channel, refused, context.correlation_id)
        return None
    if answer.admitted is not None:
        channel.enter(answer.admitted, channel.login.mechanism)
    elif answer.refused is not None:
        with bound_contextvars(client_id=context.client_id):
            log_login_refused(channel, answer.refused, context.correlation_id)
    lifetime_ms = 0 if answer.admitted is None else answer.admitted.lifetime_ms
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer.token, session_lifetime_ms=lifetime_ms)


def _failure(code: Code, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")


async def take_bare(channel: ResponseChannel, token: bytes, send: Callable[[bytes], None]) -> None:
    """Check a token without a Kafka header, and respond with a bare token: its length, then its bytes."""
    try:
        answer = await channel.login.take(token)
    except LoginRefused as refused:
        refuse(channel, refused)
        return
    if answer.admitted is not None:
        channel.enter(answer.admitted, channel.login.mechanism)
    elif answer.refused is not None:
        log_login_refused(channel, answer.refused)
    send(len(answer.token).to_bytes(4, "big") + answer.token)


def log_login_refused(channel: ResponseChannel, refused: LoginRefused, request: int | None = None) -> None:
    """Log a refused login."""
    channel.login.told = refused
    audit, more = channel.broker.access.audit, {} if request is None else {"request": request}
    audit.login_refused(str(channel.principal), channel.client_host, channel.login.mechanism, refused.reason, **more)


def refuse(channel: ResponseChannel, refused: LoginRefused, request: int | None = None) -> None:
    """Log a refused login, once, and close its channel."""
    if channel.login.told is not refused:
        log_login_refused(channel, refused, request)
    channel.close(f"login refused: {refused.reason}", expected=True)
