"""Serve the console over HTTP: authorization, page assembly and actions."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from time import perf_counter
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace import __version__
from headrace.broker.virtual_clusters import DEFAULT, UnknownCluster
from headrace.console import tables, text, views
from headrace.console.authentication import Visitors, wants_page
from headrace.console.event_list import chosen_kind
from headrace.console.event_stream import BANNER, EventStreams, Told
from headrace.console.events import EventKind
from headrace.console.history import RANGES, chart_range
from headrace.console.kafka_client import READ_ONLY
from headrace.console.registry import (
    LASTS,
    PAGES,
    PRINCIPAL,
    SESSION,
    NotFound,
    Page,
    Redirect,
    Refused,
    Target,
    View,
    Viewer,
    ViewRequest,
    always,
)
from headrace.console.server_data import Figures, NotSupported, brokers_note
from headrace.console.sessions import Forms, InvalidFormToken
from headrace.metrics.counters import TICKS
from headrace.security.access.principal import ANONYMOUS
from headrace.topics.errors import TopicError, UnknownTopic

if TYPE_CHECKING:
    from jinja2 import Environment

LISTENER = "console"
"""Listener name in metrics."""
_STATIC = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_WITH_FORMS = {"group.html", "pipeline.html"}
"""Templates with forms that change something."""
_compiled = threading.Event()
_compiler = ThreadPoolExecutor(1, "templates")
"""Not the default executor, which others wait for: many clients may request the first page at once."""
_log = structlog.get_logger("headrace.console")


class Pages:
    """All pages of one server."""

    def __init__(self, figures: Figures, visitors: Visitors, forms: Forms) -> None:
        views.load()
        self._figures = figures
        self._visitors = visitors
        self._forms = forms
        self._counted = figures.counters.listener(LISTENER, {name: name for name in PAGES}).apis
        self._routes = {
            page.name: Route(page.path, self._answer_of(page), methods=[page.method]) for page in _ordered()
        }
        self._streams = EventStreams(
            figures, self._told, self._fragment, self._granted, lambda page, target: self._ask(page, target, {})
        )

    @property
    def routes(self) -> tuple[BaseRoute, ...]:
        """The routes."""
        return (
            Route("/static/{file}", self._static),
            Route("/events", self._events),
            *self._routes.values(),
        )

    def close(self) -> None:
        """Close all event streams."""
        self._streams.close()

    def before(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application: show a page for unknown paths if a browser asks."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and wants_page(request := Request(scope)):
                response = self._visitors.refusal(request)
                if response is None:
                    await compiled()
                    response = self._html(_missing("This page does not exist."), self._nowhere(request), request)
                await response(scope, receive, send)
                return
            await app(scope, receive, send)

        return answer

    # Pages

    def _answer_of(self, page: Page) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            began = perf_counter()
            none = self._visitors.refusal(request)
            response = none or await self._answer(page, request)
            counted = self._counted[page.name]
            counted.add(int((perf_counter() - began) * TICKS))
            if response.status_code >= 400:
                counted.failed((str(response.status_code),))
            return response

        return answer

    async def _answer(self, page: Page, request: Request) -> Response:
        await compiled()
        form: dict[str, str] = {}
        if page.method == "POST":
            if not self._figures.writes:
                return refused(READ_ONLY)
            try:
                form = await self._forms.read(request)
            except InvalidFormToken as error:
                return refused(str(error))
        try:
            ask = self._ask(page, _target(request), form)
            # A page of thousands of topics takes milliseconds, and many may be open.
            await self._figures.clusters.lane.turn()
            view = await page.view(ask)
        except Redirect as moved:
            return RedirectResponse(str(moved), 303, HEADERS)
        except Refused as reason:
            return self._visitors.to_login(request) or refused(str(reason))
        except (NotFound, UnknownCluster, UnknownTopic) as missing:
            ask, view = self._nowhere(request), _missing(str(missing))
        except NotSupported as reason:
            ask, view = self._nowhere(request), _missing(f"{reason}.", 400)
        except TopicError as error:
            _log.warning("a console page failed", page=page.name, reason=str(error))
            ask, view = self._nowhere(request), _missing(f"The storage does not answer: {error}", 503)
        if view.download is not None:
            return StreamingResponse(view.download.pieces(), headers={**HEADERS, **view.download.headers})
        # Many pages may have received their data in the same turn of the event loop.
        await self._figures.clusters.lane.turn()
        return self._html(view, ask, request)

    def _ask(self, page: Page, target: Target, form: dict[str, str]) -> ViewRequest:
        cluster = target.query.get("cluster", DEFAULT)
        path: dict[str, str] = {}
        if "{name" in page.path:
            rest = target.raw_path.split("/", 2)[2]
            path["name"] = text.name_of(rest.removesuffix(page.path.partition("}")[2]))
        broker = self._figures.clusters.get(cluster)
        return ViewRequest(self._figures, broker, path, target.query, form, target.asker, target.raw_path)

    def _nowhere(self, request: Request) -> ViewRequest:
        target = _target(request)
        query = {name: value for name, value in target.query.items() if name != "cluster"}
        return ViewRequest(self._figures, self._figures.clusters.default, {}, query, asker=target.asker)

    def _html(self, view: View, ask: ViewRequest, request: Request) -> Response:
        value = self._forms.cookie(request)
        with_form = SESSION in request.scope or (self._figures.writes and (view.forms or view.template in _WITH_FORMS))
        content = self._render(view.template, view, ask, self._forms.token(value) if with_form else "")
        response = Response(content, view.status, HEADERS, media_type="text/html")
        if with_form:
            self._forms.keep(response, value, request)
        return response

    def _render(self, template: str, view: View, ask: ViewRequest, token: str = "") -> bytes:
        cluster = ask.broker.cluster
        clusters = [name for name, _ in self._figures.clusters if name == cluster or ask.enters(name)]
        html = (
            templates()
            .get_template(template)
            .render(
                view=view,
                c=view.cells,
                d=view.data,
                q=ask.query,
                cluster=cluster,
                clusters=clusters if len(clusters) > 1 else [],
                link=lambda path, **query: text.link(path, cluster, query),
                command=lambda *words: text.kafka_command(self._figures.bootstrap, *words, cluster=cluster),
                storage_command=lambda *words: text.storage_command(self._figures.storage, *words),
                assets=ASSETS,
                version=__version__,
                broker=ask.broker.node_id,
                whose=brokers_note(ask.broker),
                token=token,
                who="" if ask.principal == ANONYMOUS else ask.principal.name,
                session=ask.asker.session is not None,
                passwords=self._visitors.take_passwords,
                banner=self._figures.banner,
                ranges=_ranges(ask),
                range_step_s=chart_range(ask.query.get("range", "")).step_ms // 1000,
                kinds=_kinds(ask),
                writes=self._figures.writes,
            )
        )
        return html.encode("utf-8", "backslashreplace")

    # Event streams

    async def _events(self, request: Request) -> Response:
        none = self._visitors.refusal(request)
        if none is not None:
            return none
        target = Target.of(request.query_params.get("of", "/"))
        target.asker = asker_of(request)
        for page in _ordered():
            scope = {"type": "http", "method": page.method, "path": target.path, "root_path": "", "headers": []}
            if page.live and self._routes[page.name].matches(scope)[0] is Match.FULL:
                await compiled()
                return self._streams.open(page, target)
        return PlainTextResponse("This page does not exist.\n", 404, HEADERS)

    async def _told(self, page: Page, target: Target) -> Told | None:
        """Return a page's current data; None: its subject is gone or not visible to the viewer."""
        if not target.asker.lasts():
            return None
        await self._figures.clusters.lane.turn()
        try:
            view = await page.view(self._ask(page, target, {}))
        except (NotFound, NotSupported, Refused, UnknownCluster, UnknownTopic):
            return None
        return Told({**view.cells, BANNER: self._figures.banner}, view.shape)

    def _fragment(self, template: str, page: Page, target: Target, data: object) -> str:
        view = View(template=template, title="", data=data)
        return self._render(template, view, self._ask(page, target, {})).decode()

    def _granted(self, page: Page, target: Target) -> bool:
        try:
            page.check(self._ask(page, target, {}))
        except (Refused, UnknownCluster):
            return False
        return target.asker.lasts()

    # Templates

    async def _static(self, request: Request) -> Response:
        found = _FILES.get(request.path_params["file"])
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404, HEADERS)
        content, kind = found
        headers = HEADERS | {
            "cache-control": "public, max-age=31536000, immutable" if request.url.query else "no-cache"
        }
        return Response(content, 200, headers, media_type=kind)


