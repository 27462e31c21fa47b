"""The page to log in by: sessions, forms of others, and client certificates instead."""

import datetime as dt
import html
import re
import ssl
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import msgspec
import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.admin.users import Users
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import sessions as module
from headrace.console.sessions import Sessions
from headrace.security.access.credentials import Mechanism
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer
from headrace.testing.clock import ManualClock

PASSWORD = "päss wörd&=+"
PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


class Answer(msgspec.Struct):
    status: int
    headers: list[tuple[str, str]]
    text: str

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each.lower() == name), "")

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="(\w+)"', self.text)
        assert found is not None, self.text
        return found[1]


class Stay(urllib.request.HTTPRedirectHandler):
    """A browser that shows each step."""

    def redirect_request(self, *_args: object) -> None:
        return None


class Browser:
    """As much of one as logging in takes: cookies, and a certificate where it has one."""

    def __init__(self, url: str, authority: Path, certificate: Path | None = None) -> None:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate)
        self.url = url
        self.cookies = CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.HTTPCookieProcessor(self.cookies), Stay
        )

    def ask(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Answer:
        sent = {"accept": PAGE} | {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if fields is None else urlencode(fields).encode()
        request = urllib.request.Request(self.url + path, body, sent)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers.items(), html.unescape(answer.read().decode()))
        except HTTPError as error:
            with error:
                return Answer(error.code, error.headers.items(), html.unescape(error.read().decode()))

    def log_in(self, name: str = "jane", password: str = PASSWORD, following: str = "/brokers", **more: str) -> Answer:
        shown = self.ask("/login?" + urlencode({"next": following}))
        fields = {"name": name, "password": password, "next": following, "token": shown.token} | more
        return self.ask("/login", fields)

    def session(self) -> str:
        """What the session's cookie has."""
        return next((each.value or "" for each in self.cookies if each.name.startswith("headrace-session")), "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    return create(tmp_path_factory.mktemp("certificates"), (), "client", dt.datetime.now(dt.UTC))


@pytest.fixture(scope="module")
def server(made: GeneratedFiles) -> Iterator[InProcessServer]:
    """A server with users and ACLs, under which an unknown user sees nothing."""
    first = made.authority.with_name("first")
    first.write_text(f"jane:{PASSWORD}", "utf-8")
    with InProcessServer(
        https=True,
        bootstrap_user=first,
        ssl_keystore_location=made.server,
        ssl_truststore_location=made.authority,
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=(client)$/$1/",
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:client",
        oci_auth="verify",
        oci_auth_keys=made.authority.parent,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield running


@pytest.fixture
def browser(server: InProcessServer, made: GeneratedFiles) -> Browser:
    return Browser(server.http, made.authority)


def test_a_browser_is_led_to_the_page_and_back(browser: Browser) -> None:
    first = browser.ask("/brokers?q=a%20b")
    assert (first.status, first.header("location")) == (303, "/login?next=%2Fbrokers%3Fq%3Da%2520b")
    shown = browser.ask(first.header("location"))
    assert (shown.status, 'value="/brokers?q=a%20b"' in shown.text) == (200, True)
    assert "frame-ancestors 'none'" in shown.header("content-security-policy")
    done = browser.log_in(following="/brokers?q=a%20b")
    assert (done.status, done.header("location")) == (303, "/brokers?q=a%20b")
    (cookie,) = (value for name, value in done.headers if value.startswith("headrace-session"))
    assert {"HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    page = browser.ask("/brokers")
    assert (page.status, "<bdi>jane</bdi>" in page.text, "Log out" in page.text) == (200, True, True)
    assert browser.ask("/metrics").status == 200
    kept = browser.session()
    out = browser.ask("/logout", {"token": page.token})
    assert (out.status, out.header("location"), browser.session()) == (303, "/login", "")
    name = cookie.partition("=")[0]
    assert browser.ask("/brokers", cookie=f"{name}={kept}").status == 303


def test_programs_get_the_same_responses_as_before(browser: Browser) -> None:
    assert browser.ask("/metrics", accept="*/*").status == 403  # by the access rules
    # Not to have a browser ask for a password of its own accord.
    assert browser.ask("/brokers", accept="*/*", sec_fetch_mode="cors").header("www-authenticate") == ""


@pytest.mark.parametrize(("name", "password"), [("jane", "wrong"), ("joe", PASSWORD), ("", ""), ("<b>", "x")])
def test_others_do_not_get_in(browser: Browser, name: str, password: str) -> None:
    refused = browser.log_in(name, password)
    assert (refused.status, "Wrong user name or password" in refused.text, browser.session()) == (403, True, "")
    assert PASSWORD not in refused.text


def test_forms_of_others_are_refused(browser: Browser) -> None:
    assert browser.log_in(token="0" * 64).status == 403
    shown = browser.ask("/login")
    good = {"name": "jane", "password": PASSWORD, "token": shown.token}
    assert browser.ask("/login", good, sec_fetch_site="cross-site").status == 403
    assert browser.ask("/login", good, origin="https://evil.example").status == 403
    assert browser.ask("/login", good | {"name": "j" * 70_000}).status == 403
    browser.cookies.clear()
    assert browser.ask("/login", good).status == 403
    assert browser.session() == ""
    browser.log_in()
    assert browser.ask("/logout", {"token": "0" * 64}).status == 403
    assert browser.ask("/brokers").status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "https://evil.example/", "", "/a\r\nb: c", "x"])
def test_redirects_stay_on_this_server(browser: Browser, path: str) -> None:
    assert browser.log_in(following=path).header("location") == "/"


def test_another_login_is_another_session(browser: Browser) -> None:
    browser.log_in()
    before = browser.session()
    browser.log_in()
    assert browser.session() not in {"", before}
    name = next(each.name for each in browser.cookies if each.name.startswith("headrace-session"))
    browser.cookies.clear()
    assert browser.ask("/brokers", cookie=f"{name}={before}").status == 303
    for wrong in ("", "x", "x" * 10_000):
        assert browser.ask("/brokers", cookie=f"{name}={wrong}").status == 303


def test_a_certificate_is_as_good_as_a_login(server: InProcessServer, made: GeneratedFiles, tmp_path: Path) -> None:
    certified = Browser(server.http, made.authority, made.client)
    page = certified.ask("/brokers")
    assert (page.status, "<bdi>client</bdi>" in page.text, "Log out" in page.text) == (200, True, False)
    assert certified.ask("/metrics", accept="*/*").status == 200
    certified.log_in()  # who says who they are besides is that
    assert "<bdi>jane</bdi>" in certified.ask("/brokers").text
    foreign = create(tmp_path / "foreign", (), "client", dt.datetime.now(dt.UTC))
    with pytest.raises(OSError):  # noqa: PT011  # TLS ends it: by an alert or a reset, as it happens
        Browser(server.http, made.authority, foreign.client).ask("/brokers")


def test_a_certificate_without_a_name_by_the_rules_gets_no_further(made: GeneratedFiles) -> None:
    with InProcessServer(
        https=True,
        ssl_keystore_location=made.server,
        ssl_truststore_location=made.authority,
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=(jane)$/$1/",
    ) as other:
        refused = Browser(other.http, made.authority, made.client).ask("/brokers")
        assert (refused.status, "ssl.principal.mapping.rules" in refused.text) == (403, True)
        assert Browser(other.http, made.authority).ask("/brokers").status == 200


# Sessions without a network


async def users() -> Users:
    known = Users(MemoryStorage().documents, ManualClock())
    await known.load()
    for name in ("jane", "joe"):
        await known.create(name, "secret", [next(iter(Mechanism))])
    return known


async def test_sessions_end_with_time_and_with_the_password() -> None:
    known, clock = await users(), ManualClock()
    kept = Sessions(known, clock, 1_000)
    first = kept.begin("jane")
    clock.advance(999)
    assert kept.find(first) is not None
    clock.advance(1)
    assert kept.find(first) is None
    second, third = kept.begin("jane"), kept.begin("joe")
    session = kept.find(second)
    assert session is not None
    await known.create("jane", "other", [next(iter(Mechanism))])
    assert (kept.find(second), kept.lasts(session)) == (None, False)
    assert kept.find(third) is not None
    await known.save(dict.fromkeys([("joe", each) for each in Mechanism]))
    assert kept.find(third) is None
    known.close()


async def test_there_is_an_end_to_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    known, clock = await users(), ManualClock()
    kept = Sessions(known, clock, 1_000)
    joes = kept.begin("joe")
    janes = [kept.begin("jane") for _ in range(30)]
    assert [kept.find(each) is not None for each in janes] == [False] * 10 + [True] * 20
    assert kept.find(joes) is not None
    monkeypatch.setattr(module, "MOST", 21)
    last = kept.begin("joe")
    assert (kept.find(joes), kept.find(last) is not None) == (None, True)
    known.close()


def test_a_login_page_costs_the_same_for_any_number_of_users(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone may ask for it: the names of all users are neither collected nor sorted."""

    def fail(_: Users) -> list[str]:
        raise AssertionError("all names were asked for")

    monkeypatch.setattr(Users, "names", property(fail))
    assert browser.ask("/login").status == 200
    assert browser.log_in(password="wrong").status == 403
    assert browser.log_in().status == 303
    assert browser.ask("/").status == 200
