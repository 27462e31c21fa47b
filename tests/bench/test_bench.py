"""Every bench works, with as little as it can be given. What it measures is not looked at: only that it does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Each measures for a moment, with everything started for it; only what hangs is to end by this.
pytestmark = pytest.mark.timeout(600)
NAMES = (
    *("kafka", "transactions", "cleaner", "tls", "native", "oci", "groups", "cluster", "scale", "metrics", "startup"),
    *("newer-groups", "recovery", "store", "spark", "realtime", "cold", "sinks", "records", "codec"),
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The cells of every table that was printed, without heads and rules."""
    assert done.returncode == 0, done.stderr
    assert "machine " in done.stdout
    assert "versions " in done.stdout
    lines = [line.strip("| ") for line in done.stdout.splitlines() if line.startswith("|")]
    rules = {number for number, line in enumerate(lines) if re.fullmatch(r"[-:| ]+", line)}
    heads = {number - 1 for number in rules}
    kept = (line for number, line in enumerate(lines) if number not in rules | heads)
    return [[cell.strip() for cell in line.split("|")] for line in kept]


def test_help_lists_every_bench() -> None:
    done = bench("--help")
    assert done.returncode == 0
    assert [name for name in NAMES if not re.search(rf"^  {name} ", done.stdout, re.MULTILINE)] == []


def test_an_unknown_bench_is_refused() -> None:
    done = bench("speed")
    assert done.returncode == 2
    assert "unrecognized arguments: speed" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_throughput(codec: str) -> None:
    given = ["--parts", "throughput", "--sizes", "100", "--batches", "16KB", "--megabytes", "0.3", "--codecs", codec]
    found = rows(bench("kafka", "--quick", *given))
    assert [row[:4] for row in found] == [[name, "100 B", "16KB", codec] for name in ("produce", "consume", "catch up")]
    assert "-" not in [cell for row in found for cell in row]


@pytest.mark.long
def test_transactions() -> None:
    given = ["--sizes", "100", "--megabytes", "0.3", "--transactions", "10"]
    found = rows(bench("transactions", "--quick", *given))
    assert [row[0] for row in found] == [
        "produce without transactions, 100 B", "produce, transactions of 100 ms, 100 B",
        "produce with to without, 100 B",
        "produce without transactions, 100 B: CPU", "produce, transactions of 100 ms, 100 B: CPU",
        "consume read_uncommitted, 100 B", "consume read_committed, 100 B",
        "consume read_uncommitted, 100 B: CPU", "consume read_committed, 100 B: CPU", "committed to uncommitted, 100 B",
        "from begin to committed, 1 partition p50", "from begin to committed, 1 partition p99",
        "commit alone, 1 partition p50", "commit alone, 1 partition p99",
        "from begin to committed, 16 partitions p50", "from begin to committed, 16 partitions p99",
        "1 partition: CPU", "16 partitions: CPU",
        "8 producers, one-record transactions", "8 producers, p50", "8 producers, p99",
        "8 producers, one-record transactions: CPU",
    ]  # fmt: skip
    assert "-" not in [row[2] for row in found]


@pytest.mark.long
def test_newer_groups() -> None:
    found = rows(bench("newer-groups", "--quick", "--members", "10", "--heartbeats", "50", "--megabytes", "0.3"))
    many = "10 members, 10 partitions: first join to all assigned"
    shares = (
        *(f"100 B, consumers: {each}" for each in ("1, 500", "4, 500", "1, 5,000")),
        *(f"1,024 B, consumers: {each}" for each in ("1, 500", "4, 500")),
        "native topic, 100 B, consumers: 2, 500",
    )
    assert [row[0] for row in found] == [
        "two consumers: both have partitions", "third consumer: it has its share",
        many, f"{many}: CPU", f"{many}: heartbeats",
        *(f"heartbeat that changes nothing: {what}" for what in ("CPU", "time", "pure machine")),
        "first share record after subscribing, group new",
        *(f"share, {which} a poll{what}" for which in shares for what in ("", ": CPU")),
    ]  # fmt: skip
    assert "-" not in [row[2] for row in found]


@pytest.mark.long
def test_the_cleaner() -> None:
    found = rows(bench("cleaner", "--quick", "--megabytes", "1", "--batches", "500"))
    assert [row[0] for row in found if row[0].endswith(" cleaned")] == [
        "16 KB batches: bytes cleaned", "one-record batches: bytes cleaned", "one-record batches: batches cleaned",
    ]  # fmt: skip
    assert "-" not in [row[2] for row in found]


@pytest.mark.long
def test_tls() -> None:
    found = rows(bench("tls", "--quick", "--megabytes", "0.3"))
    assert [row[:2] for row in found] == [["Headrace", load] for load in ("produce", "consume")]


