"""`/users`: users with passwords, and forms that create, change and delete them."""

import asyncio
import secrets
from typing import Any

from headrace.broker.admin.users import LONGEST_PASSWORD
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import text
from headrace.console.kafka_client import Rejected, may_alter, packed, results, send, unpacked
from headrace.console.pagination import cut
from headrace.console.registry import Redirect, View, ViewRequest, cluster_rule, page
from headrace.protocol.messages import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from headrace.security.access.credentials import LEAST_ITERATIONS, Mechanism, salt
from headrace.security.access.required_acls import Operation

_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_SALT_BYTES = 16
_DONE = {"saved": "The password was saved.", "deleted": "The user was deleted."}
_NEEDS = (cluster_rule(Operation.ALTER),)


@page("Users", "/users", needs=(cluster_rule(Operation.DESCRIBE),), live=False)
async def users(ask: ViewRequest) -> View:
    """Return the list of users."""
    return await _view(ask)


@page("SaveUser", "/users", method="POST", needs=_NEEDS, live=False)
async def save_user(ask: ViewRequest) -> View:
    """Set the password of a user, and create the user if necessary."""
    name = ask.form.get("name", "").strip()
    try:
        upsertions = await asyncio.to_thread(_upsertions, name, _password(ask))
        await results(ask, AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions), "results")
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/users", ask.broker.cluster, {"done": "saved"}))


@page("DeleteUser", "/users/delete", method="POST", needs=_NEEDS, live=False)
async def delete_user(ask: ViewRequest) -> View:
    """Delete all credentials of a user."""
    try:
        name = unpacked(ask.form).get("name", "")
        asked = [DescribeUserScramCredentialsRequest.UserName(name=name)]
        [found] = await results(ask, DescribeUserScramCredentialsRequest(users=asked), "results")
        deletions = [_Deletion(name=name, mechanism=each.mechanism) for each in found.credential_infos]
        await results(ask, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), "results")
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/users", ask.broker.cluster, {"done": "deleted"}))


def _password(ask: ViewRequest) -> str:
    password = ask.form.get("password", "")
    if not password:
        raise Rejected("Password: expected at least one character.")
    if len(password) > LONGEST_PASSWORD:
        raise Rejected(f"Password: expected at most {LONGEST_PASSWORD:,} characters, found {len(password):,}.")
    if password != ask.form.get("again", ""):
        raise Rejected("The passwords differ.")
    return password


def _upsertions(name: str, password: str) -> list[_Upsertion]:
    """Return the credentials of a password as an admin client sends them."""
    found = []
    for mechanism in Mechanism:
        own = secrets.token_bytes(_SALT_BYTES)
        found.append(
            _Upsertion(
                name=name,
                mechanism=mechanism.number,
                iterations=LEAST_ITERATIONS,
                salt=own,
                salted_password=salt(mechanism, password, own, LEAST_ITERATIONS),
            )
        )
    return found


def _mechanisms(infos: list[Any]) -> str:
    known = {each.number: each.value for each in Mechanism}
    return ", ".join(known.get(each.mechanism, str(each.mechanism)) for each in infos)


async def _view(ask: ViewRequest, wrong: str = "") -> View:
    response = await send(ask, DescribeUserScramCredentialsRequest(users=None))
    async with ask.listing() as pace:
        found = await cut(response.results, ask.query, pace, name=lambda each: str(each.user))
    data = {
        "self": text.link("/users", ask.broker.cluster),
        "delete": text.link("/users/delete", ask.broker.cluster),
        "off": response.error_message or "",
        "authorizer": "" if ask.broker.access.enabled else STANDARD_AUTHORIZER,
        "may": may_alter(ask, Operation.ALTER),
        "list": found,
        "search": found.search,
        "sort": found.sort,
        "rows": [(each.user, _mechanisms(each.credential_infos), packed({"name": each.user})) for each in found.rows],
        "given": ask.form.get("name", ""),
        "done": "" if wrong else _DONE.get(ask.query.get("done", ""), ""),
        "wrong": wrong,
    }
    return View(template="users.html", title="Users", data=data, forms=True, status=400 if wrong else 200)