async def compiled() -> None:
    """Compile the templates in a thread before rendering: 140 ms of CPU and 4 MB."""
    if not _compiled.is_set():
        await asyncio.get_running_loop().run_in_executor(_compiler, _compile)


def _compile() -> None:
    if _compiled.is_set():
        return
    made = templates()
    for name in made.list_templates():
        made.get_template(name)
    _compiled.set()


@cache
def templates() -> "Environment":
    """Return the templates of the process. Wait for `compiled` before rendering."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # nothing of it is needed to start

    made = Environment(
        loader=PackageLoader("headrace.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["name"] = text.name
    made.filters["typed"] = text.typed
    made.filters["labelled"] = tables.labelled
    made.filters["lines"] = text.lines
    made.filters["reason"] = text.reason
    return made


def asker_of(request: Request) -> Viewer:
    """Return the viewer of a request."""
    host = request.client.host if request.client is not None else ""
    scope = request.scope
    return Viewer(scope.get(PRINCIPAL, ANONYMOUS), host, scope.get(SESSION), scope.get(LASTS, always))


Choice = tuple[str, str, bool]
"""Label of a link, its path, and whether it is the page's current one."""


def _ranges(ask: ViewRequest) -> list[Choice]:
    """Return the links to the ranges of the page's charts."""
    shown = chart_range(ask.query.get("range", ""))
    return [
        (each.label, _changed(ask, "range", each.name if each is not RANGES[0] else ""), each is shown)
        for each in RANGES
    ]


