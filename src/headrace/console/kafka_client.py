"""Changes by forms, made by Kafka requests.

A form sends the request that a Kafka client would send, as the viewer. Validation, ACLs, quotas and the audit log are
those of the Kafka protocol.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from headrace.console.registry import Refused, ViewRequest, cluster_rule
from headrace.console.sessions import MOST_FIELDS
from headrace.protocol.errors import EncodeError
from headrace.protocol.message import Message
from headrace.security.access.required_acls import Operation

READ_ONLY = "The console is read-only: start the server with --set console.write=true"


class Rejected(Exception):
    """The server rejected a form; the message has the reason."""


async def send(ask: ViewRequest, request: Message) -> Any:
    """Send a request as the viewer.

    Raises:
        Rejected: a value cannot be sent.
        NotSupported: the server does not support the request.
    """
    try:
        return await ask.figures.kafka.send(request, ask.broker, ask.principal, ask.asker.host)
    except EncodeError as error:
        raise Rejected(str(error)) from None


async def results(ask: ViewRequest, request: Message, field: str) -> list[Any]:
    """Send a request and return the items of a response field. Raises Rejected for the first error among them."""
    items: list[Any] = getattr(await send(ask, request), field)
    check(ask, items)
    return items


def check(ask: ViewRequest, items: Iterable[Any]) -> None:
    """Raise Rejected for the first item with an error."""
    for each in items:
        if each.error_code:
            raise Rejected(each.error_message or ask.figures.kafka.error_name(each.error_code))


def check_writes(ask: ViewRequest) -> None:
    """Raise Refused if the console is read-only."""
    if not ask.figures.writes:
        raise Refused(READ_ONLY)


def whole_number(given: str, what: str) -> int:
    """Return the number in a field. Raises Rejected."""
    digits = given.strip().replace(",", "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise Rejected(f"{what}: expected a whole number, found {given[:100]!r}.")
    return int(digits)


def may_alter(ask: ViewRequest, operation: Operation) -> bool:
    """Return whether a page may show forms that need an operation on the cluster."""
    rule = cluster_rule(operation)
    return ask.figures.writes and all(ask.may(rule, resource) for resource in rule.resources(ask))


def packed(fields: Mapping[str, str]) -> str:
    """Return the fields of a row as one that a page can contain, as names may have characters that HTML cannot."""
    return urlencode(fields)


def unpacked(form: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the chosen row. Raises Rejected."""
    try:
        return dict(parse_qsl(form.get("row", ""), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Rejected("The row cannot be parsed.") from None
