"""Tokens that a client sends bare, after version 0 of SaslHandshake, and what becomes of a login that is refused."""

from collections.abc import Callable

from headrace.broker.logins import LoginRefused
from headrace.kafka.server.request_context import ResponseChannel


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
        tell_refused(channel, answer.refused)
    send(len(answer.token).to_bytes(4, "big") + answer.token)


def tell_refused(channel: ResponseChannel, refused: LoginRefused, request: int | None = None) -> None:
    """Tell the log of a login that was refused."""
    channel.login.told = refused
    audit, more = channel.broker.access.audit, {} if request is None else {"request": request}
    audit.login_refused(str(channel.principal), channel.client_host, channel.login.mechanism, refused.reason, **more)


def refuse(channel: ResponseChannel, refused: LoginRefused, request: int | None = None) -> None:
    """Tell of a login that was refused, if nobody has, and end its channel."""
    if channel.login.told is not refused:
        tell_refused(channel, refused, request)
    channel.close(f"login refused: {refused.reason}", expected=True)
