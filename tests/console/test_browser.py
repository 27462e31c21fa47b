"""The console in Debian's Chromium: both widths, both themes, by keyboard, for screen readers, without a server."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.console.visiting import Visit

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import text
from headrace.testing import InProcessServer, Server, server

pytestmark = [pytest.mark.apt, pytest.mark.filterwarnings("ignore::ResourceWarning")]

CHROMIUM = shutil.which("chromium")
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'\u202e"
PAGES = (
    "/", "/topics", "/topics?q=none", "/topics/flights", "/topics/flights/records",
    "/topics/flights/records?partition=0&show=1", "/topics/flights/records?partition=0&show=0",
    "/topics/flights/records?q=UA&field=carrier", "/groups", text.group(EVIL),
    "/groups/readers?to=earliest", "/pipeline", "/brokers", "/topics/nowhere",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)  # 5 s otherwise, which a busy machine may take
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        yield started
        started.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=4, group_initial_rebalance_delay_ms=0, console_write=True) as started:
        producer = Producer({"bootstrap.servers": started.kafka})
        producer.produce("flights", EVIL.encode(), EVIL.encode(), headers=[(EVIL, EVIL.encode())], partition=0)
        producer.produce("flights", b'{"carrier": "UA", "to": ["LAX"]}', b"UA", partition=0)
        assert producer.flush(60) == 0
        for group in (EVIL, "readers"):
            consumer = reader(started, group, "first")
            consumer.commit(offsets=[TopicPartition("flights", place, 0) for place in range(4)], asynchronous=False)
            consumer.close()
        yield started


def reader(running: Server, group: str, client: str) -> Consumer:
    """A consumer that has its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": running.kafka, "group.id": group, "client.id": client, "enable.auto.commit": False}
    )
    consumer.subscribe(["flights"])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


def opened_in(context: BrowserContext) -> Page:
    """A page that is patient: 30 s otherwise for each step."""
    page = context.new_page()
    page.set_default_timeout(120_000)
    return page


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        opened = opened_in(context)
        opened.on("dialog", lambda dialog: pytest.fail(f"a stranger's script ran: {dialog.message}"))
        yield opened


def live(page: Page) -> None:
    expect(page.locator("#live")).to_have_attribute("data-state", "on")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_axe_finds_nothing_and_nothing_sticks_out(browser: Browser, running: Server, theme: str, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme) as context:  # type: ignore[arg-type]
        page = opened_in(context)
        page.on("dialog", lambda dialog: pytest.fail(f"a stranger's script ran: {dialog.message}"))
        hosts = set()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        wrong = []
        page.on("console", lambda message: wrong.append(message.text) if "security" in message.text.lower() else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for path in PAGES:
            page.goto(running.http + path)
            if "nowhere" not in path:
                live(page)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            violations = Axe().run(page).response["violations"]
            assert not violations, (path, [(each["id"], each["nodes"][0]["html"]) for each in violations])
        assert hosts == {urlsplit(running.http).netloc}
        assert not wrong


def test_a_rebalance_is_seen_as_it_happens(page: Page, running: Server) -> None:
    page.goto(running.http + "/groups/readers")
    live(page)
    expect(page.get_by_text("The group has no members.")).to_be_visible()
    first = reader(running, "readers", "first")
    expect(page.locator(".tile.m0")).to_have_count(4)
    second = Consumer({"bootstrap.servers": running.kafka, "group.id": "readers", "client.id": "second"})
    second.subscribe(["flights"])
    while not (second.assignment() and len(first.assignment()) == 2):
        first.poll(0.05)
        second.poll(0.05)
    expect(page.locator(".tile.m0")).to_have_count(2)
    expect(page.locator(".tile.m1")).to_have_count(2)
    expect(page.get_by_text("second", exact=True).first).to_be_visible()
    first.close()
    second.close()
    expect(page.locator(".tile.free")).to_have_count(4)


def test_records_are_followed_and_looked_into_by_keyboard(page: Page, running: Server) -> None:
    page.goto(running.http + "/topics/flights/records?partition=2")
    live(page)
    page.get_by_role("button", name="Follow live").press("Enter")
    live(page)
    producer = Producer({"bootstrap.servers": running.kafka})
    producer.produce("flights", b'{"n": 1, "<b>": "<i>"}', EVIL.encode(), partition=2)
    assert producer.flush(60) == 0
    row = page.locator("#rows tr").first
    expect(row).to_contain_text('{"n": 1')
    expect(page.locator("#rows tr.new")).to_have_count(0)  # the highlight ends
    assert page.locator("#rows td.key").first.evaluate("cell => getComputedStyle(cell).display") == "table-cell"
    row.get_by_role("link").press("Enter")
    value = page.get_by_role("region", name="Value")
    value.get_by_role("tab", name="JSON").press("ArrowRight")
    expect(value.get_by_role("tab", name="Text")).to_be_focused()
    value.get_by_role("tab", name="Text").press("ArrowRight")
    expect(value.get_by_role("tabpanel", name="Hex")).to_contain_text("7b 22 6e 22")
    expect(page.get_by_role("tabpanel", name="Kafka")).to_contain_text('"offset": 0')


def test_all_partitions_are_searched_followed_and_downloaded(page: Page, running: Server) -> None:
    producer = Producer({"bootstrap.servers": running.kafka})
    for partition in range(4):
        for n in range(30):
            producer.produce("wide", b'{"order": {"id": "%d-%d"}}' % (partition, n), b"key", partition=partition)
    assert producer.flush(60) == 0
    page.goto(running.http + "/topics/wide/records")
    live(page)
    page.get_by_label("Key or value contains").fill("key")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("50 matches; continue")).to_be_visible()
    page.get_by_role("link", name="continue").click()
    page.get_by_role("link", name="continue").click()
    expect(page.get_by_text("20 matches.")).to_be_visible()
    page.get_by_label("Key or value contains").fill("3-29")
    page.get_by_label("in the JSON field").fill("order.id")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.get_by_text("Searched offsets 0 to 29 of 4 partitions, 120 records")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("link", name="JSON Lines").click()
    assert '"offset": 29' in started.value.path().read_text()
    page.get_by_role("button", name="Follow live").click()
    live(page)
    producer.produce("wide", b'{"order": {"id": "other"}}', partition=1)
    producer.produce("wide", b'{"order": {"id": "3-29"}}', partition=2)
    assert producer.flush(60) == 0
    expect(page.locator("#rows tr")).to_have_count(2)
    expect(page.locator("#rows tr").first.get_by_role("cell").first).to_have_text("2")


