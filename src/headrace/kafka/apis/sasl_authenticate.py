"""SaslAuthenticate (36), versions 0-2.

Behavior
- Takes the tokens of the mechanism that was agreed on (KIP-152). Over OCI's Kafka endpoint the user name of PLAIN
  chooses the virtual cluster of the connection: it is `<tenancy>/[<domain>/]<user>/<OCID of the stream pool>`, and the
  password an auth token. Everybody else gets the default one.
- SASL_AUTHENTICATION_FAILED says why as far as the client should know, after
  `connection.failed.authentication.delay.ms`; then the connection is closed.
- ILLEGAL_SASL_STATE without a SaslHandshake before it.

Version notes
- 1: tells how long the login lasts (KIP-368): `connections.max.reauth.ms`, or 0 for ever. 2: flexible.
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
    """Check a token; the last one binds the connection to the virtual cluster it opens."""
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
    """Take a token that came bare, and answer it likewise: with its length before it."""
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
    """Tell the log of a login that was refused."""
    channel.login.told = refused
    audit, more = channel.broker.access.audit, {} if request is None else {"request": request}
    audit.login_refused(str(channel.principal), channel.client_host, channel.login.mechanism, refused.reason, **more)


def refuse(channel: ResponseChannel, refused: LoginRefused, request: int | None = None) -> None:
    """Tell of a login that was refused, if nobody has, and end its channel."""
    if channel.login.told is not refused:
        log_login_refused(channel, refused, request)
    channel.close(f"login refused: {refused.reason}", expected=True)