def test_metrics() -> None:
    found = rows(bench("metrics", "--quick", "--rounds", "1", "--against", str(ROOT / "src")))
    assert [row[0] for row in found] == [
        *["request, 1 in a read"] * 2, "the difference; asked for 0.5",
        *["request, 20 in a read"] * 2, "the difference; asked for 0.5",
        "/metrics",
    ]  # fmt: skip


@pytest.mark.long
def test_several_load_generators_share_the_work() -> None:
    given = ["--parts", "throughput", "--sizes", "100", "--batches", "1MB", "--megabytes", "0.3", "--processes", "2"]
    assert len(rows(bench("kafka", "--quick", *given))) == 3


@pytest.mark.long
def test_requests_and_latency() -> None:
    given = ["--parts", "requests,latency", "--requests", "200", "--rates", "500", "--lingers", "0"]
    found = rows(bench("kafka", "--quick", "--seconds", "0.2", *given))
    assert [row[0] for row in found] == ["100 B", "500 records/s"]
    assert "-" not in [cell for row in found for cell in row]


@pytest.mark.long
def test_the_oci_listener() -> None:
    given = ["--megabytes", "1", "--requests", "100", "--seconds", "0.2", "--no-sdk"]
    found = rows(bench("oci", "--quick", *given))
    assert [row[0] for row in found] == [
        "PutMessages of 100", "GetMessages of 100", "GetMessages, group, of 100", "PutMessages of 1", "500 requests/s",
    ]  # fmt: skip
    assert "-" not in [cell for row in found for cell in row]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "arguments", "first"),
    [
        ("native", ["--records", "20000"], "redis-benchmark XADD"),
        ("groups", ["--members", "20", "--rounds", "1"], "two consumers join, confluent-kafka"),
        ("scale", [], "3"),
        ("startup", ["--rounds", "1"], "start to ready"),
        ("recovery", ["--transactions", "300"], "a log with 300 committed transactions"),
        ("store", ["--sizes", "16384"], "16,384"),
        ("cold", ["--records", "3000", "--fetches", "5"], "at a random offset"),
        ("records", ["--rounds", "1", "--megabytes", "0.05"], "check a batch of 170 bytes"),
        ("codec", ["--rounds", "1"], "decode ProduceRequest v9, 1 x 16 KiB"),
    ],
)
def test_the_other_benches(name: str, arguments: list[str], first: str) -> None:
    assert rows(bench(name, "--quick", *arguments))[0][0] == first


@pytest.mark.long
def test_several_brokers() -> None:
    found = rows(bench("cluster", "--quick", "--parts", "cost,groups,metadata", "--counts", "2"))
    cost = [["embedded", "1"], ["one Redis", "2"], ["cluster of 3 + 3", "2"]]
    loads = ("produce, 5 MB/s each", "produce, all there is", "consume")
    assert [row[:3] for row in found[:9]] == [[what, *each] for what in loads for each in cost]
    assert [row[0] for row in found[9:]] == [
        "30 groups, one broker of three ends in order", "30 groups, it comes back",
        "30 groups, one broker of three is killed", "30 groups, it comes back",
        "300 partitions in 100 topics, first answers", "300 partitions in 100 topics, answers",
    ]  # fmt: skip
    # So little may take less than a tick of the processor, of which there is no ratio.
    assert "-" not in [cell for row in found[:9] for cell in row[:-1]]


@pytest.mark.long
@pytest.mark.spark
def test_sinks() -> None:
    found = rows(bench("sinks", "--quick", "--records", "10000", "--batches", "3"))
    sinks = ["topic", "Delta table", "Spark's Parquet", "nothing"]
    writes = [f"write to: {sink}" for sink in sinks]
    assert [row[0] for row in found] == writes * 2 + [f"micro-batch to: {sink}" for sink in sinks]


@pytest.mark.long
@pytest.mark.spark
def test_spark() -> None:
    found = rows(bench("spark", "--quick", "--records", "30000", "--rounds", "1", "--sizes", "100"))
    rates = ["no Spark, one process", "batch read to noop", "by the Kafka protocol", "archive, whole run"]
    assert [row[0] for row in found[:6]] == [*rates, "Spark's Parquet sink", "visible in foreachBatch"]
    assert [row[0] for row in found[6:]] == ["driver", "JVM", "Python workers"]


def test_a_load_that_gets_too_few_records_fails_in_time() -> None:
    program = """
from bench import load
from bench.targets import null
load.LIMIT_S = 1
with null("--relay") as target:
    task = load.Receive(servers=target.address, topic="t", records=1, warm_up=0)
    try:
        load._receive(task, lambda: 0)
    except load.LoadFailed as error:
        print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert "0 of 1 records arrived" in done.stdout, done.stderr


@pytest.mark.maven
def test_realtime() -> None:
    found = rows(bench("realtime", "--quick", "--records", "20"))
    assert [line[0] for line in found] == ["Headrace, no Spark", "Headrace, real-time mode"]
    assert all(float(cell.replace(",", "")) > 0 for line in found for cell in line[1:])