def test_a_theme_that_was_chosen_stays(page: Page, running: Server) -> None:
    page.goto(running.http)
    page.get_by_role("button", name="Switch between light and dark").press("Enter")
    chosen = page.evaluate("document.documentElement.dataset.theme")
    page.goto(running.http + "/topics")
    assert page.evaluate("document.documentElement.dataset.theme") == chosen


def test_a_reset_is_shown_then_done(page: Page, running: Server) -> None:
    page.goto(running.http + "/groups/readers#reset")
    page.locator("select[name=to]").select_option("latest")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("region", name="Preview of the reset")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_text("reset.")).to_be_visible()


@pytest.mark.parametrize("name", [".", "..", "~.", "a/..", "%2e"])
def test_a_group_whose_name_is_a_step_in_a_path_is_opened(page: Page, running: Server, name: str) -> None:
    consumer = Consumer({"bootstrap.servers": running.kafka, "group.id": name})
    consumer.commit(offsets=[TopicPartition("flights", 0, 0)], asynchronous=False)
    consumer.close()
    page.goto(running.http + "/groups")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    live(page)
    page.locator("select[name=to]").select_option("latest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_text("reset.")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_a_page_says_that_its_server_is_gone_and_comes_back_with_it(page: Page) -> None:
    with server() as own:
        page.goto(own.http)
        live(page)
        own.stop()
        expect(page.get_by_role("alert")).to_contain_text("The server does not respond")
        own.start()
        live(page)
        expect(page.get_by_role("alert")).to_be_hidden()


def test_who_has_a_password_logs_in_and_out(browser: Browser, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    with (
        InProcessServer(
            bootstrap_user=first, authorizer_class_name=STANDARD_AUTHORIZER, oci_auth="verify", oci_auth_keys=tmp_path
        ) as running,
        browser.new_context(viewport={"width": 360, "height": 800}) as context,
    ):
        page = opened_in(context)

        def sound() -> None:
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, page.url
            violations = Axe().run(page).response["violations"]
            assert not violations, [(each["id"], each["nodes"][0]["html"]) for each in violations]

        page.goto(running.http + "/brokers")
        sound()
        heights = page.locator("input:visible").evaluate_all("all => all.map(each => each.offsetHeight)")
        assert max(heights) <= 40
        expect(page.get_by_label("Name")).to_be_focused()
        page.keyboard.type("jane")
        page.keyboard.press("Tab")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("Wrong user name or password.")
        sound()
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/brokers")
        live(page)
        sound()
        # Its stream ends with the session, in whichever page that ends.
        other = opened_in(context)
        other.goto(running.http + "/topics")
        other.get_by_role("button", name="Log out").click()
        other.wait_for_url("**/login")
        expect(page.locator("#live")).not_to_have_attribute("data-state", "on")
        page.reload()
        page.wait_for_url("**/login?next=%2Fbrokers")


FORMS = (
    "/topics", "/topics/flights", "/topics/flights/produce?at=0&stored=0", "/topics/flights/edit?done=config",
    "/new-topic", "/users", "/acls", "/quotas",
)  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """A server with an authorizer, in which browsers of this machine are a super user."""
    with InProcessServer(
        oci_auth="verify",
        oci_auth_keys=tmp_path_factory.mktemp("keys"),
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS",
        console_write=True,
    ) as started:
        producer = Producer({"bootstrap.servers": started.kafka})
        producer.produce("flights", b"first")
        assert producer.flush(60) == 0
        visit = Visit(started)
        visit.ask("/users")
        visit.done("/users", {"name": EVIL, "password": "p", "again": "p"})
        rule = {"permission": "Deny", "operation": "All", "type": "Topic", "pattern": "PREFIXED", "host": "10.0.0.1"}
        visit.done("/acls", {"principal": "User:jane", "name": EVIL, **rule})
        visit.done("/quotas", {"user": EVIL, "client-id": EVIL, "key": "producer_byte_rate", "value": "1000000"})
        yield started


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1600])
def test_forms_fit_and_are_accessible(browser: Browser, guarded: InProcessServer, theme: str, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme) as context:  # type: ignore[arg-type]
        page = opened_in(context)
        page.on("dialog", lambda dialog: pytest.fail(f"a stranger's script ran: {dialog.message}"))
        for path in FORMS:
            page.goto(guarded.http + path)
            for summary in page.locator("details summary").all():
                summary.press("Enter")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            violations = Axe().run(page).response["violations"]
            assert not violations, (path, [(each["id"], each["nodes"][0]["html"]) for each in violations])


