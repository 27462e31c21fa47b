"""Inject faults, so that clients can be tested. Pure.

Set rules with `oci.faults`, or with the header `x-headrace-fault` of a request. Separate rules with commas:

    [OPERATION:]FAULT[=NUMBER][*COUNT]

The header requires `oci.faults.header=true`, as on the servers of `headrace.testing`. Other servers respond with 400.
The header has at most 1,024 characters and 16 rules.

A rule applies to one operation, such as `GetMessages`, or to all. With `*COUNT` it applies to that many requests. In a
header, `*COUNT` counts requests with the same text, such as retries. Text after `#` only makes headers different. The
server keeps counts for the last 1,000 texts. The faults are:

- `429`, `500`, or any other status from 400 to 599: The server responds with it and does nothing.
- `slow=MS`: The request starts that many milliseconds later, at most 10 minutes, or 1 minute in a header.
- `lost`: The operation is executed, and the connection is closed without a response.
- `entries=N`: The first N messages of a PutMessages are throttled, in a response with status 200.
- `expired`, `invalid`, `behind`, `unreserved=PARTITION`: The response is the service's error for such a cursor.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from headrace.oci.errors import BASE_CODES, CURSOR_BEHIND, CURSOR_EXPIRED, CURSOR_INVALID, UNRESERVED, OciError, invalid
from headrace.oci.limits import throttled

# Needed before registration. A test compares them.
_RESOURCES = ("Stream", "StreamPool", "ConnectHarness")

OPERATION_NAMES = frozenset(
    {
        *("PutMessages", "GetMessages", "CreateCursor", "CreateGroupCursor"),
        *("ConsumerCommit", "ConsumerHeartbeat", "GetGroup", "UpdateGroup"),
        *(f"{verb}{resource}" for verb in ("Create", "Get", "Update", "Delete") for resource in _RESOURCES),
        *(f"Change{resource}Compartment" for resource in _RESOURCES),
        *("ListStreams", "ListStreamPools", "ListConnectHarnesses"),
        *("GetWorkRequest", "ListWorkRequests", "ListWorkRequestErrors", "ListWorkRequestLogs"),
    }
)


HEADER = "x-headrace-fault"

_RULE = re.compile(
    r"(?:(?P<operation>[A-Za-z]+):)?(?P<fault>[a-z]+|[45][0-9][0-9])(?:=(?P<number>[0-9]{1,9}))?(?:\*(?P<count>[0-9]{1,9}))?"
)
_MOST_TEXTS = 1_000
_LONGEST_TEXT = 1_024
_MOST_RULES = 16
_OFF = "this server takes faults from no header; start it with --set oci.faults.header=true, as headrace.testing does"
_EXPECTED = "expected [OPERATION:]FAULT[=NUMBER][*COUNT], such as PutMessages:429*3"


class InvalidFault(ValueError):
    """An invalid rule."""


class Rule(msgspec.Struct, frozen=True):
    """A parsed rule."""

    operation: str | None
    fault: str
    number: int
    count: int | None


class Injected(NamedTuple):
    """The faults of one request."""

    delay_ms: int = 0
    error: OciError | None = None
    lost: bool = False
    entries: int = 0


NONE = Injected()

_CURSORS: dict[str, Callable[[int], OciError]] = {
    "expired": lambda _: invalid(CURSOR_EXPIRED),
    "invalid": lambda _: invalid(CURSOR_INVALID),
    "behind": lambda _: invalid(CURSOR_BEHIND),
    "unreserved": lambda partition: invalid(UNRESERVED.format(partition=partition)),
}
_OTHERS = frozenset({"slow", "lost", "entries"})
_NEED_NUMBER = frozenset({"slow", "entries"})
_SLOWEST_MS = 600_000
_SLOWEST_BY_HEADER_MS = 60_000
"""A disconnect may go unnoticed while a large body is unread."""


def parse(text: str) -> list[Rule]:
    """Parse rules. Raises InvalidFault."""
    text = text.partition("#")[0]
    rules = []
    for part in (each.strip() for each in text.split(",")):
        if not part:
            continue
        match = _RULE.fullmatch(part)
        if match is None:
            raise InvalidFault(f"{part!r}: {_EXPECTED}")
        operation, fault, number = match["operation"], match["fault"], match["number"]
        if operation is not None and operation not in OPERATION_NAMES:
            near = get_close_matches(operation, OPERATION_NAMES, n=1)
            hint = f", did you mean {near[0]}" if near else ""
            raise InvalidFault(f"{part!r}: there is no operation {operation}{hint}")
        if not fault.isdecimal() and fault not in _CURSORS and fault not in _OTHERS:
            known = ", ".join(sorted({*_CURSORS, *_OTHERS}))
            raise InvalidFault(f"{part!r}: there is no fault {fault!r}; a status from 400 to 599, or one of {known}")
        if fault in _NEED_NUMBER and number is None:
            raise InvalidFault(f"{part!r}: {fault} takes a number, such as {fault}=2")
        if fault == "slow" and int(number) > _SLOWEST_MS:
            raise InvalidFault(f"{part!r}: slow takes at most {_SLOWEST_MS} ms")
        count = match["count"]
        rules.append(Rule(operation, fault, int(number or 0), None if count is None else int(count)))
    return rules


class _Uses:
    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._used = [0] * len(rules)

    @property
    def counted(self) -> bool:
        return any(rule.count is not None for rule in self._rules)

    def of(self, operation: str) -> list[Rule]:
        found = []
        for place, rule in enumerate(self._rules):
            if rule.operation not in {None, operation}:
                continue
            if rule.count is not None and self._used[place] >= rule.count:
                continue
            self._used[place] += 1
            found.append(rule)
        return found


class Faults:
    """The rules of the setting and of headers."""

    def __init__(self, setting: str, *, header: bool = True) -> None:
        self._takes_headers = header
        self._setting = _Uses(parse(setting)) if setting else None
        self._headers: OrderedDict[str, _Uses] = OrderedDict()

    def of(self, operation: str, header: str | None) -> Injected:
        """Return the faults of a request. Raises OciError 400."""
        if self._setting is None and header is None:
            return NONE
        of_header = None if header is None else self._of_header(header)
        rules = self._setting.of(operation) if self._setting is not None else []
        if of_header is not None:
            rules += of_header.of(operation)
        injected = NONE
        for rule in rules:
            injected = _add(injected, rule)
        return injected._replace(delay_ms=min(injected.delay_ms, _SLOWEST_MS)) if injected.delay_ms else injected

    def _of_header(self, text: str) -> _Uses:
        if not self._takes_headers:
            raise invalid(f"Invalid header {HEADER}: {_OFF}")
        if len(text) > _LONGEST_TEXT:
            raise invalid(f"Invalid header {HEADER}: it has {len(text)} characters, at most {_LONGEST_TEXT} are taken")
        uses = self._headers.pop(text, None)
        if uses is None:
            uses = _Uses(_parsed_header(text))
        if uses.counted:
            self._headers[text] = uses
            if len(self._headers) > _MOST_TEXTS:
                self._headers.popitem(last=False)
        return uses


def _parsed_header(text: str) -> list[Rule]:
    try:
        rules = parse(text)
    except InvalidFault as error:
        raise invalid(f"Invalid header {HEADER}: {error}") from None
    if len(rules) > _MOST_RULES:
        raise invalid(f"Invalid header {HEADER}: it has {len(rules)} rules, at most {_MOST_RULES} are taken")
    if sum(rule.number for rule in rules if rule.fault == "slow") > _SLOWEST_BY_HEADER_MS:
        raise invalid(f"Invalid header {HEADER}: slow takes at most {_SLOWEST_BY_HEADER_MS} ms in all")
    return rules


def _add(injected: Injected, rule: Rule) -> Injected:
    if rule.fault == "slow":
        return injected._replace(delay_ms=injected.delay_ms + rule.number)
    if rule.fault == "lost":
        return injected._replace(lost=True)
    if rule.fault == "entries":
        return injected._replace(entries=max(injected.entries, rule.number))
    return injected._replace(error=injected.error or _error(rule))


def _error(rule: Rule) -> OciError:
    if rule.fault in _CURSORS:
        return _CURSORS[rule.fault](rule.number)
    status = int(rule.fault)
    message = "This fault was asked for"
    if status == 429:
        return throttled(message, 1000)
    return OciError(
        status, message, BASE_CODES.get(status, "InvalidParameter" if status < 500 else "InternalServerError")
    )
