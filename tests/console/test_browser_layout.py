"""Every page in Chromium at three widths and in both themes, with 0, 3 and 300 topics: nothing is cut or broken."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import REJECT, RELEASE, Sharer, configure

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.testing import InProcessServer, Server, server
from headrace.testing.oci import GroupReader, OciClients

pytestmark = [pytest.mark.apt, pytest.mark.filterwarnings("ignore::ResourceWarning")]

CHROMIUM = shutil.which("chromium")
WIDTHS = (390, 768, 1280)
THEMES = ("light", "dark")
NAMES = ("orders", "payments.dead-letter.v1", "customer-address-changes")
GROUP = "fraud-detection-eu-west"
CONTRAST = ("/?range=24h&events=member", f"/groups/{GROUP}?to=earliest")
"""Pages whose contrast is examined here; `test_browser` examines the other ones."""
MOST_FAULTS = 8
"""Faults of a page that a failure shows."""
LISTS = ("/", "/topics", "/topics?sort=in", "/groups", "/pipeline", "/brokers")
PAGES = (
    *LISTS, "/?range=24h&events=member", "/topics?q=none", "/topics/payments.dead-letter.v1",
    "/topics/payments.dead-letter.v1/records", "/topics/orders/records?show=0", f"/groups/{GROUP}",
    f"/groups/{GROUP}?to=earliest", "/topics/nowhere",
)  # fmt: skip

FAULTS = """() => {
  const faults = [];
  const told = (what, element) => faults.push(`${what}: ${element.outerHTML.slice(0, 150)}`);
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} px wide`);
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg, .hidden, .skip, [hidden]") || !element.checkVisibility()) continue;
    // A preview of a key or value ends in an ellipsis, and its record shows all of it.
    const cell = element.closest(".records .key, .records .value");
    const preview = cell && getComputedStyle(cell).textOverflow === "ellipsis";
    const ends = element.getBoundingClientRect().right;
    if (ends > innerWidth + 1 && !preview && !element.closest("pre")) told("beyond the right edge", element);
    const style = getComputedStyle(element);
    if (style.overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1 && !preview
        && !element.matches("pre, input, select")) told("cut", element);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const parent = node.parentElement;
    if (parent.closest("pre, code, svg, script, option, .hidden, .skip, [hidden]")) continue;
    if (!parent.checkVisibility()) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}_.,:]+/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
      if (lines.size > 1) told(`"${word[0]}" is broken`, parent);
    }
  }
  return faults;
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        opened = browser.new_page()
        opened.set_default_timeout(120_000)
        yield opened
        browser.close()


@contextmanager
def filled(topics: Sequence[str]) -> Iterator[Server]:
    """A server with topics, records in the first ones, and a group with a member and a lag."""
    with (
        server(group_initial_rebalance_delay_ms=0, console_write=True) as started,
        ExitStack() as stack,
    ):
        if topics:
            admin = AdminClient({"bootstrap.servers": started.kafka})
            for made in admin.create_topics([NewTopic(name, 3) for name in topics]).values():
                made.result(60)
            producer = Producer({"bootstrap.servers": started.kafka, "client.id": "web-shop-backend"})
            for number in range(60):
                for name in topics[:3]:
                    value = (
                        b'{"order": %d, "customer": "Jo", "items": ["espresso", "croissant"], "paid": true}' % number
                    )
                    producer.produce(name, value, b"customer-%d" % number, headers=[("trace-id", b"7f3a")], partition=0)
            assert producer.flush(60) == 0
            settings = {"bootstrap.servers": started.kafka, "group.id": GROUP, "client.id": "fraud-detection-1"}
            consumer = Consumer(settings | {"enable.auto.commit": False})
            stack.callback(consumer.close)
            consumer.subscribe(list(topics[:3]))
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.commit(offsets=[TopicPartition(name, 0, 7) for name in topics[:3]], asynchronous=False)
        yield started


def look(page: Page, url: str, *, contrast: bool) -> list[str]:
    """The faults of a page at all widths and in both themes."""
    page.set_viewport_size({"width": WIDTHS[-1], "height": 900})
    page.goto(url)
    if page.locator("main[data-live]").count():
        expect(page.locator("#live")).to_have_attribute("data-state", "on")
    faults = []
    for theme in THEMES:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        if contrast:
            options = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
            violations = Axe().run(page, options=options).response["violations"]
            faults += [f"{theme}: contrast of {node['html']}" for each in violations for node in each["nodes"]]
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            faults += [f"{theme}, {width} px: {fault}" for fault in page.evaluate(FAULTS)]
    return faults[:MOST_FAULTS]


@pytest.mark.parametrize("count", [0, 3, 300])
def test_nothing_is_cut_broken_or_pale(page: Page, count: int) -> None:
    names = [*NAMES, *(f"tenant-{number:03}.monthly-invoices" for number in range(count - 3))] if count else []
    with filled(names) as running:
        paths = PAGES if count == 3 else LISTS
        found = {
            path: faults for path in paths if (faults := look(page, running.http + path, contrast=path in CONTRAST))
        }
    assert not found, "\n".join(f"{path}: {fault}" for path, faults in found.items() for fault in faults)


def test_the_login_page_is_sound(page: Page, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    with InProcessServer(
        bootstrap_user=first, authorizer_class_name=STANDARD_AUTHORIZER, oci_auth="verify", oci_auth_keys=tmp_path
    ) as running:
        assert not look(page, running.http + "/login?next=/topics", contrast=True)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            name, password = page.get_by_label("Name").bounding_box(), page.get_by_label("Password").bounding_box()
            assert name is not None
            assert password is not None
            assert 30 < name["height"] < 42
            assert 0 < password["y"] - name["y"] - name["height"] < 50


def test_the_navigation_fits_on_a_narrow_phone(page: Page) -> None:
    with filled([]) as started:
        page.set_viewport_size({"width": 360, "height": 900})
        page.goto(f"{started.http}/")
        widths = page.eval_on_selector(".bar nav", "nav => [nav.scrollWidth, nav.clientWidth]")
    assert widths[0] <= widths[1]


# Groups of newer types


@contextmanager
def members_of_all_kinds(running: Server) -> Iterator[None]:
    """A group with two consumers, two classic members and two instances, each with partitions."""
    clients = OciClients(running.http)
    stream = clients.create_stream(NAMES[0], 8)
    with ExitStack() as stack:
        consumers = []

        def join(protocol: str, number: int) -> Consumer:
            settings = {
                "bootstrap.servers": running.kafka,
                "group.id": GROUP,
                "group.protocol": protocol,
                "client.id": f"{protocol}-member-{number}",
                "auto.offset.reset": "earliest",
            }
            if protocol == "classic":
                settings["partition.assignment.strategy"] = "cooperative-sticky"
            consumer = Consumer(settings)
            stack.callback(consumer.close)
            consumer.subscribe([NAMES[0]])
            consumers.append(consumer)
            return consumer

        def have_some() -> bool:
            for each in consumers:
                each.poll(0.05)
            return all(each.assignment() for each in consumers)

        join("consumer", 1)
        wait_for(have_some, "a consumer")
        for protocol, number in (("consumer", 2), ("classic", 1), ("classic", 2)):
            join(protocol, number)
        instances = [
            GroupReader(clients.stream_client(), stream.id, GROUP, f"instance-{number}", timeout_in_ms=60_000)
            for number in (1, 2)
        ]

        def settled() -> bool:
            for each in instances:
                each.get(10)
            owners = clients.stream_client().get_group(stream.id, GROUP).data.reservations
            return have_some() and len({each.reserved_instance for each in owners} - {None}) == 6

        wait_for(settled, "partitions for all six members")
        yield


def test_a_group_with_members_of_all_kinds_is_sound(page: Page) -> None:
    with server(group_initial_rebalance_delay_ms=0, oci_auth="off") as running, members_of_all_kinds(running):
        url = f"{running.http}/groups/{GROUP}"
        faults = look(page, url, contrast=True)
        members = page.get_by_role("list", name="Members").get_by_role("listitem").all_inner_texts()
        expect(page.get_by_role("link", name="Groups").first).to_have_attribute("aria-current", "true")
        owners = {row.locator("td").first.inner_text().strip() for row in page.locator("tbody tr").all()}
        violations = Axe().run(page).response["violations"]
    assert not faults, faults
    assert not violations, violations
    kinds = {"consumer-member": "127.0.0.1, ", "classic-member": "127.0.0.1, classic, ", "instance": "OCI instance, "}
    assert len(members) == 6
    for name, kind in kinds.items():
        assert sum(f"{name}-{number} {kind}" in each for each in members for number in (1, 2)) == 2, members
    assert len(owners) == 6


@contextmanager
def held_records(running: Server, topic: str, *, native: bool) -> Iterator[None]:
    """A share group with two members that hold records, some of them again, and dead letters without their topic."""
    with Wire(running.kafka) as wire, Wire(running.kafka) as other:
        wire.create(topic, 2, headrace_storage="native" if native else "log")
        configure(wire, f"{topic}-workers", share_auto_offset_reset="earliest", share_record_lock_duration_ms=60_000)
        configure(wire, f"{topic}-workers", errors_deadletterqueue_topic_name="no-such-topic")
        for number in range(20):
            wire.produce(topic, batch(b"task %d" % number), partition=number % 2)
        for connection, partition in ((wire, 0), (other, 1)):
            sharer = Sharer(connection, f"{topic}-workers", topic)
            sharer.beat()
            [got] = sharer.fetch(partition, records=6).responses[0].partitions
            offsets = [at for span in got.acquired_records for at in range(span.first_offset, span.last_offset + 1)]
            outcomes = zip(offsets[1:4], (RELEASE, REJECT, RELEASE), strict=True)
            sharer.acknowledge({partition: [(offset, offset, [outcome]) for offset, outcome in outcomes]})
            sharer.fetch(records=1)
        yield


@pytest.mark.parametrize("native", [False, True], ids=["log", "native"])
def test_a_share_group_with_held_records_is_sound(page: Page, native: bool) -> None:
    topic = NAMES[2]
    with server() as running, held_records(running, topic, native=native):
        faults = look(page, f"{running.http}/groups/{topic}-workers", contrast=True)
        expect(page.get_by_role("link", name="Groups").first).to_have_attribute("aria-current", "true")
        figures = dict(each.inner_text().split("\n")[:2] for each in page.locator(".figure").all())
        held = page.get_by_role("region", name="Records held").locator("tbody tr").all_inner_texts()
        violations = Axe().run(page).response["violations"]
        faults += look(page, f"{running.http}/groups", contrast=True)
        page.goto(f"{running.http}/topics/{topic}")
        expect(page.get_by_role("region", name="Groups")).to_contain_text(f"{topic}-workers")
    assert not faults, faults
    assert not violations, violations
    assert (figures["Members"], figures["Dead letters waiting"], figures["Total lag"]) == ("2", "2", "20")
    assert int(figures["Records held"]) + int(figures["To deliver again"]) >= 10
    assert len(held) >= 2
    assert native or any("\t2\t" in each for each in held), held