@pytest.mark.parametrize("scripts", [True, False])
def test_a_topic_is_made_used_and_deleted_by_keyboard(
    browser: Browser, guarded: InProcessServer, scripts: bool
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=scripts) as context:
        page = opened_in(context)
        page.goto(guarded.http + "/topics")
        page.get_by_role("link", name="Create a topic").press("Enter")
        page.get_by_label("Name").fill("no good")
        page.get_by_label("Configuration").fill("retention.ms=3600000")
        page.get_by_label("Name").press("Enter")
        expect(page.get_by_role("alert").last).to_contain_text("'no good'")
        page.get_by_label("Name").fill("parcels")
        page.get_by_label("Partitions", exact=True).fill("2")
        page.get_by_role("button", name="Create").press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("parcels")
        page.get_by_role("link", name="Produce").press("Enter")
        page.get_by_label("Key", exact=True).fill("UA")
        page.get_by_role("textbox", name="Value").fill('{"to": "LAX"}')
        page.get_by_label("Headers").fill("source: console")
        page.get_by_role("button", name="Produce").press("Enter")
        page.get_by_role("link", name="offset 0 of partition").press("Enter")
        expect(page.get_by_role("region", name="Value").get_by_text("LAX").first).to_be_visible()
        page.get_by_role("link", name="parcels").first.press("Enter")
        page.get_by_role("link", name="Edit").press("Enter")
        page.get_by_label("Type parcels to confirm").fill("parcel")
        page.get_by_role("button", name="Delete").press("Enter")
        expect(page.get_by_text("Type parcels to delete this topic with its records.")).to_be_visible()
        page.get_by_label("Type parcels to confirm").fill("parcels")
        page.get_by_role("button", name="Delete").press("Enter")
        page.wait_for_url("**/topics")
        expect(page.get_by_role("link", name="parcels")).to_have_count(0)


def test_a_user_is_deleted_after_a_confirmation(page: Page, guarded: InProcessServer) -> None:
    page.goto(guarded.http + "/users")
    page.get_by_label("Name", exact=True).fill("temporary")
    page.get_by_label("Password", exact=True).fill("p")
    page.get_by_label("Password again").fill("p")
    page.get_by_role("button", name="Save").press("Enter")
    row = page.get_by_role("row", name="temporary")
    row.locator("summary").press("Enter")
    row.get_by_role("button", name="Confirm").press("Enter")
    expect(page.get_by_text("The user was deleted.")).to_be_visible()
    expect(page.get_by_role("row", name="temporary")).to_have_count(0)
