"""Take the pictures of the web console in docs/images, while records flow: `python docs/pictures.py`.

It needs Chromium (`apt-get install chromium`) and takes about two and a half minutes. Run it after the console changes.
The pictures console-before-*.png stay: they show the console as it was.
"""

import json
import math
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.testing import InProcessServer, server

IMAGES = Path(__file__).parent / "images"
TOPICS = {"orders": (6, 2_000), "payments": (3, 800), "clicks": (6, 3_000)}
"""Partitions, and records per second on average."""
GROUPS = {"billing": ("orders", 3), "fraud": ("payments", 1), "trends": ("clicks", 2)}
"""The topic that each group reads, and its number of members."""
MOST_IN_FLIGHT = 20_000
LONG_S = 115
"""The overview shows two minutes."""
SPAWN = multiprocessing.get_context("spawn")


def produce(kafka: str) -> None:
    """Send records to all topics until the process is terminated, at rates that rise and fall."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50, "enable.idempotence": True})
    due = dict.fromkeys(TOPICS, 0.0)
    number, last = 0, time.monotonic()
    while True:
        time.sleep(0.1)
        now = time.monotonic()
        for place, (topic, (_, rate)) in enumerate(TOPICS.items()):
            due[topic] += (now - last) * rate * (1 + 0.3 * math.sin(now / 7 + 2 * place))
            while due[topic] >= 1:
                number += 1
                due[topic] -= 1
                producer.produce(topic, json.dumps({"id": number, "amount": number % 97}), f"c{number % 1_009}")
            producer.poll(0)
        if len(producer) > MOST_IN_FLIGHT:  # the machine is busy
            producer.flush(10)
        last = now


def consume(kafka: str, group: str, client: str) -> None:
    """Read as a member of a group until the process is terminated."""
    settings = {"bootstrap.servers": kafka, "group.id": group, "client.id": client, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"session.timeout.ms": 15_000, "auto.commit.interval.ms": 1_000})
    consumer.subscribe([GROUPS[group][0]])
    while True:
        consumer.consume(1_000, timeout=1)


@contextmanager
def flowing(kafka: str) -> Iterator[dict[str, SpawnProcess]]:
    """Run the producer and the members of all groups, and yield the members by their client ids."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_topics([NewTopic(topic, count) for topic, (count, _) in TOPICS.items()]).values():
        made.result(30)
    members = {
        f"{group}-{number}": SPAWN.Process(target=consume, args=(kafka, group, f"{group}-{number}"))
        for group, (_, count) in GROUPS.items()
        for number in range(1, count + 1)
    }
    running = [SPAWN.Process(target=produce, args=(kafka,)), *members.values()]
    try:
        for each in running:
            each.start()
        yield members
    finally:
        for each in running:
            if each.pid is not None:
                each.kill()
                each.join()


def opened(browser: Browser, url: str, *, width: int = 1600, height: int = 1000, theme: str = "light") -> Page:
    """Open a page of the console."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    page.goto(url)
    return page


def take(page: Page, name: str) -> None:
    """Save a picture of what the page shows."""
    if page.locator("main[data-live]").count():
        page.locator("#live[data-state=on]").wait_for()
    page.screenshot(path=IMAGES / f"console-{name}.png")
    print(f"wrote docs/images/console-{name}.png")


def take_login(browser: Browser) -> None:
    """Save a picture of the login page, which exists where users have passwords."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "first")
        first.write_text("jane:secret")
        with InProcessServer(
            bootstrap_user=first,
            authorizer_class_name=STANDARD_AUTHORIZER,
            oci_auth="verify",
            oci_auth_keys=first.parent,
        ) as started:
            take(opened(browser, f"{started.http}/login", width=390, height=560), "login")


def main() -> int:
    """Take all pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Chromium is not installed: apt-get install chromium", file=sys.stderr)
        return 1
    with (
        server(group_initial_rebalance_delay_ms=0) as started,
        flowing(started.kafka) as members,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        overview = opened(browser, started.http, height=1130)
        dark = opened(browser, started.http, width=360, height=900, theme="dark")
        time.sleep(LONG_S)  # the groups exist now
        group = opened(browser, f"{started.http}/groups/billing", height=1100)
        narrow = opened(browser, f"{started.http}/groups/billing", width=360, height=900)
        take(narrow, "narrow-light")
        members["billing-2"].kill()
        time.sleep(10)  # less than the session timeout: the partitions of the killed member have a lag
        take(group, "rebalance")
        time.sleep(12)
        take(overview, "overview")
        take(dark, "narrow-dark")
        broker = opened(browser, f"{started.http}/brokers", width=1280, height=900)
        broker.evaluate("scrollTo(0, document.body.scrollHeight)")
        take(broker, "brokers")
        take(opened(browser, f"{started.http}/topics/orders/records?partition=0", width=390, height=760), "records")
        take_login(browser)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
