"""Runs benches: `python -m bench` all of them, `python -m bench NAME` one, with options of its own (-h)."""

import argparse
import subprocess
import sys
from importlib import import_module

BENCHES = {
    "kafka": "produce, consume, requests and latency through the Kafka listener",
    "transactions": "throughput and latency of transactions, and Apache Kafka's",
    "cleaner": "passes of the cleaner over compacted topics, and Apache Kafka's",
    "tls": "the Kafka listener with and without TLS, and Apache Kafka's",
    "native": "native topics, log topics and redis-benchmark's XADD",
    "oci": "messages in and out through the OCI API",
    "groups": "a group of two and one of a thousand: from joining to assigned",
    "newer-groups": "consumer groups of KIP-848 and share groups, and Apache Kafka's",
    "cluster": "several brokers: what they cost, and waiting when a broker or a shard goes",
    "scale": "membership and metadata of 10, 100 and 1 000 brokers, measured and simulated",
    "metrics": "what counting costs a request, and how long a scrape holds the loop",
    "startup": "start to ready, memory when idle, and the help of the command line",
    "recovery": "becoming the leader of a log with many aborted transactions",
    "store": "the ceiling of the embedded Valkey: append script and reads",
    "spark": "batch reads, the archive, how soon records are seen, local[2]",
    "realtime": "Spark's real-time mode, from topic to topic",
    "cold": "old records from the archive, by one Fetch",
    "sinks": "Spark's rows into topics and Delta tables, local[2]",
    "records": "record batches: check, build, walk, Arrow columns",
    "codec": "Kafka messages: ours, kio's and kafka-python's",
}


def run(name: str, arguments: list[str]) -> int:
    """Run one bench in this process; its exit status."""
    bench = import_module(f"bench.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=bench.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small volume: does it work, and about how fast")
    bench.add_arguments(parser)
    status: int = bench.run(parser.parse_args(arguments)) or 0
    return status


def run_all(arguments: list[str]) -> int:
    """Run every bench, each in a process of its own; 1 when any failed."""
    failed = []
    for name, summary in BENCHES.items():
        print(f"\n## {name}: {summary}\n", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", name, *arguments], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in BENCHES:
        return run(arguments[0], arguments[1:])
    listing = "\n".join(f"  {name:<12} {summary}" for name, summary in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        usage="python -m bench [-h] [--quick] | NAME [OPTIONS]",
        description="Measure Headrace. Without a name: every bench, one after the other.",
        epilog=f"benches:\n{listing}\n\n`python -m bench NAME -h` shows its options; docs/benchmarks.md explains all.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small volumes: does it work, and about how fast")
    options = parser.parse_args(arguments)
    return run_all(["--quick"] if options.quick else [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
