"""Serve the login page. Its session cookie is hidden from scripts and other sites."""

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from headrace import __version__
from headrace.broker.admin.users import TooManyLogins
from headrace.console import text
from headrace.console.authentication import Visitors
from headrace.console.pages import ASSETS, HEADERS, compiled, refused, templates
from headrace.console.sessions import Forms, InvalidFormToken

_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]{0,2000}")
"""A path on this server to redirect to after a login."""


class LoginPages:
    """The login pages of one server."""

    def __init__(self, visitors: Visitors, forms: Forms) -> None:
        self._visitors = visitors
        self._forms = forms

    @property
    def routes(self) -> tuple[BaseRoute, ...]:
        """The routes."""
        return (
            Route("/login", self._show, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        )

    async def _show(self, request: Request) -> Response:
        return await self._page(request, _next(request.query_params.get("next", "")))

    async def _log_in(self, request: Request) -> Response:
        try:
            fields = await self._forms.read(request)
        except InvalidFormToken as error:
            return refused(str(error))
        name, following = fields.get("name", ""), _next(fields.get("next", ""))
        try:
            fits = await self._visitors.check(name, fields.get("password", ""), request.scope)
        except TooManyLogins:
            return await self._page(request, following, name, "Too many logins at the same time. Try again.", 503)
        if not fits:
            return await self._page(request, following, name, "Wrong user name or password.", 403)
        response = RedirectResponse(following, 303, HEADERS)
        self._visitors.begin(name, request, response)
        return response

    async def _log_out(self, request: Request) -> Response:
        try:
            await self._forms.read(request)
        except InvalidFormToken as error:
            return refused(str(error))
        response = RedirectResponse("/login", 303, HEADERS)
        self._visitors.end(request, response)
        return response

    async def _page(
        self, request: Request, following: str, name: str = "", wrong: str = "", status: int = 200
    ) -> Response:
        await compiled()
        value = self._forms.cookie(request)
        html = (
            templates()
            .get_template("login.html")
            .render(
                assets=ASSETS,
                version=__version__,
                token=self._forms.token(value),
                following=following,
                name=name,
                wrong=wrong,
                possible=self._visitors.take_passwords,
                creating=text.creating_user(self._visitors.bootstrap),
            )
        )
        response = Response(html.encode("utf-8", "backslashreplace"), status, HEADERS, media_type="text/html")
        self._forms.keep(response, value, request)
        return response


def _next(path: str) -> str:
    return path if _PATH.fullmatch(path) else "/"