def _kinds(ask: ViewRequest) -> list[Choice]:
    """Return the links to the kinds of events."""
    chosen = chosen_kind(ask)
    kinds = [(None, ""), *((kind, kind.value) for kind in EventKind)]
    return [(name or "all", _changed(ask, "events", name) + "#events", kind is chosen) for kind, name in kinds]


def _changed(ask: ViewRequest, parameter: str, value: str) -> str:
    """Return the page's path with a changed parameter."""
    query = {name: given for name, given in ask.query.items() if name not in {"cluster", "done"}}
    return text.link(ask.raw_path or "/", ask.broker.cluster, {**query, parameter: value})


def _target(request: Request) -> Target:
    query = request.scope["query_string"].decode("latin-1")
    target = Target.of(request.scope["raw_path"].decode("latin-1") + ("?" + query if query else ""))
    target.asker = asker_of(request)
    return target


def _ordered() -> list[Page]:
    """Sort longer paths first, because a name in a path would match them."""
    return sorted(PAGES.values(), key=lambda page: (-page.path.count("/"), page.path))


def _missing(message: str, status: int = 404) -> View:
    return View(template="missing.html", title="Not found", data={"message": message}, status=status)


def refused(message: str) -> Response:
    """Return the response for an unauthorized viewer."""
    return PlainTextResponse(message + "\n", 403, HEADERS)


def _load_files() -> dict[str, tuple[bytes, str]]:
    return {
        each.name: (each.read_bytes(), _STATIC[each.name.rpartition(".")[2]])
        for each in resources.files("headrace.console").joinpath("static").iterdir()
        if each.name.rpartition(".")[2] in _STATIC
    }


_FILES = _load_files()
ASSETS = hashlib.sha256(b"".join(content for _, (content, _) in sorted(_FILES.items()))).hexdigest()[:12]
"""Changes with any file, so that browsers never use old ones."""
